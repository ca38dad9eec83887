//! What is asked of a predictor.

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    format::TensorType,
};

/// What a threshold is set for, as means over tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Share of the firings to find, from 0 to 1.
    pub recall: f64,
    /// Share of the activations' mass to find.
    pub mass: f64,
}

impl Default for Target {
    fn default() -> Self {
        Target { recall: 0.95, mass: 0.99 }
    }
}

impl Target {
    pub(super) fn check(&self) -> Result<()> {
        for (what, value) in [("target recall", self.recall), ("target mass recall", self.mass)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(Error::invalid(what, "a share from 0 to 1", value));
            }
        }
        Ok(())
    }
}

/// How to train a layer's predictor. Start from [`TrainOptions::default`].
#[derive(Debug, Clone)]
pub struct TrainOptions {
    /// What to reach.
    pub target: Target,
    /// Most parameters, see [`Allowance`].
    pub parameters: u64,
    /// Types the matrices may have: the one with which a token costs least is taken, the first among equals.
    pub types: Vec<TensorType>,
    /// Everything random follows from it.
    pub seed: u64,
    /// Most tokens to train on (the last ones of the training part are left out).
    pub tokens: usize,
    /// Most passes over them, for each size that is tried.
    pub epochs: usize,
    /// Most multiplications spent on the layer, all sizes together: what bounds the time for wide models. A desktop core does
    /// some 3e10 in a second.
    pub work: f64,
    /// Seconds after which training ends with what there is; the result then depends on the machine.
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

/// Share of the model's parameters that all its predictors together may have.
pub const PREDICTOR_SHARE: f64 = 0.10;

/// Parameters allowed for the predictors of all layers, handed out layer by layer: equal shares of what is left, so that
/// what an easy layer does not need goes to those after it.
#[derive(Debug, Clone)]
pub struct Allowance {
    left: u64,
    layers: usize,
}

impl Allowance {
    /// For a model of so many parameters and layers with predictors.
    pub fn new(model_parameters: u64, layers: usize) -> Self {
        Allowance { left: (model_parameters as f64 * PREDICTOR_SHARE) as u64, layers }
    }

    /// Most parameters of the next layer's predictor.
    pub fn next(&self) -> u64 {
        self.left / self.layers.max(1) as u64
    }

    /// The next layer is done and took `parameters`.
    pub fn take(&mut self, parameters: u64) {
        self.left = self.left.saturating_sub(parameters);
        self.layers = self.layers.saturating_sub(1);
    }
}

/// How far [`super::train`] is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Share that is done, from 0 to 1.
    pub done: f64,
    /// Seconds still to go, as far as can be told.
    pub seconds_left: Option<f64>,
    /// Hidden size being tried; 0 while the data are prepared.
    pub rank: usize,
}
