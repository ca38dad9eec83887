//! Measures the benefit of adaptive placement: the fraction of firings that hit a hot neuron, token
//! by token, while the text changes its topic. Compares a static hot set with an adaptive one.

use std::time::Duration;

use super::{FollowOptions, Follower, follower::units};
use thermocline_base::error::{Error, Result};
use thermocline_model::{Ffn, mask};
use thermocline_run::{
    placement::Placement,
    runtime::{Forward, KvCache, KvType, LayerFiring, Outputs, Probe},
};

/// Tokens computed together. The counts do not depend on it.
const CHUNK: usize = 64;

/// Counts of one token, summed over layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenHits {
    /// Neurons that fired.
    pub fired: u64,
    /// Firings in the static hot set.
    pub fixed: u64,
    /// Firings in the adaptive hot set.
    pub adaptive: u64,
    /// Bytes moved to adapt the hot set.
    pub moved: u64,
}

/// Counts of a run over several texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FollowTrace {
    /// Counts per token.
    pub tokens: Vec<TokenHits>,
    /// Index of each text's first token.
    pub begins: Vec<usize>,
}

impl FollowTrace {
    /// Returns the hit rates of the static and the adaptive hot set over the tokens `range`, from 0
    /// to 1; 0 if nothing fired.
    pub fn hit_rates(&self, range: std::ops::Range<usize>) -> (f64, f64) {
        let tokens = self.tokens.get(range).unwrap_or_default();
        let sum = |of: fn(&TokenHits) -> u64| tokens.iter().map(of).sum::<u64>() as f64;
        let fired = sum(|token| token.fired).max(1.0);
        (sum(|token| token.fixed) / fired, sum(|token| token.adaptive) / fired)
    }
}

/// Reads `profile` and makes the units that fired most often hot, the fraction `hot` of each
/// layer's units. Units are neurons, or experts in an MoE layer. Then reads `texts` and counts
/// hits. Calls `progress` with the tokens done and their total.
///
/// # Errors
/// [`Error::Invalid`] for a fraction out of range or a model without neurons; as [`Forward::run`].
pub fn follow(
    forward: &mut Forward,
    profile: &[u32],
    texts: &[&[u32]],
    hot: f32,
    options: FollowOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<FollowTrace> {
    if !(0.0..=1.0).contains(&hot) {
        return Err(Error::invalid("fraction of hot neurons", "0 to 1", hot));
    }
    let model = std::sync::Arc::clone(forward.model());
    let shape: Vec<(usize, u64)> = model.weights.layers.iter().map(|layer| units(&layer.ffn)).collect();
    if shape.iter().all(|(units, _)| *units == 0) {
        return Err(Error::invalid("model", "neurons or experts to place", "no neurons and no experts"));
    }
    let all = profile.len() + texts.iter().map(|text| text.len()).sum::<usize>();
    let capacity = model.config.context_length.clamp(1, 1024);
    let mut kv = forward.kv_cache(capacity, KvType::F16)?;
    let mut done = 0;

    let mut counts: Vec<Vec<f32>> = shape.iter().map(|(units, _)| vec![0.0; *units]).collect();
    read(forward, &mut kv, profile, &mut |fired| {
        for (counts, fired) in counts.iter_mut().zip(fired) {
            let fires = counts.iter_mut().enumerate().filter(|(neuron, _)| mask::contains(fired, *neuron));
            fires.for_each(|(_, count)| *count += 1.0);
        }
        done += 1;
        progress(done, all);
    })?;
    counts.iter_mut().flatten().for_each(|count| *count /= profile.len().max(1) as f32);

    let mut placement =
        Placement { hot: counts.iter().map(|counts| hottest(counts, hot)).collect(), ..Placement::default() };
    let fixed = masks(&placement, &shape);
    let mut moving = fixed.clone();
    let known: Vec<(usize, u64, Option<&[f32]>)> =
        shape.iter().zip(&counts).map(|((units, bytes), counts)| (*units, *bytes, Some(&counts[..]))).collect();
    let mut follower = Follower::with_layers(&known, options);
    for (at, (layer, counts)) in model.weights.layers.iter().zip(&counts).enumerate() {
        if let Ffn::Experts(_) = layer.ffn {
            follower.follow_experts(at, Some(counts));
        }
    }
    let mut trace = FollowTrace::default();
    for text in texts {
        trace.begins.push(trace.tokens.len());
        read(forward, &mut kv, text, &mut |fired| {
            let mut hits = TokenHits::default();
            for (layer, fired) in fired.iter().enumerate() {
                hits.fired += common_bits(fired, fired);
                hits.fixed += common_bits(fired, &fixed[layer]);
                hits.adaptive += common_bits(fired, &moving[layer]);
                follower.add_firing(&LayerFiring { layer, tokens: 1, fired, ..LayerFiring::default() });
            }
            follower.add_tokens(1, Duration::ZERO);
            let before = follower.moved();
            if let Some(revised) = follower.revise(&placement) {
                placement = revised;
                moving = masks(&placement, &shape);
            }
            hits.moved = follower.moved() - before;
            trace.tokens.push(hits);
            done += 1;
            progress(done, all);
        })?;
    }
    Ok(trace)
}

/// Returns the `fraction` of units with the largest counts, in descending order.
fn hottest(counts: &[f32], fraction: f32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..counts.len() as u32).collect();
    order.sort_by(|a, b| counts[*b as usize].total_cmp(&counts[*a as usize]));
    order.truncate((counts.len() as f32 * fraction).round() as usize);
    order
}

