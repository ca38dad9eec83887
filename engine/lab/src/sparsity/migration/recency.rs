//! Scores of a layer's experts between "least recently used" and "least frequently used". Simulated
//! hits choose the mixture.

use super::{DecayedCounts, SlotExchange, exchange, exchange_experts};
use thermocline_model::mask;

/// Half-lives of a choice's weight, in tokens. With a half-life of one token, scores order experts
/// by last use. The longest half-life counts frequencies (LRFU, Lee et al. 2001).
pub const HALF_LIVES: [f32; 4] = [1.0, 16.0, 64.0, 256.0];
/// Half-life of a simulated hit, in tokens.
const MEMORY: f32 = 256.0;
/// Another half-life replaces the current one if it has this many times the hits.
const BETTER: f32 = 1.02;

/// Choices of one layer's experts, counted with several half-lives. For each half-life, a cache of
/// the hot set's size is simulated without data. The half-life whose cache had the most recent hits
/// is used.
#[derive(Debug, Clone)]
pub struct ExpertScores {
    counts: [DecayedCounts; 4],
    /// Simulated cache for each half-life.
    caches: [ShadowCache; 4],
    /// Recent hits of each cache.
    hits: [f32; 4],
    followed: usize,
    /// Most experts that one token has chosen.
    used: usize,
}

#[derive(Debug, Clone, Default)]
pub(in crate::sparsity) struct ShadowCache {
    pub members: Vec<u32>,
    /// `[experts]`: true if the expert is a member.
    pub holds: Vec<bool>,
}

impl ExpertScores {
    /// Creates scores without choices. `frequency` is the fraction of tokens that choose each
    /// expert, if known.
    pub fn new(experts: usize, frequency: Option<&[f32]>) -> Self {
        let counts = HALF_LIVES.map(|half_life| {
            let counts = DecayedCounts::new(experts, half_life);
            frequency.map_or(counts.clone(), |frequency| counts.with_prior(frequency))
        });
        let cache = ShadowCache { members: Vec::new(), holds: vec![false; experts] };
        // Begins with a half-life of 64 tokens, until the text shows that another is better.
        ExpertScores { counts, caches: std::array::from_fn(|_| cache.clone()), hits: [0.0; 4], followed: 2, used: 0 }
    }

    /// Returns the number of experts.
    pub fn experts(&self) -> usize {
        self.counts[0].units()
    }

    /// Adds one token's chosen experts, a mask `[experts.div_ceil(32)]`. `slots` is the size of the
    /// hot set.
    pub fn add_token(&mut self, chosen: &[u32], slots: usize) {
        let keep = 0.5f32.powf(1.0 / MEMORY);
        self.used = self.used.max(chosen.iter().map(|bits| bits.count_ones() as usize).sum());
        let experts = self.experts() as u32;
        let is_in = |expert: u32| mask::contains(chosen, expert as usize);
        for ((counts, cache), hits) in self.counts.iter_mut().zip(&mut self.caches).zip(&mut self.hits) {
            let found = (0..experts).filter(|expert| is_in(*expert) && cache.holds[*expert as usize]).count();
            *hits = *hits * keep + found as f32;
            counts.add_token(mask::neurons(chosen));
            cache.resize(slots.min(experts as usize), counts);
            for expert in (0..experts).filter(|expert| is_in(*expert)) {
                cache.admit(expert, &|expert| counts.count(expert), &is_in);
            }
        }
        let best = (0..HALF_LIVES.len())
            .fold(self.followed, |best, at| if self.hits[at] > self.hits[best] * BETTER { at } else { best });
        self.followed = best;
    }

    /// Returns the counts of the half-life in use. The experts to keep have the largest counts.
    pub fn best(&self) -> &DecayedCounts {
        &self.counts[self.followed]
    }

