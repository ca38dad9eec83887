//! Predictors of the neurons that fire, and the thresholds of sparse modes. [`train`] trains a
//! low-rank predictor on recorded inputs of a layer's FFN. [`low_bit`] uses the firing rows in few
//! bits, without training. [`assess`] measures the model file's own predictor, which can also get
//! another threshold.
//!
//! [`with_threshold`] sets all thresholds, and [`metrics`] defines all figures. The kernels that
//! run the model compute them, so the figures hold at run time. Models whose activations are never
//! exactly zero get an activation threshold on the gate instead ([`activation_threshold`]), and
//! dense FFNs also [`gate_scales`]. [`select_predictor`] compares the costs of the candidates.
//!
//! [`LayerData`] computes the firings for recorded inputs from the layer's weights, so it needs no
//! other data.

mod activation_threshold;
mod adam;
mod data;
mod gate_scales;
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
pub use gate_scales::gate_scales;
pub(crate) use gate_scales::{WorthSums, norm};
pub use options::{PREDICTOR_FRACTION, ParameterBudget, Target, TrainOptions, TrainProgress};
pub use report::{PredictorReport, QualityLimit, assess};
pub use rows::{LOW_BIT_TYPES, low_bit};
pub use selection::{FfnCost, PredictorSelection, select_predictor};
pub use threshold::with_threshold;
pub use train::{Trained, train};

#[cfg(test)]
mod tests;
