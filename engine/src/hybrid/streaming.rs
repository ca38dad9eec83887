//! Streaming: for the chunks of a prompt, cold neurons of a split layer pass through the [`StreamingBuffer`] piece by piece, and the
//! device computes them too. No hand-over is needed: the CPU waits for nothing but room in the staging.

use std::time::Instant;

use thermocline_shaders::limits::NO_NEURON;

use super::{processor::HybridProcessor, split_layer::SplitLayer};
use crate::{
    device::{
        device_ffn::DeviceFfn,
        device_model::DeviceModel,
        firing_log::FiringEntry,
        neuron_weights::{NeuronWeights, SLOT_MULTIPLE},
        resident_neurons::{NeuronSelection, ResidentNeurons},
        streaming_buffer::{BufferSize, StreamedNeurons, StreamingBuffer},
    },
    error::{Error, Result},
    model::{Ffn, Model},
    placement::Streaming,
    runtime::Pass,
};

impl SplitLayer<'_, '_> {
    /// `Out = ffn`, with the rows of the layer's cold neurons sent through `buffer`.
    pub(super) fn run_streamed(
        &mut self,
        neurons: &ResidentNeurons,
        streamed: &StreamedNeurons,
        buffer: &mut StreamingBuffer,
    ) -> Result<()> {
        let (layer, tokens) = (self.ffn.layer, self.pass.tokens.len());
        let weights = NeuronWeights::of_ffn(&self.pass.model.weights.layers[layer].ffn)?;
        let (observed, segment) = (self.pass.probe.wants_firing(), &mut self.layers.segment);
        let mut partials = neurons.record(segment, tokens, NeuronSelection::All, |_| Ok(()))?;
        if observed {
            neurons.record_threshold(segment.recorder(), tokens, NeuronSelection::All);
            let fired = neurons.record_fired(segment.recorder(), tokens);
            let entry = FiringEntry { complete: true, ..FiringEntry::new(layer, tokens) };
            self.log.push(segment, fired, None, entry)?;
        }
        let (mut bus_bytes, mut cpu_ns, mut slots) = (0, 0, Vec::new());
        for piece in streamed.pieces(&self.cold.neurons[layer]) {
            slots.clear();
            slots.extend_from_slice(piece);
            slots.resize(piece.len().next_multiple_of(SLOT_MULTIPLE), NO_NEURON);
            let started = Instant::now();
            bus_bytes += buffer.load(segment.recorder(), streamed, weights, &slots)?;
            cpu_ns += started.elapsed().as_nanos() as u64;
            streamed.record(segment.recorder(), neurons, tokens, slots.len(), &mut partials);
            if observed {
                let fired = streamed.record_fired(segment.recorder(), neurons, tokens, slots.len());
                self.log.push_streamed(segment, fired, piece)?;
            }
            // The device begins with these while the next are repacked.
            segment.submit()?;
            buffer.rows.submitted();
        }
        if let Some(entry) = self.log.entries.last_mut().filter(|_| observed) {
            entry.bus_bytes = bus_bytes;
            entry.work.cpu_ns = cpu_ns;
        }
        neurons.sum.record(segment.recorder(), &partials);
        Ok(())
    }
}

impl DeviceModel {
    /// Makes a streaming buffer of at most `most` bytes, if some layer has cold neurons, and prepares such layers for it; one that is
    /// there stays as it is. Where no neuron could pass through it, there is none.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room for it, [`Error::Gpu`] if the device is lost. There is none then.
    fn fit_streaming_buffer(&mut self, model: &Model, most: u64) -> Result<()> {
        let fitted = self.try_streaming_buffer(model, most);
        if fitted.is_err() {
            self.drop_streaming_buffer();
        }
        fitted
    }

    fn try_streaming_buffer(&mut self, model: &Model, most: u64) -> Result<()> {
        let gpu = &self.layers.gpu;
        let size = BufferSize::within(gpu.caps(), &model.weights.layers, most);
        let is_split = |neurons: &ResidentNeurons| !neurons.is_whole();
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

impl HybridProcessor {
    /// Streams the cold neurons of prompts to the device where `streaming` says so, through a buffer of at most `bytes`; without room
    /// for the buffer, the CPU computes them. A planner is asked again whenever the resident parts have changed.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost.
    pub fn stream(&mut self, model: &Model, streaming: Streaming, bytes: u64) -> Result<()> {
        self.streaming_due = false;
        self.streaming = streaming;
        let Some(device) = &mut self.device else { return Ok(()) };
        let most = device.layers.chunk;
        let pays = model.weights.layers.iter().any(|layer| match &layer.ffn {
            Ffn::Dense(ffn) => self.streaming.pays(ffn, 0, ffn.up.weight.rows(), most),
            Ffn::Experts(_) | Ffn::None => false,
        });
        match device.fit_streaming_buffer(model, if pays { bytes } else { 0 }) {
            Err(error @ Error::Memory { .. }) => {
                tracing::info!(%error, "the CPU computes the cold neurons of prompts");
                Ok(())
            }
            done => done,
        }
    }

    /// Asks the planner about streaming, once after the resident parts have changed.
    pub(super) fn plan_streaming(&mut self, model: &Model) -> Result<()> {
        if !std::mem::take(&mut self.streaming_due) {
            return Ok(());
        }
        let budget = self.gpu.arena().budget();
        let planned = self.planner.as_mut().map_or(Ok(None), |planner| planner.streaming(model, budget))?;
        let (streaming, bytes) = planned.unwrap_or_else(|| (self.streaming.clone(), self.load.streaming_buffer));
        self.stream(model, streaming, bytes)
    }

    /// True if the cold neurons of a layer are to be streamed to the device for this chunk.
    pub(super) fn streams(&self, pass: &Pass<'_>, layer: usize) -> bool {
        let cold = self.cold.neurons[layer].len();
        match &pass.model.weights.layers[layer].ffn {
            Ffn::Dense(ffn) if cold > 0 => {
                self.streaming.pays(ffn, ffn.up.weight.rows().saturating_sub(cold), cold, pass.tokens.len())
            }
            _ => false,
        }
    }

    /// Frees the streaming buffer; false if there was none.
    pub(super) fn drop_streaming_buffer(&mut self) -> bool {
        self.device.as_mut().is_some_and(DeviceModel::drop_streaming_buffer)
    }

    /// Runs `make`, and once more without the streaming buffer if there was no room.
    pub(super) fn retry_without_streaming_buffer<R>(
        &mut self,
        mut make: impl FnMut(&mut Self) -> Result<R>,
    ) -> Result<R> {
        match make(self) {
            Err(Error::Memory { .. }) if self.drop_streaming_buffer() => make(self),
            done => done,
        }
    }
}
