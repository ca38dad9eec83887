//! Keys and values on the device.

use std::{ops::Range, sync::Arc};

use half::f16;
use thermocline_shaders::head_pitch;

use super::{
    attention::{AttentionBuffers, AttentionOps},
    latent,
    segment::Segment,
};
use crate::{
    error::{Error, Result},
    gpu::{Buffer, Gpu, Op, Purpose, Recorder, Usage},
    model::{AttentionConfig, Rope, RopeOrder},
    runtime::{KvLayer, KvType, OffHostRows},
};

/// Keys and values of one layer of one conversation on a device, each `[n_kv_head, room, head_pitch]` of its own width, with the
/// dispatches that work on them. Rows are a ring, as in RAM: that of position `p` is `p % room`. Latent attention's keys are their own
/// values, `[latent | rotated key]`. They belong to one [`GpuLayers`](super::GpuLayers).
#[derive(Debug)]
pub(crate) struct GpuKv {
    /// Identity of the layers whose buffers the dispatches read beside the cache's own.
    owner: Arc<()>,
    ops: KvOps,
    keys: Buffer,
    values: Buffer,
    rows: DeviceRows,
    /// True if the buffers are another layer's.
    shared: bool,
}

/// The layout of keys and values on the device.
#[derive(Debug, Clone, Copy)]
struct DeviceRows {
    /// Elements that are ahead of the latent in RAM and behind it here.
    rotated: usize,
    /// Positions that there is room for.
    room: usize,
    keys: RowLayout,
    /// Without heads where keys are their own values.
    values: RowLayout,
}

/// The layout of keys, or of values: `[heads, room, head_pitch(dim)]`.
#[derive(Debug, Clone, Copy)]
struct RowLayout {
    heads: usize,
    /// Elements of a row.
    dim: usize,
    /// Bytes of one element.
    bytes: usize,
}

/// The dispatches of one layer that touch its keys and values.
#[derive(Debug)]
pub(crate) struct KvOps {
    /// Norms, rotation, append.
    pub append: Op,
    /// A few tokens, in one split.
    pub decode: Op,
    /// A few tokens, in several: partial results.
    pub decode_split: Op,
    /// Many tokens.
    pub prompt: Op,
}

impl GpuKv {
    /// Buffers and dispatches of a layer with room for `room` positions, whose keys are rotated by `rope`, if at all. A cache of
    /// [`KvType::Q8_0`] has [`KvType::F16`] here.
    ///
    /// # Errors
    /// [`Error::Memory`] if they do not fit the budget or a binding, [`Error::Gpu`] if the device is lost.
    pub(crate) fn new(
        gpu: &Gpu,
        owner: &Arc<()>,
        rope: Option<&Rope>,
        buffers: &AttentionBuffers,
        attention: &AttentionOps,
        room: usize,
        ty: KvType,
    ) -> Result<Self> {
        let rows = DeviceRows::new(&attention.layout.shape, room, ty);
        let [of_keys, of_values] = [rows.keys, rows.values].map(|of| of.all_bytes(room));
        let wanted = of_keys.max(of_values);
        let caps = gpu.caps();
        // Kernels count words, and rows of heads, in 32 bits.
        let most = caps.max_binding.min(caps.max_buffer).min(1 << 33);
        if wanted > most {
            return Err(Error::Memory { what: "KV cache of one layer", wanted, available: most });
        }
        let buffer = |bytes| gpu.arena().buffer(Purpose::Kv, "KV cache", bytes, Usage::Storage);
        let keys = buffer(of_keys)?;
        let values = if rows.values.heads == 0 { keys.clone() } else { buffer(of_values)? };
        let ops = KvOps::new(gpu, rope, buffers, attention, &keys, &values, rows.keys.bytes == 4)?;
        Ok(GpuKv { owner: Arc::clone(owner), ops, keys, values, rows, shared: false })
    }

    /// The same buffers with the dispatches of a layer that reads them and has none of its own.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost.
    pub(crate) fn shared_with(
        &self,
        gpu: &Gpu,
        rope: Option<&Rope>,
        buffers: &AttentionBuffers,
        attention: &AttentionOps,
    ) -> Result<Self> {
        let (keys, values) = (self.keys.clone(), self.values.clone());
        let ops = KvOps::new(gpu, rope, buffers, attention, &keys, &values, self.rows.keys.bytes == 4)?;
        Ok(GpuKv { owner: Arc::clone(&self.owner), ops, keys, values, rows: self.rows, shared: true })
    }

    /// Bytes on the device of a layer's keys and values with room for `room` positions.
    pub(crate) fn bytes_of(shape: &AttentionConfig, room: usize, ty: KvType) -> u64 {
        DeviceRows::new(shape, room, ty).keys_and_values()
    }

