//! Recurrent states on the device.

use std::{ops::Range, sync::Arc};

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
    ops: StateOps,
    buffers: StateBuffers,
    /// Copies of the state after each token of a pass of separate tokens, except the last, or
    /// before each of several passes.
    planes: Vec<StateBuffers>,
    shape: StateShape,
    gpu: Gpu,
    copies: Arc<Mutex<StateCopies>>,
}

/// The parts of a state, as in [`RecurrentState`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatePart {
    /// The convolution's inputs.
    Conv,
    /// The scan's memory.
    Scan,
}

/// Buffers of a state, or of a plane.
#[derive(Debug)]
struct StateBuffers {
    conv: StateBuffer,
    scan: StateBuffer,
}

impl StateBuffers {
    fn new(gpu: &Gpu, what: &'static str, shape: StateShape) -> Result<Self> {
        let buffer = |floats: usize| {
            let buffer = gpu.arena().buffer(Purpose::Kv, what, bytes_of(floats), Usage::Storage)?;
            Ok::<_, Error>(StateBuffer { buffer, floats })
        };
        let [conv, scan] = shape.floats();
        Ok(StateBuffers { conv: buffer(conv)?, scan: buffer(scan)? })
    }

    fn part(&self, part: StatePart) -> &StateBuffer {
        match part {
            StatePart::Conv => &self.conv,
            StatePart::Scan => &self.scan,
        }
    }

    /// Records a copy of `part` to `to`.
    fn copy(&self, recorder: &mut Recorder, part: StatePart, to: &Self) {
        let (from, to) = (self.part(part), to.part(part));
        recorder.copy(&from.buffer, 0, &to.buffer, 0, bytes_of(from.floats));
    }
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
        let (shape, buffers) = (ops.state, StateBuffers::new(gpu, "recurrent state", ops.state)?);
        let (conv, scan) = (&buffers.conv.buffer, &buffers.scan.buffer);
        let ops = StateOps { conv: ops.conv(gpu, conv)?, scan: ops.scan(gpu, scan)? };
        Ok(GpuState {
            owner: Arc::clone(owner),
            ops,
            buffers,
            planes: Vec::new(),
            shape,
            gpu: gpu.clone(),
            copies: Arc::clone(copies),
        })
    }

    /// The state, advanced by `rows` of a pass that saves `planes` planes.
    pub fn advanced_by(&self, rows: Range<usize>, planes: usize) -> GpuRowsState<'_> {
        GpuRowsState { rows, state: self, planes: self.planes.get(..planes).unwrap_or_default() }
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
        let (mut copies, from) = (self.copies.lock(), &self.buffers);
        copies.read(&from.conv, &mut to.conv)?;
        copies.read(&from.scan, &mut to.scan)
    }

    fn restore(&self, from: &RecurrentState) -> Result<()> {
        let mut copies = self.copies.lock();
        copies.upload(&from.conv, &self.buffers.conv)?;
        copies.upload(&from.scan, &self.buffers.scan)
    }

    fn planes(&self) -> usize {
        self.planes.len()
    }

    fn reserve_planes(&mut self, planes: usize) -> Result<()> {
        while self.planes.len() < planes {
            self.planes.push(StateBuffers::new(&self.gpu, "plane of a recurrent state", self.shape)?);
        }
        Ok(())
    }

    fn truncate_planes(&mut self, planes: usize) {
        self.planes.truncate(planes);
    }

    fn recorder(&self) -> Recorder {
        Recorder::new(&self.gpu)
    }

    fn save_plane(&self, at: usize, recorder: &mut Recorder) {
        if let Some(plane) = self.planes.get(at) {
            self.buffers.copy(recorder, StatePart::Conv, plane);
            self.buffers.copy(recorder, StatePart::Scan, plane);
        }
    }

    fn choose_plane(&self, at: usize, recorder: &mut Recorder) {
        if let Some(plane) = self.planes.get(at) {
            plane.copy(recorder, StatePart::Conv, &self.buffers);
            plane.copy(recorder, StatePart::Scan, &self.buffers);
        }
    }
}

/// A state that a pass advances, and the rows of the pass that advance it.
#[derive(Debug)]
pub struct GpuRowsState<'a> {
    rows: Range<usize>,
    state: &'a GpuState,
    planes: &'a [StateBuffers],
}

impl GpuRowsState<'_> {
    /// Records `step` for a part of the state: for all rows at once, or row by row with a copy to a
    /// plane after each row. `step` gets the rows and the dispatch that uses the part. It is not
    /// called for a part that no dispatch uses.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        part: StatePart,
        mut step: impl FnMut(&mut Recorder, &Op, Range<usize>),
    ) {
        let ops = &self.state.ops;
        let op = if part == StatePart::Conv { Some(&ops.conv) } else { ops.scan.as_ref() };
        let Some(op) = op else { return };
        if self.planes.is_empty() {
            return step(recorder, op, self.rows.clone());
        }
        for (at, row) in self.rows.clone().enumerate() {
            step(recorder, op, row..row + 1);
            if let Some(plane) = self.planes.get(at) {
                self.state.buffers.copy(recorder, part, plane);
            }
        }
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
