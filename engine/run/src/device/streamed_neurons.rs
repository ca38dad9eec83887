//! The cold neurons of a layer that pass through the streaming buffer.

use super::{
    elementwise::ActivationOp,
    fired::DeviceMask,
    neuron_buffers::NeuronBuffers,
    neuron_rows::{NeuronRows, PartialSums},
    neuron_weights::{NeuronWeights, SLOT_MULTIPLE},
    resident_neurons::ResidentNeurons,
    streaming_buffer::{BufferSize, StreamingBuffer},
};
use thermocline_base::error::{Error, Result};
use thermocline_gpu::{
    Binding, Caps, Gpu, GpuMatrix, Matmul, MatmulOutput, MatrixLayout, NumberLoad, Recorder, RowLoad, RowStream,
};

/// The neurons of one layer that are in the streaming buffer, prepared for several tokens. Their
/// activations overwrite the activations of the resident neurons, which are already summed.
#[derive(Debug)]
pub(crate) struct StreamedNeurons {
    /// Most neurons, and rows per neuron before the activation.
    slots: usize,
    rows: usize,
    gate_up: GpuMatrix,
    down: GpuMatrix,
    product: Matmul,
    /// The activation with the scales of the streamed neurons' gates.
    activation: ActivationOp,
    sums: NeuronRows,
}

impl StreamedNeurons {
    /// Bytes of room for the fewest neurons.
    pub fn least_room(caps: &Caps, weights: NeuronWeights<'_>) -> u64 {
        gaps(caps) + SLOT_MULTIPLE as u64 * slot_bytes(weights)
    }

    /// The buffer of the largest piece of neurons whose weights take at most `room` bytes. `None`
    /// if no piece fits.
    pub fn buffer_size(caps: &Caps, weights: NeuronWeights<'_>, room: u64) -> Option<BufferSize> {
        let slots = slots_within(caps, weights, room)?;
        let [gate_up, down] = layouts(weights, slots);
        let of = |layout: MatrixLayout| GpuMatrix::bytes_of(caps, layout.ty, layout.rows, layout.cols).ok();
        let [gate_up, down, bias] = [of(gate_up)?, of(down)?, (slots * weights.rows() * 4) as u64];
        let scales = weights.gate_scales.map(|_| slots as u64 * 4);
        let load = RowStream::bytes_of([gate_up, down, bias].into_iter().chain(scales));
        let weights = gate_up.next_multiple_of(alignment(caps)) + down;
        Some(BufferSize { room, weights, bias, scales: scales.unwrap_or(0), load })
    }

    /// Prepares the buffer for the layer of `resident` and `weights`. `None` if no piece fits.
    pub fn new(
        gpu: &Gpu,
        buffer: &StreamingBuffer,
        resident: &ResidentNeurons,
        weights: NeuronWeights<'_>,
    ) -> Result<Option<Self>> {
        let Some(slots) = slots_within(gpu.caps(), weights, buffer.room) else { return Ok(None) };
        let (buffers, rows, down_ty) = (&resident.buffers, weights.rows(), weights.types().1);
        let [gate_up, down] = layouts(weights, slots);
        let gate_up = GpuMatrix::within(gpu, &buffer.weights, 0, gate_up)?;
        let after = GpuMatrix::bytes_of(gpu.caps(), gate_up.ty(), gate_up.rows(), gate_up.cols())?;
        let after = after.next_multiple_of(alignment(gpu.caps()));
        let down = GpuMatrix::within(gpu, &buffer.weights, after, down)?;
        let bias = weights.biases(&[]).map(|_| &buffer.bias);
        let (pitch, epilogue) = (rows * buffers.slots, Default::default());
        let output = MatmulOutput { buffer: &buffers.gate_up, pitch, offset: 0, epilogue };
        let product = Matmul::of_several(gpu, &gate_up, &resident.from, bias, &output)?;
        let [part] = down.parts() else {
            return Err(Error::invalid("streaming buffer", "one buffer of down-projection rows", down.parts().len()));
        };
        let sums = NeuronRows::new(gpu, down_ty, part, &buffers.hidden, 0, &buffers.sums)?;
        let scales = weights.gate_scales.and(buffer.scales.as_ref()).map(Binding::from);
        let activation = buffers.activation.scaled_by(scales)?;
        Ok(Some(StreamedNeurons { slots, rows, gate_up, down, product, activation, sums }))
    }

    /// Records the upload of the neurons of `slots` and returns its bytes.
    pub fn load(
        &self,
        recorder: &mut Recorder,
        buffer: &mut StreamingBuffer,
        weights: NeuronWeights<'_>,
        slots: &[u32],
    ) -> Result<u64> {
        let gate_up = |row: usize| weights.gate_up(slots, row);
        let down = |row: usize| weights.down(slots, row);
        let loads = [
            RowLoad { matrix: &self.gate_up, rows: slots.len() * weights.rows(), row: &gate_up },
            RowLoad { matrix: &self.down, rows: slots.len(), row: &down },
        ];
        let biases = weights.biases(slots);
        let scales = weights.scales(slots);
        let numbers = [(biases, Some(&buffer.bias)), (scales, buffer.scales.as_ref())];
        let numbers = numbers.iter().filter_map(|(numbers, to)| {
            Some(NumberLoad { bytes: bytemuck::cast_slice(numbers.as_deref()?), to: (*to)? })
        });
        buffer.rows.record(recorder, &loads, &numbers.collect::<Vec<_>>())
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
        self.activation.record(recorder, tokens, slots, None);
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
            self.activation.record(recorder, tokens, slots, Some(threshold));
        }
        resident.buffers.fired.record(recorder, tokens, slots)
    }
}

/// Alignment of a matrix within the buffer.
fn alignment(caps: &Caps) -> u64 {
    caps.binding_alignment.max(16)
}

/// The layouts of gate and up, and of down, of `slots` neurons.
fn layouts(weights: NeuronWeights<'_>, slots: usize) -> [MatrixLayout; 2] {
    let ((ty, down_ty), rows) = (weights.types(), weights.rows());
    let (cols, down_cols) = (weights.up.weight.cols(), weights.down.weight.cols());
    [
        MatrixLayout { ty, rows: slots * rows, cols, rows_together: rows },
        MatrixLayout { ty: down_ty, rows: slots, cols: down_cols, rows_together: 1 },
    ]
}

/// Most slots whose weights take at most `room` bytes. `None` if not even the fewest slots fit.
fn slots_within(caps: &Caps, weights: NeuronWeights<'_>, room: u64) -> Option<usize> {
    let slots = room.saturating_sub(gaps(caps)) / slot_bytes(weights).max(1);
    let slots = slots as usize / SLOT_MULTIPLE * SLOT_MULTIPLE;
    Some(slots.min(NeuronBuffers::slots(weights.neurons()))).filter(|slots| *slots > 0)
}

/// Bytes of one neuron's rows.
fn slot_bytes(weights: NeuronWeights<'_>) -> u64 {
    let bytes = layouts(weights, 1).map(|layout| layout.rows * layout.ty.device_row_bytes(layout.cols));
    bytes.iter().sum::<usize>() as u64
}

/// Most bytes between the two aligned streams of the two matrices.
fn gaps(caps: &Caps) -> u64 {
    4 * alignment(caps)
}
