//! Results of preparing a model.

use serde::{Deserialize, Serialize};

use crate::sparsity::{
    predictor::{ActivationThreshold, PredictorReport},
    sidecar::Sidecar,
};

/// A prepared model.
#[derive(Debug)]
pub struct Prepared {
    /// The written sidecar.
    pub sidecar: Sidecar,
    /// Reports per layer.
    pub layers: Vec<LayerReport>,
    /// Ratio of the trained predictors' weights to the model's.
    pub predictor_fraction: f64,
    /// Seconds of this run, without earlier runs.
    pub seconds: f64,
}

/// Results of one layer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LayerReport {
    /// Index of the layer.
    pub layer: usize,
    /// Number of neurons. In an MoE layer, of all experts.
    pub neurons: usize,
    /// Mean fraction of neurons that fire. In an MoE layer, of the chosen experts' neurons.
    pub density: f64,
    /// Smallest fraction of neurons that produce 80 % of the firings.
    pub skew: f64,
    /// Neurons that never fired.
    pub silent: usize,
    /// Figures of the selected predictor.
    pub predictor: Option<PredictorReport>,
    /// Threshold of the selected predictor. It selects neurons with at least this score.
    pub threshold: Option<f32>,
    /// Figures of all candidate predictors.
    pub candidates: Vec<PredictorReport>,
    /// Reason of the selection.
    pub why: String,
    /// Activation threshold, for models whose activations are never exactly zero.
    #[serde(rename = "cut")]
    pub activation_threshold: Option<ActivationThreshold>,
    /// Type of the neuron-major down projection in the sidecar. In an MoE layer, the first expert's
    /// type.
    pub down_type: Option<String>,
    /// Relative error of this down projection
    /// ([`PreparedDown::error`](crate::sparsity::sidecar::PreparedDown::error)). In an MoE layer,
    /// the largest error of all experts.
    pub down_error: Option<f32>,
    /// Bytes of a neuron's bundle; `None` without bundles.
    pub bundle_bytes: Option<usize>,
    /// Bytes of the layer in the sidecar.
    pub bytes: u64,
    /// Seconds of preparing the layer.
    pub seconds: f64,
}

impl LayerReport {
    /// Returns the weights that count against the parameter budget: the weights of a trained
    /// predictor.
    pub(super) fn parameters(&self) -> u64 {
        self.predictor.as_ref().filter(|report| report.rank.is_some()).map_or(0, |report| report.parameters)
    }
}
