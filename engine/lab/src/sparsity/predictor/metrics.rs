//! Figures of a prediction, as the sparsity papers define them. For a layer and token, `A` are the
//! active neurons, `P` the predicted neurons, `a_i` the hidden activations, and `d_i` the rows of
//! the down projection:
//!
//! | figure | definition |
//! |---|---|
//! | recall | `|A n P| / |A|` |
//! | mass recall | `sum over A n P of |a_i| |d_i|`, divided by the sum over `A` |
//! | precision | `|A n P| / |P|` |
//! | density | `|P| / n_ff` |
//!
//! A layer's figure is the mean over tokens. Tokens for which a figure is undefined (nothing fires,
//! nothing is predicted) do not count for that figure. In the ReLU family, a neuron is active if
//! `a_i` is not zero. In other models, `A` is the smallest set that holds [`MASS_OF_ACTIVE`] of the
//! mass ([`heaviest`]).

use serde::{Deserialize, Serialize};

pub use thermocline_model::mask::{contains as bit, fill as fill_mask};
use thermocline_model::{Down, FfnWeights, mask};

/// Fraction of a token's mass that its active neurons hold, for models whose activations are never
/// exactly zero.
pub const MASS_OF_ACTIVE: f64 = 0.99;

/// Returns the indices of a mask's neurons.
pub fn ones(mask: &[u32]) -> impl Iterator<Item = usize> {
    mask::neurons(mask).map(|neuron| neuron as usize)
}

/// Fills `mask` with the smallest set of neurons that holds a `fraction` of one token's `mass`
/// `[n_ff]`.
pub fn heaviest(mass: &[f32], fraction: f64, mask: &mut [u32]) {
    let mut order: Vec<u32> = (0..mass.len() as u32).filter(|i| mass[*i as usize] > 0.0).collect();
    order.sort_unstable_by(|a, b| mass[*b as usize].total_cmp(&mass[*a as usize]).then(a.cmp(b)));
    let mut missing = fraction * order.iter().map(|i| f64::from(mass[*i as usize])).sum::<f64>();
    mask.fill(0);
    for i in order {
        if missing <= 0.0 {
            break;
        }
        missing -= f64::from(mass[i as usize]);
        mask::insert(mask, i as usize);
    }
}

/// Returns the Euclidean norms of the neurons' down vectors, `[n_ff]`.
pub fn down_norms(ffn: &FfnWeights) -> Vec<f32> {
    let down = ffn.down.linear();
    let mut norms = vec![0.0f32; ffn.up.weight.rows()];
    let mut row = vec![0.0; down.weight.cols()];
    for at in 0..down.weight.rows() {
        down.weight.dequantise_row(at, &mut row);
        match &ffn.down {
            Down::Neurons(_) => norms[at] = row.iter().map(|w| w * w).sum(),
            Down::Outputs(_) => norms.iter_mut().zip(&row).for_each(|(norm, w)| *norm += w * w),
        }
    }
    norms.iter_mut().for_each(|norm| *norm = norm.sqrt());
    norms
}

/// Returns `|y - approximation| / |y|` of one token; `None` if `y` is zero.
pub fn output_error(y: &[f32], approximation: &[f32]) -> Option<f64> {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let whole: f64 = y.iter().map(|y| square(*y)).sum();
    let missing: f64 = y.iter().zip(approximation).map(|(y, a)| square(y - a)).sum();
    (whole > 0.0).then(|| (missing / whole).sqrt())
}

/// Mean of the defined values.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    /// Adds a value if it is defined.
    pub fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.sum += value;
            self.count += 1;
        }
    }

    /// Returns the mean; `None` without values.
    pub fn get(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

/// Figures of one layer, as means over tokens, from 0 to 1. Recall and precision are 1 if no token
/// defines them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Number of tokens evaluated.
    pub tokens: u64,
    /// Fraction of the active neurons that were predicted.
    pub recall: f64,
    /// Fraction of the active neurons' mass that was predicted.
    pub mass_recall: f64,
    /// Fraction of the predicted neurons that were active.
    pub precision: f64,
    /// Fraction of the neurons that were predicted.
    pub density: f64,
    /// Fraction of the neurons that were active.
    pub active: f64,
}

/// Accumulates tokens into a [`Prediction`].
#[derive(Debug, Clone, Default)]
pub struct PredictionTally {
    n_ff: usize,
    tokens: u64,
    recall: Mean,
    mass_recall: Mean,
    precision: Mean,
    density: Mean,
    active: Mean,
}

impl PredictionTally {
    /// Creates an empty tally for a layer of `n_ff` neurons.
    pub fn new(n_ff: usize) -> Self {
        PredictionTally { n_ff, ..PredictionTally::default() }
    }

