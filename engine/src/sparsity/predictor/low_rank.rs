//! The network that is trained, `score = fc2 relu(fc1 x)`, and its loss. The gradients and the optimiser are candle's.
//!
//! There are no biases, because predictors have none at run time. What a constant is needed for (rare neurons have low
//! scores by default) the hidden units supply together: the FFN's input has nearly the same length for every token, so the
//! sum of their outputs hardly varies. The second layer starts from each neuron's base rate expressed through that sum.

use std::sync::{Mutex, PoisonError};

use candle_core::{CpuStorage, CustomOp1, Device, Layout, Shape, Tensor, Var};
use candle_nn::{Optimizer, ParamsAdamW};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::{adam::AdamW, data::Firings};
use crate::{
    error::{Error, Result},
    format::{Bytes, Matrix, TensorType, blocks},
    model::{Predictor, PredictorInput, PredictorKind},
    synth::random::fill_normal,
};

/// How much a firing weighs beside a silence: missing one is worse than naming one too many.
const FIRING_WEIGHT: f32 = 4.0;
/// No firing weighs more than so many average ones.
const MOST_WEIGHT: f32 = 10.0;

/// What the training library says went wrong.
pub(super) fn failed(error: candle_core::Error) -> Error {
    // A stack trace may follow the first line.
    Error::Training(error.to_string().lines().next().unwrap_or_default().to_owned())
}

/// A network being trained.
pub(super) struct LowRank {
    /// `[d, rank]`: transposed, as its gradient comes out of the product.
    fc1: Var,
    /// `[rank, n_ff]`, likewise.
    fc2: Var,
    optimiser: AdamW,
}

impl LowRank {
    /// A network that starts from the first layer `fc1` `[rank, d]` and answers each neuron's base rate: `counts` firings in
    /// `tokens` tokens, of which the inputs `x` `[n, d]` are a sample.
    pub fn new(
        fc1: Tensor,
        x: &[f32],
        counts: &[u32],
        tokens: usize,
        rng: &mut ChaCha8Rng,
    ) -> candle_core::Result<Self> {
        let ((rank, d), n_ff) = (fc1.dims2()?, counts.len());
        let (fc1, n) = (fc1.t()?.contiguous()?, x.len() / d);
        let x = Tensor::from_slice(x, (n, d), &Device::Cpu)?;
        // Every hidden unit with a spread of 1, so that none is faster or slower than another.
        let out = x.matmul(&fc1)?;
        let spread = (out.sqr()?.mean_keepdim(0)? + 1e-12)?.sqrt()?;
        let fc1 = fc1.broadcast_div(&spread)?;
        let mean: Vec<f32> = out.broadcast_div(&spread)?.relu()?.mean(0)?.to_vec1()?;
        let square: f32 = mean.iter().map(|m| m * m).sum::<f32>().max(1e-12);
        let mut fc2 = vec![0.0; n_ff * rank];
        fill_normal(rng, 0.2 / (rank as f32).sqrt(), &mut fc2);
        for (row, count) in fc2.chunks_exact_mut(rank).zip(counts) {
            let rate = (*count as f32 + 0.5) / (tokens as f32 + 1.0);
            let logit = (FIRING_WEIGHT * rate / (1.0 - rate)).ln().clamp(-6.0, 6.0);
            row.iter_mut().zip(&mean).for_each(|(w, m)| *w += logit * m / square);
        }
        let fc1 = Var::from_tensor(&fc1)?;
        let fc2 = Var::from_tensor(&Tensor::from_vec(fc2, (n_ff, rank), &Device::Cpu)?.t()?.contiguous()?)?;
        let optimiser = AdamW::new(vec![fc1.clone(), fc2.clone()], ParamsAdamW::default())?;
        Ok(LowRank { fc1, fc2, optimiser })
    }

    /// One step on the inputs `x` `[tokens.len(), d]` of `tokens`. Returns the loss per token.
    pub fn step(&mut self, x: Vec<f32>, tokens: &[usize], firings: &Firings, rate: f64) -> candle_core::Result<f32> {
        let (d, _) = self.fc1.dims2()?;
        let x = Tensor::from_vec(x, (tokens.len(), d), &Device::Cpu)?;
        let scores = x.matmul(&self.fc1)?.relu()?.matmul(&self.fc2)?;
        let loss = scores.apply_op1(Loss::new(tokens, firings))?;
        self.optimiser.set_learning_rate(rate);
        self.optimiser.backward_step(&loss)?;
        loss.to_scalar()
    }

