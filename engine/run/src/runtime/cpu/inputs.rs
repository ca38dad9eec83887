//! Inputs of the parts of a layer.

/// Rows of activations, one per token.
#[derive(Debug, Clone, Copy)]
pub struct TokenInputs<'a> {
    /// `[tokens, width]`
    pub x: &'a [f32],
    /// Number of rows.
    pub tokens: usize,
}

/// Inputs of a layer's FFN, `[tokens, d_model]` each.
#[derive(Debug, Clone, Copy)]
pub struct LayerInputs<'a> {
    /// The FFN's input.
    pub x: &'a [f32],
    /// The input of the norm before the FFN, which predictors read. Without it no predictor is
    /// used.
    pub residual: Option<&'a [f32]>,
    /// Number of rows.
    pub tokens: usize,
}

/// Experts that were chosen elsewhere, `[tokens, used]` each.
#[derive(Debug, Clone, Copy)]
pub struct ChosenExperts<'a> {
    /// Indices of the experts in the layer.
    pub ids: &'a [u32],
    /// The factors of the experts' outputs.
    pub router_weights: &'a [f32],
}
