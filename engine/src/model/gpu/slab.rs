//! Where neurons pass through that are not resident: a place for some of them, which the neurons of one layer after another take.
//!
//! One place is enough. What is written to it is written by the queue, behind all that was submitted before, so that rows are
//! never overwritten while they are read; and since one submission follows the other on the device, a second place would not
//! let it copy and compute at once. What goes on side by side is the work of the CPU, which repacks the next neurons for the
//! other of two staging buffers meanwhile.

use super::{
    GpuProcessor,
    extent::{NeuronWeights, UNIT},
    ffn::FfnOps,
    hot::{HotBuffers, HotOps, neuron_weights},
    neurons::{NeuronRows, Shares},
};
use crate::{
    error::{Error, Result},
    gpu::{Buffer, Caps, Gpu, GpuMatrix, Matmul, MatmulOutput, Purpose, Recorder, RowLoad, RowStream, Usage},
    model::{Ffn, LayerWeights, Model},
};

/// How large a slab is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SlabShape {
    /// Neurons of any layer there is room for.
    slots: usize,
    /// Bytes of their gate and up rows, of their down rows and of their biases.
    gate_up: u64,
    down: u64,
    bias: u64,
}

impl SlabShape {
    /// The largest that takes at most `most` bytes, staging included, for all layers with a row per neuron; `None` if there are
    /// none, or no room for the least.
    fn within(caps: &Caps, layers: &[LayerWeights], most: u64) -> Option<Self> {
        let all = || {
            layers.iter().filter_map(|layer| match &layer.ffn {
                Ffn::Dense(ffn) => NeuronWeights::of(ffn),
                Ffn::Experts(_) => None,
            })
        };
        let widest = |bytes: &dyn Fn(NeuronWeights<'_>) -> [u64; 3]| {
            all().map(bytes).reduce(|a, b| std::array::from_fn(|at| a[at].max(b[at])))
        };
        let [gate_up, down, bias] = widest(&|weights| {
            let ((ty, down_ty), rows) = (weights.types(), weights.rows());
            let gate_up = rows * ty.row_bytes(weights.up.weight.cols());
            [gate_up, down_ty.row_bytes(weights.down.weight.cols()), rows * 4].map(|bytes| bytes as u64)
        })?;
        let neurons = all().map(|weights| HotBuffers::slots(weights.neurons())).max()?;
        // Each matrix is two aligned streams; buffers are rounded up.
        let padding = 2 * caps.binding_alignment.max(16) + 64;
        let room = (most / 3).min(caps.max_binding).min(caps.max_buffer / 2).saturating_sub(padding);
        let slots = (room / (gate_up + down + bias).max(1)) as usize / UNIT * UNIT;
        let slots = slots.min(neurons);
        if slots == 0 {
            return None;
        }
        let of = |ty, rows, cols| GpuMatrix::bytes_of(caps, ty, rows, cols).unwrap_or(u64::MAX);
        let [gate_up, down, bias] = widest(&|weights| {
            let ((ty, down_ty), rows) = (weights.types(), weights.rows());
            let gate_up = of(ty, slots * rows, weights.up.weight.cols());
            [gate_up, of(down_ty, slots, weights.down.weight.cols()), slots as u64 * bias]
        })?;
        let shape = SlabShape { slots, gate_up, down, bias };
        Some(shape).filter(|_| gate_up.max(down) <= caps.max_buffer)
    }

    /// Bytes of one load.
    fn load(&self) -> u64 {
        RowStream::bytes_of([self.gate_up, self.down, self.bias])
    }

    /// All bytes, as buffers are rounded up.
    fn total(&self) -> u64 {
        let place = [self.gate_up, self.down, self.bias].map(|bytes| bytes.next_multiple_of(16));
        place.iter().sum::<u64>() + 2 * self.load().next_multiple_of(16)
    }
}

/// Bytes of the slab that a processor makes of `most` for the split layers of a model with these `layers`; 0 if it makes none.
pub(super) fn slab_bytes(caps: &Caps, layers: &[LayerWeights], most: u64) -> u64 {
    SlabShape::within(caps, layers, most).map_or(0, |shape| shape.total())
}

/// The place, and what fills it.
#[derive(Debug)]
pub(super) struct Slab {
    slots: usize,
    gate_up: Buffer,
    down: Buffer,
    bias: Buffer,
    pub rows: RowStream,
}

impl Slab {
    fn new(gpu: &Gpu, shape: &SlabShape) -> Result<Self> {
        let place = |bytes| gpu.arena().buffer(Purpose::Scratch, "neurons that pass through", bytes, Usage::Storage);
        Ok(Slab {
            slots: shape.slots,
            gate_up: place(shape.gate_up)?,
            down: place(shape.down)?,
            bias: place(shape.bias)?,
            rows: RowStream::new(gpu, shape.load())?,
        })
    }

    /// Records that the neurons of `slots` take their places, and returns how many bytes that brings up.
    pub fn load(
        &mut self,
        recorder: &mut Recorder,
        piece: &Piece,
        weights: NeuronWeights<'_>,
        slots: &[u32],
    ) -> Result<u64> {
        let gate_up = |row: usize| weights.gate_up(slots, row);
        let down = |row: usize| weights.down(slots, row);
        let loads = [
            RowLoad { matrix: &piece.gate_up, rows: slots.len() * weights.rows(), row: &gate_up },
            RowLoad { matrix: &piece.down, rows: slots.len(), row: &down },
        ];
        let biases = weights.biases(slots);
        self.rows.record(recorder, &loads, biases.as_deref().map(|biases| (biases, &self.bias)))
    }
}

