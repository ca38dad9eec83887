//! Keys and values on the device.

use std::{ops::Range, sync::Arc};

use super::{
    attention::{AttentionBuffers, AttentionOps},
    kv_page::{KvPage, PageMemory},
    kv_rows::{DeviceRows, KvRowRun},
    segment::Segment,
};
use crate::runtime::{KvLayer, KvType, OffHostRows};
use thermocline_base::error::Result;
use thermocline_gpu::{Buffer, Gpu, Recorder};
use thermocline_model::{AttentionConfig, Rope};

/// Keys and values of one layer of one conversation on a device, in pages of some heads each, and
/// the dispatches that use them. Rows form a ring as in RAM: position `p` is in row `p % room`. The
/// keys of latent attention are also its values, `[latent | rotated key]`. The cache belongs to one
/// [`GpuLayers`](super::GpuLayers).
#[derive(Debug)]
pub(crate) struct GpuKv {
    /// Identity of the layers whose buffers the dispatches use beside the cache's own.
    owner: Arc<()>,
    /// The pages, in the order of their heads.
    pub(super) pages: Vec<KvPage>,
    rows: DeviceRows,
    /// True if the buffers belong to another layer.
    shared: bool,
}

impl GpuKv {
    /// Makes the pages of a layer with room for `room` positions, whose keys are rotated by `rope`,
    /// if given. A cache of [`KvType::Q8_0`] is [`KvType::F16`] on the device.
    ///
    /// # Errors
    /// [`Error::Memory`](thermocline_base::error::Error::Memory) if the pages do not fit the budget
    /// or one head does not fit a binding. [`Error::Gpu`](thermocline_base::error::Error::Gpu) if
    /// the device is lost.
    pub fn new(
        gpu: &Gpu,
        owner: &Arc<()>,
        rope: Option<&Rope>,
        buffers: &AttentionBuffers,
        attention: &AttentionOps,
        room: usize,
        ty: KvType,
    ) -> Result<Self> {
        let caps = gpu.caps();
        // Kernels count words, and the rows of heads, in 32 bits.
        let most = caps.max_binding.min(caps.max_buffer).min(1 << 33);
        let rows = DeviceRows::new(&attention.layout.shape, room, ty).in_pages(most)?;
        let page = |heads: Range<usize>| {
            let memory = PageMemory::new(gpu, &rows, heads.len())?;
            KvPage::new(gpu, rope, buffers, attention, heads, memory)
        };
        let pages = rows.pages().map(page).collect::<Result<_>>()?;
        Ok(GpuKv { owner: Arc::clone(owner), pages, rows, shared: false })
    }

    /// Returns the same buffers with the dispatches of a layer that reads them and has no keys and
    /// values of its own.
    ///
    /// # Errors
    /// [`Error::Gpu`](thermocline_base::error::Error::Gpu) if the device is lost.
    pub fn shared_with(
        &self,
        gpu: &Gpu,
        rope: Option<&Rope>,
        buffers: &AttentionBuffers,
        attention: &AttentionOps,
    ) -> Result<Self> {
        let page = |page: &KvPage| KvPage::new(gpu, rope, buffers, attention, page.heads.clone(), page.memory.clone());
        let pages = self.pages.iter().map(page).collect::<Result<_>>()?;
        Ok(GpuKv { owner: Arc::clone(&self.owner), pages, rows: self.rows, shared: true })
    }

    /// Bytes on the device of a layer's keys and values, with room for `room` positions.
    pub fn bytes_of(shape: &AttentionConfig, room: usize, ty: KvType) -> u64 {
        DeviceRows::new(shape, room, ty).keys_and_values()
    }

    /// Number of positions in the ring.
    pub fn room(&self) -> usize {
        self.rows.room
    }

    /// True if the cache was made for the layers with this identity.
    pub fn is_of(&self, owner: &Arc<()>) -> bool {
        Arc::ptr_eq(&self.owner, owner)
    }

    /// The buffer that holds the values (if `values`) or the keys of `head`.
    fn buffer(&self, values: bool, head: usize) -> &Buffer {
        self.pages[self.rows.page_of(head)].memory.of(values)
    }

    /// Uploads `rows` of every head of `from`, in loads of the size of `segment`'s ring.
    pub fn fill(&self, from: &KvLayer, rows: Range<usize>, segment: &mut Segment) -> Result<()> {
        let (at, mut row, mut bytes) = (self.rows, self.rows.row(), Vec::new());
        let heads = [&from.keys, &from.values];
        for load in at.loads(rows, segment.room_up())? {
            bytes.clear();
            for KvRowRun { values, head, rows } in &load {
                let of = at.of(*values);
                let row = &mut row[..of.dim];
                for i in rows.clone() {
                    heads[usize::from(*values)][*head].get(i, row);
                    row.rotate_left(at.rotated);
                    of.encode(row, &mut bytes);
                }
            }
            let mut rest = &bytes[..];
            let pieces = load.iter().map(|KvRowRun { values, head, rows }| {
                let (piece, after) = rest.split_at(rows.len() * at.of(*values).row_bytes());
                rest = after;
                (piece, self.buffer(*values, *head), at.offset(*values, *head, rows.start))
            });
            segment.begin(&pieces.collect::<Vec<_>>())?;
            segment.submit()?;
        }
        Ok(())
    }

    /// Reads `rows` of every head back and appends them to `into`. If `into` lacks earlier rows, it
    /// treats these as lost.
    pub fn read(&self, into: &mut KvLayer, rows: Range<usize>, segment: &mut Segment) -> Result<()> {
        let (at, mut row) = (self.rows, self.rows.row());
        segment.drop_recorded();
        into.begin_at(rows.start);
        for load in at.loads(rows, segment.room_down())? {
            let pieces = load.iter().map(|KvRowRun { values, head, rows }| {
                let buffer = self.buffer(*values, *head);
                (buffer, at.offset(*values, *head, rows.start), (rows.len() * at.of(*values).row_bytes()) as u64)
            });
            segment.read(&pieces.collect::<Vec<_>>(), |read| {
                let mut rest = read;
                for KvRowRun { values, head, rows } in &load {
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
        // The other layer frees its buffers itself.
        if self.shared {
            return Ok(());
        }
        for values in [false, true] {
            let of = self.rows.of(values);
            for rows in self.rows.pieces(&from.rows, rows.clone()) {
                let bytes = (rows.len() * of.row_bytes()) as u64;
                for head in 0..of.heads {
                    let [from_at, to_at] = [&from.rows, &self.rows].map(|at| at.offset(values, head, rows.start));
                    let [from, to] = [from, self].map(|kv| kv.buffer(values, head));
                    recorder.copy(from, from_at, to, to_at, bytes);
                }
            }
        }
        Ok(())
    }
}
