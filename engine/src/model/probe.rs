//! Looking into a forward pass while it runs.

pub use crate::telemetry::neurons::LayerFiring;

/// What a forward pass tells an observer, and asks it. Every method has a default that does nothing; `()` is no observer.
/// Tokens are those of the chunk being computed, in order; chunks follow each other.
pub trait Probe {
    /// Whether to stop. Asked before every layer; the pass then ends with [`Error::Cancelled`](crate::Error::Cancelled),
    /// chunks that were complete staying in the cache.
    fn cancelled(&mut self) -> bool {
        false
    }

    /// Whether to be told what each layer puts out. Telling may cost a processor a synchronisation, so it is not done
    /// unasked; this and the other questions are asked once per chunk and layer.
    fn wants_layer_output(&mut self) -> bool {
        false
    }

    /// Output of a layer, `[tokens, d_model]`, before the final norm.
    fn layer_output(&mut self, layer: usize, x: &[f32]) {
        let _ = (layer, x);
    }

    /// Whether to be told what FFNs are given.
    fn wants_ffn_input(&mut self) -> bool {
        false
    }

    /// What an FFN (or a mixture) is given, and the residual stream beside it (what the norm before it saw), each `[tokens, d_model]`.
    fn ffn_input(&mut self, layer: usize, tokens: usize, normed: &[f32], residual: &[f32]) {
        let _ = (layer, tokens, normed, residual);
    }

    /// Whether to be told what the activations of FFNs see.
    fn wants_ffn_hidden(&mut self) -> bool {
        false
    }

    /// What a dense FFN's activation is about to see, each `[tokens, n_ff]`; `gate` is empty where there is none. Not told where
    /// a sparse mode skips neurons.
    fn ffn_hidden(&mut self, layer: usize, tokens: usize, gate: &[f32], up: &[f32]) {
        let _ = (layer, tokens, gate, up);
    }

    /// The same of a mixture's expert (or, with the number behind the last, of the one that every token passes through), each
    /// `[members, n_ff]`: `members` are the tokens that use it, of `tokens` in the chunk, and its shares. Expert by expert; those
    /// computed on a device are not told of.
    fn expert_hidden(
        &mut self,
        layer: usize,
        expert: usize,
        tokens: usize,
        members: &[(usize, f32)],
        gate: &[f32],
        up: &[f32],
    ) {
        let _ = (layer, expert, tokens, members, gate, up);
    }

    /// Whether to be told which neurons fire. Cheap enough to be left on.
    fn wants_firing(&mut self) -> bool {
        false
    }

    /// Whether [`LayerFiring::strength`] is wanted too, which is not as cheap.
    fn wants_strength(&mut self) -> bool {
        false
    }

    /// Whether [`LayerFiring::gpu_ns`], [`LayerFiring::cpu_ns`] and [`LayerFiring::reporting`] are wanted too: of small layers,
    /// looking at the clock is a good part of the work for an observer.
    fn wants_times(&mut self) -> bool {
        true
    }

    /// Which neurons of an FFN fired, or of a mixture's chosen experts; once per layer and chunk, in the order of layers, but not before the chunk ends
    /// where a device computes.
    fn firing(&mut self, firing: &LayerFiring<'_>) {
        let _ = firing;
    }

    /// Whether to be told how mixtures route.
    fn wants_router(&mut self) -> bool {
        false
    }

    /// Experts a mixture has chosen, `[tokens, used]`, best first.
    fn router(&mut self, layer: usize, chosen: &[usize]) {
        let _ = (layer, chosen);
    }
}

impl Probe for () {}
