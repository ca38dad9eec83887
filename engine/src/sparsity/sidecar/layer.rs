//! What is known of one layer.

use crate::{
    format::Matrix,
    model::{PredictorInput, PredictorKind, PredictorQuality},
    sparsity::profile::busiest,
};

/// One layer's part of a sidecar.
#[derive(Debug, Clone, Default)]
pub struct PreparedLayer {
    /// Share of tokens at which each neuron fires, `[n_ff]`; of a mixture, at which each expert is chosen, `[experts]`.
    pub frequency: Option<Vec<f32>>,
    /// Who guesses the neurons that fire.
    pub predictor: Option<PreparedPredictor>,
    /// Where the threshold mode cuts.
    pub cut: Option<PreparedCut>,
    /// The down projection, a row per neuron.
    pub down: Option<PreparedDown>,
    /// Of a mixture: its experts' neurons.
    pub experts: Option<PreparedExperts>,
}

/// The neurons of a mixture's experts.
#[derive(Debug, Clone, Default)]
pub struct PreparedExperts {
    /// Neurons of an expert.
    pub width: usize,
    /// Share of tokens at which each fires, `[experts, width]`.
    pub frequency: Vec<f32>,
    /// Those of the expert that every token passes through; nothing without one.
    pub shared: Vec<f32>,
    /// Down projections, a row per neuron: the experts', then that of the one that every token passes through. All of them or none.
    pub downs: Vec<Matrix>,
    /// The largest of their errors, each as [`PreparedDown::error`].
    pub down_error: f32,
}

impl PreparedExperts {
    /// Shares of all neurons, expert by expert, those of the shared one last.
    pub fn frequencies(&self) -> impl Iterator<Item = f32> {
        self.frequency.iter().chain(&self.shared).copied()
    }

    fn bytes(&self) -> u64 {
        let downs: usize = self.downs.iter().map(|down| down.data().len()).sum();
        ((self.frequency.len() + self.shared.len()) * size_of::<f32>() + downs) as u64
    }
}

/// A predictor that was made, or the model's own measured anew.
#[derive(Debug, Clone)]
pub struct PreparedPredictor {
    /// How it scores; `None`: as the model file's own predictor does. The bias of rows is the model's and not kept here.
    pub kind: Option<PredictorKind>,
    /// What it sees.
    pub input: PredictorInput,
    /// The score from which on a neuron is taken to fire.
    pub threshold: f32,
    /// What that finds on held-out text.
    pub quality: PredictorQuality,
}

/// A cut on the magnitude of the gate's activation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PreparedCut {
    /// Neurons below it are skipped.
    pub value: f32,
    /// Share of the neurons above it.
    pub density: f32,
}

/// The down projection turned so that a neuron is a row.
#[derive(Debug, Clone)]
pub struct PreparedDown {
    /// `[n_ff, d]`
    pub weight: Matrix,
    /// Root mean square of the difference from the model's own, relative to that of the model's own.
    pub error: f32,
}

impl PreparedLayer {
    /// Bytes its tensors take in the file.
    pub fn bytes(&self) -> u64 {
        let matrix = |matrix: &Matrix| matrix.data().len() as u64;
        let frequency = self.frequency.as_ref().map_or(0, |frequency| (frequency.len() * size_of::<f32>()) as u64);
        let down = self.down.as_ref().map_or(0, |down| matrix(&down.weight));
        let experts = self.experts.as_ref().map_or(0, PreparedExperts::bytes);
        frequency + down + experts + self.predictor.as_ref().map_or(0, PreparedPredictor::bytes)
    }

    /// Mean share of the neurons that fire; of a mixture, of those of the experts a token chooses.
    pub fn density(&self) -> Option<f32> {
        let frequency = self.frequency.as_ref().filter(|frequency| !frequency.is_empty())?;
        if let Some(experts) = &self.experts {
            let chosen: f64 = frequency.iter().map(|&share| f64::from(share)).sum();
            let looked = chosen * experts.width as f64 + experts.shared.len() as f64;
            let fires: f64 = experts.frequencies().map(f64::from).sum();
            return (looked > 0.0).then(|| (fires / looked) as f32);
        }
        let sum: f64 = frequency.iter().map(|&share| f64::from(share)).sum();
        Some((sum / frequency.len() as f64) as f32)
    }

    /// The smallest share of the neurons that makes `share` of the firings.
    pub fn skew(&self, share: f64) -> Option<f64> {
        if let Some(experts) = &self.experts {
            return Some(busiest(experts.frequencies().map(f64::from).collect(), share));
        }
        let frequency = self.frequency.as_ref().filter(|frequency| !frequency.is_empty())?;
        Some(busiest(frequency.iter().map(|&often| f64::from(often)).collect(), share))
    }
}

impl PreparedPredictor {
    /// Bytes of its weights; 0 where they are the model's.
    pub fn bytes(&self) -> u64 {
        match &self.kind {
            Some(PredictorKind::LowRank { fc1, fc2 }) => (fc1.data().len() + fc2.data().len()) as u64,
            Some(PredictorKind::Rows { rows, .. }) => rows.data().len() as u64,
            None => 0,
        }
    }

    /// Width of its hidden layer, where it has one.
    pub fn rank(&self) -> Option<usize> {
        match &self.kind {
            Some(PredictorKind::LowRank { fc1, .. }) => Some(fc1.rows()),
            _ => None,
        }
    }

    /// Its name in files and tables.
    pub fn kind_name(&self) -> &'static str {
        match &self.kind {
            Some(PredictorKind::LowRank { .. }) => "low_rank",
            Some(PredictorKind::Rows { .. }) => "rows",
            None => "model",
        }
    }
}

/// The name of what a predictor sees.
pub(super) fn input_name(input: PredictorInput) -> &'static str {
    match input {
        PredictorInput::Residual => "residual",
        PredictorInput::Normed => "normed",
    }
}
