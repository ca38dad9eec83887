//! What the parts of a processor are made with.

use crate::{
    error::Result,
    format::Matrix,
    gpu::{Buffer, Caps, Gpu, Purpose, Uploader, Usage, pitch},
    model::{Down, Ffn, FfnWeights, LayerWeights, ModelConfig, PredictorKind, Weights},
};

use super::{
    attention::AttentionBuffers,
    experts::ExpertOps,
    ffn::Hidden,
    hot::{HotBuffers, HotOps},
};

/// How to load a model onto a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuLoad {
    /// Most tokens computed at once; fewer where the device's limits ask for it. Registers and temporaries are this long.
    pub chunk: usize,
    /// Multiply-adds after which the work of several tokens is submitted. A desktop stays responsive between submissions,
    /// and no watchdog of a driver fires.
    pub submission: u64,
    /// Whether predictors are resident with their layers even while no mode asks them.
    pub predictors: bool,
    /// Most bytes of what carries neurons that are not resident to the device for the chunks of a prompt: their place there, and
    /// the two loads on their way.
    pub slab: u64,
}

impl Default for GpuLoad {
    /// 2^35 multiply-adds are some 10 ms on a card, and a few 100 ms on a slow integrated GPU. A third of the slab's bytes are
    /// neurons, thousands even of wide models: enough to occupy a card.
    fn default() -> Self {
        GpuLoad { chunk: 256, submission: 1 << 35, predictors: true, slab: 48 << 20 }
    }
}

/// How much of a layer's FFN goes to the device.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FfnShare<'a> {
    /// All of it.
    All,
    /// These neurons, or experts of a mixture, hottest first.
    Hot(&'a [u32]),
    /// Nothing.
    None,
}

/// Which part of a model goes to a device: its last layers, all or some of their neurons, and perhaps the head.
#[derive(Debug, Clone)]
pub(crate) struct Share<'a> {
    /// Layers from this one on.
    pub first_layer: usize,
    /// Of each of those.
    pub ffn: Vec<FfnShare<'a>>,
    /// Whether the head is there.
    pub head: bool,
    /// Whether predictors are.
    pub predictors: bool,
}

impl Share<'_> {
    /// All of a model of `n_layer` layers.
    pub fn all(n_layer: usize) -> Self {
        Share { first_layer: 0, ffn: vec![FfnShare::All; n_layer], head: true, predictors: true }
    }
}

/// A model on its way to a device.
#[derive(Debug)]
pub(crate) struct Loader<'a, 'p> {
    pub gpu: &'a Gpu,
    pub config: &'a ModelConfig,
    /// Rows of a register.
    pub chunk: usize,
    /// Whether predictors come with their layers.
    pub predictors: bool,
    pub uploader: Uploader<'p>,
}

impl Loader<'_, '_> {
    /// A buffer of `floats` numbers, zeros.
    pub fn scratch(&self, what: &'static str, floats: usize) -> Result<Buffer> {
        self.gpu.arena().buffer(Purpose::Scratch, what, floats as u64 * 4, Usage::Storage)
    }

    /// Uploads a norm or a bias.
    pub fn vector(&mut self, what: &'static str, values: &[f32]) -> Result<Buffer> {
        self.uploader.vector(Purpose::Vectors, what, values)
    }
}

/// As many tokens of `wanted` as keep every buffer within a binding.
pub(super) fn chunk_within(caps: &Caps, config: &ModelConfig, weights: &Weights, wanted: usize) -> usize {
    let ffn = weights.layers.iter().map(|layer| match &layer.ffn {
        Ffn::Dense(ffn) => {
            let hidden = Hidden::gate_up_pitch(HotBuffers::slots(ffn.up.weight.rows()), ffn.gate.is_some());
            // Two shares of the down projection's sums.
            hidden.max(2 * config.d_model.next_multiple_of(256))
        }
        Ffn::Experts(mixture) => {
            let (used, n_ff) = config.experts.as_ref().map_or((1, 0), |experts| (experts.used, experts.n_ff));
            let shared = mixture.shared.as_ref().map_or(0, |shared| shared.ffn.up.weight.rows());
            let routed = used * Hidden::gate_up_pitch(n_ff, true).max(pitch(config.d_model));
            routed.max(Hidden::gate_up_pitch(shared, true)).max(pitch(mixture.experts.len()))
        }
    });
    let widest = ffn.chain([AttentionBuffers::widest(config), pitch(config.d_model)]).max().unwrap_or(1);
    let most = caps.max_binding.min(caps.max_buffer) / (widest as u64 * 4);
    wanted.min(usize::try_from(most).unwrap_or(usize::MAX)).max(1)
}

/// Bytes of the file that go up.
pub(super) fn bytes_to_upload(weights: &Weights, share: &Share<'_>) -> u64 {
    let layers = weights.layers[share.first_layer..].iter().zip(&share.ffn);
    let head = if share.head { size(&weights.output.weight) } else { 0 };
    layers.map(|(layer, ffn)| layer_bytes(layer, *ffn, share.predictors)).sum::<u64>() + head
}

fn size(matrix: &Matrix) -> u64 {
    matrix.data().len() as u64
}

/// Those of one layer.
fn layer_bytes(layer: &LayerWeights, share: FfnShare<'_>, predictors: bool) -> u64 {
    let attention = &layer.attention;
    let attention = [&attention.q, &attention.k, &attention.v, &attention.output];
    let attention: u64 = attention.iter().map(|linear| size(&linear.weight)).sum();
    let asked = layer.predictor.as_ref().filter(|_| predictors && HotOps::can_hold(&layer.ffn));
    let predictor = match asked.map(|predictor| &predictor.kind) {
        Some(PredictorKind::LowRank { fc1, fc2 }) => size(fc1) + size(fc2),
        Some(PredictorKind::Rows { rows, .. }) => size(rows),
        None => 0,
    };
    let down = |ffn: &FfnWeights| {
        let (Down::Outputs(down) | Down::Neurons(down)) = &ffn.down;
        size(&down.weight)
    };
    let rows = |ffn: &FfnWeights| ffn.gate.as_ref().map_or(0, |gate| size(&gate.weight)) + size(&ffn.up.weight);
    let ffn = |ffn: &FfnWeights| rows(ffn) + down(ffn);
    let here = match (share, &layer.ffn) {
        (FfnShare::None, Ffn::Dense(_)) => 0,
        (FfnShare::All, Ffn::Dense(weights)) => ffn(weights),
        (FfnShare::Hot(neurons), Ffn::Dense(weights)) => {
            ffn(weights) / weights.up.weight.rows().max(1) as u64 * neurons.len() as u64
        }
        (FfnShare::None, Ffn::Experts(_)) if !ExpertOps::can_hold(&layer.ffn) => 0,
        (share, Ffn::Experts(mixture)) => {
            let is_hot = |expert: usize| match share {
                FfnShare::All => true,
                FfnShare::Hot(hot) => hot.contains(&(expert as u32)),
                FfnShare::None => false,
            };
            let sent = |at: usize| mixture.outputs(at).map_or(0, |down| size(&down.weight));
            let experts = mixture.experts.iter().enumerate().filter(|(expert, _)| is_hot(*expert));
            let shared = mixture.shared.as_ref();
            size(&mixture.router.weight)
                + experts.map(|(at, expert)| rows(expert) + sent(at)).sum::<u64>()
                + shared.map_or(0, |shared| size(&shared.gate.weight) + ffn(&shared.ffn))
        }
    };
    attention + here + predictor
}
