//! Simulates caches of experts on recorded routes: hits, fetched experts, and time per token.

use std::fmt;

use super::Routes;
use crate::sparsity::migration::{DecayedCounts, ExpertScores, ShadowCache};
use thermocline_base::error::{Error, Result};
use thermocline_model::mask;
use thermocline_run::placement::WORTHWHILE_EXPERTS;

/// Policy that selects the expert to replace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Policy {
    /// Replaces no expert. The experts chosen most often in the warm-up stay on the device, and the
    /// CPU computes the other experts.
    Static,
    /// Replaces the least recently used expert.
    Lru,
    /// Replaces the expert with the smallest count. The weight of a choice halves within this many
    /// tokens.
    Lfu(f32),
    /// Replaces the expert with the smallest count, by the half-life with the most recent hits
    /// ([`ExpertScores`]). The engine uses this policy.
    Adaptive,
}

impl Policy {
    /// Policies to compare.
    pub const ALL: [Policy; 6] =
        [Policy::Static, Policy::Lru, Policy::Lfu(16.0), Policy::Lfu(64.0), Policy::Lfu(256.0), Policy::Adaptive];
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Static => f.pad("static"),
            Policy::Lru => f.pad("lru"),
            Policy::Lfu(half_life) => f.pad(&format!("lfu {half_life}")),
            Policy::Adaptive => f.pad("adaptive"),
        }
    }
}

/// Speeds of a machine, in bytes per second and seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertSpeeds {
    /// Products on the device.
    pub device: f64,
    /// Products on the CPU.
    pub cpu: f64,
    /// Transfers to the device.
    pub bus: f64,
    /// Hand-over between device and CPU, in a layer with misses.
    pub hand_over: f64,
}

impl ExpertSpeeds {
    fn check(&self) -> Result<()> {
        let positive = [self.device, self.cpu, self.bus].iter().all(|speed| *speed > 0.0 && speed.is_finite());
        match positive && self.hand_over >= 0.0 {
            true => Ok(()),
            false => Err(Error::invalid("speeds of a machine", "numbers above 0", format!("{self:?}"))),
        }
    }

    /// Returns the seconds of a layer. Its chosen experts have `bytes` each. `hits` are on the
    /// device, `fetched` are fetched, and the CPU computes `computed` at the same time.
    pub(super) fn layer(&self, bytes: f64, hits: usize, fetched: usize, computed: usize) -> f64 {
        let device = (hits + fetched) as f64 * bytes / self.device + fetched as f64 * bytes / self.bus;
        let cpu = computed as f64 * bytes / self.cpu;
        device.max(cpu) + if fetched + computed > 0 { self.hand_over } else { 0.0 }
    }

    /// Returns how many of `misses` to fetch for the shortest time. The CPU computes the others.
    pub(super) fn fetches(&self, bytes: f64, hits: usize, misses: usize) -> usize {
        let seconds = |fetched: usize| self.layer(bytes, hits, fetched, misses - fetched);
        // For equal times, it fetches the fewest, to leave the bus free.
        (0..=misses).min_by(|a, b| seconds(*a).total_cmp(&seconds(*b))).unwrap_or(0)
    }
}

/// Result of a replay, after its warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Replay {
    /// Slots for experts in each layer.
    pub slots: usize,
    /// Policy of the cache.
    pub policy: Policy,
    /// Bytes of device memory that the slots use.
    pub bytes: u64,
    /// Fraction of the chosen experts that were in slots.
    pub hit_rate: f64,
    /// Experts fetched per token.
    pub fetched: f64,
    /// Tokens per second.
    pub tokens_per_second: f64,
    /// True if some experts have no slot and there are fewer slots than [`WORTHWHILE_EXPERTS`]
    /// times the experts per token.
    pub too_small: bool,
}

/// Scores that decide which experts stay.
#[derive(Debug)]
enum CacheScores {
    Fixed,
    Counts(DecayedCounts),
    Adaptive(Box<ExpertScores>),
}

impl CacheScores {
    fn of(&self, expert: u32) -> f32 {
        match self {
            CacheScores::Fixed => 0.0,
            CacheScores::Counts(counts) => counts.count(expert),
            CacheScores::Adaptive(scores) => scores.best().count(expert),
        }
    }
}

/// Divisor of the tokens for the warm-up.
const WARM_UP: usize = 4;

