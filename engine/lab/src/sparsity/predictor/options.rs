//! Targets and limits of predictors.

use serde::{Deserialize, Serialize};

use thermocline_base::error::{Error, Result};
use thermocline_formats::quant::TensorType;

/// Target recall of a threshold, as means over tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Fraction of the firings to find, from 0 to 1.
    pub recall: f64,
    /// Fraction of the activations' mass to find, from 0 to 1.
    pub mass: f64,
}

impl Default for Target {
    fn default() -> Self {
        Target { recall: 0.95, mass: 0.99 }
    }
}

impl Target {
    pub(in crate::sparsity) fn check(&self) -> Result<()> {
        for (what, value) in [("target recall", self.recall), ("target mass recall", self.mass)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(Error::invalid(what, "a fraction from 0 to 1", value));
            }
        }
        Ok(())
    }
}

/// Training options of a layer's predictor. Start from [`TrainOptions::default`].
#[derive(Debug, Clone)]
pub struct TrainOptions {
    /// Recall to reach.
    pub target: Target,
    /// Most parameters ([`ParameterBudget`]).
    pub parameters: u64,
    /// Candidate types of the matrices. The type with the lowest cost per token is used, or the
    /// first of several with equal cost.
    pub types: Vec<TensorType>,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Most tokens to train on, from the beginning of the training range.
    pub tokens: usize,
    /// Most passes over the tokens, for each rank.
    pub epochs: usize,
    /// Most multiplications for the layer, all ranks together. This bounds the time for wide
    /// models. A desktop core does about 3e10 per second.
    pub work: f64,
    /// Seconds after which training ends with the best network so far. The result then depends on
    /// the machine.
    pub seconds: Option<f64>,
}

impl Default for TrainOptions {
    fn default() -> Self {
        TrainOptions {
            target: Target::default(),
            parameters: u64::MAX,
            types: vec![TensorType::F16],
            seed: 0,
            tokens: 1 << 15,
            epochs: 12,
            work: 1e13,
            seconds: None,
        }
    }
}

/// Largest ratio of all predictors' parameters to the model's.
pub const PREDICTOR_FRACTION: f64 = 0.10;

/// Parameters allowed for the predictors of all layers. Each layer may use an equal part of the
/// remaining parameters, so an easy layer leaves more for later layers.
#[derive(Debug, Clone)]
pub struct ParameterBudget {
    left: u64,
    layers: usize,
}

impl ParameterBudget {
    /// Creates the budget of a model with `model_parameters` weights and `layers` layers with
    /// predictors.
    pub fn new(model_parameters: u64, layers: usize) -> Self {
        ParameterBudget { left: (model_parameters as f64 * PREDICTOR_FRACTION) as u64, layers }
    }

    /// Returns the most parameters of the next layer's predictor.
    pub fn next_layer(&self) -> u64 {
        self.left / self.layers.max(1) as u64
    }

    /// Subtracts a layer whose predictor has `parameters` weights.
    pub fn spend(&mut self, parameters: u64) {
        self.left = self.left.saturating_sub(parameters);
        self.layers = self.layers.saturating_sub(1);
    }
}

/// Progress of [`super::train`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainProgress {
    /// Fraction of the work that is done, from 0 to 1.
    pub done: f64,
    /// Estimated seconds left; `None` at the beginning.
    pub seconds_left: Option<f64>,
    /// Rank being tried; 0 while the data is prepared.
    pub rank: usize,
}
