//! Corrections of predictors in [`Sparsity::Predicted`](crate::model::Sparsity::Predicted).

/// Corrections of the layers' predictor thresholds, made while their recall is checked against a target.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ThresholdCorrection {
    /// Added to each layer's threshold, `[layers]`; layers past the end keep theirs.
    pub shift: Vec<f32>,
    /// Layer whose predictor is computed but not followed: its FFN is computed as by [`Sparsity::Exact`](crate::model::Sparsity::Exact), so that
    /// [`LayerFiring`](super::LayerFiring) has the neurons that would have been missed.
    pub recall_check: Option<usize>,
}
