//! The report of a processor on one layer.

use std::time::Instant;

use super::Strength;

/// Firings and costs of one layer's FFN for the tokens of a chunk.
#[derive(Debug, Clone, Copy, Default)]
pub struct LayerFiring<'a> {
    /// Index of the layer.
    pub layer: usize,
    /// Tokens.
    pub tokens: usize,
    /// `[tokens, n_ff.div_ceil(32)]`: bit `i % 32` of word `i / 32` says whether neuron `i` fired: its hidden activation was
    /// computed and not zero (ReLU family), or was above the layer's activation threshold. Bits behind the last neuron are zero. An MoE layer's
    /// neurons stand as [`LayerNeurons::Experts`](super::LayerNeurons::Experts) says.
    pub fired: &'a [u32],
    /// `[tokens, experts.div_ceil(32)]`: the experts each token has chosen; `None` for a layer without experts.
    pub chosen: Option<&'a [u32]>,
    /// The same as `fired` of the predicted neurons; `None` where no predictor was asked.
    pub predicted: Option<&'a [u32]>,
    /// True if every neuron was computed, so that `fired` is the truth and not limited to what the predictor named.
    pub complete: bool,
    /// `[n_ff.div_ceil(32)]`: neurons computed in VRAM; `None` if none are, or there is no device.
    pub hot: Option<&'a [u32]>,
    /// How strongly, where a probe wants to know.
    pub strength: Option<Strength<'a>>,
    /// Bytes of FFN weights and predictor the CPU read.
    pub cpu_bytes: u64,
    /// Of these, how many as rows of single neurons here and there, which memory gives more slowly than rows in order.
    pub cpu_scattered: u64,
    /// Bytes that crossed the bus for this layer, both ways.
    pub bus_bytes: u64,
    /// Nanoseconds a device worked on the layer, attention included, by its own clock; 0 where not measured, like the next two.
    pub gpu_ns: u64,
    /// Nanoseconds the CPU worked on the layer's FFN.
    pub cpu_ns: u64,
    /// Nanoseconds the CPU waited for the device.
    pub wait_ns: u64,
    /// When making this report began, or so long before it was finished as that took in all; `None` if it was not measured.
    pub reporting: Option<Instant>,
}