    /// Positions that there is room for.
    pub(crate) fn room(&self) -> usize {
        self.rows.room
    }

    /// True if it was made for the layers of this identity.
    pub(crate) fn is_of(&self, owner: &Arc<()>) -> bool {
        Arc::ptr_eq(&self.owner, owner)
    }

    /// The dispatches that read and write it.
    pub(crate) fn ops(&self) -> &KvOps {
        &self.ops
    }

    /// Uploads `rows` of every head of `from`, in loads of the size of `segment`'s ring.
    pub(crate) fn fill(&self, from: &KvLayer, rows: Range<usize>, segment: &mut Segment) -> Result<()> {
        let (at, mut row, mut bytes) = (self.rows, self.rows.row(), Vec::new());
        let heads = [(&self.keys, &from.keys), (&self.values, &from.values)];
        for load in at.loads(rows, segment.room_up())? {
            bytes.clear();
            for Run { values, head, rows } in &load {
                let of = at.of(*values);
                let row = &mut row[..of.dim];
                for i in rows.clone() {
                    heads[usize::from(*values)].1[*head].get(i, row);
                    row.rotate_left(at.rotated);
                    of.encode(row, &mut bytes);
                }
            }
            let mut rest = &bytes[..];
            let pieces = load.iter().map(|Run { values, head, rows }| {
                let (piece, after) = rest.split_at(rows.len() * at.of(*values).row_bytes());
                rest = after;
                (piece, heads[usize::from(*values)].0, at.offset(*values, *head, rows.start))
            });
            segment.begin(&pieces.collect::<Vec<_>>())?;
            segment.submit()?;
        }
        Ok(())
    }

    /// Reads `rows` of every head, all that are held, back into `into`, which has none yet.
    pub(crate) fn drain(&self, into: &mut KvLayer, rows: Range<usize>, segment: &mut Segment) -> Result<()> {
        let (at, mut row) = (self.rows, self.rows.row());
        segment.drop_recorded();
        into.begin_at(rows.start);
        for load in at.loads(rows, segment.room_down())? {
            let pieces = load.iter().map(|Run { values, head, rows }| {
                let buffer = if *values { &self.values } else { &self.keys };
                (buffer, at.offset(*values, *head, rows.start), (rows.len() * at.of(*values).row_bytes()) as u64)
            });
            segment.read(&pieces.collect::<Vec<_>>(), |read| {
                let mut rest = read;
                for Run { values, head, rows } in &load {
                    let of = at.of(*values);
                    let (run, after) = rest.split_at(rows.len() * of.row_bytes());
                    rest = after;
                    let heads = if *values { &mut into.values } else { &mut into.keys };
                    let row = &mut row[..of.dim];
                    for bytes in run.chunks_exact(of.row_bytes()) {
                        of.decode(bytes, row);
                        row.rotate_right(at.rotated);
                        heads[*head].push(row);
                    }
                }
            })?;
        }
        Ok(())
    }
}

impl OffHostRows for GpuKv {
    fn bytes(&self) -> u64 {
        if self.shared { 0 } else { self.rows.keys_and_values() }
    }

    fn copy_rows(&self, from: &dyn OffHostRows, rows: Range<usize>, recorder: &mut Recorder) -> Result<()> {
        let from = from.of::<Self>()?;
        // Another layer's buffers are left to it.
        if self.shared {
            return Ok(());
        }
        let of = [(&from.keys, &self.keys, false), (&from.values, &self.values, true)];
        for (from_buffer, to_buffer, values) in of {
            let of = self.rows.of(values);
            for rows in self.rows.pieces(&from.rows, rows.clone()) {
                let bytes = (rows.len() * of.row_bytes()) as u64;
                for head in 0..of.heads {
                    let [from_at, to_at] = [&from.rows, &self.rows].map(|at| at.offset(values, head, rows.start));
                    recorder.copy(from_buffer, from_at, to_buffer, to_at, bytes);
                }
            }
        }
        Ok(())
    }
}

/// Consecutive rows of one head's keys, or of its values.
#[derive(Debug)]
struct Run {
    values: bool,
    head: usize,
    rows: Range<usize>,
}

/// Bytes of one element on the device.
fn element_bytes(ty: KvType) -> usize {
    if ty.on_gpu() == KvType::F32 { 4 } else { 2 }
}

impl DeviceRows {
    fn new(shape: &AttentionConfig, room: usize, ty: KvType) -> Self {
        let rows = |heads, dim| RowLayout { heads, dim, bytes: element_bytes(ty) };
        DeviceRows {
            rotated: shape.latent_rope_dim(),
            room,
            keys: rows(shape.n_kv_head, shape.head_dim),
            values: rows(shape.value_heads(), shape.value_dim),
        }
    }

