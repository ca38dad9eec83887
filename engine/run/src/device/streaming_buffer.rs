//! The streaming buffer: room on the device for some cold neurons, used by one layer after another.
//!
//! One buffer is enough. The queue writes to it after everything submitted before, so rows are
//! never overwritten while a kernel reads them. Submissions run one after the other on the device,
//! so a second buffer would not let copying and computing overlap. The CPU's work does overlap: it
//! repacks the next neurons into the other of two staging buffers.

use super::{
    device_ffn::DeviceFfn,
    device_model::DeviceModel,
    fired::DeviceMask,
    neuron_buffers::NeuronBuffers,
    neuron_rows::{NeuronRows, PartialSums},
    neuron_weights::{NeuronWeights, SLOT_MULTIPLE},
    resident_neurons::ResidentNeurons,
};
use thermocline_base::error::{Error, Result};
use thermocline_gpu::{
    Buffer, Caps, Gpu, GpuMatrix, Matmul, MatmulOutput, Purpose, Recorder, RowLoad, RowStream, Usage,
};
use thermocline_model::{Ffn, LayerWeights, Model};

/// Room of a streaming buffer: neurons, and bytes per kind of row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BufferSize {
    /// Number of neurons of any layer that fit.
    slots: usize,
    /// Bytes of gate and up rows, of down rows and of biases.
    gate_up: u64,
    down: u64,
    bias: u64,
}

impl BufferSize {
    /// The largest size of at most `most` bytes, staging included, for all layers whose neurons can
    /// be resident one by one. Returns `None` if there are no such layers, or if even the smallest
    /// size does not fit.
    pub fn within(caps: &Caps, layers: &[LayerWeights], most: u64) -> Option<Self> {
        let all = || {
            layers.iter().filter_map(|layer| match &layer.ffn {
                Ffn::Dense(ffn) => NeuronWeights::of(ffn),
                Ffn::Experts(_) | Ffn::None => None,
            })
        };
        let widest = |bytes: &dyn Fn(NeuronWeights<'_>) -> [u64; 3]| {
            all().map(bytes).reduce(|a, b| std::array::from_fn(|at| a[at].max(b[at])))
        };
        let [gate_up, down, bias] = widest(&|weights| {
            let ((ty, down_ty), rows) = (weights.types(), weights.rows());
            let gate_up = rows * ty.device_row_bytes(weights.up.weight.cols());
            [gate_up, down_ty.device_row_bytes(weights.down.weight.cols()), rows * 4].map(|bytes| bytes as u64)
        })?;
        let neurons = all().map(|weights| NeuronBuffers::slots(weights.neurons())).max()?;
        // Each matrix is two aligned streams, and buffers are rounded up.
        let padding = 2 * caps.binding_alignment.max(16) + 64;
        let room = (most / 3).min(caps.max_binding).min(caps.max_buffer / 2).saturating_sub(padding);
        let slots = (room / (gate_up + down + bias).max(1)) as usize / SLOT_MULTIPLE * SLOT_MULTIPLE;
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
        let shape = BufferSize { slots, gate_up, down, bias };
        Some(shape).filter(|_| gate_up.max(down) <= caps.max_buffer)
    }

    /// Bytes of one staging load.
    fn load(&self) -> u64 {
        RowStream::bytes_of([self.gate_up, self.down, self.bias])
    }
}

/// The buffer on the device, and the staging that fills it.
#[derive(Debug)]
pub(crate) struct StreamingBuffer {
    slots: usize,
    gate_up: Buffer,
    down: Buffer,
    bias: Buffer,
    pub rows: RowStream,
}

impl StreamingBuffer {
    /// Makes a buffer of this size.
    pub fn new(gpu: &Gpu, shape: &BufferSize) -> Result<Self> {
        let place = |bytes| gpu.arena().buffer(Purpose::Scratch, "streaming buffer", bytes, Usage::Storage);
        Ok(StreamingBuffer {
            slots: shape.slots,
            gate_up: place(shape.gate_up)?,
            down: place(shape.down)?,
            bias: place(shape.bias)?,
            rows: RowStream::new(gpu, shape.load())?,
        })
    }

    /// Records the upload of the neurons of `slots` and returns its bytes.
    pub fn load(
        &mut self,
        recorder: &mut Recorder,
        streamed: &StreamedNeurons,
        weights: NeuronWeights<'_>,
        slots: &[u32],
    ) -> Result<u64> {
        let gate_up = |row: usize| weights.gate_up(slots, row);
        let down = |row: usize| weights.down(slots, row);
        let loads = [
            RowLoad { matrix: &streamed.gate_up, rows: slots.len() * weights.rows(), row: &gate_up },
            RowLoad { matrix: &streamed.down, rows: slots.len(), row: &down },
        ];
        let biases = weights.biases(slots);
        self.rows.record(recorder, &loads, biases.as_deref().map(|biases| (biases, &self.bias)))
    }
}