    /// Returns at most `most` exchanges of the experts `hot` for others. The most useful exchange
    /// is the first. If a layer has fewer slots than a token has experts, the experts of one token
    /// would replace each other. Such slots keep the most frequent experts instead, and exchange
    /// them only with `certainty` ([`exchange`]).
    pub fn exchanges(&self, hot: &[u32], most: usize, certainty: f32) -> Vec<SlotExchange> {
        let [.., frequent] = &self.counts;
        if hot.len() < self.used {
            exchange(frequent, hot, most, certainty)
        } else {
            exchange_experts(self.best(), hot, most)
        }
    }

    /// Returns the half-life in use, in tokens.
    pub fn half_life(&self) -> f32 {
        HALF_LIVES[self.followed]
    }
}

impl ShadowCache {
    /// Resizes the cache to the `slots` experts with the largest counts.
    fn resize(&mut self, slots: usize, counts: &DecayedCounts) {
        if self.members.len() == slots {
            return;
        }
        let mut all: Vec<u32> = (0..counts.units() as u32).collect();
        all.sort_by(|a, b| counts.count(*b).total_cmp(&counts.count(*a)).then(a.cmp(b)));
        all.truncate(slots);
        self.holds.fill(false);
        all.iter().for_each(|expert| self.holds[*expert as usize] = true);
        self.members = all;
    }

    /// Admits `expert` if its score exceeds the smallest score of the members that were not chosen.
    /// It replaces that member.
    pub fn admit(&mut self, expert: u32, score: &impl Fn(u32) -> f32, is_chosen: &impl Fn(u32) -> bool) {
        if self.holds[expert as usize] {
            return;
        }
        let others = self.members.iter().enumerate().filter(|(_, member)| !is_chosen(**member));
        let least = others.min_by(|(_, a), (_, b)| score(**a).total_cmp(&score(**b)));
        if let Some((at, out)) = least.map(|(at, out)| (at, *out)).filter(|(_, out)| score(*out) < score(expert)) {
            (self.holds[out as usize], self.holds[expert as usize]) = (false, true);
            self.members[at] = expert;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(experts: &[u32]) -> Vec<u32> {
        let mut mask = vec![0; 2];
        experts.iter().for_each(|expert| mask::insert(&mut mask, *expert as usize));
        mask
    }

    /// A text that uses experts in runs selects a short half-life. A text with a few frequent
    /// experts selects a long one.
    #[test]
    fn the_half_life_that_would_have_hit_is_followed() {
        let mut runs = ExpertScores::new(64, None);
        // Each run has its own experts. Two runs have twice as many experts as there is room for.
        for step in 0..1200u32 {
            let run = step / 12 % 16;
            runs.add_token(&token(&[4 * run + step % 4, 4 * run + (step + 1) % 4]), 6);
        }
        assert!(runs.half_life() <= 16.0, "{}", runs.half_life());
        let mut steady = ExpertScores::new(64, None);
        // Each token has one of four frequent experts and two rare experts.
        for step in 0..1200u32 {
            let frequent = step * 7 % 11 % 4;
            steady.add_token(&token(&[frequent, 4 + step * 17 % 60, 4 + (step * 29 + 7) % 60]), 4);
        }
        assert!(steady.half_life() >= 16.0, "{}", steady.half_life());
        let mut kept: Vec<u32> = (0..64).collect();
        kept.sort_by(|a, b| steady.best().count(*b).total_cmp(&steady.best().count(*a)));
        kept.truncate(4);
        kept.sort_unstable();
        assert_eq!(kept, [0, 1, 2, 3]);
    }

    #[test]
    fn simulated_caches_follow_the_size_of_the_hot_set() {
        let mut scores = ExpertScores::new(40, Some(&[0.1; 40]));
        for slots in [0, 5, 40, 100, 3] {
            scores.add_token(&token(&[1, 39]), slots);
            for cache in &scores.caches {
                assert_eq!(cache.members.len(), slots.min(40));
                assert_eq!(cache.holds.iter().filter(|held| **held).count(), slots.min(40));
            }
        }
    }
}
