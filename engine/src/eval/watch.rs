//! Who is told how far an evaluation is and may stop it, and what it sees of the neurons.

use serde::Serialize;

use crate::{
    bench::dense_ffns,
    model::{LayerFiring, LayerWeights, Model, Probe},
    telemetry::neurons::{LayerNeurons, curve, neurons_of},
};

/// Follows an evaluation.
pub trait Control {
    /// Whether to stop: the evaluation then ends with [`Error::Cancelled`](crate::Error::Cancelled).
    fn cancelled(&mut self) -> bool {
        false
    }

    /// So many more tokens were computed. How many there will be, a [`Corpus`](super::Corpus) tells.
    fn computed(&mut self, tokens: u64) {
        let _ = tokens;
    }
}

impl Control for () {}

/// What the FFNs did while a text was computed. Of a mixture, a token has to do with the neurons of the experts it uses.
#[derive(Debug, Clone)]
pub struct Activity {
    layers: Vec<LayerSums>,
    /// Bytes of FFNs that a token reads when nothing is skipped.
    dense_bytes: u64,
}

#[derive(Debug, Clone)]
struct LayerSums {
    shape: LayerNeurons,
    tokens: u64,
    /// Neurons that tokens had to do with.
    looked: u64,
    /// Tokens a predictor was asked for.
    asked: u64,
    fired: u64,
    predicted: u64,
    bytes: u64,
    /// How often each neuron fired.
    counts: Vec<u32>,
}

/// What one layer did, on average over tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LayerActivity {
    /// Which layer.
    pub layer: usize,
    /// Its neurons.
    pub neurons: usize,
    /// Tokens seen.
    pub tokens: u64,
    /// Share of its neurons that fired; in a mixture, of those of the experts that were chosen.
    pub active: f64,
    /// Share that the predictor let through, where it was asked.
    pub predicted: Option<f64>,
    /// Share of its neurons that make 80 % of its firings.
    pub for_80_percent: f64,
    /// Neurons that never fired.
    pub silent: usize,
    /// Bytes of its weights, and of its predictor, that the CPU read for a token.
    pub cpu_bytes: f64,
}

impl Activity {
    /// Nothing seen yet.
    pub fn new(model: &Model) -> Self {
        let layer = |layer: &LayerWeights| {
            let shape = layer.ffn.neurons();
            let (tokens, looked, asked, fired, predicted, bytes) = (0, 0, 0, 0, 0, 0);
            LayerSums { shape, tokens, looked, asked, fired, predicted, bytes, counts: vec![0; shape.count()] }
        };
        Activity { layers: model.weights.layers.iter().map(layer).collect(), dense_bytes: dense_ffns(model) }
    }

    /// Share of all neurons that fired for an average token; `None` if no layer told. Of a mixture those count that are the chosen
    /// experts'.
    pub fn active(&self) -> Option<f64> {
        self.share(|layer| (layer.fired, layer.looked))
    }

    /// Share of all neurons that predictors let through, in layers that have one.
    pub fn predicted(&self) -> Option<f64> {
        self.share(|layer| (layer.predicted, layer.asked * layer.shape.count() as u64))
    }

    /// Bytes of FFN weights and predictors that the CPU read for an average token; `None` if no layer told.
    pub fn cpu_bytes(&self) -> Option<f64> {
        let told = self.layers.iter().filter(|layer| layer.tokens > 0);
        told.map(|layer| layer.bytes as f64 / layer.tokens as f64).reduce(|a, b| a + b)
    }

    /// Bytes of FFN weights a token reads when nothing is skipped.
    pub fn dense_bytes(&self) -> u64 {
        self.dense_bytes
    }

    /// Layer by layer, those that told.
    pub fn layers(&self) -> Vec<LayerActivity> {
        let told = self.layers.iter().enumerate().filter(|(_, layer)| layer.tokens > 0);
        told.map(|(number, layer)| {
            let neurons = layer.shape.count();
            let asked = layer.asked * neurons as u64;
            LayerActivity {
                layer: number,
                neurons,
                tokens: layer.tokens,
                active: layer.fired as f64 / layer.looked.max(1) as f64,
                predicted: (asked > 0).then(|| layer.predicted as f64 / asked as f64),
                for_80_percent: curve::neurons_for(&layer.counts, 0.8) as f64 / neurons.max(1) as f64,
                silent: layer.counts.iter().filter(|count| **count == 0).count(),
                cpu_bytes: layer.bytes as f64 / layer.tokens as f64,
            }
        })
        .collect()
    }

    /// How often each neuron of a layer fired.
    pub fn counts(&self, layer: usize) -> &[u32] {
        self.layers.get(layer).map_or(&[], |layer| &layer.counts)
    }

    fn share(&self, of: impl Fn(&LayerSums) -> (u64, u64)) -> Option<f64> {
        let (part, whole) = self.layers.iter().fold((0, 0), |(part, whole), layer| {
            let (count, of) = of(layer);
            (part + count, whole + of)
        });
        (whole > 0).then(|| part as f64 / whole as f64)
    }
}

/// What looks on while a text is computed.
pub(super) struct Observer<'a> {
    pub control: &'a mut dyn Control,
    pub activity: &'a mut Activity,
    /// Who is shown what the FFNs are given, if anybody.
    pub inputs: Option<&'a mut dyn FfnInputs>,
}

/// Is shown what FFNs are given.
pub(super) trait FfnInputs {
    /// As [`Probe::ffn_input`].
    fn look(&mut self, layer: usize, tokens: usize, normed: &[f32], residual: &[f32]);
}

impl Probe for Observer<'_> {
    fn cancelled(&mut self) -> bool {
        self.control.cancelled()
    }

    fn wants_ffn_input(&mut self) -> bool {
        self.inputs.is_some()
    }

    fn ffn_input(&mut self, layer: usize, tokens: usize, normed: &[f32], residual: &[f32]) {
        if let Some(inputs) = &mut self.inputs {
            inputs.look(layer, tokens, normed, residual);
        }
    }

    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        let Some(layer) = self.activity.layers.get_mut(firing.layer) else { return };
        let count = |mask: &[u32]| mask.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        layer.tokens += firing.tokens as u64;
        layer.looked += match layer.shape {
            LayerNeurons::Dense(neurons) => (neurons * firing.tokens) as u64,
            LayerNeurons::Mixture { width, shared, .. } => {
                count(firing.chosen.unwrap_or_default()) * width as u64 + (shared * firing.tokens) as u64
            }
        };
        layer.fired += count(firing.fired);
        if let Some(predicted) = firing.predicted {
            layer.asked += firing.tokens as u64;
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
