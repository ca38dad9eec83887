//! The part of a model that goes to a device, its bytes, and how it is loaded.

use super::{
    ffn::FfnBuffers, neuron_buffers::NeuronBuffers, neuron_weights::NeuronWeights, part_buffers::PartBuffers,
    resident_experts::ResidentExperts,
};
use crate::{
    error::Result,
    format::Matrix,
    gpu::{Caps, pitch},
    model::{Ffn, FfnWeights, LayerWeights, Model, ModelConfig, PredictorKind, Weights},
};

/// Settings of a model on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuLoad {
    /// Most tokens of a chunk; fewer where the device's limits ask for it. Registers and scratch buffers have this many rows.
    pub chunk: usize,
    /// Multiply-adds after which the work of several tokens is submitted: a desktop stays responsive between submissions, and no
    /// driver's watchdog fires.
    pub submission: u64,
    /// True if predictors are resident with their layers even while no sparsity mode needs them.
    pub predictors: bool,
    /// Most bytes of the streaming buffer, through which cold neurons pass for the chunks of a prompt: their place on the device, and
    /// two loads of staging.
    pub streaming_buffer: u64,
}

impl Default for GpuLoad {
    /// 2^35 multiply-adds are some 10 ms on a card, and a few 100 ms on a slow integrated GPU. A third of the streaming buffer's
    /// bytes are neurons, thousands even of wide models: enough to occupy a card.
    fn default() -> Self {
        GpuLoad { chunk: 256, submission: 1 << 35, predictors: true, streaming_buffer: 48 << 20 }
    }
}

/// The part of a layer's FFN that goes to a device.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FfnPart<'a> {
    /// All of it, in the file's order.
    All,
    /// These neurons (experts, in an MoE layer), hottest first.
    Hot(&'a [u32]),
    /// Nothing.
    None,
}

/// The part of a model that goes to a device: its last layers, all or some of their neurons, and perhaps the head.
#[derive(Debug, Clone)]
pub(crate) struct DevicePart<'a> {
    /// First layer that goes there.
    pub first_layer: usize,
    /// The FFN of each layer from that one on.
    pub ffn: Vec<FfnPart<'a>>,
    /// True if the head goes there.
    pub head: bool,
    /// True if predictors go there with their layers.
    pub predictors: bool,
}

impl DevicePart<'_> {
    /// All of a model of `n_layer` layers.
    pub fn all(n_layer: usize) -> Self {
        DevicePart { first_layer: 0, ffn: vec![FfnPart::All; n_layer], head: true, predictors: true }
    }
}

/// Refuses a model of which a layer has no kernels on a device.
///
/// # Errors
/// [`Error::Unsupported`] with what the kernels lack.
pub fn device_support(model: &Model) -> Result<()> {
    PartBuffers::check(&model.config)
}

/// The most tokens of a chunk, up to `wanted`, with which every buffer fits one binding.
pub(crate) fn chunk_within(caps: &Caps, config: &ModelConfig, weights: &Weights, wanted: usize) -> usize {
    let ffn = weights.layers.iter().map(|layer| match &layer.ffn {
        Ffn::None => 0,
        Ffn::Dense(ffn) => {
            let hidden = FfnBuffers::gate_up_pitch(NeuronBuffers::slots(ffn.up.weight.rows()), ffn.gate.is_some());
            // Two partial sums of the down projection.
            hidden.max(2 * config.d_model.next_multiple_of(256))
        }
        Ffn::Experts(moe) => {
            let (used, n_ff) = config.experts.as_ref().map_or((1, 0), |experts| (experts.used, experts.n_ff));
            let shared = moe.shared.as_ref().map_or(0, |shared| shared.ffn.up.weight.rows());
            let routed = used * FfnBuffers::gate_up_pitch(n_ff, true).max(pitch(config.d_model));
            routed.max(FfnBuffers::gate_up_pitch(shared, true)).max(pitch(moe.experts.len()))
        }
    });
    let others = [pitch(config.d_model), PartBuffers::widest(caps, config)];
    let widest = ffn.chain(others).max().unwrap_or(1);
    let most = caps.max_binding.min(caps.max_buffer) / (widest as u64 * 4);
    wanted.min(usize::try_from(most).unwrap_or(usize::MAX)).max(1)
}

/// Bytes of the file that are uploaded.
pub(crate) fn bytes_to_upload(weights: &Weights, part: &DevicePart<'_>) -> u64 {
    let layers = weights.layers[part.first_layer..].iter().zip(&part.ffn);
    let head = if part.head { size(&weights.output.weight) } else { 0 };
    layers.map(|(layer, ffn)| layer_bytes(layer, *ffn, part.predictors)).sum::<u64>() + head
}

fn size(matrix: &Matrix) -> u64 {
    matrix.data().len() as u64
}

/// Those of one layer.
fn layer_bytes(layer: &LayerWeights, part: FfnPart<'_>, predictors: bool) -> u64 {
    let attention: u64 = layer.mixers().map(|linear| size(&linear.weight)).sum();
    let used = layer.predictor.as_ref().filter(|_| predictors && NeuronWeights::places_neurons(layer));
    let predictor = match used.map(|predictor| &predictor.kind) {
        Some(PredictorKind::LowRank { fc1, fc2 }) => size(fc1) + size(fc2),
        Some(PredictorKind::Rows { rows, .. }) => size(rows),
        None => 0,
    };
    let down = |ffn: &FfnWeights| size(&ffn.down.linear().weight);
    let rows = |ffn: &FfnWeights| ffn.gate.as_ref().map_or(0, |gate| size(&gate.weight)) + size(&ffn.up.weight);
    let ffn = |ffn: &FfnWeights| rows(ffn) + down(ffn);
    let here = match (part, &layer.ffn) {
        (_, Ffn::None) | (FfnPart::None, Ffn::Dense(_)) => 0,
        (FfnPart::All, Ffn::Dense(weights)) => ffn(weights),
        (FfnPart::Hot(neurons), Ffn::Dense(weights)) => {
            ffn(weights) / weights.up.weight.rows().max(1) as u64 * neurons.len() as u64
        }
        (FfnPart::None, Ffn::Experts(_)) if !ResidentExperts::can_hold(&layer.ffn) => 0,
        (part, Ffn::Experts(moe)) => {
            let is_hot = |expert: usize| match part {
                FfnPart::All => true,
                FfnPart::Hot(hot) => hot.contains(&(expert as u32)),
                FfnPart::None => false,
            };
            let down_of = |at: usize| moe.output_major(at).map_or(0, |down| size(&down.weight));
            let experts = moe.experts.iter().enumerate().filter(|(expert, _)| is_hot(*expert));
            moe.always_read().map(|linear| size(&linear.weight)).sum::<u64>()
                + experts.map(|(at, expert)| rows(expert) + down_of(at)).sum::<u64>()
        }
    };
    attention + here + predictor
}
