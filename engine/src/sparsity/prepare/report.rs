//! What a preparation found.

use serde::{Deserialize, Serialize};

use crate::sparsity::{
    predictor::{Cut, PredictorReport},
    sidecar::Sidecar,
};

/// A prepared model.
#[derive(Debug)]
pub struct Prepared {
    /// As it is on the disk now.
    pub sidecar: Sidecar,
    /// One per layer.
    pub layers: Vec<LayerReport>,
    /// Weights of trained predictors over those of the model.
    pub predictor_share: f64,
    /// Seconds this run took; what earlier ones did is not in them.
    pub seconds: f64,
}

/// One layer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LayerReport {
    /// Which.
    pub layer: usize,
    /// Its neurons; in a mixture, those of all its experts.
    pub neurons: usize,
    /// Mean share of them that fires; in a mixture, of those of the chosen experts.
    pub density: f64,
    /// Smallest share of them that makes 80 % of the firings.
    pub skew: f64,
    /// Those that never fired.
    pub silent: usize,
    /// The predictor it got.
    pub predictor: Option<PredictorReport>,
    /// The score from which on that takes a neuron to fire.
    pub threshold: Option<f32>,
    /// Every predictor that was tried.
    pub candidates: Vec<PredictorReport>,
    /// Why it got the one it has, or none.
    pub why: String,
    /// The cut it got.
    pub cut: Option<Cut>,
    /// Type of the down projection by neurons, where that is in the sidecar; in a mixture, of the first expert's.
    pub down_type: Option<String>,
    /// What turning it lost (in a mixture, the most of any expert), see [`PreparedDown::error`](crate::sparsity::sidecar::PreparedDown::error).
    pub down_error: Option<f32>,
    /// Bytes of the layer in the sidecar.
    pub bytes: u64,
    /// Seconds it took.
    pub seconds: f64,
}

impl LayerReport {
    /// Weights of its predictor that count against what predictors may have: those of a trained one.
    pub(super) fn parameters(&self) -> u64 {
        self.predictor.as_ref().filter(|report| report.rank.is_some()).map_or(0, |report| report.parameters)
    }
}
