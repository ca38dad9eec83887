//! Streaming for the chunks of a prompt. Cold neurons or experts of a split layer may pass through
//! the [`StreamingBuffer`](crate::device::streaming_buffer::StreamingBuffer) piece by piece. The
//! device then computes them too.

use super::processor::HybridProcessor;
use crate::{
    device::{device_ffn::DeviceFfn, device_model::DeviceModel},
    placement::{StreamedChunk, Streaming},
    runtime::Pass,
};
use thermocline_base::error::{Error, Result};
use thermocline_gpu::FEW_TOKENS;
use thermocline_model::{Model, mask};

impl HybridProcessor {
    /// Streams the cold neurons and experts of prompts to the device as `streaming` decides,
    /// through a buffer of at most `bytes`. If the buffer does not fit, the CPU computes them. A
    /// planner decides again whenever the resident parts have changed.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost.
    pub fn stream(&mut self, model: &Model, streaming: Streaming, bytes: u64) -> Result<()> {
        self.streaming_due = false;
        self.streaming = streaming;
        let Some(device) = &mut self.device else { return Ok(()) };
        let pays = self.streaming.pays_for(model, device.layers.chunk);
        match device.fit_streaming_buffer(model, if pays { bytes } else { 0 }) {
            Err(error @ Error::Memory { .. }) => {
                tracing::info!(%error, "no streaming buffer fits, so the CPU computes cold neurons and experts of prompts");
                Ok(())
            }
            done => done,
        }
    }

    /// Asks the planner about streaming, once after every change of the resident parts.
    pub(super) fn plan_streaming(&mut self, model: &Model) -> Result<()> {
        if !std::mem::take(&mut self.streaming_due) {
            return Ok(());
        }
        let budget = self.gpu.arena().budget();
        let planned = self.planner.as_mut().map_or(Ok(None), |planner| planner.streaming(model, budget))?;
        let (streaming, bytes) = planned.unwrap_or_else(|| (self.streaming.clone(), self.load.streaming_buffer));
        self.stream(model, streaming, bytes)
    }

    /// True if a layer's cold units are streamed to the device for this chunk.
    pub(super) fn streams(&self, pass: &Pass<'_>, layer: usize) -> bool {
        // The CPU computes the cold units of single tokens. A few separate tokens have the same
        // sums.
        if pass.separate && pass.tokens.len() <= FEW_TOKENS {
            return false;
        }
        let resident = self.device.as_ref().and_then(|device| device.ffn(layer).ok()).and_then(DeviceFfn::slots);
        let Some(slots) = resident.filter(|slots| !slots.is_whole()) else { return false };
        let (config, ffn) = (&pass.model.config, &pass.model.weights.layers[layer].ffn);
        let hot = mask::count(&slots.resident);
        let used = config.experts.map_or(0, |experts| experts.used);
        let chunk = StreamedChunk { tokens: pass.tokens.len(), used, hot, cold: ffn.units().saturating_sub(hot) };
        self.streaming.pays(ffn, chunk)
    }

    /// Frees the streaming buffer. Returns false if there was none.
    pub(super) fn drop_streaming_buffer(&mut self) -> bool {
        self.device.as_mut().is_some_and(DeviceModel::drop_streaming_buffer)
    }

    /// Runs `make`, and runs it again without the streaming buffer if there was too little memory.
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
