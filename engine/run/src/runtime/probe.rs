//! An observer of a forward pass.

use std::time::Duration;

pub use thermocline_base::telemetry::neurons::LayerFiring;

/// A part of a pass that is timed by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassPart {
    /// Steps of a layer before its FFN: norms, attention or a recurrent mixer.
    Mixer(usize),
    /// A layer's FFN, with its router.
    Ffn(usize),
    /// The head.
    Head,
}

/// Input of an expert's activation, each `[members, n_ff]`.
#[derive(Debug, Clone, Copy)]
pub struct ExpertHidden<'a> {
    /// Index of the layer.
    pub layer: usize,
    /// The expert; the shared one has the number behind the last.
    pub expert: usize,
    /// The tokens that use it, and its router weights.
    pub members: &'a [(usize, f32)],
    /// Gates; empty where there are none.
    pub gate: &'a [f32],
    /// Ups.
    pub up: &'a [f32],
}

/// An observer of a forward pass. Every method has a default that does nothing; `()` observes nothing. Tokens are those of the chunk
/// being computed, in order; chunks follow each other.
pub trait Probe {
    /// True to stop. Called before every layer; the pass then ends with [`Error::Cancelled`](thermocline_base::error::Error::Cancelled),
    /// chunks that were complete staying in the cache.
    fn cancelled(&mut self) -> bool {
        false
    }

    /// True to get each layer's output, which may cost a processor a synchronisation. Like every `wants_` method it is called once per
    /// chunk and layer.
    fn wants_layer_output(&mut self) -> bool {
        false
    }

    /// Output of a layer, `[tokens, d_model]`, before the final norm.
    fn layer_output(&mut self, layer: usize, x: &[f32]) {
        let _ = (layer, x);
    }

    /// True to get the inputs of FFNs.
    fn wants_ffn_input(&mut self) -> bool {
        false
    }

    /// Input of an FFN (or of an MoE layer), and the residual stream that the norm before it read, each `[tokens, d_model]`.
    fn ffn_input(&mut self, layer: usize, tokens: usize, normed: &[f32], residual: &[f32]) {
        let _ = (layer, tokens, normed, residual);
    }

    /// True to get the inputs of FFN activations.
    fn wants_ffn_hidden(&mut self) -> bool {
        false
    }

    /// Input of a dense FFN's activation, each `[tokens, n_ff]`; `gate` is empty where there is none. Not called where a sparsity mode
    /// approximates ([`SkipRule`](thermocline_model::SkipRule)).
    fn ffn_hidden(&mut self, layer: usize, tokens: usize, gate: &[f32], up: &[f32]) {
        let _ = (layer, tokens, gate, up);
    }

    /// The same of one expert. Called expert by expert; not for those computed on a device.
    fn expert_hidden(&mut self, hidden: &ExpertHidden<'_>) {
        let _ = hidden;
    }

    /// True to get the neurons that fire. Cheap enough to be left on.
    fn wants_firing(&mut self) -> bool {
        false
    }

    /// True to get [`LayerFiring::strength`] too, which is not as cheap.
    fn wants_strength(&mut self) -> bool {
        false
    }

    /// True to get [`LayerFiring::strength`] of single tokens from a device, too, which has to send them.
    fn wants_device_strength(&mut self) -> bool {
        false
    }

    /// True to get [`LayerFiring::gpu_ns`], [`LayerFiring::cpu_ns`] and [`LayerFiring::reporting`] too: in small layers, reading the
    /// clock is a good part of the cost of observing.
    fn wants_times(&mut self) -> bool {
        true
    }

    /// Neurons of an FFN (of an MoE layer's chosen experts) that fired; once per layer and chunk, in the order of layers, at the end of
    /// the chunk where a device computes.
    fn firing(&mut self, firing: &LayerFiring<'_>) {
        let _ = firing;
    }

    /// True to get the times of steps and of the head.
    fn wants_step_times(&mut self) -> bool {
        false
    }

    /// Time that the calling thread spent on a step of a part. With a device that is recording and waiting: what the device took is
    /// in [`LayerFiring::gpu_ns`].
    fn step_time(&mut self, part: PassPart, time: Duration) {
        let _ = (part, time);
    }

    /// True to get the router's choices.
    fn wants_router(&mut self) -> bool {
        false
    }

    /// Experts that an MoE layer's router has chosen, `[tokens, used]`, best first.
    fn router(&mut self, layer: usize, chosen: &[usize]) {
        let _ = (layer, chosen);
    }
}

impl Probe for () {}
