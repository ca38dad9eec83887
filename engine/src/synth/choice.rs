//! Which experts of a mixture tokens choose.
//!
//! To a router an expert's score is normal over tokens, with the same spread for all experts and a bias of its own; a token uses those
//! with the highest scores. The biases are found such that experts are chosen as often as a power law says.

use super::{
    firing::{cdf, density, law, quantile},
    shape::Mixture,
};

/// An expert is chosen for `rank^-SKEW` of the tokens: of eight experts the busiest twice as often as the rarest.
const SKEW: f64 = 0.25;
/// Steps to the biases; a few are enough.
const ROUNDS: usize = 40;
/// Largest share by which an expert may then be chosen more or less often.
const TOLERANCE: f64 = 1e-4;
/// Intervals of the integral, in standard deviations of the scores, and how far it goes.
const STEP: f64 = 0.1;
const FAR: f64 = 6.0;

/// How often experts are chosen, busiest first.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Choice {
    /// Share of the tokens; their sum is the number of experts a token uses.
    pub shares: Vec<f64>,
    /// Biases of the scores, in standard deviations.
    pub biases: Vec<f64>,
}

impl Choice {
    pub(super) fn of(mixture: Mixture) -> Self {
        let shares = law(mixture.experts, mixture.used as f64, SKEW);
        let mut biases = vec![0.0; mixture.experts];
        for _ in 0..ROUNDS {
            let got = chosen(&biases, mixture.used);
            if got.iter().zip(&shares).all(|(got, share)| (got / share - 1.0).abs() < TOLERANCE) {
                break;
            }
            for ((bias, got), share) in biases.iter_mut().zip(got).zip(&shares) {
                *bias += quantile(*share) - quantile(got);
            }
        }
        Choice { shares, biases }
    }
}

/// Share of the tokens for which each score is among the `used` highest.
fn chosen(biases: &[f64], used: usize) -> Vec<f64> {
    let (low, high) = biases.iter().fold((0.0f64, 0.0f64), |(low, high), bias| (low.min(*bias), high.max(*bias)));
    let points = ((high - low + 2.0 * FAR) / STEP) as usize;
    // Of all experts but one: how likely it is that so many, of fewer than `used`, have a higher score.
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
    let share = |(expert, bias): (usize, &f64)| {
        let at = |point: usize| low - FAR + STEP * point as f64;
        (0..points).map(|point| density(at(point) - bias) * among(expert, at(point)) * STEP).sum()
    };
    biases.iter().enumerate().map(share).collect()
}

#[cfg(test)]
mod tests {
    use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

    use super::*;
    use crate::synth::random::fill_normal;

    #[test]
    fn experts_are_chosen_as_often_as_they_should_be() {
        for (experts, used) in [(8, 2), (16, 4), (3, 1)] {
            let choice = Choice::of(Mixture { experts, used });
            assert!((choice.shares.iter().sum::<f64>() - used as f64).abs() < 1e-6);
            assert!(choice.shares[0] / choice.shares[experts - 1] > 1.4);
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
            for (count, share) in counts.iter().zip(&choice.shares) {
                let got = f64::from(*count) / f64::from(tokens);
                assert!((got / share - 1.0).abs() < 0.05, "{used} of {experts}: {got} {share}");
            }
        }
    }
}
