//! How often the neurons of a layer fired lately.

/// Exponentially forgotten firing counts of one layer. Instead of shrinking all counts at every token, later tokens weigh more.
#[derive(Debug, Clone)]
pub struct Heat {
    counts: Vec<f32>,
    /// What a firing now adds to a count.
    weight: f32,
    /// By how much that grows per token.
    growth: f32,
}

/// Beyond this weight all counts are scaled back, long before floats end.
const HEAVY: f32 = 1e12;

impl Heat {
    /// `neurons` that never fired; a firing counts half after `half_life` tokens.
    pub fn new(neurons: usize, half_life: f32) -> Self {
        Heat { counts: vec![0.0; neurons], weight: 1.0, growth: 2f32.powf(1.0 / half_life.max(1.0)) }
    }

    /// As after a long text in which neuron `i` fired in a share `frequency[i]` of the tokens.
    #[must_use]
    pub fn after(mut self, frequency: &[f32]) -> Self {
        let memory = self.memory() * self.weight;
        self.counts.iter_mut().zip(frequency).for_each(|(count, share)| *count = share * memory);
        self
    }

    /// Tokens remembered: what a neuron that always fires counts in the end.
    pub fn memory(&self) -> f32 {
        // 1 + 1/g + 1/g^2 + ..
        self.growth / (self.growth - 1.0)
    }

    /// Neurons.
    pub fn neurons(&self) -> usize {
        self.counts.len()
    }

    /// One token: bit `i % 32` of word `i / 32` of `fired` says whether neuron `i` fired.
    pub fn token(&mut self, fired: &[u32]) {
        self.weight *= self.growth;
        if self.weight > HEAVY {
            self.counts.iter_mut().for_each(|count| *count /= self.weight);
            self.weight = 1.0;
        }
        for (word, bits) in fired.iter().enumerate() {
            let mut bits = *bits;
            while bits != 0 {
                let neuron = word * 32 + bits.trailing_zeros() as usize;
                if let Some(count) = self.counts.get_mut(neuron) {
                    *count += self.weight;
                }
                bits &= bits - 1;
            }
        }
    }

    /// Firings of `neuron`, each the less the longer ago; 0 for one that is not there.
    pub fn of(&self, neuron: u32) -> f32 {
        self.counts.get(neuron as usize).map_or(0.0, |count| count / self.weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_firing_counts_half_after_the_half_life() {
        let mut heat = Heat::new(70, 10.0);
        heat.token(&[1 << 3, 0, 1 << 5]);
        assert_eq!((heat.of(3), heat.of(69), heat.of(4), heat.of(1000)), (1.0, 1.0, 0.0, 0.0));
        (0..10).for_each(|_| heat.token(&[0; 3]));
        assert!((heat.of(3) - 0.5).abs() < 1e-4, "{}", heat.of(3));
        // Words of neurons that are not there are no harm.
        heat.token(&[u32::MAX; 9]);
        assert_eq!(heat.neurons(), 70);
    }

    #[test]
    fn a_prior_is_what_a_long_text_would_have_left() {
        let (mut told, mut seen) = (Heat::new(2, 50.0).after(&[1.0, 0.0]), Heat::new(2, 50.0));
        // Long enough to be scaled back.
        for _ in 0..5000 {
            told.token(&[1]);
            seen.token(&[1]);
        }
        for heat in [told, seen] {
            assert!((heat.of(0) / heat.memory() - 1.0).abs() < 1e-3 && heat.of(1) == 0.0, "{heat:?}");
        }
    }
}
