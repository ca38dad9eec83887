//! The network to train, `score = fc2 relu(fc1 x)`, its loss, and the gradient of the loss.
//!
//! There are no biases, because predictors do not use them at run time. The hidden units together
//! replace a constant, which rare neurons need for their low default scores. The FFN's input has
//! nearly the same length for every token, so the sum of the hidden units' outputs hardly varies.
//! The initial second layer expresses each neuron's base rate through that sum.

use ndarray::{Array2, ArrayView2, ArrayViewMut2, Axis, ShapeError, linalg::general_mat_mul};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::{adam::AdamW, data::Firings};
use thermocline_base::error::{Error, Result};
use thermocline_formats::{
    format::{Bytes, Matrix},
    quant,
    quant::TensorType,
};
use thermocline_model::{Predictor, PredictorInput, PredictorKind};

/// Weight of a firing in the loss. A silent neuron has weight 1. Missing a firing neuron is worse
/// than selecting a silent one.
const FIRING_WEIGHT: f32 = 4.0;
/// Largest mass of a firing that the loss counts, in multiples of its token's mean mass.
const MOST_WEIGHT: f32 = 10.0;

/// A network in training.
pub(super) struct LowRank {
    /// First layer, `[rank, d]`.
    fc1: Array2<f32>,
    /// Second layer, `[n_ff, rank]`.
    fc2: Array2<f32>,
    /// Optimisers of `fc1` and `fc2`.
    optimisers: [AdamW; 2],
}

impl LowRank {
    /// Creates a network with the first layer `fc1` `[rank, d]` whose scores are each neuron's base
    /// rate: `counts` firings in `tokens` tokens. The inputs `x` `[n, d]` are a sample of these
    /// tokens.
    pub fn new(mut fc1: Array2<f32>, x: Array2<f32>, counts: &[u32], tokens: usize, rng: &mut ChaCha8Rng) -> Self {
        let (rank, n) = (fc1.nrows(), x.nrows() as f32);
        let hidden = product(x.view(), fc1.t());
        // Every hidden unit gets a spread of 1, so that all units learn equally fast.
        let units = fc1.rows_mut().into_iter().zip(hidden.columns());
        let mean: Vec<f32> = units
            .map(|(mut row, unit)| {
                let spread = (unit.iter().map(|h| h * h).sum::<f32>() / n + 1e-12).sqrt();
                row /= spread;
                unit.iter().map(|h| h.max(0.0)).sum::<f32>() / spread / n
            })
            .collect();
        let square: f32 = mean.iter().map(|m| m * m).sum::<f32>().max(1e-12);
        let mut fc2 = Array2::from_shape_simple_fn((counts.len(), rank), || uniform(rng, 0.2 / (rank as f32).sqrt()));
        for (mut row, count) in fc2.rows_mut().into_iter().zip(counts) {
            let rate = (*count as f32 + 0.5) / (tokens as f32 + 1.0);
            let logit = (FIRING_WEIGHT * rate / (1.0 - rate)).ln().clamp(-6.0, 6.0);
            row.iter_mut().zip(&mean).for_each(|(w, m)| *w += logit * m / square);
        }
        let optimisers = [AdamW::new(&fc1), AdamW::new(&fc2)];
        LowRank { fc1, fc2, optimisers }
    }

    /// Trains one step on the inputs `x` `[tokens.len(), d]` of `tokens` at learning rate `rate`.
    /// Returns the loss per token before the step.
    pub fn step(&mut self, x: ArrayView2<'_, f32>, tokens: &[usize], firings: &Firings, rate: f64) -> f32 {
        let (loss, [of_fc1, of_fc2]) = self.gradients(x, tokens, firings);
        let [fc1, fc2] = &mut self.optimisers;
        fc1.step(&mut self.fc1, &of_fc1, rate);
        fc2.step(&mut self.fc2, &of_fc2, rate);
        loss
    }

    /// Returns the loss per token and its gradients by `fc1` `[rank, d]` and `fc2` `[n_ff, rank]`.
    fn gradients(&self, x: ArrayView2<'_, f32>, tokens: &[usize], firings: &Firings) -> (f32, [Array2<f32>; 2]) {
        let mut hidden = product(x, self.fc1.t());
        hidden.par_mapv_inplace(|h| h.max(0.0));
        let mut scores = product(hidden.view(), self.fc2.t());
        let loss = loss_and_gradient(scores.view_mut(), tokens, firings);
        let of_scores = scores;
        let mut of_hidden = product(of_scores.view(), self.fc2.view());
        of_hidden.zip_mut_with(&hidden, |gradient, h| *gradient = if *h > 0.0 { *gradient } else { 0.0 });
        (loss, [product(of_hidden.t(), x), product(of_scores.t(), hidden.view())])
    }

