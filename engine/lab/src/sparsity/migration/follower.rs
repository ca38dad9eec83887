//! Adaptive placement of a whole model, token by token.

use std::time::Duration;

use super::{DecayedCounts, ExpertScores, RecallControl, exchange, token_bucket::TokenBucket};
use thermocline_base::telemetry::neurons::LayerFiring;
use thermocline_model::{Ffn, FfnWeights, Model, mask};
use thermocline_run::{placement::Placement, runtime::ThresholdCorrection};

/// Speed and limits of adaptive placement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FollowOptions {
    /// Half-life of a firing's weight, in tokens.
    pub half_life: f32,
    /// A neuron's count must exceed the count of the neuron that it replaces by this many standard
    /// deviations.
    pub certainty: f32,
    /// Fraction of a token's time in which exchanges may use the bus. The bytes follow from the
    /// measured times of tokens and of earlier moves.
    pub bus_share: f64,
    /// Most bytes sent to the device per token, on average, before a move has been measured.
    pub bytes_per_token: u64,
    /// Like `bytes_per_token`, for a model with experts. Experts are larger than neurons, and a
    /// text soon needs other experts.
    pub expert_bytes_per_token: u64,
    /// Recall that predictors must reach, from 0 to 1.
    pub recall: f32,
}

impl Default for FollowOptions {
    /// On a bus of 20 GB/s, 1 MiB takes 0.05 ms, which is negligible beside a token. 8 MiB take 0.4
    /// ms, a few percent of a token.
    fn default() -> Self {
        FollowOptions {
            half_life: 96.0,
            certainty: 3.5,
            bus_share: 0.04,
            bytes_per_token: 1 << 20,
            expert_bytes_per_token: 8 << 20,
            recall: 0.95,
        }
    }
}

/// Tokens from one revision of a layer to the next.
const PERIOD: usize = 8;
/// Converts observed firings into revised placements and corrections of the predictors' thresholds.
#[derive(Debug)]
pub struct Follower {
    options: FollowOptions,
    layers: Vec<FollowedLayer>,
    bucket: TokenBucket,
    /// Layer to revise next, modulo the number of layers.
    next: usize,
    /// Layer from which the search for the next recall check starts.
    next_check: usize,
    /// Bytes of all exchanges so far.
    moved: u64,
}

/// State of one layer. Its units are the neurons of its FFN, or the experts of an MoE layer.
#[derive(Debug)]
struct FollowedLayer {
    counts: DecayedCounts,
    /// Counts of experts, which replace `counts`, and the size of their hot set.
    experts: Option<(ExpertScores, usize)>,
    /// Bytes of one unit.
    bytes: u64,
    recall: Option<RecallControl>,
    /// True if firings were added since the last revision.
    fresh: bool,
}

impl Follower {
    /// Follows `model`. Its firing frequencies are the prior of the counts.
    pub fn new(model: &Model, options: FollowOptions) -> Self {
        let layers = model.weights.layers.iter().map(|layer| {
            let (units, bytes) = units(&layer.ffn);
            let recall = layer.predictor.is_some().then(|| RecallControl::new(options.recall));
            FollowedLayer::new(units, bytes, layer.planned_frequency(), recall, &options)
        });
        let mut follower = Self::with(layers.collect(), options);
        for (at, layer) in model.weights.layers.iter().enumerate() {
            if let Ffn::Experts(_) = layer.ffn {
                follower.follow_experts(at, layer.planned_frequency());
            }
        }
        follower
    }

    /// Follows layer `at` as an MoE layer. `frequency` is the fraction of tokens that choose each
    /// expert.
    pub fn follow_experts(&mut self, at: usize, frequency: Option<&[f32]>) {
        if let Some(layer) = self.layers.get_mut(at) {
            layer.experts = Some((ExpertScores::new(layer.counts.units(), frequency), 0));
            let largest = self.layers.iter().map(|layer| layer.bytes).max().unwrap_or(0);
            self.bucket = TokenBucket::new(self.options.expert_bytes_per_token, self.options.bus_share, largest);
        }
    }

    /// Follows layers, each given as its number of units, bytes per unit, and firing frequencies
    /// `[units]`.
    pub fn with_layers(layers: &[(usize, u64, Option<&[f32]>)], options: FollowOptions) -> Self {
        let layers = layers.iter().map(|(units, bytes, frequency)| {
            FollowedLayer::new(*units, *bytes, *frequency, Some(RecallControl::new(options.recall)), &options)
        });
        Self::with(layers.collect(), options)
    }

    fn with(layers: Vec<FollowedLayer>, options: FollowOptions) -> Self {
        let largest = layers.iter().map(|layer| layer.bytes).max().unwrap_or(0);
        let bucket = TokenBucket::new(options.bytes_per_token, options.bus_share, largest);
        Follower { options, layers, bucket, next: 0, next_check: 0, moved: 0 }
    }

