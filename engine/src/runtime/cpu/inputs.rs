//! Inputs of the parts of a layer.

/// Rows of activations, one for each token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenInputs<'a> {
    /// `[tokens, width]`
    pub x: &'a [f32],
    pub tokens: usize,
}

/// Inputs of a layer's FFN, `[tokens, d_model]` each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerInputs<'a> {
    pub x: &'a [f32],
    /// The input of the norm before it, which predictors read; without it none is used.
    pub residual: Option<&'a [f32]>,
    pub tokens: usize,
}

/// Experts that were chosen elsewhere, `[tokens, used]` each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChosenExperts<'a> {
    pub ids: &'a [u32],
    pub router_weights: &'a [f32],
}
