//! A probe for an FFN that the CPU computes between a device's layers.

use crate::{
    device::firing_log::{ColdWork, FiringEntry},
    runtime::{LayerFiring, Probe},
};

/// Keeps an FFN's firing for the log, so that layers are reported in order at the end of the chunk.
/// Passes everything else on at once.
pub(super) struct DeferredFiring<'a> {
    pub probe: &'a mut dyn Probe,
    /// True if the probe wants the firing.
    pub observed: bool,
    /// Number of neurons in the layer.
    pub neurons: usize,
    pub entry: FiringEntry,
}

impl Probe for DeferredFiring<'_> {
    fn wants_ffn_hidden(&mut self) -> bool {
        self.probe.wants_ffn_hidden()
    }

    fn ffn_hidden(&mut self, layer: usize, tokens: usize, gate: &[f32], up: &[f32]) {
        self.probe.ffn_hidden(layer, tokens, gate, up);
    }

    fn wants_firing(&mut self) -> bool {
        self.observed
    }

    fn wants_strength(&mut self) -> bool {
        self.probe.wants_device_strength()
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        let mut strength = Vec::new();
        if let Some(told) = firing.strength.filter(|_| firing.tokens == 1) {
            strength.resize(self.neurons, 0.0);
            told.spread(&mut strength);
        }
        let work = ColdWork {
            any: true,
            fired: firing.fired.to_vec(),
            strength,
            bytes: firing.cpu_bytes,
            scattered: firing.cpu_scattered,
            cpu_ns: firing.cpu_ns,
        };
        let [predicted, chosen] = [firing.predicted, firing.chosen].map(|mask| mask.map(<[u32]>::to_vec));
        let new = FiringEntry::new(firing.layer, firing.tokens);
        self.entry = FiringEntry { work, predicted, chosen, complete: firing.complete, ..new };
    }

    fn wants_router(&mut self) -> bool {
        self.probe.wants_router()
    }

    fn router(&mut self, layer: usize, chosen: &[usize]) {
        self.probe.router(layer, chosen);
    }
}