    /// Returns the predictor for run time, without a threshold.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the blocks of `ty` do not divide the width or `ty` cannot hold the
    /// weights.
    pub fn predictor(&self, ty: TensorType) -> Result<Predictor> {
        let matrix = |weights: &Array2<f32>| {
            let (rows, cols) = weights.dim();
            let mut bytes = Vec::new();
            quant::quantise(ty, &weights.iter().copied().collect::<Vec<f32>>(), &mut bytes)?;
            Matrix::new(ty, rows, cols, Bytes::new(bytes)).ok_or_else(|| {
                Error::invalid("predictor type", format!("a type whose block length divides {cols}"), ty)
            })
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

/// Returns a uniformly distributed number of mean 0 and standard deviation `std`.
pub(super) fn uniform(rng: &mut ChaCha8Rng, std: f32) -> f32 {
    (2.0 * rng.random::<f32>() - 1.0) * 3f32.sqrt() * std
}

/// Converts `values` to rows of `cols` numbers.
///
/// # Errors
/// [`Error::Training`] if the last row is incomplete.
pub(super) fn rows_of(cols: usize, values: Vec<f32>) -> Result<Array2<f32>> {
    let shape = (values.len() / cols.max(1), cols);
    Array2::from_shape_vec(shape, values).map_err(|error: ShapeError| Error::Training(error.to_string()))
}

/// Returns `a b` of `a` `[m, k]` and `b` `[k, n]`.
fn product(a: ArrayView2<'_, f32>, b: ArrayView2<'_, f32>) -> Array2<f32> {
    let mut c = Array2::zeros((a.nrows(), b.ncols()));
    add_product(a, b, c.view_mut());
    c
}

/// Adds `a b` of `a` `[m, k]` and `b` `[k, n]` to `c` `[m, n]`. Each worker computes a range along
/// the longer side. The summation order of an element does not depend on the number of workers.
pub(super) fn add_product(a: ArrayView2<'_, f32>, b: ArrayView2<'_, f32>, mut c: ArrayViewMut2<'_, f32>) {
    if c.ncols() > c.nrows() {
        return add_product(b.reversed_axes(), a.reversed_axes(), c.reversed_axes());
    }
    let rows = c.nrows().div_ceil(rayon::current_num_threads()).next_multiple_of(32);
    let ranges = c.axis_chunks_iter_mut(Axis(0), rows).into_par_iter();
    ranges
        .zip(a.axis_chunks_iter(Axis(0), rows).into_par_iter())
        .for_each(|(mut c, a)| general_mat_mul(1.0, &a, &b, 1.0, &mut c));
}

/// Computes the weighted binary cross-entropy of `scores` `[tokens.len(), n_ff]`, summed over
/// neurons, mean over tokens. Its gradient replaces the scores. A silent neuron has weight 1. The
/// firings of a token have the mean weight [`FIRING_WEIGHT`]. Half of it is equal for all and half
/// proportional to mass, because both recall and mass recall have targets.
fn loss_and_gradient(mut scores: ArrayViewMut2<'_, f32>, tokens: &[usize], firings: &Firings) -> f32 {
    let scale = 1.0 / tokens.len().max(1) as f32;
    let rows = scores.axis_iter_mut(Axis(0)).into_par_iter().zip(tokens);
    let losses: Vec<f64> = rows
        .map(|(scores, token)| {
            let (neurons, mass) = firings.token(*token);
            token_loss(neurons, mass, scale, scores.into_slice().unwrap_or_default())
        })
        .collect();
    // Sums in order, so that the result does not depend on the threads.
    (losses.iter().sum::<f64>() * f64::from(scale)) as f32
}

/// Returns the loss of one token whose `neurons` fired with the masses `mass`. Replaces `scores`
/// `[n_ff]` by the gradient times `scale`.
fn token_loss(neurons: &[u32], mass: &[f32], scale: f32, scores: &mut [f32]) -> f64 {
    let mut loss = 0.0f64;
    let mean = mass.iter().sum::<f32>() / neurons.len().max(1) as f32;
    let fired = neurons.iter().zip(mass).map(|(i, mass)| {
        let relative = if mean > 0.0 { (mass / mean).min(MOST_WEIGHT) } else { 1.0 };
        let weight = FIRING_WEIGHT * 0.5 * (1.0 + relative);
        let score = scores[*i as usize];
        let small = (-score.abs()).exp();
        loss += f64::from(weight * ((-score).max(0.0) + small.ln_1p()) - (score.max(0.0) + small.ln_1p()));
        (*i as usize, -scale * weight * if score >= 0.0 { small } else { 1.0 } / (1.0 + small))
    });
    let fired: Vec<(usize, f32)> = fired.collect();
    for scores in scores.chunks_mut(16) {
        // softplus(s) = max(s, 0) + ln(1 + e^-|s|), without overflow on either side. One logarithm
        // covers a product of sixteen factors of at most 2 each.
        let (mut product, mut positive) = (1.0f32, 0.0);
        for score in scores {
            let small = (-score.abs()).exp();
            product *= 1.0 + small;
            positive += score.max(0.0);
            *score = scale * if *score >= 0.0 { 1.0 } else { small } / (1.0 + small);
        }
        loss += f64::from(positive + product.ln());
    }
    fired.into_iter().for_each(|(i, gradient)| scores[i] = gradient);
    loss
}

#[cfg(test)]
mod tests {
    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    /// Definition of the loss in f64. `x` are inputs `[tokens, d]`, `firings` the neurons that
    /// fired at each token with their masses.
    fn reference(fc1: &Array2<f64>, fc2: &Array2<f64>, x: &Array2<f64>, firings: &Firings) -> f64 {
        let losses = x.rows().into_iter().enumerate().map(|(t, x)| {
            let hidden = fc1.dot(&x).mapv(|h| h.max(0.0));
            let (neurons, mass) = firings.token(t);
            let mean = mass.iter().sum::<f32>() / neurons.len().max(1) as f32;
            let of_neuron = |(i, score): (usize, &f64)| match neurons.iter().position(|n| *n as usize == i) {
                Some(at) => 4.0 * 0.5 * (1.0 + f64::from((mass[at] / mean).min(10.0))) * (-score).exp().ln_1p(),
                None => score.exp().ln_1p(),
            };
            fc2.dot(&hidden).iter().enumerate().map(of_neuron).sum::<f64>()
        });
        losses.sum::<f64>() / x.nrows() as f64
    }

    #[test]
    fn gradients_are_the_finite_differences_of_the_loss() {
        let (tokens, d, rank, n_ff) = (3, 5, 32, 21);
        let rng = &mut ChaCha8Rng::seed_from_u64(1);
        let mut random = |rows, cols| Array2::from_shape_simple_fn((rows, cols), || uniform(rng, 1.0));
        let (x, fc1, fc2) = (random(tokens, d), random(rank, d), random(n_ff, rank));
        let firings = Firings::from_tokens(&[&[(0, 0.5), (7, 2.0), (20, 90.0)], &[], &[(3, 1.0)]]);
        let optimisers = [AdamW::new(&fc1), AdamW::new(&fc2)];
        let network = LowRank { fc1, fc2, optimisers };
        let (loss, gradients) = network.gradients(x.view(), &[0, 1, 2], &firings);

        let wide = |a: &Array2<f32>| a.mapv(f64::from);
        let (x, weights) = (wide(&x), [wide(&network.fc1), wide(&network.fc2)]);
        let exact = reference(&weights[0], &weights[1], &x, &firings);
        assert!((f64::from(loss) - exact).abs() < 1e-5 * exact, "{loss} is not {exact}");
        const STEP: f64 = 1e-6;
        for (which, gradient) in gradients.iter().enumerate() {
            for (at, gradient) in gradient.indexed_iter() {
                let moved = [STEP, -STEP].map(|step| {
                    let mut weights = weights.clone();
                    weights[which][at] += step;
                    reference(&weights[0], &weights[1], &x, &firings)
                });
                let difference = (moved[0] - moved[1]) / (2.0 * STEP);
                let allowed = 1e-4 * (1.0 + difference.abs());
                assert!(
                    (f64::from(*gradient) - difference).abs() < allowed,
                    "fc{} {at:?}: {gradient} is not {difference}",
                    which + 1
                );
            }
        }
    }

    #[test]
    fn products_are_those_of_one_thread_at_any_number_and_orientation() {
        let rng = &mut ChaCha8Rng::seed_from_u64(2);
        for (m, k, n) in [(1, 1, 1), (128, 70, 300), (300, 70, 33), (65, 300, 64)] {
            let mut random = |rows, cols| Array2::from_shape_simple_fn((rows, cols), || uniform(rng, 1.0));
            let (a, b) = (random(m, k), random(n, k));
            let with = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| product(a.view(), b.t()))
            };
            let one = with(1);
            assert_eq!(one, with(3), "{m} {k} {n}");
            let exact = a.mapv(f64::from).dot(&b.mapv(f64::from).t());
            assert!(one.iter().zip(&exact).all(|(c, exact)| (f64::from(*c) - exact).abs() < 1e-4), "{m} {k} {n}");
        }
    }
}
