//! Caches of experts on recorded routes: what hits, what is fetched, and what tokens take.

use std::fmt;

use super::Routes;
use crate::sparsity::migration::{DecayedCounts, ExpertScores, ShadowCache};
use thermocline_base::error::{Error, Result};
use thermocline_model::mask;
use thermocline_run::placement::WORTHWHILE_EXPERTS;

/// The rule by which an expert makes room for another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Policy {
    /// None: the experts chosen most often in the warm-up stay, others are computed where they are.
    Static,
    /// The one used least recently.
    Lru,
    /// The one with the smallest count, where a choice counts half after this many tokens.
    Lfu(f32),
    /// The one with the smallest count by the half-life that would lately have hit most ([`ExpertScores`]): the engine's own.
    Adaptive,
}

impl Policy {
    /// Those that are compared.
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
    /// One hand-over between device and CPU, in a layer with misses.
    pub hand_over: f64,
}

impl ExpertSpeeds {
    fn check(&self) -> Result<()> {
        let positive = [self.device, self.cpu, self.bus].iter().all(|speed| *speed > 0.0 && speed.is_finite());
        match positive && self.hand_over >= 0.0 {
            true => Ok(()),
            false => Err(Error::invalid("speeds of a machine", "above 0", format!("{self:?}"))),
        }
    }

    /// Seconds of a layer whose chosen experts of `bytes` each are on the device (`hits`), fetched, or computed by the CPU meanwhile.
    pub(super) fn layer(&self, bytes: f64, hits: usize, fetched: usize, computed: usize) -> f64 {
        let device = (hits + fetched) as f64 * bytes / self.device + fetched as f64 * bytes / self.bus;
        let cpu = computed as f64 * bytes / self.cpu;
        device.max(cpu) + if fetched + computed > 0 { self.hand_over } else { 0.0 }
    }

    /// How many of `misses` are fetched so that the layer takes the least time; the CPU computes the others where they are.
    pub(super) fn fetches(&self, bytes: f64, hits: usize, misses: usize) -> usize {
        let seconds = |fetched: usize| self.layer(bytes, hits, fetched, misses - fetched);
        // Of equals the fewest: the bus is left to others.
        (0..=misses).min_by(|a, b| seconds(*a).total_cmp(&seconds(*b))).unwrap_or(0)
    }
}

/// Counts of a replay, after its warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Replay {
    /// Places for experts in each layer.
    pub slots: usize,
    /// The policy.
    pub policy: Policy,
    /// Bytes of a device that the places take.
    pub bytes: u64,
    /// Fraction of the choices that were in their places.
    pub hit_rate: f64,
    /// Experts fetched per token.
    pub fetched: f64,
    /// Tokens per second.
    pub tokens_per_second: f64,
    /// True if there are fewer places than [`WORTHWHILE_EXPERTS`] times the experts per token, and experts without one.
    pub too_small: bool,
}

/// Scores by which experts stay.
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

/// Part of the tokens that a replay warms up on.
const WARM_UP: usize = 4;

/// Replays `routes` through `slots` places per layer. The first quarter of the tokens fills them and is not counted.
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
                // Fetching what does not stay is worth nothing here: the next token has to fetch it again.
                Policy::Static => 0,
                _ => speeds.fetches(layer.bytes as f64, found, misses),
            };
            cache.count(chosen);
            // Places that nothing has been in are filled beside: that happens once.
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

/// Places of one layer.
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

    /// Counts a token's choice.
    fn count(&mut self, chosen: &[u16]) {
        self.mask.fill(0);
        chosen.iter().for_each(|expert| mask::insert(&mut self.mask, usize::from(*expert)));
        match &mut self.scores {
            CacheScores::Fixed => {}
            CacheScores::Counts(counts) => counts.add_token(&self.mask),
            CacheScores::Adaptive(scores) => scores.add_token(&self.mask, self.slots),
        }
    }

    /// Takes up to `most` of the chosen experts that are not there, those with the largest scores, each in place of the smallest score
    /// that is smaller and was not chosen.
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
