//! Cold neurons of prompts that pass through the device.

use super::processor::HybridProcessor;
use crate::{
    error::{Error, Result},
    model::{Ffn, Model, Processor},
    sparsity::placement::Streaming,
};

impl HybridProcessor {
    /// Computes the cold neurons' part of prompts where `streaming` says, with at most `bytes` of the device's memory for what
    /// carries their rows there: where there is no room for it, on the CPU as ever. A planner that knows better is asked whenever
    /// something has moved.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost.
    pub fn stream(&mut self, model: &Model, streaming: Streaming, bytes: u64) -> Result<()> {
        self.slab_due = false;
        self.streaming = streaming;
        let Some(device) = &mut self.device else { return Ok(()) };
        let most = device.max_chunk();
        let pays = model.weights.layers.iter().any(|layer| match &layer.ffn {
            Ffn::Dense(ffn) => self.streaming.pays(ffn, (0, ffn.up.weight.rows()), most),
            Ffn::Experts(_) => false,
        });
        match device.fit_slab(model, if pays { bytes } else { 0 }) {
            Err(error @ Error::Memory { .. }) => {
                tracing::info!(%error, "the CPU computes what is cold of prompts");
                Ok(())
            }
            done => done,
        }
    }

    /// Asks the planner, once after something has moved.
    pub(super) fn see_to_slab(&mut self, model: &Model) -> Result<()> {
        if !std::mem::take(&mut self.slab_due) {
            return Ok(());
        }
        let budget = self.gpu.arena().budget();
        let asked = self.planner.as_mut().map_or(Ok(None), |planner| planner.streaming(model, budget))?;
        let (streaming, bytes) = asked.unwrap_or_else(|| (self.streaming.clone(), self.load.slab));
        self.stream(model, streaming, bytes)
    }

    /// Whether the cold neurons of a layer are sent to the device for this chunk.
    pub(super) fn streams(&self, model: &Model, layer: usize) -> bool {
        let cold = self.cold[layer].len();
        match &model.weights.layers[layer].ffn {
            Ffn::Dense(ffn) if cold > 0 => {
                self.streaming.pays(ffn, (ffn.up.weight.rows().saturating_sub(cold), cold), self.tokens)
            }
            _ => false,
        }
    }

    /// Gives up what carries them; whether there was anything.
    pub(super) fn drop_slab(&mut self) -> bool {
        self.device.as_mut().is_some_and(|device| device.drop_slab())
    }

    /// `make`, once more without the slab where there is no room.
    pub(super) fn slab_gives_way<R>(&mut self, mut make: impl FnMut(&mut Self) -> Result<R>) -> Result<R> {
        match make(self) {
            Err(Error::Memory { .. }) if self.drop_slab() => make(self),
            done => done,
        }
    }
}
