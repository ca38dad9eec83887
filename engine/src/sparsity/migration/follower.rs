//! A whole model, token by token.

use super::{Heat, Recall, exchange};
use crate::{
    model::{Ffn, FfnWeights, Model, Steering},
    sparsity::placement::Placement,
    telemetry::neurons::LayerFiring,
};

/// How eagerly to follow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FollowOptions {
    /// Tokens after which a firing counts half.
    pub half_life: f32,
    /// Standard deviations by which a neuron has to be ahead of the one whose place it takes.
    pub certainty: f32,
    /// Most bytes to send to the device per token, on average.
    pub bytes_per_token: u64,
    /// Share of the firings that predictors have to find.
    pub recall: f32,
}

impl Default for FollowOptions {
    /// A megabyte is 0.05 ms on a bus of 20 GB/s: nothing beside a token.
    fn default() -> Self {
        FollowOptions { half_life: 96.0, certainty: 3.5, bytes_per_token: 1 << 20, recall: 0.95 }
    }
}

/// Tokens between two looks at a layer.
const PERIOD: usize = 8;
/// Most tokens' worth of bytes that may be saved up, unless a single expert has more.
const BURST: u64 = 16;

/// Watches firings and says what should be hot, and where predictors should cut.
#[derive(Debug)]
pub struct Follower {
    options: FollowOptions,
    layers: Vec<Layer>,
    tokens: u64,
    /// Bytes that may be sent now, and at most.
    purse: u64,
    most: u64,
    /// Layers to look at next, and to audit next.
    next: usize,
    audited: usize,
    moved: u64,
}

/// One with its neurons; or a mixture with its experts, which are hot and cold in place of neurons.
#[derive(Debug)]
struct Layer {
    heat: Heat,
    /// Bytes of a neuron.
    bytes: u64,
    recall: Option<Recall>,
    /// Whether it was heard of since it was last looked at.
    fresh: bool,
}

impl Follower {
    /// Of `model`, whose own frequencies are where the counting starts.
    pub fn new(model: &Model, options: FollowOptions) -> Self {
        let layers = model.weights.layers.iter().map(|layer| {
            let (neurons, bytes) = neurons(&layer.ffn);
            let recall = layer.predictor.is_some().then(|| Recall::new(options.recall));
            Layer::new(neurons, bytes, layer.frequency.as_deref(), recall, &options)
        });
        Self::with(layers.collect(), options)
    }

    /// Of layers of so many neurons with so many bytes each, known to fire so often.
    pub fn of_layers(layers: &[(usize, u64, Option<&[f32]>)], options: FollowOptions) -> Self {
        let layers = layers.iter().map(|(neurons, bytes, frequency)| {
            Layer::new(*neurons, *bytes, *frequency, Some(Recall::new(options.recall)), &options)
        });
        Self::with(layers.collect(), options)
    }

    fn with(layers: Vec<Layer>, options: FollowOptions) -> Self {
        let largest = layers.iter().map(|layer| layer.bytes).max().unwrap_or(0);
        let most = options.bytes_per_token.saturating_mul(BURST).max(largest);
        Follower { options, layers, tokens: 0, purse: 0, most, next: 0, audited: 0, moved: 0 }
    }

    /// What a layer did in a chunk: which of its neurons fired or, of a mixture, which experts were chosen. Where a predictor was asked and every neuron looked at all the same, the predictor is
    /// audited.
    pub fn layer(&mut self, firing: &LayerFiring<'_>) {
        let Some(layer) = self.layers.get_mut(firing.layer) else { return };
        let words = layer.heat.neurons().div_ceil(32);
        let told = firing.chosen.unwrap_or(firing.fired);
        if words == 0 || told.len() < words * firing.tokens {
            return;
        }
        for token in told.chunks_exact(words).take(firing.tokens) {
            layer.heat.token(token);
        }
        layer.fresh = true;
        if let (true, Some(predicted), Some(recall)) = (firing.complete, firing.predicted, &mut layer.recall) {
            let fired: u32 = firing.fired.iter().map(|bits| bits.count_ones()).sum();
            let missed = firing.fired.iter().zip(predicted).map(|(fired, guess)| (fired & !guess).count_ones());
            recall.audit(fired as usize, missed.sum::<u32>() as usize);
        }
    }

