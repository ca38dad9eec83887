//! An observer of a forward pass.

use std::time::Duration;

pub use thermocline_base::telemetry::neurons::LayerFiring;

/// A part of a pass that is timed separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassPart {
    /// Steps of a layer before its FFN: norms, attention or a recurrent mixer.
    Mixer(usize),
    /// A layer's FFN, with its router.
    Ffn(usize),
    /// The head.
    Head,
}

/// Input of an expert's activation; `gate` and `up` are `[members, n_ff]` each.
#[derive(Debug, Clone, Copy)]
pub struct ExpertHidden<'a> {
    /// Index of the layer.
    pub layer: usize,
    /// Index of the expert. The shared expert's index follows the last expert's.
    pub expert: usize,
    /// The tokens that use the expert, each with its router weight.
    pub members: &'a [(usize, f32)],
    /// Gate values; empty for experts without gates.
    pub gate: &'a [f32],
    /// Up values.
    pub up: &'a [f32],
}

/// An observer of a forward pass. Every method has a default that does nothing, and `()` observes
/// nothing. Tokens are those of the current chunk, in order, and chunks follow each other.
pub trait Probe {
    /// Returns true to stop. Called before every layer. The pass then ends with
    /// [`Error::Cancelled`](thermocline_base::error::Error::Cancelled), and complete chunks stay in
    /// the cache.
    fn cancelled(&mut self) -> bool {
        false
    }

    /// Returns true to receive each layer's output, which may cost a processor a synchronisation.
    /// Every `wants_` method is called once per chunk and layer.
    fn wants_layer_output(&mut self) -> bool {
        false
    }

    /// Receives the output of a layer, `[tokens, d_model]`, before the final norm.
    fn layer_output(&mut self, layer: usize, x: &[f32]) {
        let _ = (layer, x);
    }

    /// Returns true to receive hidden states, which costs a device a synchronisation.
    fn wants_states(&mut self) -> bool {
        false
    }

    /// Receives the hidden states of a chunk's tokens after the final norm, `[tokens, d_model]`.
    fn states(&mut self, states: &[f32]) {
        let _ = states;
    }

    /// Returns true to receive the inputs of FFNs.
    fn wants_ffn_input(&mut self) -> bool {
        false
    }

    /// Receives the input of an FFN (or of an MoE layer), and the residual stream before its norm,
    /// each `[tokens, d_model]`.
    fn ffn_input(&mut self, layer: usize, tokens: usize, normed: &[f32], residual: &[f32]) {
        let _ = (layer, tokens, normed, residual);
    }

    /// Returns true to receive the inputs of FFN activations.
    fn wants_ffn_hidden(&mut self) -> bool {
        false
    }

    /// Receives the input of a dense FFN's activation, each `[tokens, n_ff]`; `gate` is empty for
    /// an FFN without gates. Not called if a sparsity mode approximates
    /// ([`SkipRule`](thermocline_model::SkipRule)).
    fn ffn_hidden(&mut self, layer: usize, tokens: usize, gate: &[f32], up: &[f32]) {
        let _ = (layer, tokens, gate, up);
    }

    /// Receives the input of one expert's activation, expert by expert. Not called for experts on a
    /// device.
    fn expert_hidden(&mut self, hidden: &ExpertHidden<'_>) {
        let _ = hidden;
    }

    /// Returns true to receive the neurons that fire. Cheap enough to be always on.
    fn wants_firing(&mut self) -> bool {
        false
    }

    /// Returns true to receive [`LayerFiring::strength`] too, which is less cheap.
    fn wants_strength(&mut self) -> bool {
        false
    }

    /// Returns true to receive [`LayerFiring::strength`] of single tokens from a device too, which
    /// has to transfer them.
    fn wants_device_strength(&mut self) -> bool {
        false
    }

    /// Returns true to receive [`LayerFiring::gpu_ns`], [`LayerFiring::cpu_ns`] and
    /// [`LayerFiring::reporting`] too. In small layers, reading the clock is a large part of the
    /// cost of observing.
    fn wants_times(&mut self) -> bool {
        true
    }

    /// Receives the neurons of an FFN (in an MoE layer, of the chosen experts) that fired. Called
    /// once per layer and chunk, in the order of layers. If a device computes, it is called at the
    /// end of the chunk.
    fn firing(&mut self, firing: &LayerFiring<'_>) {
        let _ = firing;
    }

    /// Returns true to receive the times of steps and of the head.
    fn wants_step_times(&mut self) -> bool {
        false
    }

    /// Receives the time that the calling thread spent on a step of a part. With a device this is
    /// the time of recording and waiting; the device's time is in [`LayerFiring::gpu_ns`].
    fn step_time(&mut self, part: PassPart, time: Duration) {
        let _ = (part, time);
    }

    /// Returns true to receive the router's choices.
    fn wants_router(&mut self) -> bool {
        false
    }

    /// Receives the experts that an MoE layer's router has chosen, `[tokens, used]`, best first.
    fn router(&mut self, layer: usize, chosen: &[usize]) {
        let _ = (layer, chosen);
    }

    /// Receives how many of a pass's chosen experts were left out
    /// ([`RoutePreference::drop`](super::RoutePreference::drop)).
    fn dropped_experts(&mut self, layer: usize, count: usize) {
        let _ = (layer, count);
    }
}

impl Probe for () {}
