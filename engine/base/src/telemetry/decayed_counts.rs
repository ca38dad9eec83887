//! Recent firing counts of units: neurons, experts, or pieces of a file.

/// Exponentially decayed firing counts, `[units]`. Each token has a larger weight than
/// the one before, so that counts need not be scaled down at every token.
#[derive(Debug, Clone)]
pub struct DecayedCounts {
    counts: Vec<f32>,
    /// Weight of a firing at the current token.
    weight: f32,
    /// Growth of the weight per token, as a factor.
    growth: f32,
}

/// Weight beyond which all counts are scaled down, far below the largest float.
const LARGEST_WEIGHT: f32 = 1e12;

impl DecayedCounts {
    /// Creates zero counts for `units` units. The weight of a firing halves within `half_life`
    /// tokens.
    pub fn new(units: usize, half_life: f32) -> Self {
        DecayedCounts { counts: vec![0.0; units], weight: 1.0, growth: 2f32.powf(1.0 / half_life.max(1.0)) }
    }

    /// Sets the counts of a long text in which unit `i` fires at the fraction `frequency[i]` of
    /// tokens.
    #[must_use]
    pub fn with_prior(mut self, frequency: &[f32]) -> Self {
        let memory = self.memory() * self.weight;
        self.counts.iter_mut().zip(frequency).for_each(|(count, fraction)| *count = fraction * memory);
        self
    }

    /// Returns the number of tokens remembered: the limit of the count of a unit that fires at
    /// every token.
    pub fn memory(&self) -> f32 {
        // 1 + 1/g + 1/g^2 + ..
        self.growth / (self.growth - 1.0)
    }

    /// Returns the number of units.
    pub fn units(&self) -> usize {
        self.counts.len()
    }

    /// Adds one token, at which the units `fired` fired. Indices out of range are ignored.
    pub fn add_token(&mut self, fired: impl IntoIterator<Item = u32>) {
        self.next_token();
        fired.into_iter().for_each(|unit| self.add(unit));
    }

    /// Begins a token. Counts of earlier tokens decay.
    pub fn next_token(&mut self) {
        self.weight *= self.growth;
        if self.weight > LARGEST_WEIGHT {
            self.counts.iter_mut().for_each(|count| *count /= self.weight);
            self.weight = 1.0;
        }
    }

    /// Adds a firing of `unit` at the current token. An index out of range is ignored.
    pub fn add(&mut self, unit: u32) {
        if let Some(count) = self.counts.get_mut(unit as usize) {
            *count += self.weight;
        }
    }

    /// Returns the decayed count of `unit`, in firings; 0 for an index out of range.
    pub fn count(&self, unit: u32) -> f32 {
        self.counts.get(unit as usize).map_or(0.0, |count| count / self.weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decayed_counts_halve_after_the_half_life() {
        let mut counts = DecayedCounts::new(70, 10.0);
        counts.add_token([3, 69]);
        assert_eq!((counts.count(3), counts.count(69), counts.count(4), counts.count(1000)), (1.0, 1.0, 0.0, 0.0));
        (0..10).for_each(|_| counts.add_token([]));
        assert!((counts.count(3) - 0.5).abs() < 1e-4, "{}", counts.count(3));
        counts.add_token(0..1000);
        assert_eq!(counts.units(), 70);
    }

    #[test]
    fn prior_equals_the_counts_of_a_long_text() {
        let (mut prior, mut seen) = (DecayedCounts::new(2, 50.0).with_prior(&[1.0, 0.0]), DecayedCounts::new(2, 50.0));
        // Enough tokens for the counts to be scaled down.
        for _ in 0..5000 {
            prior.add_token([0]);
            seen.add_token([0]);
        }
        for counts in [prior, seen] {
            assert!((counts.count(0) / counts.memory() - 1.0).abs() < 1e-3 && counts.count(1) == 0.0, "{counts:?}");
        }
    }
}