    /// Adds one token: masks of active and predicted neurons, and the masses `[n_ff]` of the active
    /// neurons. Without masses, mass recall stays undefined.
    pub fn add(&mut self, active: &[u32], predicted: &[u32], mass: Option<&[f32]>) {
        let (fires, let_through) = (mask::count(active) as f64, mask::count(predicted) as f64);
        let found: f64 = active.iter().zip(predicted).map(|(a, p)| f64::from((a & p).count_ones())).sum();
        let weigh = |mass: &[f32]| {
            let (mut found, mut whole) = (0.0, 0.0);
            for i in ones(active) {
                let mass = f64::from(mass[i].abs());
                whole += mass;
                found += if bit(predicted, i) { mass } else { 0.0 };
            }
            ratio(found, whole)
        };
        self.tokens += 1;
        self.recall.add(ratio(found, fires));
        self.mass_recall.add(mass.and_then(weigh));
        self.precision.add(ratio(found, let_through));
        self.density.add(ratio(let_through, self.n_ff as f64));
        self.active.add(ratio(fires, self.n_ff as f64));
    }

    /// Returns the figures so far.
    pub fn figures(&self) -> Prediction {
        Prediction {
            tokens: self.tokens,
            recall: self.recall.get().unwrap_or(1.0),
            mass_recall: self.mass_recall.get().unwrap_or(1.0),
            precision: self.precision.get().unwrap_or(1.0),
            density: self.density.get().unwrap_or(0.0),
            active: self.active.get().unwrap_or(0.0),
        }
    }
}

/// Returns `part / whole`; `None` if `whole` is 0.
fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

/// Returns the minimum and the (lower) median of a figure over layers.
pub fn least_and_median(of_layers: &[f64]) -> Option<(f64, f64)> {
    let mut sorted = of_layers.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    Some((*sorted.first()?, sorted[(sorted.len() - 1) / 2]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_formats::{
        format::{Bytes, Matrix},
        quant::TensorType,
    };
    use thermocline_model::Linear;

    #[test]
    fn prediction_figures_match_a_hand_calculation() {
        let mut tally = PredictionTally::new(40);
        let mass: Vec<f32> = (0..40).map(|i| i as f32).collect();
        let mask = |of: &[usize]| {
            let mut mask = [0; 2];
            fill_mask(&mut mask, 40, |i| of.contains(&i));
            assert_eq!(ones(&mask).collect::<Vec<_>>(), of);
            mask
        };
        // Predicts five neurons and finds three of four active neurons. The missed neuron has 1 of
        // 60 units of mass.
        tally.add(&mask(&[1, 9, 18, 32]), &mask(&[9, 10, 18, 32, 39]), Some(&mass));
        // Nothing fires, so only precision, density and activity are defined.
        tally.add(&mask(&[]), &mask(&[0, 1, 2]), Some(&mass));
        let figures = tally.figures();
        assert_eq!(figures.tokens, 2);
        assert_eq!((figures.recall, figures.mass_recall), (0.75, 59.0 / 60.0));
        assert_eq!((figures.precision, figures.density, figures.active), (0.3, 0.1, 0.05));

        assert_eq!(PredictionTally::new(7).figures().recall, 1.0);
    }

    #[test]
    fn heaviest_is_the_smallest_set_with_the_mass() {
        let mut mask = [0; 1];
        heaviest(&[1.0, 5.0, 0.0, 3.0, 1.0], 0.8, &mut mask);
        assert_eq!(mask, [0b01010]);
        heaviest(&[1.0, 5.0, 0.0, 3.0, 1.0], 0.85, &mut mask);
        assert_eq!(mask, [0b01011], "the first of equals");
        heaviest(&[1.0, 5.0, 0.0, 3.0, 1.0], 1.0, &mut mask);
        assert_eq!(mask, [0b11011], "never one without mass");
        heaviest(&[0.0; 5], 0.99, &mut mask);
        assert_eq!(mask, [0]);
    }

    #[test]
    fn down_norms_do_not_depend_on_the_orientation() {
        let by_neuron = [3.0f32, 4.0, 0.0, 1.0, 2.0, 2.0]; // [3, 2]
        let by_output = [3.0f32, 0.0, 2.0, 4.0, 1.0, 2.0]; // [2, 3]
        let linear = |rows, cols, values: &[f32]| Linear {
            weight: Matrix::new(TensorType::F32, rows, cols, Bytes::new(bytemuck::cast_slice(values).to_vec()))
                .unwrap(),
            bias: None,
        };
        for down in [Down::Neurons(linear(3, 2, &by_neuron)), Down::Outputs(linear(2, 3, &by_output))] {
            let ffn = FfnWeights {
                gate: None,
                up: linear(3, 2, &by_neuron),
                down,
                bundled_gate: None,
                limit: None,
                gate_scales: None,
            };
            assert_eq!(down_norms(&ffn), [5.0, 1.0, 8f32.sqrt()]);
        }
    }

    #[test]
    fn least_and_median_and_output_error_of_known_values() {
        assert_eq!(least_and_median(&[0.9, 0.7, 0.8]), Some((0.7, 0.8)));
        assert_eq!(least_and_median(&[]), None);
        assert_eq!(output_error(&[3.0, 4.0], &[3.0, 1.0]), Some(0.6));
        assert_eq!(output_error(&[0.0], &[1.0]), None);
    }
}
