//! Who guesses which neurons fire. A low-rank predictor is trained on recorded inputs of a layer's FFN ([`train`]); the
//! firing rows in few bits predict without any training ([`low_bit`]); one that came with the model is measured as it is
//! ([`assess`]), and with another threshold. Thresholds are set by one rule ([`with_threshold`]), figures have the same
//! definitions ([`metrics`]), and both are computed by the kernels that run the model, so that they hold at run time. Models that
//! never have exact zeros get a cut on the gate's activation instead ([`cut`]). [`choose`] says which of all this is worth having.
//!
//! What a layer's neurons do with its inputs is computed from its weights: [`LayerData`] needs nothing else.

mod adam;
mod choose;
mod cut;
mod data;
mod low_rank;
pub mod metrics;
mod options;
mod report;
mod rows;
mod threshold;
mod train;

pub use choose::{Choice, FfnCost, choose};
pub use cut::{Cut, CutGoal, cut, cut_experts};
pub use data::{LayerData, Rows, Split};
pub use options::{Allowance, PREDICTOR_SHARE, Progress, Target, TrainOptions};
pub use report::{Limit, PredictorReport, assess};
pub use rows::{LOW_BIT_TYPES, low_bit};
pub use threshold::with_threshold;
pub use train::{Trained, train};

#[cfg(test)]
mod tests;
