//! Firing counts, and figures derived from them.

use serde::{Deserialize, Serialize};

use thermocline_model::Model;

/// Firings per layer and neuron.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// Number of tokens.
    pub tokens: u64,
    /// Tokens at which each neuron fired, per layer `[neurons]`. In an MoE layer, expert by expert,
    /// with the shared expert last.
    pub counts: Vec<Vec<u64>>,
    /// Tokens that chose each expert, per layer `[experts]`. Empty for dense layers.
    pub chosen: Vec<Vec<u64>>,
    /// Computed neurons per layer, summed over tokens. In an MoE layer, the neurons of the chosen
    /// experts.
    #[serde(rename = "looked")]
    pub computed: Vec<u64>,
}

impl Profile {
    /// Creates zero counts for all neurons of `model`.
    pub fn new(model: &Model) -> Self {
        let shapes = model.weights.layers.iter().map(|layer| layer.ffn.neurons());
        Profile {
            tokens: 0,
            counts: shapes.clone().map(|neurons| vec![0; neurons.count()]).collect(),
            chosen: shapes.clone().map(|neurons| vec![0; neurons.experts()]).collect(),
            computed: vec![0; shapes.len()],
        }
    }

    /// Adds the counts of `other`, a profile of the same model.
    pub fn add(&mut self, other: &Profile) {
        self.tokens += other.tokens;
        let ours = self.counts.iter_mut().chain(&mut self.chosen).chain([&mut self.computed]);
        let theirs = other.counts.iter().chain(&other.chosen).chain([&other.computed]);
        for (ours, theirs) in ours.zip(theirs) {
            ours.iter_mut().zip(theirs).for_each(|(ours, theirs)| *ours += theirs);
        }
    }

    /// Resets all counts to zero.
    pub fn clear(&mut self) {
        self.tokens = 0;
        let all = self.counts.iter_mut().chain(&mut self.chosen).chain([&mut self.computed]);
        all.for_each(|counts| counts.fill(0));
    }

    /// Returns the firing frequencies of a layer's neurons, `[neurons]`: the fraction of tokens at
    /// which each neuron fires.
    pub fn frequency(&self, layer: usize) -> Vec<f32> {
        self.frequencies(&self.counts[layer])
    }

    /// Returns the frequencies of a layer's experts, `[experts]`: the fraction of tokens that
    /// choose each expert. Empty for a dense layer.
    pub fn experts(&self, layer: usize) -> Vec<f32> {
        self.frequencies(&self.chosen[layer])
    }

    fn frequencies(&self, counts: &[u64]) -> Vec<f32> {
        let tokens = self.tokens.max(1) as f64;
        counts.iter().map(|&count| (count as f64 / tokens) as f32).collect()
    }

    /// Returns the mean fraction of a layer's computed neurons that fire at a token. In an MoE
    /// layer, only the chosen experts' neurons are computed.
    pub fn density(&self, layer: usize) -> f64 {
        let firings: u64 = self.counts[layer].iter().sum();
        firings as f64 / self.computed[layer].max(1) as f64
    }

    /// Returns the smallest fraction of a layer's neurons that produce the fraction `of_firings` of
    /// its firings.
    pub fn skew(&self, layer: usize, of_firings: f64) -> f64 {
        smallest_fraction(self.counts[layer].iter().map(|&count| count as f64).collect(), of_firings)
    }

    /// Returns the number of a layer's neurons that never fired.
    pub fn silent(&self, layer: usize) -> usize {
        self.counts[layer].iter().filter(|&&count| count == 0).count()
    }
}

/// Returns the smallest fraction of the elements of `weights` whose sum is the fraction `of_sum` of
/// the total; 0 without elements.
pub fn smallest_fraction(mut weights: Vec<f64>, of_sum: f64) -> f64 {
    weights.sort_unstable_by(|a, b| b.total_cmp(a));
    let mut missing = of_sum * weights.iter().sum::<f64>();
    let needed = weights.iter().take_while(|&&weight| {
        let more = missing > 0.0;
        missing -= weight;
        more
    });
    needed.count() as f64 / weights.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_figures_match_a_hand_calculation() {
        let mut profile = Profile {
            tokens: 10,
            counts: vec![vec![10, 0, 5, 5], vec![0; 3]],
            chosen: vec![vec![5, 0], Vec::new()],
            computed: vec![40, 30],
        };
        assert_eq!(profile.frequency(0), [1.0, 0.0, 0.5, 0.5]);
        assert_eq!((profile.experts(0), profile.experts(1)), (vec![0.5, 0.0], Vec::new()));
        assert_eq!((profile.density(0), profile.density(1)), (0.5, 0.0));
        assert_eq!((profile.skew(0, 0.5), profile.skew(0, 0.51), profile.skew(0, 1.0)), (0.25, 0.5, 0.75));
        assert_eq!((profile.skew(1, 0.8), profile.silent(0), profile.silent(1)), (0.0, 1, 3));
        profile.add(&profile.clone());
        assert_eq!((profile.tokens, profile.counts[0][0], profile.density(0)), (20, 20, 0.5));
        assert_eq!((profile.chosen[0][0], profile.computed[1]), (10, 60));
        profile.clear();
        assert_eq!(profile.density(0), 0.0);
    }
}
