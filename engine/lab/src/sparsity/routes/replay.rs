//! Simulates the hot set of experts on recorded routes: hits, fetched experts, and time per token.

use std::time::Duration;

use super::{Policy, RouteLayer, Routes, bound::bounded_hits, slot_cache::SlotCache};
use crate::sparsity::migration::{FollowOptions, Follower};
use thermocline_base::{
    error::{Error, Result},
    telemetry::neurons::LayerFiring,
};
use thermocline_model::mask;
use thermocline_run::placement::{Placement, WORTHWHILE_EXPERTS};

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

    /// Returns the seconds of a layer. Its chosen experts have `bytes` each.
    pub(super) fn layer(&self, bytes: f64, experts: ChosenSplit) -> f64 {
        let ChosenSplit { hits, fetched, computed } = experts;
        let device = (hits + fetched) as f64 * bytes / self.device + fetched as f64 * bytes / self.bus;
        let cpu = computed as f64 * bytes / self.cpu;
        device.max(cpu) + if fetched + computed > 0 { self.hand_over } else { 0.0 }
    }

    /// Returns how many of `misses` to fetch for the shortest time. The CPU computes the others.
    pub(super) fn fetches(&self, bytes: f64, hits: usize, misses: usize) -> usize {
        let seconds = |fetched: usize| self.layer(bytes, ChosenSplit { hits, fetched, computed: misses - fetched });
        // For equal times, it fetches the fewest, to leave the bus free.
        (0..=misses).min_by(|a, b| seconds(*a).total_cmp(&seconds(*b))).unwrap_or(0)
    }
}

/// The chosen experts of one token in one layer, by what happens to them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ChosenSplit {
    /// On the device.
    pub hits: usize,
    /// Fetched to the device.
    pub fetched: usize,
    /// Computed by the CPU meanwhile.
    pub computed: usize,
}

/// Result of a replay, after its warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Replay {
    /// Slots for experts in each layer.
    pub slots: usize,
    /// Policy of the slots.
    pub policy: Policy,
    /// Bytes of device memory that the slots use.
    pub bytes: u64,
    /// Fraction of the chosen experts that were in slots.
    pub hit_rate: f64,
    /// Experts that came to the device per token.
    pub fetched: f64,
    /// Tokens per second.
    pub tokens_per_second: f64,
    /// True if some experts have no slot and there are fewer slots than [`WORTHWHILE_EXPERTS`]
    /// times the experts per token.
    pub too_small: bool,
}

/// Least ratio of speeds at which the hot set should follow the text. A smaller gain is within the
/// error of the replayed times.
const WORTHWHILE_GAIN: f64 = 1.02;

/// The better way to choose the hot set of one model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HotSetVerdict {
    /// True if the engine's hot set, which follows the text, is at least 2 % faster than a static
    /// one.
    pub follows: bool,
    /// Mean ratio of the tokens per second of the engine's hot set to those of the static one.
    pub ratio: f64,
}

impl HotSetVerdict {
    /// Compares [`Policy::Engine`] with [`Policy::Static`] over all sizes in `replays`; `None` if
    /// they do not contain both.
    pub fn of(replays: &[Replay]) -> Option<Self> {
        let of = |policy| replays.iter().filter(move |replay| replay.policy == policy);
        let pairs = of(Policy::Static).flat_map(|fixed| {
            let same = of(Policy::Engine).filter(|moving| moving.slots == fixed.slots);
            same.map(|moving| moving.tokens_per_second / fixed.tokens_per_second)
        });
        let ratios: Vec<f64> = pairs.collect();
        let ratio = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
        (!ratios.is_empty()).then_some(HotSetVerdict { follows: ratio >= WORTHWHILE_GAIN, ratio })
    }
}

/// Divisor of the tokens for the warm-up.
const WARM_UP: usize = 4;

/// Counts of a replay after its warm-up.
struct ReplayTally<'a> {
    speeds: &'a ExpertSpeeds,
    warm: usize,
    hits: usize,
    chosen: usize,
    fetched: usize,
    seconds: f64,
}

impl ReplayTally<'_> {
    /// Adds one layer of a token. `arrived` experts came to the device. Returns the layer's
    /// seconds.
    fn add(&mut self, token: usize, layer: &RouteLayer, split: ChosenSplit, arrived: usize) -> f64 {
        let seconds = self.speeds.layer(layer.bytes as f64, split);
        if token >= self.warm {
            self.hits += split.hits;
            self.chosen += layer.used;
            self.fetched += arrived;
            self.seconds += seconds;
        }
        seconds
    }
}

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
    let counted = (tokens - warm) as f64;
    let seconds = counted * routes.other_bytes as f64 / speeds.device;
    let mut tally = ReplayTally { speeds, warm, hits: 0, chosen: 0, fetched: 0, seconds };
    match policy {
        Policy::Engine => follow(routes, slots, FollowOptions::default(), &mut tally),
        Policy::Bound => (0..routes.layers.len()).for_each(|at| replay_bound(routes, at, slots, &mut tally)),
        _ => (0..routes.layers.len()).for_each(|at| replay_layer(routes, at, slots, policy, &mut tally)),
    }
    Ok(Replay {
        slots,
        policy,
        bytes: routes.layers.iter().map(|layer| slots.min(layer.experts) as u64 * layer.bytes).sum(),
        hit_rate: tally.hits as f64 / (tally.chosen as f64).max(1.0),
        fetched: tally.fetched as f64 / counted,
        tokens_per_second: counted / tally.seconds,
        too_small: routes.layers.iter().any(|layer| slots < (WORTHWHILE_EXPERTS * layer.used).min(layer.experts)),
    })
}

