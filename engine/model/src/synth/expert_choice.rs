//! Router biases with which tokens choose experts by a power law.
//!
//! An expert's router score is normally distributed over tokens. All experts have the same spread,
//! and each has its own bias. A token uses the experts with the highest scores. A solver finds the
//! biases for the wanted frequencies.

use super::{
    firing::{cdf, density, law, quantile},
    shape::ExpertCounts,
};

/// Exponent of the power law: the expert of rank `r` is chosen in proportion to `r^-SKEW`. The most
/// frequent of eight experts is chosen 1.7 times as often as the rarest.
const SKEW: f64 = 0.25;
/// Largest number of iterations of the solver; a few are enough.
const ROUNDS: usize = 40;
/// Relative error of the frequencies at which the solver stops.
const TOLERANCE: f64 = 1e-4;
/// Step and range of the integral, in standard deviations of the scores.
const STEP: f64 = 0.1;
const FAR: f64 = 6.0;

/// Frequencies and router biases of experts, most frequent first.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ExpertChoice {
    /// Fraction of tokens that choose each expert, `[experts]`. The sum is the number of experts
    /// per token.
    pub frequencies: Vec<f64>,
    /// Biases of the scores in standard deviations, `[experts]`.
    pub biases: Vec<f64>,
}

impl ExpertChoice {
    pub fn new(of: ExpertCounts) -> Self {
        let frequencies = law(of.experts, of.used as f64, SKEW);
        let mut biases = vec![0.0; of.experts];
        for _ in 0..ROUNDS {
            let got = chosen(&biases, of.used);
            if got.iter().zip(&frequencies).all(|(got, wanted)| (got / wanted - 1.0).abs() < TOLERANCE) {
                break;
            }
            for ((bias, got), wanted) in biases.iter_mut().zip(got).zip(&frequencies) {
                *bias += quantile(*wanted) - quantile(got);
            }
        }
        ExpertChoice { frequencies, biases }
    }
}

/// Returns the fraction of tokens at which each expert's score is among the `used` highest,
/// `[experts]`.
fn chosen(biases: &[f64], used: usize) -> Vec<f64> {
    let (low, high) = biases.iter().fold((0.0f64, 0.0f64), |(low, high), bias| (low.min(*bias), high.max(*bias)));
    let points = ((high - low + 2.0 * FAR) / STEP) as usize;
    // Probability that exactly `i` of the other experts have a higher score, for `i` below `used`.
    let mut higher = vec![0.0; used];
    let mut among = |expert: usize, score: f64| {
        higher.fill(0.0);
        higher[0] = 1.0;
        for (_, bias) in biases.iter().enumerate().filter(|(other, _)| *other != expert) {
            let above = cdf(bias - score);
            for count in (0..used).rev() {
                let one_less = if count > 0 { higher[count - 1] } else { 0.0 };
                higher[count] = higher[count] * (1.0 - above) + one_less * above;
            }
        }
        higher.iter().sum::<f64>()
    };
    let frequency = |(expert, bias): (usize, &f64)| {
        let at = |point: usize| low - FAR + STEP * point as f64;
        (0..points).map(|point| density(at(point) - bias) * among(expert, at(point)) * STEP).sum()
    };
    biases.iter().enumerate().map(frequency).collect()
}

#[cfg(test)]
mod tests {
    use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

    use super::*;
    use crate::synth::random::fill_normal;

    #[test]
    fn expert_frequencies_follow_the_power_law() {
        for (experts, used) in [(8, 2), (16, 4), (3, 1)] {
            let choice = ExpertChoice::new(ExpertCounts { experts, used });
            assert!((choice.frequencies.iter().sum::<f64>() - used as f64).abs() < 1e-6);
            assert!(choice.frequencies[0] / choice.frequencies[experts - 1] > 1.4);
            // Scores of many tokens.
            let (tokens, rng) = (20_000, &mut ChaCha8Rng::seed_from_u64(5));
            let (mut counts, mut scores) = (vec![0u32; experts], vec![0.0; experts]);
            for _ in 0..tokens {
                fill_normal(rng, 1.0, &mut scores);
                scores.iter_mut().zip(&choice.biases).for_each(|(score, bias)| *score += *bias as f32);
                let mut order: Vec<usize> = (0..experts).collect();
                order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
                order[..used].iter().for_each(|expert| counts[*expert] += 1);
            }
            for (count, wanted) in counts.iter().zip(&choice.frequencies) {
                let got = f64::from(*count) / f64::from(tokens);
                assert!((got / wanted - 1.0).abs() < 0.05, "{used} of {experts}: {got} {wanted}");
            }
        }
    }
}