    /// Adds a layer's firings in a chunk of tokens: the neurons that fired, or the chosen experts
    /// of an MoE layer. If a prediction is given with the complete firings, its recall is checked.
    pub fn add_firing(&mut self, firing: &LayerFiring<'_>) {
        let Some(layer) = self.layers.get_mut(firing.layer) else { return };
        let words = layer.counts.units().div_ceil(32);
        let masks = firing.chosen.unwrap_or(firing.fired);
        if words == 0 || masks.len() < words * firing.tokens {
            return;
        }
        for token in masks.chunks_exact(words).take(firing.tokens) {
            match &mut layer.experts {
                Some((experts, slots)) => experts.add_token(token, *slots),
                None => layer.counts.add_token(mask::neurons(token)),
            }
        }
        layer.fresh = true;
        if let (true, Some(predicted), Some(recall)) = (firing.complete, firing.predicted, &mut layer.recall) {
            let fired: u32 = firing.fired.iter().map(|bits| bits.count_ones()).sum();
            let missed = firing.fired.iter().zip(predicted).map(|(fired, predicted)| (fired & !predicted).count_ones());
            recall.add_check(fired as usize, missed.sum::<u32>() as usize);
        }
    }

    /// Adds the bytes that `tokens` complete tokens of one pass allow to move. The pass took
    /// `time`, which is zero if it is unknown.
    pub fn add_tokens(&mut self, tokens: usize, time: Duration) {
        self.bucket.accrue(tokens, time);
    }

    /// Adds a move of `bytes` to the device that took `time`.
    pub fn add_move(&mut self, bytes: u64, time: Duration) {
        self.bucket.add_move(bytes, time);
    }

    /// True if the model has MoE layers.
    pub fn has_experts(&self) -> bool {
        self.layers.iter().any(|layer| layer.experts.is_some())
    }

    /// Returns the placement `now` with a few exchanged units, or `None` if nothing should change.
    /// Layers are revised in turn. At most as many bytes move as tokens have accrued.
    pub fn revise(&mut self, now: &Placement) -> Option<Placement> {
        let layers = self.layers.len().min(now.hot.len());
        let mut revised: Option<Placement> = None;
        // Experts are revised after every token, because the next tokens soon use others.
        let period = if self.has_experts() { 1 } else { PERIOD };
        for _ in 0..layers.div_ceil(period) {
            let at = self.next % layers;
            // The next revision goes on with the layer that the bytes did not reach.
            if self.has_experts() && self.bucket.affordable(self.layers[at].bytes.max(1)) == 0 {
                break;
            }
            self.next += 1;
            let layer = &mut self.layers[at];
            if let Some((_, slots)) = &mut layer.experts {
                *slots = now.hot[at].len();
            }
            if !std::mem::take(&mut layer.fresh) {
                continue;
            }
            let most = self.bucket.affordable(layer.bytes);
            let exchanges = match &layer.experts {
                Some((experts, _)) => experts.exchanges(&now.hot[at], most, self.options.certainty),
                None => exchange(&layer.counts, &now.hot[at], most, self.options.certainty),
            };
            if exchanges.is_empty() {
                continue;
            }
            let bytes = exchanges.len() as u64 * layer.bytes;
            self.bucket.spend(bytes);
            self.moved += bytes;
            let hot = &mut revised.get_or_insert_with(|| now.clone()).hot[at];
            for exchange in exchanges {
                hot[exchange.slot] = exchange.incoming;
            }
        }
        revised
    }

    /// Returns the corrections of all layers' predictor thresholds for the next token, and the
    /// layer whose recall is checked at this token. Layers with a predictor take turns.
    pub fn threshold_correction(&mut self) -> ThresholdCorrection {
        let shift = self.layers.iter().map(|layer| layer.recall.as_ref().map_or(0.0, RecallControl::shift)).collect();
        let all = self.layers.len();
        let with_predictor = |layer: &usize| self.layers[*layer].recall.is_some();
        let recall_check = (0..all).map(|i| (self.next_check + i) % all).find(with_predictor);
        if let Some(layer) = recall_check {
            self.next_check = layer + 1;
        }
        ThresholdCorrection { shift, recall_check }
    }

    /// Returns the recent recall of a layer's predictor, from 0 to 1; `None` before the first
    /// verdict.
    pub fn recall(&self, layer: usize) -> Option<f32> {
        self.layers.get(layer)?.recall.as_ref()?.found()
    }

    /// Returns the bytes of all exchanges so far.
    pub fn moved(&self) -> u64 {
        self.moved
    }
}

/// Returns the number of an FFN's units (neurons or experts) and the bytes of one unit.
pub(super) fn units(ffn: &Ffn) -> (usize, u64) {
    // A column of a down matrix is as long as a row of the other matrices.
    let row = |ffn: &FfnWeights| {
        let gate = ffn.gate.as_ref().map_or(0, |gate| gate.weight.row_bytes());
        (gate + 2 * ffn.up.weight.row_bytes()) as u64
    };
    match ffn {
        Ffn::None => (0, 0),
        Ffn::Dense(ffn) => (ffn.up.weight.rows(), row(ffn)),
        Ffn::Experts(moe) => {
            let bytes = |expert: &FfnWeights| expert.up.weight.rows() as u64 * row(expert);
            (moe.experts.len(), moe.experts.iter().map(bytes).max().unwrap_or(0))
        }
    }
}

impl FollowedLayer {
    fn new(
        units: usize,
        bytes: u64,
        frequency: Option<&[f32]>,
        recall: Option<RecallControl>,
        options: &FollowOptions,
    ) -> Self {
        let mut counts = DecayedCounts::new(units, options.half_life);
        if let Some(frequency) = frequency {
            counts = counts.with_prior(frequency);
        }
        FollowedLayer { counts, experts: None, bytes, recall, fresh: false }
    }
}
