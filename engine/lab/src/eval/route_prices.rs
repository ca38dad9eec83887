//! Measures what routes that prefer resident experts cost and save. They cost quality: perplexity
//! and divergence. They save missing experts and moved bytes.
//!
//! The CPU decodes a text token by token, with exact routes and with every preference. The experts
//! in simulated slots count as resident. A [`Follower`] exchanges them between tokens, as in the
//! engine.

use std::{sync::Arc, time::Duration};

use serde::Serialize;

use super::score::{LogSoftmax, nll};
use crate::sparsity::migration::{FollowOptions, Follower};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::{Cpu, CpuOptions, ThreadPool};
use thermocline_model::{Ffn, Model, mask};
use thermocline_run::{
    placement::Placement,
    runtime::{Forward, HeldExperts, KvCache, KvType, LayerFiring, Outputs, Probe, RoutePreference},
};

/// What one preference costs and saves.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RoutePrice {
    /// [`RoutePreference::near`]
    pub near: f32,
    /// [`RoutePreference::drop`]
    pub drop: f32,
    /// Perplexity of the text.
    pub perplexity: f64,
    /// Kullback-Leibler divergence from exact routes per token, in nats.
    pub kld: f64,
    /// Chosen experts per token that are not resident, over all layers.
    pub misses: f64,
    /// Misses per token that are left out.
    pub dropped: f64,
    /// Bytes of experts per token that move to the slots.
    pub moved: f64,
}

/// Values of `near` to price.
pub const NEAR: [f32; 5] = [0.0, 0.05, 0.1, 0.2, 0.4];
/// Values of `drop` to price.
pub const DROP: [f32; 4] = [0.0, 0.5, 0.75, 1.0];

/// Returns all pairs of [`NEAR`] and [`DROP`]. Exact routes are the first.
pub fn priced_preferences() -> Vec<RoutePreference> {
    let with = |near| DROP.map(move |drop| RoutePreference { near, drop, frozen: false });
    NEAR.into_iter().flat_map(with).collect()
}

/// Tokens of a context. Texts are decoded in parts of this length, so that the caches of all
/// preferences fit in RAM.
const CONTEXT: usize = 512;

/// Decodes `texts` once with exact routes and once with each of `preferences`, with `slots` slots
/// in every MoE layer. Returns the price of each preference. Calls `progress` with the tokens done.
///
/// # Errors
/// [`Error::Invalid`] for a model without experts, or if no text has two tokens; as
/// [`Forward::run`].
pub fn route_prices(
    model: &Arc<Model>,
    cpu: &CpuOptions,
    texts: &[&[u32]],
    slots: usize,
    preferences: &[RoutePreference],
    progress: &mut dyn FnMut(usize),
) -> Result<Vec<RoutePrice>> {
    if model.config.experts.is_none() {
        return Err(Error::invalid("model", "a mixture of experts", "a model without experts"));
    }
    let workers = Arc::new(ThreadPool::new(cpu.threads));
    let forward = || Ok(Forward::new(Arc::clone(model), Cpu::with_workers(cpu, Arc::clone(&workers))?));
    let capacity = model.config.context_length.clamp(2, CONTEXT);
    let mut exact = forward()?;
    let mut exact_kv = exact.kv_cache(capacity, KvType::F16)?;
    let of = |preference: &RoutePreference| {
        PricedDecoding::new(forward()?, SimulatedSlots::new(model, slots), *preference, capacity)
    };
    let mut decodings = preferences.iter().map(of).collect::<Result<Vec<_>>>()?;
    let (mut base, mut scored) = (LogSoftmax::default(), 0);
    for part in texts.iter().flat_map(|text| text.chunks(capacity)) {
        exact_kv.truncate(0);
        decodings.iter_mut().for_each(|decoding| decoding.kv.truncate(0));
        for pair in part.windows(2) {
            base.fill(exact.run(&pair[..1], &mut exact_kv, Outputs::Last, &mut ())?);
            for decoding in &mut decodings {
                decoding.decode(pair[0], pair[1], &base)?;
            }
            scored += 1;
            progress(scored);
        }
    }
    if scored == 0 {
        return Err(Error::invalid("text", "at least two tokens", "fewer tokens"));
    }
    Ok(decodings.iter().map(|decoding| decoding.price(scored)).collect())
}

/// A text that is decoded with one preference, and what that has cost and saved so far.
struct PricedDecoding {
    forward: Forward,
    kv: KvCache,
    simulated: SimulatedSlots,
    preference: RoutePreference,
    own: LogSoftmax,
    /// Sum of `-ln p(token)`.
    loss: f64,
    kld: f64,
}

impl PricedDecoding {
    fn new(
        mut forward: Forward,
        simulated: SimulatedSlots,
        preference: RoutePreference,
        capacity: usize,
    ) -> Result<Self> {
        forward.set_routes(preference);
        forward.hold_experts(simulated.held());
        let kv = forward.kv_cache(capacity, KvType::F16)?;
        Ok(PricedDecoding { forward, kv, simulated, preference, own: LogSoftmax::default(), loss: 0.0, kld: 0.0 })
    }

    /// Decodes `token`, before `next`. `base` has the log-probabilities with exact routes.
    fn decode(&mut self, token: u32, next: u32, base: &LogSoftmax) -> Result<()> {
        let PricedDecoding { forward, kv, simulated, own, .. } = self;
        let logits = forward.run(&[token], kv, Outputs::Last, simulated)?;
        self.loss += nll(logits, next);
        own.fill(logits);
        self.kld += base.log_p.iter().zip(&own.log_p).map(|(log_p, log_q)| log_p.exp() * (log_p - log_q)).sum::<f64>();
        simulated.exchange();
        forward.hold_experts(simulated.held());
        Ok(())
    }