/// The place as a layer sees it: what computes its neurons that are there, for several tokens. Their activations take the places
/// of the resident ones', which have been summed by then.
#[derive(Debug)]
pub(super) struct Piece {
    /// Neurons there is room for, and rows of each before the activation.
    slots: usize,
    rows: usize,
    gate_up: GpuMatrix,
    down: GpuMatrix,
    product: Matmul,
    sums: NeuronRows,
}

impl Piece {
    fn new(gpu: &Gpu, slab: &Slab, hot: &HotOps, weights: NeuronWeights<'_>) -> Result<Self> {
        let (buffers, rows, (ty, down_ty)) = (&hot.buffers, weights.rows(), weights.types());
        let slots = slab.slots.min(buffers.slots);
        let gate_up = GpuMatrix::within(gpu, &slab.gate_up, ty, (slots * rows, weights.up.weight.cols()))?;
        let down = GpuMatrix::within(gpu, &slab.down, down_ty, (slots, weights.down.weight.cols()))?;
        let bias = weights.biases(&[]).map(|_| &slab.bias);
        let (pitch, epilogue) = (rows * buffers.slots, Default::default());
        let output = MatmulOutput { buffer: &buffers.gate_up, pitch, offset: 0, epilogue };
        let product = Matmul::of_several(gpu, &gate_up, &hot.from, bias, &output)?;
        let [part] = down.parts() else {
            return Err(Error::invalid("neurons that pass through", "one buffer of down rows", down.parts().len()));
        };
        let sums = NeuronRows::new(gpu, down_ty, part, &buffers.hidden, 0, &buffers.sums)?;
        Ok(Piece { slots, rows, gate_up, down, product, sums })
    }

    /// Cuts neurons into pieces that fit, about equally long.
    pub fn cut<'n>(&self, neurons: &'n [u32]) -> impl Iterator<Item = &'n [u32]> + use<'n> {
        let pieces = neurons.len().div_ceil(self.slots).max(1);
        neurons.chunks(neurons.len().div_ceil(pieces).max(1))
    }

    /// Records the first `slots` neurons' share of the sum.
    pub fn record(&self, recorder: &mut Recorder, hot: &HotOps, tokens: usize, slots: usize, shares: &mut Shares) {
        let buffers = &hot.buffers;
        self.product.record_rows(recorder, tokens, slots * self.rows);
        buffers.activation.record(recorder, tokens, slots, None);
        self.sums.record_first(recorder, (slots, buffers.slots), hot.is_sparse(), shares);
    }

    /// Records, behind that, which of them fired; returns where that will be, `[tokens, slots / 32]`, and its length in bytes.
    pub fn record_fired<'h>(
        &self,
        recorder: &mut Recorder,
        hot: &'h HotOps,
        tokens: usize,
        slots: usize,
    ) -> (&'h Buffer, u64) {
        if let (Some(cut), false) = (hot.cut(), hot.is_sparse()) {
            hot.buffers.activation.record(recorder, tokens, slots, Some(cut));
        }
        hot.buffers.fired.record(recorder, tokens, slots)
    }
}

impl GpuProcessor {
    /// Makes a slab of at most `most` bytes, if some layer has neurons that are not resident, and prepares such layers for it; one
    /// that is there stays as it is. Where nothing could pass through it, there is none.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room for it, [`Error::Gpu`] if the device is lost. There is none then.
    pub(crate) fn fit_slab(&mut self, model: &Model, most: u64) -> Result<()> {
        let fitted = self.try_slab(model, most);
        if fitted.is_err() {
            self.drop_slab();
        }
        fitted
    }

    fn try_slab(&mut self, model: &Model, most: u64) -> Result<()> {
        let is_split = |ffn: &FfnOps| ffn.hot().is_some_and(|hot| !hot.is_whole());
        let shape = SlabShape::within(self.gpu.caps(), &model.weights.layers, most);
        let Some(shape) = shape.filter(|_| self.layers.iter().any(|layer| is_split(&layer.ffn))) else {
            self.drop_slab();
            return Ok(());
        };
        if self.slab.is_none() {
            let (wanted, available) = (shape.total(), self.gpu.arena().available());
            if wanted > available {
                return Err(Error::Memory { what: "neurons that pass through", wanted, available });
            }
            self.slab = Some(Slab::new(&self.gpu, &shape)?);
        }
        let Some(slab) = &self.slab else { return Ok(()) };
        for (ops, weights) in self.layers.iter_mut().zip(&model.weights.layers[self.first_layer..]) {
            if let FfnOps::Hot(hot) = &mut ops.ffn
                && hot.piece.is_none()
            {
                hot.piece = Some(Piece::new(&self.gpu, slab, hot, neuron_weights(&weights.ffn)?)?);
            }
        }
        Ok(())
    }

    /// Gives the slab up; whether there was one.
    pub(crate) fn drop_slab(&mut self) -> bool {
        for ops in &mut self.layers {
            if let FfnOps::Hot(hot) = &mut ops.ffn {
                hot.piece = None;
            }
        }
        self.slab.take().is_some()
    }
}