    /// So many tokens are complete.
    pub fn tokens(&mut self, tokens: usize) {
        self.tokens += tokens as u64;
        let earned = self.options.bytes_per_token.saturating_mul(tokens as u64);
        self.purse = self.purse.saturating_add(earned).min(self.most);
    }

    /// A placement in which a few neurons have changed places, if that is worth it. Layers are looked at in turn, and no more
    /// bytes are asked for than tokens have earned.
    pub fn revise(&mut self, now: &Placement) -> Option<Placement> {
        let layers = self.layers.len().min(now.hot.len());
        let mut revised: Option<Placement> = None;
        for _ in 0..layers.div_ceil(PERIOD) {
            let at = self.next % layers;
            self.next += 1;
            let layer = &mut self.layers[at];
            if !std::mem::take(&mut layer.fresh) {
                continue;
            }
            let most = self.purse.checked_div(layer.bytes).unwrap_or(0);
            let exchanges = exchange(&layer.heat, &now.hot[at], most as usize, self.options.certainty);
            if exchanges.is_empty() {
                continue;
            }
            let bytes = exchanges.len() as u64 * layer.bytes;
            self.purse -= bytes;
            self.moved += bytes;
            let hot = &mut revised.get_or_insert_with(|| now.clone()).hot[at];
            for exchange in exchanges {
                hot[exchange.place] = exchange.comes;
            }
        }
        revised
    }

    /// What predicted layers are to do with the next token: one of them, in turn, is audited.
    pub fn steering(&mut self) -> Steering {
        let shift = self.layers.iter().map(|layer| layer.recall.as_ref().map_or(0.0, Recall::shift)).collect();
        let all = self.layers.len();
        let with_predictor = |layer: &usize| self.layers[*layer].recall.is_some();
        let audited = (0..all).map(|i| (self.audited + i) % all).find(with_predictor);
        if let Some(layer) = audited {
            self.audited = layer + 1;
        }
        Steering { shift, audited }
    }

    /// Share of a layer's firings that its predictor found lately, as far as audits tell.
    pub fn found(&self, layer: usize) -> Option<f32> {
        self.layers.get(layer)?.recall.as_ref()?.found()
    }

    /// Bytes asked for so far.
    pub fn moved(&self) -> u64 {
        self.moved
    }
}

/// Neurons of an FFN and the bytes of one; of a mixture, experts.
pub(super) fn neurons(ffn: &Ffn) -> (usize, u64) {
    // A column of a down matrix is as long as a row of the others.
    let row = |ffn: &FfnWeights| {
        let gate = ffn.gate.as_ref().map_or(0, |gate| gate.weight.row_bytes());
        (gate + 2 * ffn.up.weight.row_bytes()) as u64
    };
    match ffn {
        Ffn::Dense(ffn) => (ffn.up.weight.rows(), row(ffn)),
        Ffn::Experts(mixture) => {
            let bytes = |expert: &FfnWeights| expert.up.weight.rows() as u64 * row(expert);
            (mixture.experts.len(), mixture.experts.iter().map(bytes).max().unwrap_or(0))
        }
    }
}

impl Layer {
    fn new(
        neurons: usize,
        bytes: u64,
        frequency: Option<&[f32]>,
        recall: Option<Recall>,
        options: &FollowOptions,
    ) -> Self {
        let mut heat = Heat::new(neurons, options.half_life);
        if let Some(frequency) = frequency {
            heat = heat.after(frequency);
        }
        Layer { heat, bytes, recall, fresh: false }
    }
}