    /// The predictor as it will run, without a threshold.
    pub fn predictor(&self, ty: TensorType) -> Result<Predictor> {
        let matrix = |var: &Var| -> Result<Matrix> {
            let (cols, rows) = var.dims2().map_err(failed)?;
            let mut bytes = Vec::new();
            let weights = var.t().and_then(|rows| rows.flatten_all()?.to_vec1::<f32>()).map_err(failed)?;
            blocks::quantise(ty, &weights, &mut bytes)?;
            Matrix::new(ty, rows, cols, Bytes::new(bytes))
                .ok_or_else(|| Error::invalid("predictor type", format!("one with blocks that divide {cols}"), ty))
        };
        let kind = PredictorKind::LowRank { fc1: matrix(&self.fc1)?, fc2: matrix(&self.fc2)? };
        Ok(Predictor {
            kind,
            input: PredictorInput::Normed,
            threshold: 0.0,
            quality: None,
            by_input: Default::default(),
        })
    }
}

/// Weighted binary cross-entropy of scores `[tokens, n_ff]`, summed over neurons, mean over tokens. A silence weighs 1; the firings of a token
/// weigh [`FIRING_WEIGHT`] on average, half of it equally and half by mass, since both shares are to be found.
struct Loss {
    /// Per token: neurons that fired and their weights.
    fired: Vec<Vec<(u32, f32)>>,
    /// `d loss / d score`, from the forward pass to the backward pass.
    gradient: Mutex<Vec<f32>>,
}

impl Loss {
    fn new(tokens: &[usize], firings: &Firings) -> Self {
        let of_token = |t: &usize| {
            let (neurons, masses) = firings.token(*t);
            let mean = masses.iter().sum::<f32>() / neurons.len().max(1) as f32;
            let relative = |mass: f32| if mean > 0.0 { (mass / mean).min(MOST_WEIGHT) } else { 1.0 };
            let weigh = |(i, mass): (&u32, &f32)| (*i, FIRING_WEIGHT * 0.5 * (1.0 + relative(*mass)));
            neurons.iter().zip(masses).map(weigh).collect()
        };
        Loss { fired: tokens.iter().map(of_token).collect(), gradient: Mutex::default() }
    }

    /// Loss and gradient of one token.
    fn token(fired: &[(u32, f32)], scores: &[f32], scale: f32, gradient: &mut [f32]) -> f64 {
        let mut sum = 0.0f64;
        for (scores, gradient) in scores.chunks(16).zip(gradient.chunks_mut(16)) {
            // softplus(s) = max(s, 0) + ln(1 + e^-|s|), without overflow on either side; one logarithm of sixteen factors that
            // are at most 2 each.
            let (mut product, mut positive) = (1.0f32, 0.0);
            for (score, gradient) in scores.iter().zip(gradient) {
                let small = (-score.abs()).exp();
                product *= 1.0 + small;
                positive += score.max(0.0);
                *gradient = scale * if *score >= 0.0 { 1.0 } else { small } / (1.0 + small);
            }
            sum += f64::from(positive + product.ln());
        }
        for (i, weight) in fired {
            let (score, gradient) = (scores[*i as usize], &mut gradient[*i as usize]);
            let silent = (-score.abs()).exp().ln_1p();
            sum += f64::from(weight * ((-score).max(0.0) + silent) - (score.max(0.0) + silent));
            *gradient = weight * (*gradient - scale);
        }
        sum
    }
}

impl CustomOp1 for Loss {
    fn name(&self) -> &'static str {
        "weighted binary cross-entropy"
    }

    fn cpu_fwd(&self, scores: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let (Some((start, end)), Ok((tokens, n_ff))) = (layout.contiguous_offsets(), layout.shape().dims2()) else {
            return Err(candle_core::Error::RequiresContiguous { op: self.name() });
        };
        let scores = &scores.as_slice::<f32>()?[start..end];
        let mut gradient = vec![0.0; scores.len()];
        let scale = 1.0 / tokens.max(1) as f32;
        let mut sums = vec![0.0; tokens];
        let rows = gradient.par_chunks_mut(n_ff).zip(scores.par_chunks(n_ff)).zip(self.fired.par_iter());
        rows.zip(sums.par_iter_mut()).for_each(|(((gradient, scores), fired), sum)| {
            *sum = Self::token(fired, scores, scale, gradient);
        });
        *self.gradient.lock().unwrap_or_else(PoisonError::into_inner) = gradient;
        // Added in order, so that the sum does not depend on who did what.
        let loss = sums.iter().sum::<f64>() * f64::from(scale);
        Ok((CpuStorage::F32(vec![loss as f32]), Shape::from(())))
    }

    fn bwd(&self, scores: &Tensor, _: &Tensor, of_loss: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let gradient = std::mem::take(&mut *self.gradient.lock().unwrap_or_else(PoisonError::into_inner));
        let gradient = Tensor::from_vec(gradient, scores.shape(), scores.device())?;
        Ok(Some((gradient * f64::from(of_loss.to_scalar::<f32>()?))?))
    }
}
