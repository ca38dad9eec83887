//! Keys and values on the device.

use std::sync::Arc;

use half::f16;
use thermocline_shaders::head_pitch;

use super::{
    attention::{AttentionBuffers, AttentionOps, has_prompt_kernel},
    segment::Segment,
};
use crate::{
    error::{Error, Result},
    gpu::{Buffer, Gpu, Op, Purpose, Usage},
    model::{KvLayer, KvType, ModelConfig, Position, RopeOrder},
};

/// Keys and values of one layer of one conversation on the device of one [`super::GpuProcessor`], each
/// `[n_kv_head, capacity, head_pitch]`, with the dispatches that work on them.
#[derive(Debug)]
pub(crate) struct GpuKv {
    /// Whose buffers the dispatches read beside the cache's own.
    owner: Arc<()>,
    ops: KvOps,
    keys: Buffer,
    values: Buffer,
    rows: DeviceRows,
}

/// How rows lie on the device.
#[derive(Debug, Clone, Copy)]
struct DeviceRows {
    heads: usize,
    capacity: usize,
    head_dim: usize,
    /// Of one element.
    bytes: usize,
}

/// The dispatches of one layer that touch its keys and values.
#[derive(Debug)]
pub(super) struct KvOps {
    /// Norms of heads, rotation, append.
    pub rope: Op,
    /// A few tokens, in one split.
    pub decode: Op,
    /// A few tokens, in several: partial results.
    pub decode_split: Op,
    /// Many tokens.
    pub prompt: Option<Op>,
}

impl GpuKv {
    /// Buffers and dispatches of a layer for `capacity` tokens, whose keys the rotations of table `table` turn. 8-bit caches are
    /// for the CPU; here they are [`KvType::F16`].
    ///
    /// # Errors
    /// [`Error::Memory`] if they do not fit the budget or a binding, [`Error::Gpu`] if the device is lost.
    pub(super) fn new(
        gpu: &Gpu,
        config: &ModelConfig,
        owner: &Arc<()>,
        buffers: &AttentionBuffers,
        attention: &AttentionOps,
        table: Option<usize>,
        (capacity, ty): (usize, KvType),
    ) -> Result<Self> {
        let (heads, head_dim) = (config.n_kv_head, config.head_dim);
        let rows = DeviceRows { heads, capacity, head_dim, bytes: element_bytes(ty) };
        let wanted = rows.all_bytes();
        let caps = gpu.caps();
        // Kernels count words, and rows of heads, in 32 bits.
        let most = caps.max_binding.min(caps.max_buffer).min(1 << 33);
        if wanted > most {
            return Err(Error::Memory { what: "KV cache of one layer", wanted, available: most });
        }
        let buffer = || gpu.arena().buffer(Purpose::Kv, "KV cache", wanted, Usage::Storage);
        let (keys, values) = (buffer()?, buffer()?);
        let table = table.and_then(|table| buffers.tables.get(table));
        let ops = KvOps::new(gpu, config, buffers, attention, table, (&keys, &values), rows.bytes == 4)?;
        Ok(GpuKv { owner: Arc::clone(owner), ops, keys, values, rows })
    }

    /// Bytes on the device of a layer's keys and values for `capacity` tokens.
    pub(crate) fn bytes_of(config: &ModelConfig, capacity: usize, ty: KvType) -> u64 {
        let (heads, head_dim) = (config.n_kv_head, config.head_dim);
        2 * DeviceRows { heads, capacity, head_dim, bytes: element_bytes(ty) }.all_bytes()
    }

    /// Whether it was made for the processor of this identity.
    pub(crate) fn is_of(&self, owner: &Arc<()>) -> bool {
        Arc::ptr_eq(&self.owner, owner)
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        2 * self.rows.all_bytes()
    }

    /// The dispatches.
    pub(super) fn ops(&self) -> &KvOps {
        &self.ops
    }

    /// Takes over the first `len` rows of every head, in loads of `segment`'s size.
    pub(crate) fn fill(&self, from: &KvLayer, len: usize, segment: &mut Segment) -> Result<()> {
        let (at, mut row) = (self.rows, vec![0.0; self.rows.head_dim]);
        let step = at.step(segment.room_up())?;
        let mut bytes = Vec::new();
        for (buffer, heads) in [(&self.keys, &from.keys), (&self.values, &from.values)] {
            for (head, rows) in heads.iter().enumerate() {
                for start in (0..len).step_by(step) {
                    bytes.clear();
                    for i in start..len.min(start + step) {
                        rows.get(i, &mut row);
                        at.encode(&row, &mut bytes);
                    }
                    segment.begin(&[(&bytes, buffer, at.offset(head, start))])?;
                    segment.submit()?;
                }
            }
        }
        Ok(())
    }