/// Replays `routes` through `slots` slots per layer. The first quarter of the tokens fills the
/// slots and does not count.
///
/// # Errors
/// [`Error::Invalid`] for fewer than 4 tokens, or speeds that are not above 0.
pub fn replay(routes: &Routes, slots: usize, policy: Policy, speeds: &ExpertSpeeds) -> Result<Replay> {
    speeds.check()?;
    let (tokens, warm) = (routes.tokens(), routes.tokens() / WARM_UP);
    if warm == 0 {
        return Err(Error::invalid("routes to replay", format!("at least {WARM_UP} tokens"), tokens));
    }
    let (mut hits, mut chosen_in_all, mut fetched_in_all) = (0u64, 0u64, 0u64);
    let mut seconds = (tokens - warm) as f64 * routes.other_bytes as f64 / speeds.device;
    let mut bytes = 0;
    for (at, layer) in routes.layers.iter().enumerate() {
        let slots = slots.min(layer.experts);
        bytes += slots as u64 * layer.bytes;
        let mut cache = Cache::new(layer.experts, slots, policy);
        if matches!(policy, Policy::Static) {
            let mut counts = vec![0u32; layer.experts];
            (0..warm).flat_map(|token| routes.chosen(at, token)).for_each(|expert| counts[usize::from(*expert)] += 1);
            let mut order: Vec<u32> = (0..layer.experts as u32).collect();
            order.sort_by_key(|expert| std::cmp::Reverse(counts[*expert as usize]));
            order[..slots].iter().for_each(|expert| cache.put(*expert));
        }
        for token in 0..tokens {
            let chosen = routes.chosen(at, token);
            let found = chosen.iter().filter(|expert| cache.places.holds[usize::from(**expert)]).count();
            let misses = chosen.len() - found;
            let fetched = match policy {
                // Fetching an expert that does not stay is useless here, because the next token
                // must fetch it again.
                Policy::Static => 0,
                _ => speeds.fetches(layer.bytes as f64, found, misses),
            };
            cache.count(chosen);
            // Empty slots are filled in addition. This happens only once.
            let filled = if matches!(policy, Policy::Static) { 0 } else { cache.free().min(misses) };
            cache.admit(chosen, fetched.max(filled));
            if token >= warm {
                hits += found as u64;
                chosen_in_all += chosen.len() as u64;
                fetched_in_all += fetched as u64;
                seconds += speeds.layer(layer.bytes as f64, found, fetched, misses - fetched);
            }
        }
    }
    let counted = (tokens - warm) as f64;
    Ok(Replay {
        slots,
        policy,
        bytes,
        hit_rate: hits as f64 / (chosen_in_all as f64).max(1.0),
        fetched: fetched_in_all as f64 / counted,
        tokens_per_second: counted / seconds,
        too_small: routes.layers.iter().any(|layer| slots < (WORTHWHILE_EXPERTS * layer.used).min(layer.experts)),
    })
}

/// Simulated slots of one layer.
struct Cache {
    slots: usize,
    places: ShadowCache,
    scores: CacheScores,
    mask: Vec<u32>,
}

impl Cache {
    fn new(experts: usize, slots: usize, policy: Policy) -> Self {
        let scores = match policy {
            Policy::Static => CacheScores::Fixed,
            Policy::Lru => CacheScores::Counts(DecayedCounts::new(experts, 1.0)),
            Policy::Lfu(half_life) => CacheScores::Counts(DecayedCounts::new(experts, half_life)),
            Policy::Adaptive => CacheScores::Adaptive(Box::new(ExpertScores::new(experts, None))),
        };
        let places = ShadowCache { members: Vec::new(), holds: vec![false; experts] };
        Cache { slots, places, scores, mask: vec![0; mask::words(experts)] }
    }

    fn free(&self) -> usize {
        self.slots - self.places.members.len()
    }

    fn put(&mut self, expert: u32) {
        self.places.holds[expert as usize] = true;
        self.places.members.push(expert);
    }

    /// Counts the experts that a token chose.
    fn count(&mut self, chosen: &[u16]) {
        self.mask.fill(0);
        chosen.iter().for_each(|expert| mask::insert(&mut self.mask, usize::from(*expert)));
        match &mut self.scores {
            CacheScores::Fixed => {}
            CacheScores::Counts(counts) => counts.add_token(&self.mask),
            CacheScores::Adaptive(scores) => scores.add_token(&self.mask, self.slots),
        }
    }

    /// Admits up to `most` of the chosen experts that are missing, those with the largest scores
    /// first. Each replaces the expert with the smallest score that was not chosen, if that score
    /// is smaller.
    fn admit(&mut self, chosen: &[u16], most: usize) {
        let missing = chosen.iter().filter(|expert| !self.places.holds[usize::from(**expert)]);
        let mut missing: Vec<u32> = missing.map(|expert| u32::from(*expert)).collect();
        missing.sort_by(|a, b| self.scores.of(*b).total_cmp(&self.scores.of(*a)));
        for expert in missing.into_iter().take(most) {
            if self.free() > 0 {
                self.put(expert);
            } else {
                let is_chosen = |member: u32| mask::contains(&self.mask, member as usize);
                self.places.admit(expert, &|expert| self.scores.of(expert), &is_chosen);
            }
        }
    }
}