    /// The layout of values, or of keys.
    fn of(&self, values: bool) -> RowLayout {
        if values { self.values } else { self.keys }
    }

    /// Room for the elements of a row of either kind.
    fn row(&self) -> Vec<f32> {
        vec![0.0; self.keys.dim.max(self.values.dim)]
    }

    /// Bytes of all keys and all values.
    fn keys_and_values(self) -> u64 {
        self.keys.all_bytes(self.room).saturating_add(self.values.all_bytes(self.room))
    }

    fn offset(&self, values: bool, head: usize, row: usize) -> u64 {
        (head * self.room + row % self.room) as u64 * self.of(values).row_bytes() as u64
    }

    /// The end of the rows from `start` on, up to `end`, that lie one behind the other.
    fn run_end(self, start: usize, end: usize) -> usize {
        end.min(start.saturating_add(self.room - start % self.room))
    }

    /// Those of `rows` that both rings have room for, in pieces that wrap in neither.
    fn pieces(self, other: &Self, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let (other, end) = (*other, rows.end);
        let mut start = rows.start.max(end.saturating_sub(self.room.min(other.room)));
        std::iter::from_fn(move || {
            let piece = start..other.run_end(start, self.run_end(start, end));
            start = piece.end;
            (!piece.is_empty()).then_some(piece)
        })
    }

    /// The rows `all` of every head's keys and values in loads of `room` bytes.
    fn loads(self, all: Range<usize>, room: u64) -> Result<Vec<Vec<Run>>> {
        let wanted = self.keys.row_bytes().max(self.values.row_bytes()) as u64;
        if room < wanted {
            return Err(Error::Memory { what: "staging of one row of the KV cache", wanted, available: room });
        }
        let most = (room / wanted) as usize;
        let (mut loads, mut load, mut left) = (Vec::new(), Vec::new(), most);
        for (values, heads) in [(false, self.keys.heads), (true, self.values.heads)] {
            for head in 0..heads {
                let mut start = all.start;
                while start < all.end {
                    let end = self.run_end(start, all.end.min(start + left));
                    left -= end - start;
                    load.push(Run { values, head, rows: start..end });
                    start = end;
                    if left == 0 {
                        loads.push(std::mem::take(&mut load));
                        left = most;
                    }
                }
            }
        }
        loads.extend((!load.is_empty()).then_some(load));
        Ok(loads)
    }
}

impl RowLayout {
    /// Bytes from one row to the next.
    fn row_bytes(self) -> usize {
        head_pitch(self.dim as u32) as usize * self.bytes
    }

    /// Bytes of the rows of all heads, with room for so many positions.
    fn all_bytes(self, room: usize) -> u64 {
        (self.row_bytes() as u64 * self.heads as u64).saturating_mul(room as u64)
    }

    fn encode(self, row: &[f32], into: &mut Vec<u8>) {
        let end = into.len() + self.row_bytes();
        if self.bytes == 4 {
            into.extend(row.iter().flat_map(|x| x.to_le_bytes()));
        } else {
            into.extend(row.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()));
        }
        into.resize(end, 0);
    }

    fn decode(self, from: &[u8], row: &mut [f32]) {
        for (x, bytes) in row.iter_mut().zip(from.chunks_exact(self.bytes)) {
            *x = match *bytes {
                [a, b] => f16::from_le_bytes([a, b]).to_f32(),
                [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
                _ => 0.0,
            };
        }
    }
}