/// Returns the masks of the hot units per layer, `[units.div_ceil(32)]` words.
fn masks(placement: &Placement, shape: &[(usize, u64)]) -> Vec<Vec<u32>> {
    let mask = |(hot, (units, _)): (&Vec<u32>, &(usize, u64))| {
        let mut mask = vec![0; units.div_ceil(32)];
        hot.iter().for_each(|neuron| mask::insert(&mut mask, *neuron as usize));
        mask
    };
    placement.hot.iter().zip(shape).map(mask).collect()
}

fn common_bits(a: &[u32], b: &[u32]) -> u64 {
    a.iter().zip(b).map(|(a, b)| u64::from((a & b).count_ones())).sum()
}

/// Computes `text` in contexts as long as the cache. Calls `show` with every token's firing masks,
/// one mask per layer.
fn read(forward: &mut Forward, kv: &mut KvCache, text: &[u32], show: &mut dyn FnMut(&[Vec<u32>])) -> Result<()> {
    kv.truncate(0);
    let layers = forward.model().config.n_layer();
    let mut rest = text;
    while !rest.is_empty() {
        if kv.len() == kv.capacity() {
            kv.truncate(0);
        }
        let (now, later) = rest.split_at(CHUNK.min(rest.len()).min(kv.capacity() - kv.len()));
        rest = later;
        let mut seen = FiringMasks { tokens: vec![vec![Vec::new(); layers]; now.len()], next: 0 };
        for part in now.chunks(forward.chunk()) {
            forward.run(part, kv, Outputs::None, &mut seen)?;
            seen.next += part.len();
        }
        seen.tokens.iter().for_each(|token| show(token));
    }
    Ok(())
}

/// Firing masks by token and layer.
struct FiringMasks {
    tokens: Vec<Vec<Vec<u32>>>,
    /// Index of the chunk's first token.
    next: usize,
}

impl Probe for FiringMasks {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        let masks = firing.chosen.unwrap_or(firing.fired);
        let words = masks.len() / firing.tokens.max(1);
        for (at, fired) in masks.chunks_exact(words.max(1)).enumerate() {
            if let Some(layer) = self.tokens.get_mut(self.next + at).and_then(|token| token.get_mut(firing.layer)) {
                *layer = fired.to_vec();
            }
        }
    }
}
