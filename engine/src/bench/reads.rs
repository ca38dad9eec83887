//! What a token reads from memory, which decides how fast it can be.

use crate::{
    format::Matrix,
    model::{Down, Ffn, FfnWeights, LayerFiring, Model, Probe},
    telemetry::neurons::LayerNeurons,
};

fn size(matrix: &Matrix) -> u64 {
    matrix.data().len() as u64
}

fn ffn_bytes(ffn: &FfnWeights) -> u64 {
    let (Down::Outputs(down) | Down::Neurons(down)) = &ffn.down;
    ffn.gate.as_ref().map_or(0, |gate| size(&gate.weight)) + size(&ffn.up.weight) + size(&down.weight)
}

/// Bytes of weights that every token reads: all matrices but FFNs, and the embedding's other rows.
pub(crate) fn always_read(model: &Model) -> u64 {
    let layers = model.weights.layers.iter().map(|layer| {
        let attention = &layer.attention;
        let attention = [&attention.q, &attention.k, &attention.v, &attention.output];
        attention.iter().map(|linear| size(&linear.weight)).sum::<u64>()
    });
    layers.sum::<u64>() + size(&model.weights.output.weight) + model.weights.token_embedding.row_bytes() as u64
}

/// Bytes of FFNs that a token reads when nothing is skipped but the experts the router passes over.
pub(crate) fn dense_ffns(model: &Model) -> u64 {
    let ffn = |ffn: &Ffn| match ffn {
        Ffn::Dense(ffn) => ffn_bytes(ffn),
        Ffn::Experts(mixture) => {
            let all: u64 = mixture.experts.iter().map(ffn_bytes).sum();
            let shared = mixture.shared.as_ref().map_or(0, |shared| ffn_bytes(&shared.ffn) + size(&shared.gate.weight));
            size(&mixture.router.weight) + shared + all * used(model) / (mixture.experts.len() as u64).max(1)
        }
    };
    model.weights.layers.iter().map(|layer| ffn(&layer.ffn)).sum()
}

/// Experts of a mixture that a token uses.
fn used(model: &Model) -> u64 {
    model.config.experts.as_ref().map_or(0, |experts| experts.used) as u64
}

/// Neurons of all layers that a token has to do with: of mixtures, those of the experts it uses.
fn neurons(model: &Model) -> u64 {
    let of = |ffn: &Ffn| match ffn.neurons() {
        LayerNeurons::Dense(neurons) => neurons as u64,
        LayerNeurons::Mixture { width, shared, .. } => used(model) * width as u64 + shared as u64,
    };
    model.weights.layers.iter().map(|layer| of(&layer.ffn)).sum()
}

/// Bytes of a neuron's row in the first FFN.
pub(super) fn neuron_row(model: &Model) -> Option<usize> {
    model.weights.layers.iter().find_map(|layer| match &layer.ffn {
        Ffn::Dense(ffn) => Some(ffn.up.weight.row_bytes()),
        Ffn::Experts(mixture) => mixture.experts.first().map(|expert| expert.up.weight.row_bytes()),
    })
}

/// Counts what single tokens read of FFNs, and where neurons fired.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Reads {
    /// Layers of tokens told of.
    heard: u64,
    bytes: u64,
    scattered: u64,
    /// Neurons that fired.
    fired: u64,
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
        Some((self.bytes.checked_div(self.tokens)?, self.scattered.checked_div(self.tokens)?))
    }

    /// Share of the firing neurons that were computed on a device; `None` if none fired, or not all `layers` told of theirs.
    pub fn hit_rate(&self, layers: usize) -> Option<f64> {
        let complete = self.heard == self.tokens * layers as u64;
        (complete && self.fired > 0).then(|| self.hits as f64 / self.fired as f64)
    }

    /// Seconds that the CPU waited for the device in all, in layers that both compute.
    pub fn waited(&self) -> f64 {
        self.waited as f64 / 1e9
    }

    /// Share of the neurons that tokens had to do with that fired; `None` if not all layers of `model` told of theirs.
    pub fn active(&self, model: &Model) -> Option<f64> {
        let complete = self.heard == self.tokens * model.config.n_layer() as u64;
        let all = self.tokens * neurons(model);
        (complete && all > 0).then(|| self.fired as f64 / all as f64)
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
        self.fired += firing.fired.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        self.bytes += firing.cpu_bytes;
        self.scattered += firing.cpu_scattered;
        if let Some(hot) = firing.hot {
            self.hits +=
                firing.fired.iter().zip(hot).map(|(fired, hot)| u64::from((fired & hot).count_ones())).sum::<u64>();
        }
        self.waited += firing.wait_ns;
    }
}
