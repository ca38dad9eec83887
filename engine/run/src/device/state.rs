//! Recurrent states on the device.

use std::sync::Arc;

use parking_lot::Mutex;

use super::recurrent::RecurrentOps;
use crate::runtime::{OffHostState, RecurrentState};
use thermocline_base::error::{Error, Result};
use thermocline_gpu::{Buffer, Gpu, Op, Purpose, ReadbackRing, Recorder, UploadRing, Usage};
use thermocline_model::{LayerConfig, ModelConfig, StateShape};

/// Most bytes of a ring that copies states.
const MOST_BYTES: u64 = 4 << 20;

/// The recurrent state of one layer of one conversation on a device, with the dispatches that
/// advance it. It belongs to one [`GpuLayers`](super::GpuLayers).
#[derive(Debug)]
pub struct GpuState {
    /// Identity of the layers whose buffers the dispatches use beside the state's own.
    owner: Arc<()>,
    /// The dispatches that use the state.
    pub ops: StateOps,
    /// As in [`RecurrentState`].
    conv: StateBuffer,
    scan: StateBuffer,
    copies: Arc<Mutex<StateCopies>>,
}

/// A part of a state, and its number of floats.
#[derive(Debug)]
struct StateBuffer {
    buffer: Buffer,
    floats: usize,
}

/// The dispatches of one layer that use its state.
#[derive(Debug)]
pub struct StateOps {
    /// The short convolution.
    pub conv: Op,
    /// The scan of the tokens, if the mixer has one.
    pub scan: Option<Op>,
}

impl GpuState {
    /// Makes the buffers and dispatches of a layer whose mixer is `ops`. The state is the one
    /// before the first token.
    ///
    /// # Errors
    /// [`Error::Memory`] if the buffers do not fit the budget or a binding, [`Error::Gpu`] if the
    /// device is lost.
    pub fn new(gpu: &Gpu, owner: &Arc<()>, ops: &RecurrentOps, copies: &Arc<Mutex<StateCopies>>) -> Result<Self> {
        let buffer = |floats: usize| {
            let buffer = gpu.arena().buffer(Purpose::Kv, "recurrent state", bytes_of(floats), Usage::Storage)?;
            Ok::<_, Error>(StateBuffer { buffer, floats })
        };
        let [conv, scan] = ops.state.floats();
        let (conv, scan) = (buffer(conv)?, buffer(scan)?);
        let ops = StateOps { conv: ops.conv(gpu, &conv.buffer)?, scan: ops.scan(gpu, &scan.buffer)? };
        Ok(GpuState { owner: Arc::clone(owner), ops, conv, scan, copies: Arc::clone(copies) })
    }

    /// Bytes on the device of a state of this shape.
    pub fn bytes_of(shape: StateShape) -> u64 {
        shape.floats().map(bytes_of).iter().sum()
    }

    /// True if the state was made for the layers with this identity.
    pub fn is_of(&self, owner: &Arc<()>) -> bool {
        Arc::ptr_eq(&self.owner, owner)
    }
}

impl OffHostState for GpuState {
    fn save(&self, to: &mut RecurrentState) -> Result<()> {
        let mut copies = self.copies.lock();
        copies.read(&self.conv, &mut to.conv)?;
        copies.read(&self.scan, &mut to.scan)
    }

    fn restore(&self, from: &RecurrentState) -> Result<()> {
        let mut copies = self.copies.lock();
        copies.upload(&from.conv, &self.conv)?;
        copies.upload(&from.scan, &self.scan)
    }
}

/// Bytes of a buffer of `floats` floats.
fn bytes_of(floats: usize) -> u64 {
    (floats.max(1) as u64 * 4).next_multiple_of(16)
}

/// The rings that copy states, separate from the segment's. A conversation takes and restores
/// snapshots between chunks, when no commands of its layers are being recorded.
#[derive(Debug)]
pub struct StateCopies {
    gpu: Gpu,
    up: UploadRing,
    down: ReadbackRing,
}

impl StateCopies {
    /// Returns `None` for a model without recurrent layers.
    ///
    /// # Errors
    /// [`Error::Memory`] if the rings do not fit the budget.
    pub fn new(gpu: &Gpu, config: &ModelConfig) -> Result<Option<Arc<Mutex<Self>>>> {
        let states = config.layers.iter().filter_map(LayerConfig::state);
        let bytes = states.flat_map(|shape| shape.floats()).map(bytes_of).max().unwrap_or(0).min(MOST_BYTES);
        if bytes == 0 {
            return Ok(None);
        }
        let copies = StateCopies {
            gpu: gpu.clone(),
            up: UploadRing::new(gpu, 1, bytes)?,
            down: ReadbackRing::new(gpu, 1, bytes)?,
        };
        Ok(Some(Arc::new(Mutex::new(copies))))
    }

    fn upload(&mut self, from: &[f32], to: &StateBuffer) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(from);
        for (at, part) in bytes.chunks(self.up.bytes() as usize).enumerate() {
            let mut recorder = Recorder::new(&self.gpu);
            self.up.record(&mut recorder, &[(part, &to.buffer, at as u64 * self.up.bytes())])?;
            recorder.submit()?;
            self.up.submitted();
        }
        Ok(())
    }

    fn read(&mut self, from: &StateBuffer, to: &mut Vec<f32>) -> Result<()> {
        to.resize(from.floats, 0.0);
        let (most, bytes) = (self.down.bytes(), bytemuck::cast_slice_mut::<f32, u8>(to));
        for (at, part) in bytes.chunks_mut(most as usize).enumerate() {
            let piece = (&from.buffer, at as u64 * most, part.len() as u64);
            self.down.read(Recorder::new(&self.gpu), &[piece], || (), |read| part.copy_from_slice(read))?;
        }
        Ok(())
    }
}
