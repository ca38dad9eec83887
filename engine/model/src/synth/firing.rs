//! The mathematics of firing: a power law over neurons, and normal distributions.
//!
//! A neuron's pre-activation is a weighted sum of many independent channels, so it is normally
//! distributed over tokens. The neuron fires if it is above zero. With a bias of `z` standard
//! deviations, the probability is `cdf(z)`.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use thermocline_base::error::{Error, Result};

/// Largest frequency of a neuron or an expert.
const MOST: f64 = 0.98;
/// Number of steps of a bisection: more than the bits of the result.
const STEPS: usize = 60;

/// Returns the firing probabilities of `n` neurons, most active first:
/// `min(MOST, c * rank^-alpha)`. It chooses `c` and `alpha` so that the mean is `active`, and the
/// first `hot_fraction` of the neurons make `hot_firings` of all firings.
pub(super) fn power_law(n: usize, active: f64, hot_fraction: f64, hot_firings: f64) -> Result<Vec<f64>> {
    let total = active * n as f64;
    let law = |alpha: f64| law(n, total, alpha);
    let made = |law: &[f64]| {
        let hot = hot_fraction * n as f64;
        let whole = hot as usize;
        let part = law.get(whole).map_or(0.0, |p| p * (hot - whole as f64));
        (law[..whole].iter().sum::<f64>() + part) / total
    };
    let solved = law(bisect(0.0, 8.0, |alpha| made(&law(alpha)) < hot_firings));
    if (made(&solved) - hot_firings).abs() > 0.01 * hot_firings {
        let (least, most) = (hot_fraction, made(&law(8.0)));
        return Err(Error::invalid(
            "fraction of the firings that hot neurons cause",
            format!("{least:.3} to {most:.3} if the fraction {active} of the neurons fires and {hot_fraction} is hot"),
            hot_firings,
        ));
    }
    Ok(solved)
}

/// Returns `min(MOST, c * rank^-alpha)` for `n` ranks, with `c` so that the sum is `total`.
pub(super) fn law(n: usize, total: f64, alpha: f64) -> Vec<f64> {
    let shape: Vec<f64> = (0..n).map(|rank| ((rank as f64 + 0.5) / n as f64).powf(-alpha)).collect();
    let probabilities = |c: f64| shape.iter().map(move |shape| (c * shape).min(MOST));
    // The search is over the logarithm because `c` may be tiny.
    let log_c = bisect(-60.0, 1.0, |log_c| probabilities(log_c.exp()).sum::<f64>() < total);
    probabilities(log_c.exp()).collect()
}

/// Returns the smallest fraction of `counts` (firings per neuron) that makes the fraction
/// `hot_firings` of their sum.
pub(super) fn hot_fraction(counts: &[f64], hot_firings: f64) -> f64 {
    let mut sorted = counts.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let mut missing = hot_firings * sorted.iter().sum::<f64>();
    let mut hot = 0.0;
    for count in sorted {
        if count >= missing {
            return (hot + if count > 0.0 { missing / count } else { 0.0 }) / counts.len() as f64;
        }
        missing -= count;
        hot += 1.0;
    }
    1.0
}