/// The neurons of one layer that are in the streaming buffer, prepared for several tokens. Their
/// activations overwrite those of the resident neurons, which are already summed.
#[derive(Debug)]
pub(crate) struct StreamedNeurons {
    /// Most neurons, and rows per neuron before the activation.
    slots: usize,
    rows: usize,
    gate_up: GpuMatrix,
    down: GpuMatrix,
    product: Matmul,
    sums: NeuronRows,
}

impl StreamedNeurons {
    /// Prepares the buffer for the layer of `resident` and `weights`.
    pub fn new(
        gpu: &Gpu,
        buffer: &StreamingBuffer,
        resident: &ResidentNeurons,
        weights: NeuronWeights<'_>,
    ) -> Result<Self> {
        let (buffers, rows, (ty, down_ty)) = (&resident.buffers, weights.rows(), weights.types());
        let slots = buffer.slots.min(buffers.slots);
        let gate_up = GpuMatrix::within(gpu, &buffer.gate_up, ty, slots * rows, weights.up.weight.cols())?;
        let down = GpuMatrix::within(gpu, &buffer.down, down_ty, slots, weights.down.weight.cols())?;
        let bias = weights.biases(&[]).map(|_| &buffer.bias);
        let (pitch, epilogue) = (rows * buffers.slots, Default::default());
        let output = MatmulOutput { buffer: &buffers.gate_up, pitch, offset: 0, epilogue };
        let product = Matmul::of_several(gpu, &gate_up, &resident.from, bias, &output)?;
        let [part] = down.parts() else {
            return Err(Error::invalid("streaming buffer", "one buffer of down-projection rows", down.parts().len()));
        };
        let sums = NeuronRows::new(gpu, down_ty, part, &buffers.hidden, 0, &buffers.sums)?;
        Ok(StreamedNeurons { slots, rows, gate_up, down, product, sums })
    }

    /// Splits neurons into pieces that fit, of about equal length.
    pub fn pieces<'n>(&self, neurons: &'n [u32]) -> impl Iterator<Item = &'n [u32]> + use<'n> {
        let pieces = neurons.len().div_ceil(self.slots).max(1);
        neurons.chunks(neurons.len().div_ceil(pieces).max(1))
    }

    /// Records the partial sums of the neurons in the first `slots` slots.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        resident: &ResidentNeurons,
        tokens: usize,
        slots: usize,
        partials: &mut PartialSums,
    ) {
        let buffers = &resident.buffers;
        self.product.record_rows(recorder, tokens, slots * self.rows);
        buffers.activation.record(recorder, tokens, slots, None);
        self.sums.record_first(recorder, slots, buffers.slots, resident.rule.sparse_activation, partials);
    }

    /// Records, after the partial sums, the mask of the neurons that fired, `[tokens, slots / 32]`.
    pub fn record_fired<'r>(
        &self,
        recorder: &mut Recorder,
        resident: &'r ResidentNeurons,
        tokens: usize,
        slots: usize,
    ) -> DeviceMask<'r> {
        if let Some(threshold) = resident.fires_above() {
            resident.buffers.activation.record(recorder, tokens, slots, Some(threshold));
        }
        resident.buffers.fired.record(recorder, tokens, slots)
    }
}

impl DeviceModel {
    /// Makes a streaming buffer of at most `most` bytes if some layer has cold neurons, and
    /// prepares such layers for it. An existing buffer is kept. If no neuron could pass through a
    /// buffer, there is none.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room for it, [`Error::Gpu`] if the device is lost. After an
    /// error there is no buffer.
    pub fn fit_streaming_buffer(&mut self, model: &Model, most: u64) -> Result<()> {
        let fitted = self.try_streaming_buffer(model, most);
        if fitted.is_err() {
            self.drop_streaming_buffer();
        }
        fitted
    }

    fn try_streaming_buffer(&mut self, model: &Model, most: u64) -> Result<()> {
        let gpu = &self.layers.gpu;
        let size = BufferSize::within(gpu.caps(), &model.weights.layers, most);
        let is_split = |neurons: &ResidentNeurons| !neurons.slots.is_whole();
        let Some(size) = size.filter(|_| self.ffns.iter().any(|ffn| ffn.neurons().is_some_and(is_split))) else {
            self.drop_streaming_buffer();
            return Ok(());
        };
        if self.streaming_buffer.is_none() {
            self.streaming_buffer = Some(StreamingBuffer::new(gpu, &size)?);
        }
        let Some(buffer) = &self.streaming_buffer else { return Ok(()) };
        for (ffn, weights) in self.ffns.iter_mut().zip(&model.weights.layers[self.layers.range()]) {
            if let Some(neurons) = ffn.neurons_mut().filter(|neurons| neurons.streamed.is_none()) {
                let weights = NeuronWeights::of_ffn(&weights.ffn)?;
                neurons.streamed = Some(StreamedNeurons::new(gpu, buffer, neurons, weights)?);
            }
        }
        Ok(())
    }

    /// Frees the streaming buffer; false if there was none.
    pub fn drop_streaming_buffer(&mut self) -> bool {
        for neurons in self.ffns.iter_mut().filter_map(DeviceFfn::neurons_mut) {
            neurons.streamed = None;
        }
        self.streaming_buffer.take().is_some()
    }
}
