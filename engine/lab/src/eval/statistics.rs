//! Means with their standard errors.

use serde::Serialize;

/// A figure with its standard error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// The figure.
    pub value: f64,
    /// Standard error.
    pub stderr: f64,
}

/// Count, sum and sum of squares of a sample.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moments {
    count: u64,
    sum: f64,
    squares: f64,
}

impl Moments {
    /// Computes the moments of a whole sample.
    pub fn from_values(values: impl IntoIterator<Item = f64>) -> Self {
        let mut moments = Moments::default();
        values.into_iter().for_each(|value| moments.add(value));
        moments
    }

    /// Adds a value.
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        self.squares += value * value;
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the mean; 0 without values.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum / self.count as f64 }
    }

    /// Returns the mean and its standard error, `sqrt((mean(x^2) - mean(x)^2) / (n - 1))`. The
    /// error is 0 for fewer than two values.
    pub fn estimate(&self) -> Estimate {
        let mean = self.mean();
        if self.count < 2 {
            return Estimate { value: mean, stderr: 0.0 };
        }
        let variance = (self.squares / self.count as f64 - mean * mean).max(0.0);
        Estimate { value: mean, stderr: (variance / (self.count - 1) as f64).sqrt() }
    }
}

/// Returns the covariance of the means of two paired samples of the same length.
pub fn covariance(a: &[f64], b: &[f64]) -> f64 {
    let n = a.len().min(b.len());
    if n < 2 {
        return 0.0;
    }
    let products: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
    let [a, b] = [a, b].map(|values| values[..n].iter().sum::<f64>() / n as f64);
    (products / n as f64 - a * b) / (n - 1) as f64
}

/// Common percentiles of a distribution.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Percentiles {
    pub min: f64,
    #[serde(rename = "p0.1")]
    pub p0_1: f64,
    pub p1: f64,
    pub p5: f64,
    pub p10: f64,
    pub median: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    #[serde(rename = "p99.9")]
    pub p99_9: f64,
    pub max: f64,
}

impl Percentiles {
    /// Computes the percentiles of `values`; all 0 without values.
    pub fn from_values(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |fraction| quantile(&sorted, fraction);
        Percentiles {
            min: at(0.0),
            p0_1: at(0.001),
            p1: at(0.01),
            p5: at(0.05),
            p10: at(0.10),
            median: at(0.5),
            p90: at(0.90),
            p95: at(0.95),
            p99: at(0.99),
            p99_9: at(0.999),
            max: at(1.0),
        }
    }
}

/// Returns the quantile of the ascending `sorted` at `fraction`, by linear interpolation; 0 without
/// values.
pub fn quantile(sorted: &[f64], fraction: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let position = fraction.clamp(0.0, 1.0) * last as f64;
    let (below, part) = (position.floor() as usize, position.fract());
    (1.0 - part) * sorted[below] + part * sorted[(below + 1).min(last)]
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn statistics_match_a_hand_calculation() {
        let all = Moments::from_values([1.0, 2.0, 3.0, 4.0]);
        assert_eq!(all.estimate().value, 2.5);
        assert!((all.estimate().stderr - (1.25f64 / 3.0).sqrt()).abs() < 1e-12);
        assert_eq!(Moments::from_values([7.0]).estimate(), Estimate { value: 7.0, stderr: 0.0 });
        assert_eq!(Moments::default().estimate(), Estimate::default());
        assert!((covariance(&[1.0, 2.0, 3.0], &[2.0, 4.0, 6.0]) - 2.0 / 3.0).abs() < 1e-12);
        assert_eq!(covariance(&[1.0], &[1.0]), 0.0);
        let values: Vec<f64> = (0..=1000).rev().map(f64::from).collect();
        let points = Percentiles::from_values(&values);
        assert_eq!(
            [points.min, points.p0_1, points.p5, points.median, points.p99_9, points.max],
            [0.0, 1.0, 50.0, 500.0, 999.0, 1000.0]
        );
        assert_eq!(quantile(&[1.0, 2.0], 0.25), 1.25);
        assert_eq!(Percentiles::from_values(&[]), Percentiles::default());
    }

    #[test]
    fn standard_errors_match_a_bootstrap() {
        let mut random = StdRng::seed_from_u64(5);
        let sample: Vec<f64> = (0..800).map(|_| random.random::<f64>().powi(3) * 10.0).collect();
        let other: Vec<f64> = sample.iter().map(|x| 0.5 * x + random.random::<f64>()).collect();
        let stderr = Moments::from_values(sample.iter().copied()).estimate().stderr;
        let (mut means, mut products) = (Moments::default(), Moments::default());
        let [mean, other_mean] = [&sample, &other].map(|of| Moments::from_values(of.iter().copied()).mean());
        for _ in 0..2000 {
            let (mut a, mut b) = (0.0, 0.0);
            for _ in 0..sample.len() {
                let i = random.random_range(0..sample.len());
                a += sample[i];
                b += other[i];
            }
            let (a, b) = (a / sample.len() as f64, b / sample.len() as f64);
            means.add(a);
            products.add((a - mean) * (b - other_mean));
        }
        let spread = means.estimate().stderr * (means.count() as f64 - 1.0).sqrt();
        assert!((spread / stderr - 1.0).abs() < 0.07, "{spread} {stderr}");
        let expected = covariance(&sample, &other);
        assert!((products.mean() / expected - 1.0).abs() < 0.12, "{} {expected}", products.mean());
    }
}
