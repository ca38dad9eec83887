//! Progress and results of generating a synthetic model.

use std::path::PathBuf;

use serde::Serialize;

use super::ExpertCounts;

/// Progress of [`super::generate`].
#[derive(Debug, Clone, Copy)]
pub struct SynthProgress<'a> {
    /// Bytes of tensors written.
    pub done: u64,
    /// Bytes of all tensors.
    pub total: u64,
    /// Current tensor.
    pub tensor: &'a str,
}

/// Firing figures of a layer, or their means over layers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Firing {
    /// Mean fraction of the neurons that fire at a token. In an MoE layer, the fraction of the
    /// chosen experts' neurons.
    pub active: f64,
    /// Fraction of the neurons that make [`SynthReport::hot_firings`] of all firings. Smaller means
    /// more skewed.
    #[serde(rename = "hot_share")]
    pub hot_fraction: f64,
    /// Recall of the predictor; absent without predictors.
    pub recall: Option<f64>,
    /// Fraction of all neurons that the predictor names; absent without predictors, and in
    /// requested figures.
    pub predicted: Option<f64>,
}

/// Result of [`super::generate`].
#[derive(Debug, Clone, Serialize)]
pub struct SynthReport {
    /// Path of the file.
    pub path: PathBuf,
    /// Name of the shape.
    pub shape: &'static str,
    /// Type of the matrices.
    pub tensor_type: &'static str,
    /// Number of layers.
    pub layers: usize,
    /// Number of weights.
    pub parameters: u64,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Wall-clock time of the generation, in seconds.
    pub seconds: f64,
    /// Fraction of firings that [`Firing::hot_fraction`] refers to.
    pub hot_firings: f64,
    /// Requested figures; absent for dense shapes.
    pub asked: Option<Firing>,
    /// Measured figures of sampled tokens with the quantised weights, mean over layers; absent for
    /// dense shapes.
    pub measured: Option<Firing>,
    /// Measured figures of each layer; empty for dense shapes.
    pub measured_layers: Vec<Firing>,
    /// Designed firing frequency of each neuron, `[n_ff]` per layer, in the order of the file's
    /// rows. Empty for dense shapes.
    #[serde(skip)]
    pub frequencies: Vec<Vec<f32>>,
    /// Numbers of experts per layer and per token, in MoE shapes.
    #[serde(rename = "mixture")]
    pub moe: Option<ExpertCounts>,
    /// Designed frequency of each expert, `[experts]` per layer. Empty without experts.
    #[serde(skip)]
    pub chosen: Vec<Vec<f32>>,
}

impl SynthReport {
    /// Returns the largest relative deviation of [`SynthReport::measured`] from
    /// [`SynthReport::asked`]; 0 for dense shapes. More than 0.1 is a fault.
    pub fn deviation(&self) -> f64 {
        let (Some(asked), Some(measured)) = (self.asked, self.measured) else { return 0.0 };
        let deviation = |asked: f64, measured: f64| (measured / asked - 1.0).abs();
        let recall = match (asked.recall, measured.recall) {
            (Some(asked), Some(measured)) => deviation(asked, measured),
            _ => 0.0,
        };
        deviation(asked.active, measured.active).max(deviation(asked.hot_fraction, measured.hot_fraction)).max(recall)
    }
}
