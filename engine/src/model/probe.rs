//! Looking into a forward pass while it runs.

/// What a forward pass tells an observer, and asks it. Every method has a default that does nothing; `()` is no observer.
/// Tokens are those of the chunk being computed, in order; chunks follow each other.
pub trait Probe {
    /// Whether to stop. Asked before every layer; the pass then ends with [`Error::Cancelled`](crate::Error::Cancelled),
    /// chunks that were complete staying in the cache.
    fn cancelled(&mut self) -> bool {
        false
    }

    /// Whether to be told what each layer puts out. Telling may cost a processor a synchronisation, so it is not done
    /// unasked; this and the other two questions are asked once per chunk and layer.
    fn wants_layer_output(&mut self) -> bool {
        false
    }

    /// Output of a layer, `[tokens, d_model]`, before the final norm.
    fn layer_output(&mut self, layer: usize, x: &[f32]) {
        let _ = (layer, x);
    }

    /// Whether to be told what the activations of dense FFNs see.
    fn wants_ffn_hidden(&mut self) -> bool {
        false
    }

    /// What a dense FFN's activation is about to see, each `[tokens, n_ff]`; `gate` is empty where there is none.
    fn ffn_hidden(&mut self, layer: usize, tokens: usize, gate: &[f32], up: &[f32]) {
        let _ = (layer, tokens, gate, up);
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
