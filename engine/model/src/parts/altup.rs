//! Streams beside the residual one, which a layer predicts and corrects (AltUp), and its low-rank path beside attention.

use super::{Linear, Norm};

/// Sizes of a model with several streams ([`AltupWeights`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AltupConfig {
    /// Streams, of which layers compute the first.
    pub streams: usize,
    /// Rank of the path beside attention.
    pub rank: usize,
}

/// A step between the streams of a model that has several, of which a layer computes one, the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AltupStep {
    /// Every stream is predicted from all; `Residual =` the first's prediction.
    Predict,
    /// `NormedFfn = Normed + norm(low-rank map of Normed)`
    Laurel,
    /// Every prediction is corrected by the difference between `Residual` and the first's; `Residual =` the first, scaled.
    Correct,
    /// Every stream but the first `+= Out`; `Residual =` the first.
    AddOut,
}

/// Weights by which a layer predicts and corrects the streams of a model that has several (AltUp, Baykal et al. 2023), `n` of them,
/// and those of its low-rank path beside attention (LAuReL, Menghani et al. 2024).
#[derive(Debug, Clone)]
pub struct AltupWeights {
    /// Norm before the router, `[d]`.
    pub router_norm: Norm,
    /// `[n, d]`: `tanh` of its product is what coefficients are made of.
    pub router: Linear,
    /// Coefficients of the prediction, `[n * n, n]`: row `to * n + from`.
    pub predict: Linear,
    /// Coefficients of the correction, less 1, `[n, n]`.
    pub correct: Linear,
    /// Factors on the corrected active stream where the layer's own input meets it, `[d]`.
    pub scale: Vec<f32>,
    /// `[rank, d]` and `[d, rank]`.
    pub laurel: [Linear; 2],
    /// `[d]`
    pub laurel_norm: Norm,
}

impl AltupWeights {
    /// Its large matrices; coefficients are vectors on a device.
    pub fn linears(&self) -> impl Iterator<Item = &Linear> {
        [&self.router].into_iter().chain(&self.laurel)
    }
}

/// Maps between the embedding, or the head's input, and the streams of a model that has several.
#[derive(Debug, Clone)]
pub struct AltupTable {
    /// `[d, d]`, from the embedding to every stream but the first.
    pub projections: Vec<Linear>,
    /// `[d, d]`, from every stream but the first to what the head reads the mean of.
    pub unembed: Vec<Linear>,
}
