//! Several residual streams, which a layer predicts and corrects (AltUp), and a layer's low-rank
//! path beside attention (LAuReL).

use super::{Linear, Norm};

/// Sizes of a model with several streams ([`AltupWeights`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AltupConfig {
    /// Number of streams; layers compute the first.
    pub streams: usize,
    /// Rank of the low-rank path beside attention.
    pub rank: usize,
}

/// A step between the streams of a model with several streams. A layer computes one stream, the
/// first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AltupStep {
    /// Predicts every stream from all streams; `Residual =` the prediction of the first.
    Predict,
    /// `NormedFfn = Normed + norm(low-rank map of Normed)`
    Laurel,
    /// Corrects every prediction by `Residual` minus the prediction of the first stream;
    /// `Residual =` the first stream, scaled.
    Correct,
    /// `+= Out` for every stream but the first; `Residual =` the first stream.
    AddOut,
}

/// Weights for the prediction and correction of `n` streams (AltUp, Baykal et al. 2023), and for
/// the low-rank path beside attention (LAuReL, Menghani et al. 2024).
#[derive(Debug, Clone)]
pub struct AltupWeights {
    /// Norm before the router, `[d]`.
    pub router_norm: Norm,
    /// Router, `[n, d]`. The coefficients are computed from `tanh` of its product.
    pub router: Linear,
    /// Coefficients of the prediction, `[n * n, n]`: row `to * n + from`.
    pub predict: Linear,
    /// Coefficients of the correction, minus 1, `[n, n]`.
    pub correct: Linear,
    /// Factors on the corrected first stream, which is then combined with the layer's own input,
    /// `[d]`.
    pub scale: Vec<f32>,
    /// Matrices of the low-rank path, `[rank, d]` and `[d, rank]`.
    pub laurel: [Linear; 2],
    /// Norm of the low-rank path, `[d]`.
    pub laurel_norm: Norm,
}

impl AltupWeights {
    /// Iterates over the large matrices. On a device the coefficients are vectors.
    pub fn linears(&self) -> impl Iterator<Item = &Linear> {
        [&self.router].into_iter().chain(&self.laurel)
    }
}

/// Maps between the streams of a model with several streams and the embedding or the head's input.
#[derive(Debug, Clone)]
pub struct AltupTable {
    /// `[d, d]`, from the embedding to each stream but the first.
    pub projections: Vec<Linear>,
    /// `[d, d]`, from each stream but the first. The head reads the mean of the first stream and of
    /// these products.
    pub unembed: Vec<Linear>,
}
