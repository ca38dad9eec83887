//! Counts, and what they say.

use serde::{Deserialize, Serialize};

use crate::model::Model;

/// Firings per layer and neuron.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// Tokens looked at.
    pub tokens: u64,
    /// Per layer, `[neurons]`: tokens at which it fired. Of a mixture expert by expert, those of the shared one last.
    pub counts: Vec<Vec<u64>>,
    /// Per layer, `[experts]`: tokens that chose it; nothing where the FFN is no mixture.
    pub chosen: Vec<Vec<u64>>,
    /// Per layer: neurons that tokens had to do with, in all. Of a mixture, those of the chosen experts.
    pub looked: Vec<u64>,
}

impl Profile {
    /// Nothing counted of any neuron of `model`.
    pub fn new(model: &Model) -> Self {
        let shapes = model.weights.layers.iter().map(|layer| layer.ffn.neurons());
        Profile {
            tokens: 0,
            counts: shapes.clone().map(|neurons| vec![0; neurons.count()]).collect(),
            chosen: shapes.clone().map(|neurons| vec![0; neurons.experts()]).collect(),
            looked: vec![0; shapes.len()],
        }
    }

    /// Adds what was counted elsewhere, of the same model.
    pub fn add(&mut self, other: &Profile) {
        self.tokens += other.tokens;
        let ours = self.counts.iter_mut().chain(&mut self.chosen).chain([&mut self.looked]);
        let theirs = other.counts.iter().chain(&other.chosen).chain([&other.looked]);
        for (ours, theirs) in ours.zip(theirs) {
            ours.iter_mut().zip(theirs).for_each(|(ours, theirs)| *ours += theirs);
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.tokens = 0;
        let all = self.counts.iter_mut().chain(&mut self.chosen).chain([&mut self.looked]);
        all.for_each(|counts| counts.fill(0));
    }

    /// Share of the tokens at which each neuron of a layer fires.
    pub fn frequency(&self, layer: usize) -> Vec<f32> {
        self.shares(&self.counts[layer])
    }

    /// Share of the tokens that choose each expert of a layer; nothing where the FFN is no mixture.
    pub fn experts(&self, layer: usize) -> Vec<f32> {
        self.shares(&self.chosen[layer])
    }

    fn shares(&self, counts: &[u64]) -> Vec<f32> {
        let tokens = self.tokens.max(1) as f64;
        counts.iter().map(|&count| (count as f64 / tokens) as f32).collect()
    }

    /// Mean share of a layer's neurons that fire for a token; in a mixture, of those of the experts it chose.
    pub fn density(&self, layer: usize) -> f64 {
        let firings: u64 = self.counts[layer].iter().sum();
        firings as f64 / self.looked[layer].max(1) as f64
    }

    /// The smallest share of a layer's neurons that makes `share` of its firings: how skewed they are.
    pub fn skew(&self, layer: usize, share: f64) -> f64 {
        busiest(self.counts[layer].iter().map(|&count| count as f64).collect(), share)
    }

    /// Neurons of a layer that never fired.
    pub fn silent(&self, layer: usize) -> usize {
        self.counts[layer].iter().filter(|&&count| count == 0).count()
    }
}

/// The smallest share of `weights` that makes `share` of their sum; 0 of nothing.
pub fn busiest(mut weights: Vec<f64>, share: f64) -> f64 {
    weights.sort_unstable_by(|a, b| b.total_cmp(a));
    let mut missing = share * weights.iter().sum::<f64>();
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
    fn figures() {
        let mut profile = Profile {
            tokens: 10,
            counts: vec![vec![10, 0, 5, 5], vec![0; 3]],
            chosen: vec![vec![5, 0], Vec::new()],
            looked: vec![40, 30],
        };
        assert_eq!(profile.frequency(0), [1.0, 0.0, 0.5, 0.5]);
        assert_eq!((profile.experts(0), profile.experts(1)), (vec![0.5, 0.0], Vec::new()));
        assert_eq!((profile.density(0), profile.density(1)), (0.5, 0.0));
        assert_eq!((profile.skew(0, 0.5), profile.skew(0, 0.51), profile.skew(0, 1.0)), (0.25, 0.5, 0.75));
        assert_eq!((profile.skew(1, 0.8), profile.silent(0), profile.silent(1)), (0.0, 1, 3));
        profile.add(&profile.clone());
        assert_eq!((profile.tokens, profile.counts[0][0], profile.density(0)), (20, 20, 0.5));
        assert_eq!((profile.chosen[0][0], profile.looked[1]), (10, 60));
        profile.clear();
        assert_eq!(profile.density(0), 0.0);
    }
}
