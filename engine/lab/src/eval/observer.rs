//! Observation of an evaluation: progress, cancellation, and the activity of neurons.

use serde::Serialize;

use thermocline_base::telemetry::neurons::{LayerNeurons, curve, neurons_of};
use thermocline_model::{LayerWeights, Model};
use thermocline_run::runtime::{LayerFiring, Probe};

/// Progress and cancellation of an evaluation.
pub trait Control {
    /// True to stop the evaluation with
    /// [`Error::Cancelled`](thermocline_base::error::Error::Cancelled).
    fn cancelled(&mut self) -> bool {
        false
    }

    /// Called when `tokens` more tokens were computed. The total is
    /// [`Corpus::computed`](super::Corpus::computed).
    fn computed(&mut self, tokens: u64) {
        let _ = tokens;
    }
}

impl Control for () {}

/// Activity of the FFNs while a text was computed. In an MoE layer, a token computes the neurons of
/// its experts.
#[derive(Debug, Clone)]
pub struct Activity {
    layers: Vec<LayerSums>,
    /// Bytes of FFN weights that a dense token reads.
    dense_bytes: u64,
}

#[derive(Debug, Clone)]
struct LayerSums {
    shape: LayerNeurons,
    tokens: u64,
    /// Computed neurons, summed over tokens.
    computed: u64,
    /// Tokens for which a predictor ran.
    predictions: u64,
    fired: u64,
    predicted: u64,
    bytes: u64,
    /// Firings of each neuron, `[neurons]`.
    counts: Vec<u32>,
}

/// Activity of one layer, as means over tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LayerActivity {
    /// Index of the layer.
    pub layer: usize,
    /// Number of neurons.
    pub neurons: usize,
    /// Number of tokens.
    pub tokens: u64,
    /// Fraction of the layer's neurons that fired. In an MoE layer, the fraction of the chosen
    /// experts' neurons.
    pub active: f64,
    /// Fraction of neurons that the predictor selected, if it ran.
    pub predicted: Option<f64>,
    /// Fraction of the layer's neurons that produce 80 % of its firings.
    pub for_80_percent: f64,
    /// Number of neurons that never fired.
    pub silent: usize,
    /// Bytes of the layer's weights and predictor that the CPU read per token.
    pub cpu_bytes: f64,
}

impl Activity {
    /// Creates zero counts for all layers of `model`.
    pub fn new(model: &Model) -> Self {
        let layer = |layer: &LayerWeights| {
            let shape = layer.ffn.neurons();
            let (tokens, computed, predictions, fired, predicted, bytes) = (0, 0, 0, 0, 0, 0);
            LayerSums { shape, tokens, computed, predictions, fired, predicted, bytes, counts: vec![0; shape.count()] }
        };
        Activity { layers: model.weights.layers.iter().map(layer).collect(), dense_bytes: model.dense_ffn_bytes() }
    }

    /// Returns the mean fraction of neurons that fired at a token; `None` without counts. In MoE
    /// layers only the chosen experts' neurons count.
    pub fn active(&self) -> Option<f64> {
        self.fraction(|layer| (layer.fired, layer.computed))
    }

    /// Returns the mean fraction of neurons that predictors selected, in layers with predictors.
    pub fn predicted(&self) -> Option<f64> {
        self.fraction(|layer| (layer.predicted, layer.predictions * layer.shape.count() as u64))
    }

    /// Returns the mean bytes of FFN weights and predictors that the CPU read per token; `None`
    /// without counts.
    pub fn cpu_bytes(&self) -> Option<f64> {
        let counted = self.layers.iter().filter(|layer| layer.tokens > 0);
        counted.map(|layer| layer.bytes as f64 / layer.tokens as f64).reduce(|a, b| a + b)
    }

    /// Returns the bytes of FFN weights that a dense token reads.
    pub fn dense_bytes(&self) -> u64 {
        self.dense_bytes
    }

    /// Returns the activity of each layer with counts.
    pub fn layers(&self) -> Vec<LayerActivity> {
        let counted = self.layers.iter().enumerate().filter(|(_, layer)| layer.tokens > 0);
        counted
            .map(|(number, layer)| {
                let neurons = layer.shape.count();
                let candidates = layer.predictions * neurons as u64;
                LayerActivity {
                    layer: number,
                    neurons,
                    tokens: layer.tokens,
                    active: layer.fired as f64 / layer.computed.max(1) as f64,
                    predicted: (candidates > 0).then(|| layer.predicted as f64 / candidates as f64),
                    for_80_percent: curve::neurons_for(&layer.counts, 0.8) as f64 / neurons.max(1) as f64,
                    silent: layer.counts.iter().filter(|count| **count == 0).count(),
                    cpu_bytes: layer.bytes as f64 / layer.tokens as f64,
                }
            })
            .collect()
    }

    /// Returns the firings of each neuron of a layer, `[neurons]`.
    pub fn counts(&self, layer: usize) -> &[u32] {
        self.layers.get(layer).map_or(&[], |layer| &layer.counts)
    }

    fn fraction(&self, of: impl Fn(&LayerSums) -> (u64, u64)) -> Option<f64> {
        let (part, whole) = self.layers.iter().fold((0, 0), |(part, whole), layer| {
            let (count, of) = of(layer);
            (part + count, whole + of)
        });
        (whole > 0).then(|| part as f64 / whole as f64)
    }
}

/// The probe of an evaluation.
pub(super) struct EvalProbe<'a> {
    pub control: &'a mut dyn Control,
    pub activity: &'a mut Activity,
    /// Receiver of the FFNs' inputs.
    pub inputs: Option<&'a mut dyn FfnInputs>,
}

/// Receives the inputs of FFNs.
pub(super) trait FfnInputs {
    /// As [`Probe::ffn_input`].
    fn observe(&mut self, layer: usize, tokens: usize, normed: &[f32], residual: &[f32]);
}

impl Probe for EvalProbe<'_> {
    fn cancelled(&mut self) -> bool {
        self.control.cancelled()
    }

    fn wants_ffn_input(&mut self) -> bool {
        self.inputs.is_some()
    }

    fn ffn_input(&mut self, layer: usize, tokens: usize, normed: &[f32], residual: &[f32]) {
        if let Some(inputs) = &mut self.inputs {
            inputs.observe(layer, tokens, normed, residual);
        }
    }

    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        let Some(layer) = self.activity.layers.get_mut(firing.layer) else { return };
        let count = |mask: &[u32]| mask.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        layer.tokens += firing.tokens as u64;
        layer.computed += match layer.shape {
            LayerNeurons::Dense(neurons) => (neurons * firing.tokens) as u64,
            LayerNeurons::Experts { width, shared, .. } => {
                count(firing.chosen.unwrap_or_default()) * width as u64 + (shared * firing.tokens) as u64
            }
        };
        layer.fired += count(firing.fired);
        if let Some(predicted) = firing.predicted {
            layer.predictions += firing.tokens as u64;
            layer.predicted += count(predicted);
        }
        layer.bytes += firing.cpu_bytes;
        for row in firing.fired.chunks_exact(layer.shape.count().div_ceil(32).max(1)) {
            for neuron in neurons_of(row) {
                if let Some(count) = layer.counts.get_mut(neuron) {
                    *count += 1;
                }
            }
        }
    }
}
