//! The streaming buffer: room on the device for some cold neurons or experts, used by one layer
//! after another.
//!
//! One buffer is enough. The queue writes to it after everything submitted before, so rows are
//! never overwritten while a kernel reads them. Submissions run one after the other on the device,
//! so a second buffer would not let copying and computing overlap. The CPU's work does overlap: it
//! repacks the next rows into the other of two staging buffers.

use super::{
    device_ffn::DeviceFfn,
    device_model::DeviceModel,
    expert_matrices::{ExpertMatrices, expert_matrices},
    neuron_weights::NeuronWeights,
    slot_table::SlotTable,
    streamed_experts::StreamedExperts,
    streamed_neurons::StreamedNeurons,
};
use thermocline_base::error::Result;
use thermocline_gpu::{Buffer, Caps, Gpu, Purpose, RowStream, Usage};
use thermocline_model::{Ffn, Model};

/// Bytes of a streaming buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct BufferSize {
    /// Bytes of weights that a piece may take, with the gaps between its matrices.
    pub room: u64,
    /// Bytes of weights, and of biases.
    pub weights: u64,
    pub bias: u64,
    /// Bytes of scales of gates; 0 if no layer has scales.
    pub scales: u64,
    /// Bytes of one staging load.
    pub load: u64,
}

impl BufferSize {
    /// The largest size of at most `most` bytes, staging included, for all layers of `model` whose
    /// units can be resident one by one, in chunks of `chunk` tokens. Returns `None` if there are
    /// no such layers, or if no layer's smallest piece fits.
    pub fn within(caps: &Caps, model: &Model, chunk: usize, most: u64) -> Option<Self> {
        // Bytes of room that alignment may take.
        let slack = 4 * caps.binding_alignment.max(16);
        let mut room = (most / 3 + slack).min(most_room(caps));
        loop {
            let size = Self::of_pieces(caps, model, chunk, room)?;
            let over = size.total().saturating_sub(most);
            if over == 0 {
                return Some(size);
            }
            // Weights count three times: in the buffer and in both loads.
            room = room.min(size.weights + slack).saturating_sub(over.div_ceil(3).max(64));
        }
    }

    /// The smallest size through which the units of all layers can pass whose units may pass
    /// through a buffer at all.
    pub fn least(caps: &Caps, model: &Model, chunk: usize) -> Option<Self> {
        let rooms = model.weights.layers.iter().filter_map(|layer| match &layer.ffn {
            Ffn::Dense(_) if !NeuronWeights::places_neurons(layer) => None,
            Ffn::Dense(ffn) => Some(StreamedNeurons::least_room(caps, NeuronWeights::of(ffn)?)),
            Ffn::Experts(weights) => Some(StreamedExperts::least_room(caps, &ExpertMatrices::of(caps, weights)?)),
            Ffn::None => None,
        });
        let room = rooms.filter(|room| *room <= most_room(caps)).max()?;
        Self::of_pieces(caps, model, chunk, room)
    }

    /// The size for the largest pieces whose weights take at most `room` bytes.
    fn of_pieces(caps: &Caps, model: &Model, chunk: usize, room: u64) -> Option<Self> {
        let sizes = model.weights.layers.iter().filter_map(|layer| match &layer.ffn {
            Ffn::Dense(_) if !NeuronWeights::places_neurons(layer) => None,
            Ffn::Dense(ffn) => StreamedNeurons::buffer_size(caps, NeuronWeights::of(ffn)?, room),
            Ffn::Experts(weights) => {
                let pairs = chunk * model.config.experts.as_ref()?.used;
                StreamedExperts::buffer_size(caps, &ExpertMatrices::of(caps, weights)?, pairs, room)
            }
            Ffn::None => None,
        });
        sizes.reduce(|a, b| BufferSize {
            room,
            weights: a.weights.max(b.weights),
            bias: a.bias.max(b.bias),
            scales: a.scales.max(b.scales),
            load: a.load.max(b.load),
        })
    }

    /// Bytes of the buffer and of both staging loads.
    pub fn total(&self) -> u64 {
        self.weights + self.bias + self.scales + 2 * self.load
    }
}

/// Most bytes of weights in a buffer with these limits. A staging load holds more than the weights.
fn most_room(caps: &Caps) -> u64 {
    caps.max_binding.min(caps.max_buffer / 2)
}

/// The buffer on the device, and the staging that fills it.
#[derive(Debug)]
pub(crate) struct StreamingBuffer {
    pub weights: Buffer,
    /// Bytes of weights that a piece may take, with the gaps between its matrices.
    pub room: u64,
    pub bias: Buffer,
    pub scales: Option<Buffer>,
    pub rows: RowStream,
}

impl StreamingBuffer {
    /// Makes a buffer of this size.
    pub fn new(gpu: &Gpu, size: &BufferSize) -> Result<Self> {
        let place = |bytes| gpu.arena().buffer(Purpose::Scratch, "streaming buffer", bytes, Usage::Storage);
        Ok(StreamingBuffer {
            weights: place(size.weights)?,
            room: size.room,
            bias: place(size.bias)?,
            scales: (size.scales > 0).then(|| place(size.scales)).transpose()?,
            rows: RowStream::new(gpu, size.load)?,
        })
    }
}

impl DeviceModel {
    /// Makes a streaming buffer of at most `most` bytes if some layer has cold neurons or experts,
    /// and prepares the layers for it. An existing buffer is kept. If no unit could pass through a
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
        let (gpu, chunk) = (&self.layers.gpu, self.layers.chunk);
        let is_split = |slots: &SlotTable| !slots.is_whole();
        if most == 0 || !self.ffns.iter().any(|ffn| ffn.slots().is_some_and(is_split)) {
            self.drop_streaming_buffer();
            return Ok(());
        }
        if self.streaming_buffer.is_none() {
            let size = BufferSize::within(gpu.caps(), model, chunk, most);
            self.streaming_buffer = size.map(|size| StreamingBuffer::new(gpu, &size)).transpose()?;
        }
        let Some(buffer) = &self.streaming_buffer else { return Ok(()) };
        for (ffn, layer) in self.ffns.iter_mut().zip(&model.weights.layers[self.layers.range()]) {
            match (ffn, &layer.ffn) {
                (DeviceFfn::Neurons(neurons), of) if neurons.streamed.is_none() => {
                    let weights = NeuronWeights::of_ffn(of)?;
                    neurons.streamed = StreamedNeurons::new(gpu, buffer, neurons, weights)?;
                }
                (DeviceFfn::Experts(experts), Ffn::Experts(weights)) if experts.streamed.is_none() => {
                    let matrices = expert_matrices(gpu, weights)?;
                    experts.streamed = StreamedExperts::new(gpu, buffer, experts, &matrices)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Frees the streaming buffer; false if there was none.
    pub fn drop_streaming_buffer(&mut self) -> bool {
        self.ffns.iter_mut().for_each(DeviceFfn::forget_streaming);
        self.streaming_buffer.take().is_some()
    }
}