impl KvOps {
    fn new(
        gpu: &Gpu,
        rope: Option<&Rope>,
        buffers: &AttentionBuffers,
        attention: &AttentionOps,
        keys: &Buffer,
        values: &Buffer,
        full: bool,
    ) -> Result<Self> {
        let switch = |on: bool| f64::from(u8::from(on));
        let layout = &attention.layout;
        let neox = rope.is_some_and(|rope| rope.order == RopeOrder::NeoX);
        let table = layout.shape.rope.and_then(|table| buffers.tables.get(table));
        let kv_f32 = ("KV_F32", switch(full));
        let head_dim = ("HEAD_DIM", layout.shape.head_dim as f64);
        let value_dim = ("VALUE_DIM", layout.shape.value_dim as f64);
        let pipelines = gpu.pipelines();
        let nothing = gpu.nothing();

        let grows = ("QUERY_SCALE", switch(layout.shape.query_scale.is_some()));
        let heads = [
            ("NEOX", switch(neox)),
            ("ROPE", switch(table.is_some())),
            ("QK_NORM", switch(attention.q_norm.is_some())),
            ("QK_NORM_ALL", switch(attention.norms_all)),
            ("NORM_AFTER_ROPE", switch(layout.shape.norm_after_rope)),
            ("GATED", switch(layout.shape.gated)),
            ("V_NORM", switch(layout.shape.norm_values)),
            ("VALUE_SCALE", layout.shape.value_scale.into()),
            kv_f32,
            grows,
        ];
        let table = table.unwrap_or(nothing);
        let append = match (attention.latent_norm(), &buffers.latent) {
            (Some(norm), Some(latent)) => {
                let overrides = [heads[0], heads[1], kv_f32, grows];
                let append = pipelines.get("latent_append", None, latent::WORKGROUP, &overrides)?;
                let of = [&buffers.qkv, &latent.projected, table, norm, &latent.inputs, &buffers.q, keys];
                Op::new(gpu, &append, &of.map(Into::into))?
            }
            _ => {
                let append = pipelines.get("rope_append", None, layout.rope_workgroup(), &heads)?;
                let [q_norm, k_norm] = [&attention.q_norm, &attention.k_norm].map(|it| it.as_ref().unwrap_or(nothing));
                let of = [&buffers.qkv, table, q_norm, k_norm, &buffers.q, keys, values];
                Op::new(gpu, &append, &of.map(Into::into))?
            }
        };
        let with_sinks = ("SINKS", switch(attention.sinks.is_some()));
        let sinks = attention.sinks.as_ref().unwrap_or(nothing);
        let overrides = [("HEADS", f64::from(layout.decode_heads)), head_dim, value_dim, kv_f32, with_sinks];
        let decode = pipelines.get("attention_decode", None, layout.decode_workgroup(), &overrides)?;
        let into = |out: &Buffer| Op::new(gpu, &decode, &[&buffers.q, keys, values, sinks, out].map(Into::into));
        let (direct, split) = (into(&buffers.heads)?, into(&buffers.partials)?);
        let workgroup = AttentionBuffers::PROMPT_WORKGROUP;
        let pipeline =
            pipelines.get("attention_prompt", None, workgroup, &[head_dim, value_dim, kv_f32, with_sinks])?;
        let prompt = direct.variant(&pipeline);
        Ok(KvOps { append, decode: direct, decode_split: split, prompt })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kv_loads_hold_every_row_once_within_the_ring() {
        let of = |heads, dim| RowLayout { heads, dim, bytes: 2 };
        let rows = DeviceRows { rotated: 0, room: 50, keys: of(3, 6), values: of(2, 4) };
        for room in [16, 40, 16 * 7, 1 << 20] {
            for len in [0, 1, 13] {
                let mut seen = Vec::new();
                for load in rows.loads(0..len, room).unwrap() {
                    let bytes: usize = load.iter().map(|run| run.rows.len() * rows.of(run.values).row_bytes()).sum();
                    assert!(bytes > 0 && bytes as u64 <= room);
                    seen.extend(load.into_iter().flat_map(|run| run.rows.map(move |row| (run.values, run.head, row))));
                }
                let all = [false, true].into_iter();
                let all = all.flat_map(|values| {
                    let heads = 0..rows.of(values).heads;
                    heads.flat_map(move |head| (0..len).map(move |row| (values, head, row)))
                });
                assert_eq!(seen, all.collect::<Vec<_>>(), "{len} rows, {room} bytes");
            }
        }
        assert!(matches!(rows.loads(0..1, 15), Err(Error::Memory { wanted: 16, available: 15, .. })));
    }

    #[test]
    fn pieces_of_rings_wrap_in_neither_and_are_the_newest_rows() {
        let of = RowLayout { heads: 1, dim: 8, bytes: 2 };
        let ring = |room| DeviceRows { rotated: 0, room, keys: of, values: of };
        for (to, from) in [(8, 8), (8, 12), (12, 8), (50, 8), (50, 60)] {
            for (start, end) in (0..40).flat_map(|start| (start..40).map(move |end| (start, end))) {
                let pieces: Vec<_> = ring(to).pieces(&ring(from), start..end).collect();
                let rows: Vec<usize> = pieces.iter().flat_map(|piece| piece.clone()).collect();
                let wanted: Vec<usize> = (start.max(end.saturating_sub(to.min(from)))..end).collect();
                assert_eq!(rows, wanted, "{start}..{end} from {from} to {to}");
                for (room, piece) in [to, from].into_iter().flat_map(|room| pieces.iter().map(move |it| (room, it))) {
                    assert_eq!(piece.start / room, (piece.end - 1) / room, "{piece:?} of {room}");
                }
            }
        }
    }
}
