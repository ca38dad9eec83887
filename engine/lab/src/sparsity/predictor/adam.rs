//! AdamW optimiser (Loshchilov and Hutter 2019). Updates a parameter in place, in one pass on all
//! threads.

use ndarray::{Array2, Zip};

/// Decay of the gradient's mean, and of the mean of its square.
const BETAS: [f64; 2] = [0.9, 0.999];
/// Keeps the quotient finite if the mean square is tiny.
const EPSILON: f32 = 1e-8;
/// Weight decay, as a fraction of the learning rate.
const WEIGHT_DECAY: f64 = 0.01;

/// State of AdamW for one parameter, `[rows, cols]`, f32. The result of a step does not depend on
/// the number of threads.
#[derive(Debug)]
pub(super) struct AdamW {
    steps: i32,
    /// Decayed mean of the gradient.
    mean: Array2<f32>,
    /// Decayed mean of the gradient's square.
    square: Array2<f32>,
}

impl AdamW {
    /// Creates the initial state for a parameter of the shape of `weights`.
    pub fn new(weights: &Array2<f32>) -> Self {
        AdamW { steps: 0, mean: Array2::zeros(weights.dim()), square: Array2::zeros(weights.dim()) }
    }

    /// Updates `weights` by one step against `gradient` at learning rate `rate`. All have the shape
    /// of this state.
    pub fn step(&mut self, weights: &mut Array2<f32>, gradient: &Array2<f32>, rate: f64) {
        self.steps += 1;
        let [mean_scale, square_scale] = BETAS.map(|beta| (1.0 / (1.0 - beta.powi(self.steps))) as f32);
        let [beta1, beta2] = BETAS.map(|beta| beta as f32);
        let [new1, new2] = BETAS.map(|beta| (1.0 - beta) as f32);
        let (kept, rate) = ((1.0 - rate * WEIGHT_DECAY) as f32, rate as f32);
        let parts = Zip::from(weights).and(gradient).and(&mut self.mean).and(&mut self.square);
        parts.par_for_each(|weight, g, mean, square| {
            *mean = *mean * beta1 + g * new1;
            *square = *square * beta2 + g * g * new2;
            *weight = *weight * kept - rate * (*mean * mean_scale / ((*square * square_scale).sqrt() + EPSILON));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Algorithm 2 of the paper for a single weight, in f64.
    fn reference(mut weight: f64, steps: &[(f64, f64)]) -> f64 {
        let (mut mean, mut square) = (0.0, 0.0);
        for (t, (gradient, rate)) in (1..).zip(steps) {
            mean = 0.9 * mean + 0.1 * gradient;
            square = 0.999 * square + 0.001 * gradient * gradient;
            let (mean, square) = (mean / (1.0 - 0.9f64.powi(t)), square / (1.0 - 0.999f64.powi(t)));
            weight -= rate * (mean / (square.sqrt() + 1e-8) + 0.01 * weight);
        }
        weight
    }

    #[test]
    fn adamw_follows_the_papers_algorithm_under_changing_rates() {
        let (shape, rates) = ((7, 4_691), [1e-2, 3e-2, 2e-3, 5e-3]);
        let wave =
            |scale: f32| Array2::from_shape_fn(shape, |(r, c)| ((r * 4_691 + c) as f32 * 0.37 + scale).sin() * scale);
        let gradients: Vec<_> = [0.9, 1e-3, 2.0, 0.3].map(wave).into();
        let (before, mut weights) = (wave(0.5), wave(0.5));
        let mut adam = AdamW::new(&weights);
        for (gradient, rate) in gradients.iter().zip(rates) {
            adam.step(&mut weights, gradient, rate);
        }
        for (at, weight) in weights.indexed_iter() {
            let steps: Vec<_> = gradients.iter().map(|g| f64::from(g[at])).zip(rates).collect();
            let expected = reference(f64::from(before[at]), &steps);
            assert!((f64::from(*weight) - expected).abs() <= 1e-6, "{at:?}: {weight} is not {expected}");
            assert_ne!(*weight, before[at], "{at:?} did not move");
        }
    }
}
