//! What a token reads from memory, which decides how fast it can be.

use crate::{
    format::Matrix,
    model::{Down, Ffn, FfnWeights, LayerFiring, Model, Probe},
};

fn size(matrix: &Matrix) -> u64 {
    matrix.data().len() as u64
}

fn ffn_bytes(ffn: &FfnWeights) -> u64 {
    let (Down::Outputs(down) | Down::Neurons(down)) = &ffn.down;
    ffn.gate.as_ref().map_or(0, |gate| size(&gate.weight)) + size(&ffn.up.weight) + size(&down.weight)
}

/// Bytes of weights that every token reads: all matrices but dense FFNs, the embedding's other rows and experts the router
/// passes over.
pub(crate) fn always_read(model: &Model) -> u64 {
    let layers = model.weights.layers.iter().map(|layer| {
        let attention = &layer.attention;
        let attention =
            [&attention.q, &attention.k, &attention.v, &attention.output].map(|linear| size(&linear.weight));
        let mixture = match &layer.ffn {
            Ffn::Dense(_) => 0,
            Ffn::Experts(mixture) => {
                let all: u64 = mixture.experts.iter().map(ffn_bytes).sum();
                let used = model.config.experts.as_ref().map_or(0, |experts| experts.used) as u64;
                let shared =
                    mixture.shared.as_ref().map_or(0, |shared| ffn_bytes(&shared.ffn) + size(&shared.gate.weight));
                size(&mixture.router.weight) + shared + all * used / (mixture.experts.len() as u64).max(1)
            }
        };
        attention.iter().sum::<u64>() + mixture
    });
    layers.sum::<u64>() + size(&model.weights.output.weight) + model.weights.token_embedding.row_bytes() as u64
}

/// Bytes of dense FFNs when nothing is skipped.
pub(crate) fn dense_ffns(model: &Model) -> u64 {
    let ffn = |ffn: &Ffn| match ffn {
        Ffn::Dense(ffn) => ffn_bytes(ffn),
        Ffn::Experts(_) => 0,
    };
    model.weights.layers.iter().map(|layer| ffn(&layer.ffn)).sum()
}

/// Bytes of a neuron's row in the first dense FFN, if there is one.
pub(super) fn neuron_row(model: &Model) -> Option<usize> {
    model.weights.layers.iter().find_map(|layer| match &layer.ffn {
        Ffn::Dense(ffn) => Some(ffn.up.weight.row_bytes()),
        Ffn::Experts(_) => None,
    })
}

/// Counts what single tokens read of dense FFNs, and where neurons fired in all.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Reads {
    /// Layers of tokens told of: those with dense FFNs, and all.
    told: u64,
    heard: u64,
    bytes: u64,
    scattered: u64,
    /// Neurons of dense FFNs that fired, and all that did.
    fired: u64,
    all_fired: u64,
    last_layer: usize,
    tokens: u64,
    /// Of all that fired, how many were computed on a device.
    hits: u64,
    /// Nanoseconds the CPU waited for the device.
    waited: u64,
}

impl Reads {
    /// Of an average token: all bytes, and those of rows here and there.
    pub fn per_token(&self) -> Option<(u64, u64)> {
        let of_tokens = |bytes: u64| bytes.checked_div(self.tokens).filter(|_| self.told > 0);
        Some((of_tokens(self.bytes)?, of_tokens(self.scattered)?))
    }

    /// Share of the firing neurons that were computed on a device; `None` if none fired, or not all `layers` told of theirs.
    pub fn hit_rate(&self, layers: usize) -> Option<f64> {
        let complete = self.heard == self.tokens * layers as u64;
        (complete && self.all_fired > 0).then(|| self.hits as f64 / self.all_fired as f64)
    }

    /// Seconds that the CPU waited for the device in all, in layers that both compute.
    pub fn waited(&self) -> f64 {
        self.waited as f64 / 1e9
    }

    /// Share of the `n_ff` neurons of a layer that fired.
    pub fn active(&self, n_ff: usize) -> Option<f64> {
        let all = self.told * n_ff as u64;
        (all > 0).then(|| self.fired as f64 / all as f64)
    }
}

impl Probe for Reads {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        if firing.tokens != 1 {
            return;
        }
        self.tokens += u64::from(self.heard == 0 || firing.layer <= self.last_layer);
        (self.heard, self.last_layer) = (self.heard + 1, firing.layer);
        let fired = firing.fired.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        self.all_fired += fired;
        // What a mixture reads is always as much.
        if firing.chosen.is_none() {
            self.told += 1;
            self.bytes += firing.cpu_bytes;
            self.scattered += firing.cpu_scattered;
            self.fired += fired;
        }
        if let Some(hot) = firing.hot {
            self.hits +=
                firing.fired.iter().zip(hot).map(|(fired, hot)| u64::from((fired & hot).count_ones())).sum::<u64>();
        }
        self.waited += firing.wait_ns;
    }
}
