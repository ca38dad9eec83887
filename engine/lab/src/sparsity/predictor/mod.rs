//! Predictors of the neurons that fire, and the thresholds of sparse modes. A low-rank predictor is trained on recorded
//! inputs of a layer's FFN ([`train`]); the firing rows in few bits predict without any training ([`low_bit`]); one that came
//! with the model is measured as it is ([`assess`]), and with another threshold. All thresholds follow one rule
//! ([`with_threshold`]) and all figures the same definitions ([`metrics`]), computed by the kernels that run the model, so that
//! they hold at run time. Models whose activations are never exactly zero get an activation threshold on the gate instead
//! ([`activation_threshold`]). [`select_predictor`] compares the candidates' costs.
//!
//! The firings that belong to recorded inputs are computed from the layer's weights: [`LayerData`] needs nothing else.

mod activation_threshold;
mod adam;
mod data;
mod low_rank;
pub mod metrics;
mod options;
mod report;
mod rows;
mod selection;
mod threshold;
mod train;

pub use activation_threshold::{
    ActivationThreshold, MoeInputs, ThresholdGoal, activation_threshold, moe_activation_threshold,
};
pub use data::{DataSplit, LayerData, Rows};
pub use options::{PREDICTOR_FRACTION, ParameterBudget, Target, TrainOptions, TrainProgress};
pub use report::{PredictorReport, QualityLimit, assess};
pub use rows::{LOW_BIT_TYPES, low_bit};
pub use selection::{FfnCost, PredictorSelection, select_predictor};
pub use threshold::with_threshold;
pub use train::{Trained, train};

#[cfg(test)]
mod tests;
