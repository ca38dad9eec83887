//! What the parts of a processor are made with.

use crate::{
    error::Result,
    format::Matrix,
    gpu::{Buffer, Caps, Gpu, Purpose, Uploader, Usage, pitch},
    model::{Down, Ffn, FfnWeights, ModelConfig, Weights},
};

use super::{attention::AttentionBuffers, ffn::Hidden};

/// How to load a model onto a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuLoad {
    /// Most tokens computed at once; fewer where the device's limits ask for it. Registers and temporaries are this long.
    pub chunk: usize,
    /// Multiply-adds after which the work of several tokens is submitted. A desktop stays responsive between submissions,
    /// and no watchdog of a driver fires.
    pub submission: u64,
}

impl Default for GpuLoad {
    /// 2^35 multiply-adds are some 10 ms on a card, and a few 100 ms on a slow integrated GPU.
    fn default() -> Self {
        GpuLoad { chunk: 256, submission: 1 << 35 }
    }
}

/// A model on its way to a device.
#[derive(Debug)]
pub(super) struct Loader<'a, 'p> {
    pub gpu: &'a Gpu,
    pub config: &'a ModelConfig,
    /// Rows of a register.
    pub chunk: usize,
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
        Ffn::Dense(ffn) => Hidden::gate_up_pitch(ffn.up.weight.rows(), ffn.gate.is_some()),
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
pub(super) fn bytes_to_upload(weights: &Weights) -> u64 {
    let size = |matrix: &Matrix| matrix.data().len() as u64;
    let ffn = |ffn: &FfnWeights| {
        let (Down::Outputs(down) | Down::Neurons(down)) = &ffn.down;
        ffn.gate.as_ref().map_or(0, |gate| size(&gate.weight)) + size(&ffn.up.weight) + size(&down.weight)
    };
    let layers = weights.layers.iter().map(|layer| {
        let attention = &layer.attention;
        let attention = [&attention.q, &attention.k, &attention.v, &attention.output];
        let attention: u64 = attention.iter().map(|linear| size(&linear.weight)).sum();
        attention
            + match &layer.ffn {
                Ffn::Dense(weights) => ffn(weights),
                Ffn::Experts(mixture) => {
                    let shared = mixture.shared.as_ref();
                    size(&mixture.router.weight)
                        + mixture.experts.iter().map(ffn).sum::<u64>()
                        + shared.map_or(0, |shared| size(&shared.gate.weight) + ffn(&shared.ffn))
                }
            }
    });
    layers.sum::<u64>() + size(&weights.output.weight)
}