    /// Gives the first `len` rows of every head to `into`, which has none yet.
    pub(crate) fn drain(&self, into: &mut KvLayer, len: usize, segment: &mut Segment) -> Result<()> {
        let (at, mut row) = (self.rows, vec![0.0; self.rows.head_dim]);
        let step = at.step(segment.room_down())?;
        for (buffer, heads) in [(&self.keys, &mut into.keys), (&self.values, &mut into.values)] {
            for (head, rows) in heads.iter_mut().enumerate() {
                for start in (0..len).step_by(step) {
                    let bytes = (len.min(start + step) - start) * at.row_bytes();
                    segment.read(&[(buffer, at.offset(head, start), bytes as u64)], |read| {
                        for bytes in read.chunks_exact(at.row_bytes()) {
                            at.decode(bytes, &mut row);
                            rows.push(&row);
                        }
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// Of one element on the device.
fn element_bytes(ty: KvType) -> usize {
    match ty {
        KvType::F32 => 4,
        KvType::F16 | KvType::Q8_0 => 2,
    }
}

impl DeviceRows {
    /// From one row to the next.
    fn row_bytes(self) -> usize {
        head_pitch(self.head_dim as u32) as usize * self.bytes
    }

    /// Of all keys, or all values.
    fn all_bytes(self) -> u64 {
        (self.row_bytes() as u64 * self.heads as u64).saturating_mul(self.capacity as u64)
    }

    fn offset(self, head: usize, row: usize) -> u64 {
        (head * self.capacity + row) as u64 * self.row_bytes() as u64
    }

    /// Rows that `room` bytes hold.
    fn step(self, room: u64) -> Result<usize> {
        let wanted = self.row_bytes() as u64;
        if room < wanted {
            return Err(Error::Memory { what: "staging of one row of the KV cache", wanted, available: room });
        }
        Ok((room / wanted) as usize)
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
        config: &ModelConfig,
        buffers: &AttentionBuffers,
        attention: &AttentionOps,
        table: Option<&Buffer>,
        (keys, values): (&Buffer, &Buffer),
        full: bool,
    ) -> Result<Self> {
        let switch = |on: bool| f64::from(u8::from(on));
        let neox = matches!(&config.position, Position::Rope(rope) if rope.order == RopeOrder::NeoX);
        let kv_f32 = ("KV_F32", switch(full));
        let head_dim = ("HEAD_DIM", config.head_dim as f64);
        let pipelines = gpu.pipelines();
        let nothing = gpu.nothing();

        let overrides = [
            ("NEOX", switch(neox)),
            ("ROPE", switch(table.is_some())),
            ("QK_NORM", switch(attention.q_norm.is_some())),
            kv_f32,
        ];
        let rope = pipelines.get("rope_append", None, buffers.rope_workgroup(), &overrides)?;
        let norm = |norm: &Option<Buffer>| norm.as_ref().unwrap_or(nothing).into();
        let rope = Op::new(
            gpu,
            &rope,
            &[
                (&buffers.qkv).into(),
                table.unwrap_or(nothing).into(),
                norm(&attention.q_norm),
                norm(&attention.k_norm),
                (&buffers.q).into(),
                keys.into(),
                values.into(),
            ],
        )?;
        let overrides = [("HEADS", f64::from(buffers.decode_heads)), head_dim, kv_f32];
        let decode = pipelines.get("attention_decode", None, buffers.decode_workgroup(), &overrides)?;
        let into = |out: &Buffer| Op::new(gpu, &decode, &[(&buffers.q).into(), keys.into(), values.into(), out.into()]);
        let (direct, split) = (into(&buffers.heads)?, into(&buffers.partials)?);
        let prompt = has_prompt_kernel(config.head_dim).then(|| {
            let workgroup = AttentionBuffers::PROMPT_WORKGROUP;
            let pipeline = pipelines.get("attention_prompt", None, workgroup, &[head_dim, kv_f32])?;
            Ok(direct.variant(&pipeline))
        });
        Ok(KvOps { rope, decode: direct, decode_split: split, prompt: prompt.transpose()? })
    }
}
