//! What was made, and what it does.

use std::path::PathBuf;

use serde::Serialize;

use super::Mixture;

/// How far [`super::generate`] is.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Bytes of tensors written.
    pub done: u64,
    /// Bytes of tensors in all.
    pub total: u64,
    /// The tensor being made.
    pub tensor: &'a str,
}

/// How a layer (or the average layer) fires.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Firing {
    /// Share of the neurons that fire for an average token; of a mixture's, of the chosen experts'.
    pub active: f64,
    /// Share of the neurons that make [`SynthReport::hot_firings`] of all firings: the smaller, the more skewed.
    pub hot_share: f64,
    /// Share of the firing neurons the predictor finds; absent without predictors.
    pub recall: Option<f64>,
    /// Share of all neurons the predictor lets through; absent without predictors (and in what was asked).
    pub predicted: Option<f64>,
}

/// What [`super::generate`] made.
#[derive(Debug, Clone, Serialize)]
pub struct SynthReport {
    /// The file.
    pub path: PathBuf,
    /// Its shape.
    pub shape: &'static str,
    /// Type of its matrices.
    pub tensor_type: &'static str,
    /// Layers.
    pub layers: usize,
    /// Weights in all tensors.
    pub parameters: u64,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// The share of firings that [`Firing::hot_share`] refers to.
    pub hot_firings: f64,
    /// What was asked for; absent for dense shapes.
    pub asked: Option<Firing>,
    /// What sampled tokens did in the quantised weights: mean over layers; absent for dense shapes.
    pub measured: Option<Firing>,
    /// The same per layer; empty for dense shapes.
    pub measured_layers: Vec<Firing>,
    /// Per layer: the share of tokens for which each neuron was made to fire, in the order of the file's rows; empty for dense shapes.
    #[serde(skip)]
    pub frequencies: Vec<Vec<f32>>,
    /// Experts of a layer and of a token, where the shape is a mixture.
    pub mixture: Option<Mixture>,
    /// Per layer: the share of tokens that were made to choose each expert; empty without experts.
    #[serde(skip)]
    pub chosen: Vec<Vec<f32>>,
}

impl SynthReport {
    /// The largest deviation of [`SynthReport::measured`] from [`SynthReport::asked`], as a share of what was asked; zero for dense
    /// shapes. Anything above 0.1 is a fault worth showing.
    pub fn deviation(&self) -> f64 {
        let (Some(asked), Some(measured)) = (self.asked, self.measured) else { return 0.0 };
        let share = |asked: f64, measured: f64| (measured / asked - 1.0).abs();
        let recall = match (asked.recall, measured.recall) {
            (Some(asked), Some(measured)) => share(asked, measured),
            _ => 0.0,
        };
        share(asked.active, measured.active).max(share(asked.hot_share, measured.hot_share)).max(recall)
    }
}
