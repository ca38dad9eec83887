//! Simulated slots of one layer that admit missing experts.

use super::Policy;
use crate::sparsity::migration::{DecayedCounts, ShadowCache};
use thermocline_model::mask;

/// Simulated slots of one layer.
pub(super) struct SlotCache {
    slots: usize,
    places: ShadowCache,
    /// Counts that decide which experts stay; `None` if none is ever replaced.
    scores: Option<DecayedCounts>,
    mask: Vec<u32>,
}

impl SlotCache {
    /// Creates empty slots for `experts` experts.
    pub fn new(experts: usize, slots: usize, policy: Policy) -> Self {
        let scores = match policy {
            Policy::Lru => Some(DecayedCounts::new(experts, 1.0)),
            Policy::Lfu(half_life) => Some(DecayedCounts::new(experts, half_life)),
            Policy::Static | Policy::Engine | Policy::Bound => None,
        };
        let places = ShadowCache { members: Vec::new(), holds: vec![false; experts] };
        SlotCache { slots, places, scores, mask: vec![0; mask::words(experts)] }
    }

    /// Returns the number of empty slots that may be filled.
    pub fn free(&self) -> usize {
        if self.scores.is_some() { self.slots - self.places.members.len() } else { 0 }
    }

    /// Returns how many of `chosen` are in slots.
    pub fn hits(&self, chosen: &[u16]) -> usize {
        chosen.iter().filter(|expert| self.places.holds[usize::from(**expert)]).count()
    }

    /// Puts `expert` into an empty slot.
    pub fn put(&mut self, expert: u32) {
        self.places.holds[expert as usize] = true;
        self.places.members.push(expert);
    }

    /// Counts the experts that a token chose.
    pub fn count(&mut self, chosen: &[u16]) {
        self.mask.fill(0);
        chosen.iter().for_each(|expert| mask::insert(&mut self.mask, usize::from(*expert)));
        if let Some(counts) = &mut self.scores {
            counts.add_token(mask::neurons(&self.mask));
        }
    }

    /// Admits up to `most` of the chosen experts that are missing, those with the largest scores
    /// first. Each replaces the expert with the smallest score that was not chosen, if that score
    /// is smaller.
    pub fn admit(&mut self, chosen: &[u16], most: usize) {
        let Some(counts) = self.scores.take() else { return };
        let missing = chosen.iter().filter(|expert| !self.places.holds[usize::from(**expert)]);
        let mut missing: Vec<u32> = missing.map(|expert| u32::from(*expert)).collect();
        missing.sort_by(|a, b| counts.count(*b).total_cmp(&counts.count(*a)));
        for expert in missing.into_iter().take(most) {
            if self.places.members.len() < self.slots {
                self.put(expert);
            } else {
                let is_chosen = |member: u32| mask::contains(&self.mask, member as usize);
                self.places.admit(expert, &|expert| counts.count(expert), &is_chosen);
            }
        }
        self.scores = Some(counts);
    }
}