/// Replays one layer with slots that never change or that admit missing experts.
fn replay_layer(routes: &Routes, at: usize, slots: usize, policy: Policy, tally: &mut ReplayTally<'_>) {
    let layer = routes.layers[at];
    let slots = slots.min(layer.experts);
    let mut cache = SlotCache::new(layer.experts, slots, policy);
    if matches!(policy, Policy::Static) {
        let (hottest, _) = hottest(routes, at, tally.warm);
        hottest[..slots].iter().for_each(|expert| cache.put(*expert));
    }
    for token in 0..routes.tokens() {
        let chosen = routes.chosen(at, token);
        let hits = cache.hits(chosen);
        let misses = chosen.len() - hits;
        let fetched = match policy {
            // Fetching an expert that does not stay is useless, because the next token must fetch
            // it again.
            Policy::Static => 0,
            _ => tally.speeds.fetches(layer.bytes as f64, hits, misses),
        };
        cache.count(chosen);
        // Empty slots are filled in addition. This happens only once.
        cache.admit(chosen, fetched.max(cache.free().min(misses)));
        tally.add(token, &layer, ChosenSplit { hits, fetched, computed: misses - fetched }, fetched);
    }
}

/// Replays one layer with the knowledge of the future.
fn replay_bound(routes: &Routes, at: usize, slots: usize, tally: &mut ReplayTally<'_>) {
    let layer = routes.layers[at];
    let bounded = bounded_hits(routes, at, slots);
    for (token, (hits, admitted)) in bounded.hits.into_iter().zip(bounded.admitted).enumerate() {
        tally.add(token, &layer, ChosenSplit { hits, fetched: 0, computed: layer.used - hits }, admitted);
    }
}

/// Replays all layers with the hot set of a running engine. It begins with the experts chosen most
/// often in the warm-up, as after `prepare`.
fn follow(routes: &Routes, slots: usize, options: FollowOptions, tally: &mut ReplayTally<'_>) {
    let known: Vec<(Vec<u32>, Vec<f32>)> = (0..routes.layers.len()).map(|at| hottest(routes, at, tally.warm)).collect();
    let shape: Vec<(usize, u64, Option<&[f32]>)> =
        routes.layers.iter().map(|layer| (layer.experts, layer.bytes, None)).collect();
    let mut follower = Follower::with_layers(&shape, options);
    known.iter().enumerate().for_each(|(at, (_, frequency))| follower.follow_experts(at, Some(frequency)));
    follower.add_move(tally.speeds.bus as u64, Duration::from_secs(1));
    let hot = known.iter().map(|(hottest, _)| hottest[..slots.min(hottest.len())].to_vec()).collect();
    let mut placement = Placement { hot, ..Placement::default() };
    let mut held: Vec<Vec<bool>> = routes.layers.iter().map(|layer| vec![false; layer.experts]).collect();
    let mut arrived = vec![0; routes.layers.len()];
    let mark = |held: &mut [bool], hot: &[u32]| {
        held.fill(false);
        hot.iter().for_each(|expert| held[*expert as usize] = true);
    };
    held.iter_mut().zip(&placement.hot).for_each(|(held, hot)| mark(held, hot));
    let mut fired = Vec::new();
    for token in 0..routes.tokens() {
        let mut seconds = routes.other_bytes as f64 / tally.speeds.device;
        for (at, layer) in routes.layers.iter().enumerate() {
            let chosen = routes.chosen(at, token);
            let hits = chosen.iter().filter(|expert| held[at][usize::from(**expert)]).count();
            let split = ChosenSplit { hits, fetched: 0, computed: chosen.len() - hits };
            seconds += tally.add(token, layer, split, std::mem::take(&mut arrived[at]));
            fired.clear();
            fired.resize(mask::words(layer.experts), 0);
            chosen.iter().for_each(|expert| mask::insert(&mut fired, usize::from(*expert)));
            follower.add_firing(&LayerFiring { layer: at, tokens: 1, fired: &fired, ..LayerFiring::default() });
        }
        follower.add_tokens(1, Duration::from_secs_f64(seconds));
        let before = follower.moved();
        if let Some(revised) = follower.revise(&placement) {
            for (at, (now, then)) in revised.hot.iter().zip(&placement.hot).enumerate() {
                arrived[at] += now.iter().zip(then).filter(|(now, then)| now != then).count();
                mark(&mut held[at], now);
            }
            placement = revised;
        }
        // Experts move between tokens, so that the time of the moves adds to the token's.
        if token >= tally.warm {
            tally.seconds += (follower.moved() - before) as f64 / tally.speeds.bus;
        }
    }
}

/// Returns the experts of layer `at` in the order of their counts in the first `warm` tokens, and
/// the fraction of these tokens that chose each expert.
fn hottest(routes: &Routes, at: usize, warm: usize) -> (Vec<u32>, Vec<f32>) {
    let mut counts = vec![0u32; routes.layers[at].experts];
    (0..warm).flat_map(|token| routes.chosen(at, token)).for_each(|expert| counts[usize::from(*expert)] += 1);
    let mut order: Vec<u32> = (0..counts.len() as u32).collect();
    order.sort_by_key(|expert| std::cmp::Reverse(counts[*expert as usize]));
    (order, counts.iter().map(|count| *count as f32 / warm as f32).collect())
}
