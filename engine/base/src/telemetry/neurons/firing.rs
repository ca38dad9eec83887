//! A processor's report on one layer.

use std::time::Instant;

use super::Strength;

/// Firings and costs of one layer's FFN for the tokens of a chunk.
#[derive(Debug, Clone, Copy, Default)]
pub struct LayerFiring<'a> {
    /// Index of the layer.
    pub layer: usize,
    /// Number of tokens.
    pub tokens: usize,
    /// `[tokens, n_ff.div_ceil(32)]`: bit `i % 32` of word `i / 32` says whether neuron `i` fired.
    /// A neuron fires if its hidden activation was computed and is not zero (ReLU family), or is
    /// above the layer's activation threshold. Bits after the last neuron are zero. The neurons of
    /// an MoE layer are ordered as in [`LayerNeurons::Experts`](super::LayerNeurons::Experts).
    pub fired: &'a [u32],
    /// `[tokens, experts.div_ceil(32)]`: the experts that each token chose. `None` for a layer
    /// without experts.
    pub chosen: Option<&'a [u32]>,
    /// Mask of the predicted neurons, in the shape of `fired`. `None` if no predictor ran.
    pub predicted: Option<&'a [u32]>,
    /// True if every neuron was computed. `fired` then does not depend on the predictor.
    pub complete: bool,
    /// `[n_ff.div_ceil(32)]`: neurons computed in VRAM. `None` if there are none, or no device.
    pub hot: Option<&'a [u32]>,
    /// How strongly the neurons fire, if a probe needs it.
    pub strength: Option<Strength<'a>>,
    /// Bytes of FFN weights and predictor that the CPU read.
    pub cpu_bytes: u64,
    /// The part of `cpu_bytes` in scattered rows of single neurons, which memory delivers more
    /// slowly than rows in order.
    pub cpu_scattered: u64,
    /// Bytes that crossed the bus for this layer, both ways.
    pub bus_bytes: u64,
    /// Nanoseconds that a device worked on the layer, attention included, by the device's clock. 0
    /// if not measured, as in the next two fields.
    pub gpu_ns: u64,
    /// Nanoseconds that the CPU worked on the layer's FFN.
    pub cpu_ns: u64,
    /// Nanoseconds that the CPU waited for the device.
    pub wait_ns: u64,
    /// Instant at which the making of this report began, or its end minus the total time that it
    /// took. `None` if not measured.
    pub reporting: Option<Instant>,
}