/// Returns the point at which `below` changes from true to false.
fn bisect(mut low: f64, mut high: f64, below: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..STEPS {
        let middle = 0.5 * (low + high);
        if below(middle) { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// Returns the density of the standard normal distribution at `z`.
pub(super) fn density(z: f64) -> f64 {
    (-0.5 * z * z).exp() / (2.0 * PI).sqrt()
}

/// Returns the standard normal distribution function at `z`.
pub(super) fn cdf(z: f64) -> f64 {
    0.5 * libm::erfc(-z * FRAC_1_SQRT_2)
}

/// Returns the inverse of [`cdf`] at `p`.
pub(super) fn quantile(p: f64) -> f64 {
    bisect(-8.0, 8.0, |z| cdf(z) < p)
}

/// Returns the mean of `relu(z + bias)` over a standard normal `z`.
pub(super) fn relu_mean(bias: f64) -> f64 {
    bias * cdf(bias) + density(bias)
}

/// Returns the mean of `relu(z + bias)^2` over a standard normal `z`.
pub(super) fn relu_second_moment(bias: f64) -> f64 {
    (1.0 + bias * bias) * cdf(bias) + bias * density(bias)
}

/// Returns the mean of `relu(z + bias)^4` over a standard normal `z`.
pub(super) fn relu_fourth_moment(bias: f64) -> f64 {
    let square = bias * bias;
    (square * square + 6.0 * square + 3.0) * cdf(bias) + (square + 5.0) * bias * density(bias)
}

/// Returns the threshold on a predictor's standardised score that gives `recall`. A neuron fires
/// above `at`, and its pre-activation and the score have the correlation `rho`.
pub(super) fn predictor_threshold(at: f64, rho: f64, recall: f64) -> f64 {
    /// Number of intervals of Simpson's rule; even.
    const INTERVALS: usize = 32;
    let fires = cdf(-at);
    let rho = rho.clamp(0.0, 0.99999);
    let spread = (1.0 - rho * rho).sqrt();
    // Score and pre-activation are standardised. A firing neuron is found if its score is above the
    // threshold.
    let (low, high) = (at, at.max(0.0) + 5.0);
    let step = (high - low) / INTERVALS as f64;
    let nodes: [(f64, f64); INTERVALS + 1] = std::array::from_fn(|i| {
        let z = low + step * i as f64;
        let weight = match i {
            0 | INTERVALS => 1.0,
            i if i % 2 == 1 => 4.0,
            _ => 2.0,
        };
        (z, weight * density(z) * step / 3.0 / fires)
    });
    let found =
        |threshold: f64| nodes.iter().map(|(z, weight)| weight * cdf((rho * z - threshold) / spread)).sum::<f64>();
    // Newton's method, because d found / d threshold has a closed form.
    let mut threshold = at - 1.5 * spread;
    for _ in 0..8 {
        let slope = -density(threshold) * cdf((rho * threshold - at) / spread) / fires;
        let excess = found(threshold) - recall;
        if slope > -1e-9 || excess.abs() < 1e-5 {
            break;
        }
        threshold -= (excess / slope).clamp(-1.0, 1.0);
    }
    threshold
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_law_has_the_requested_mean_and_skew() {
        for (active, hot, firings) in [(0.10, 0.26, 0.80), (0.33, 0.43, 0.80), (0.03, 0.26, 0.80), (0.5, 0.7, 0.8)] {
            let law = power_law(11008, active, hot, firings).unwrap();
            assert!((law.iter().sum::<f64>() / 11008.0 - active).abs() < 1e-6);
            assert!((hot_fraction(&law, firings) - hot).abs() < 0.01 * hot);
            assert!(law.windows(2).all(|pair| pair[0] >= pair[1]));
        }
    }

    #[test]
    fn power_law_refuses_infeasible_parameters() {
        for (active, hot, firings) in [(0.5, 0.3, 0.8), (0.1, 0.9, 0.8)] {
            assert!(matches!(power_law(1024, active, hot, firings), Err(Error::Invalid { .. })));
        }
    }

    #[test]
    fn quantile_inverts_cdf() {
        for p in [1e-6, 0.02, 0.5, 0.9, 0.98] {
            assert!((cdf(quantile(p)) - p).abs() < 1e-9);
        }
        assert!((quantile(0.975) - 1.959_964).abs() < 1e-5);
    }

    #[test]
    fn predictor_threshold_has_the_requested_recall() {
        // The reference is a plain double sum over the joint density.
        for (p, rho, recall) in [(0.1, 0.97, 0.95), (0.02, 0.9, 0.9), (0.98, 0.98, 0.99), (0.4, 0.8, 0.95)] {
            let at = -quantile(p);
            let threshold = predictor_threshold(at, rho, recall);
            let spread = f64::sqrt(1.0 - rho * rho);
            let (mut found, step) = (0.0, 1e-3);
            for i in 0..14_000 {
                let score = -7.0 + step * (f64::from(i) + 0.5);
                if score > threshold {
                    found += density(score) * cdf((rho * score - at) / spread) * step;
                }
            }
            assert!((found / p - recall).abs() < 3e-3, "p {p} rho {rho}: {}", found / p);
        }
    }
}
