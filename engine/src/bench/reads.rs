//! Counts the FFN bytes that tokens read while they are generated.

use thermocline_base::telemetry::neurons::LayerNeurons;
use thermocline_model::{Ffn, Model};
use thermocline_run::runtime::{LayerFiring, Probe};

/// Number of experts that a token is routed to.
fn routed_experts(model: &Model) -> u64 {
    model.config.experts.as_ref().map_or(0, |experts| experts.used) as u64
}

/// Number of neurons in all layers. MoE layers count the routed and shared experts.
fn neurons(model: &Model) -> u64 {
    let of = |ffn: &Ffn| match ffn.neurons() {
        LayerNeurons::Dense(neurons) => neurons as u64,
        LayerNeurons::Experts { width, shared, .. } => routed_experts(model) * width as u64 + shared as u64,
    };
    model.weights.layers.iter().map(|layer| of(&layer.ffn)).sum()
}

/// Bytes of a neuron's row in the first FFN.
pub(super) fn neuron_row(model: &Model) -> Option<usize> {
    model.weights.layers.iter().find_map(|layer| match &layer.ffn {
        Ffn::None => None,
        Ffn::Dense(ffn) => Some(ffn.up.weight.row_bytes()),
        Ffn::Experts(experts) => experts.experts.first().map(|expert| expert.up.weight.row_bytes()),
    })
}

/// Counts FFN reads and firing neurons over generated tokens.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct ReadCounter {
    /// Number of recorded layers, over all tokens.
    layers: u64,
    bytes: u64,
    scattered: u64,
    /// Number of neurons that fired.
    fired: u64,
    last_layer: usize,
    tokens: u64,
    /// Number of neurons that fired and were computed on a device.
    hits: u64,
    /// Nanoseconds that the CPU waited for the device.
    waited: u64,
}

impl ReadCounter {
    /// Bytes that the average token reads: all bytes, and bytes of scattered rows.
    pub fn per_token(&self) -> Option<(u64, u64)> {
        Some((self.bytes.checked_div(self.tokens)?, self.scattered.checked_div(self.tokens)?))
    }

    /// Fraction of the firing neurons that were computed on a device. `None` if no neuron fired or
    /// some of the `layers` were not recorded.
    pub fn hit_rate(&self, layers: usize) -> Option<f64> {
        let complete = self.layers == self.tokens * layers as u64;
        (complete && self.fired > 0).then(|| self.hits as f64 / self.fired as f64)
    }

    /// Total seconds that the CPU waited for the device in layers that both compute.
    pub fn waited(&self) -> f64 {
        self.waited as f64 / 1e9
    }

    /// Fraction of the neurons that fired; `None` if some layer of `model` was not recorded.
    pub fn active(&self, model: &Model) -> Option<f64> {
        let complete = self.layers == self.tokens * model.ffn_layers() as u64;
        let all = self.tokens * neurons(model);
        (complete && all > 0).then(|| self.fired as f64 / all as f64)
    }
}

impl Probe for ReadCounter {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        if firing.tokens != 1 {
            return;
        }
        self.tokens += u64::from(self.layers == 0 || firing.layer <= self.last_layer);
        (self.layers, self.last_layer) = (self.layers + 1, firing.layer);
        self.fired += firing.fired.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        self.bytes += firing.cpu_bytes;
        self.scattered += firing.cpu_scattered;
        if let Some(hot) = firing.hot {
            self.hits +=
                firing.fired.iter().zip(hot).map(|(fired, hot)| u64::from((fired & hot).count_ones())).sum::<u64>();
        }
        self.waited += firing.wait_ns;
    }
}