    fn price(&self, tokens: usize) -> RoutePrice {
        let per_token = |sum: f64| sum / tokens as f64;
        let PricedDecoding { simulated, preference, .. } = self;
        RoutePrice {
            near: preference.near,
            drop: preference.drop,
            perplexity: per_token(self.loss).exp(),
            kld: per_token(self.kld),
            misses: per_token(simulated.misses as f64),
            dropped: per_token(simulated.dropped as f64),
            moved: per_token(simulated.follower.moved() as f64),
        }
    }
}

/// Simulated slots of all layers, which follow the text.
struct SimulatedSlots {
    follower: Follower,
    placement: Placement,
    /// Masks of the experts in slots, per layer.
    masks: Vec<Vec<u32>>,
    /// Experts per layer.
    experts: Vec<usize>,
    misses: u64,
    dropped: u64,
}

impl SimulatedSlots {
    /// Begins with the most frequent experts of the model's profile, or else with the first ones.
    fn new(model: &Model, slots: usize) -> Self {
        let layers = &model.weights.layers;
        let experts: Vec<usize> =
            layers.iter().map(|layer| if let Ffn::Experts(moe) = &layer.ffn { moe.experts.len() } else { 0 }).collect();
        let hot = experts.iter().zip(layers).map(|(experts, layer)| {
            let mut order: Vec<u32> = (0..*experts as u32).collect();
            if let Some(frequency) = layer.planned_frequency().filter(|of| of.len() == *experts) {
                order.sort_by(|a, b| frequency[*b as usize].total_cmp(&frequency[*a as usize]));
            }
            order.truncate(slots);
            order
        });
        let placement = Placement { hot: hot.collect(), ..Placement::default() };
        let follower = Follower::new(model, FollowOptions::default());
        let mut simulated = SimulatedSlots { follower, placement, masks: Vec::new(), experts, misses: 0, dropped: 0 };
        simulated.mark();
        simulated
    }

    fn mark(&mut self) {
        let mask = |(experts, hot): (&usize, &Vec<u32>)| {
            let mut words = vec![0; mask::words(*experts)];
            hot.iter().for_each(|expert| mask::insert(&mut words, *expert as usize));
            words
        };
        self.masks = self.experts.iter().zip(&self.placement.hot).map(mask).collect();
    }

    fn held(&self) -> HeldExperts {
        HeldExperts::Masks(self.masks.clone())
    }

    /// Exchanges experts after a token.
    fn exchange(&mut self) {
        self.follower.add_tokens(1, Duration::ZERO);
        if let Some(revised) = self.follower.revise(&self.placement) {
            self.placement = revised;
            self.mark();
        }
    }
}

impl Probe for SimulatedSlots {
    fn wants_router(&mut self) -> bool {
        true
    }

    fn router(&mut self, layer: usize, chosen: &[usize]) {
        let mut fired = vec![0; self.masks[layer].len()];
        chosen.iter().for_each(|expert| mask::insert(&mut fired, *expert));
        self.misses += chosen.iter().filter(|expert| !mask::contains(&self.masks[layer], **expert)).count() as u64;
        self.follower.add_firing(&LayerFiring { layer, tokens: 1, fired: &fired, ..LayerFiring::default() });
    }

    fn dropped_experts(&mut self, _: usize, count: usize) {
        self.dropped += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_model::LoadOptions;

    #[test]
    fn preferences_trade_divergence_for_misses() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models/qwen3-moe");
        let model = Arc::new(Model::open(path.as_ref(), &LoadOptions::default()).unwrap());
        let n_vocab = model.config.n_vocab;
        let text: Vec<u32> = (0..80).map(|at| ((at * at * 31 + at * 97 + 11) % n_vocab) as u32).collect();
        let slots = model.config.experts.unwrap().count / 2;
        let of = |preferences: &[(f32, f32)], text: &[u32]| {
            let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
            let routes = |(near, drop): &(f32, f32)| RoutePreference { near: *near, drop: *drop, frozen: false };
            let preferences: Vec<RoutePreference> = preferences.iter().map(routes).collect();
            route_prices(&model, &cpu, &[text], slots, &preferences, &mut |_| ())
        };
        let asked = [(0.0, 0.0), (0.4, 0.0), (0.0, 1.0)];
        let prices = of(&asked, &text).unwrap();
        let [exact, near, drop] = prices[..] else { panic!("{prices:?}") };
        assert!(exact.kld.abs() < 1e-9 && exact.misses > 0.0 && exact.dropped == 0.0, "{exact:?}");
        assert!(near.misses < exact.misses && near.kld > 1e-6 && near.dropped == 0.0, "{near:?} {exact:?}");
        assert!(drop.dropped > 0.0 && drop.dropped <= drop.misses && drop.kld > 1e-6, "{drop:?}");
        // Preferences that are priced together do not influence each other.
        for (asked, price) in asked.iter().zip(&prices) {
            assert_eq!(of(&[*asked], &text).unwrap()[..], [*price]);
        }
        assert_eq!((priced_preferences().len(), priced_preferences()[0]), (20, RoutePreference::OFF));
        assert!(of(&asked, &text[..1]).is_err());
    }
}
