//! Results of preparing a model.

use serde::{Deserialize, Serialize};

use crate::sparsity::{
    predictor::{ActivationThreshold, PredictorReport},
    sidecar::Sidecar,
};

/// A prepared model.
#[derive(Debug)]
pub struct Prepared {
    /// The sidecar as written.
    pub sidecar: Sidecar,
    /// One per layer.
    pub layers: Vec<LayerReport>,
    /// Ratio of the trained predictors' weights to the model's.
    pub predictor_fraction: f64,
    /// Seconds of this run; work of earlier runs is not included.
    pub seconds: f64,
}

/// Results of one layer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LayerReport {
    /// Index of the layer.
    pub layer: usize,
    /// Number of neurons; in an MoE layer, of all experts.
    pub neurons: usize,
    /// Mean fraction of them that fires; in an MoE layer, of the chosen experts' neurons.
    pub density: f64,
    /// Smallest fraction of them that makes 80 % of the firings.
    pub skew: f64,
    /// Neurons that never fired.
    pub silent: usize,
    /// Figures of the selected predictor.
    pub predictor: Option<PredictorReport>,
    /// Threshold of the selected predictor: neurons with this score or more are named.
    pub threshold: Option<f32>,
    /// Figures of all candidates.
    pub candidates: Vec<PredictorReport>,
    /// Reason of the selection.
    pub why: String,
    /// Activation threshold, in models whose activations are never exactly zero.
    #[serde(rename = "cut")]
    pub activation_threshold: Option<ActivationThreshold>,
    /// Type of the neuron-major down projection in the sidecar; in an MoE layer, the first expert's.
    pub down_type: Option<String>,
    /// Its relative error (in an MoE layer, the largest of any expert), see
    /// [`PreparedDown::error`](crate::sparsity::sidecar::PreparedDown::error).
    pub down_error: Option<f32>,
    /// Bytes of the layer in the sidecar.
    pub bytes: u64,
    /// Seconds of preparing it.
    pub seconds: f64,
}

impl LayerReport {
    /// Weights that count against the parameter budget: those of a trained predictor.
    pub(super) fn parameters(&self) -> u64 {
        self.predictor.as_ref().filter(|report| report.rank.is_some()).map_or(0, |report| report.parameters)
    }
}
