//! Firings of a pass with drafts, held until it is known which of the drafts are drawn.

use super::LayerFiring;

/// Masks of the neurons that fire, and of the experts that are chosen, in every layer of a pass that computes a token and
/// drafts of those behind it. Only tokens that are drawn are part of a text, and which drafts are is not known before the pass
/// has ended.
#[derive(Debug, Default)]
pub struct DraftMasks {
    /// Memory of all layers that were ever held; the first `held` are those of this pass.
    layers: Vec<HeldLayer>,
    held: usize,
}

/// Masks of one layer.
#[derive(Debug, Default)]
struct HeldLayer {
    layer: usize,
    tokens: usize,
    /// `[tokens, n_ff.div_ceil(32)]`
    fired: Vec<u32>,
    /// `[tokens, experts.div_ceil(32)]`; empty in a layer without experts.
    chosen: Vec<u32>,
}

impl DraftMasks {
    /// Holds the masks of a layer. Its predictions are not held: drafts are computed in modes that ask no predictor.
    pub fn hold(&mut self, firing: &LayerFiring<'_>) {
        if self.held == self.layers.len() {
            self.layers.push(HeldLayer::default());
        }
        let Some(held) = self.layers.get_mut(self.held) else { return };
        self.held += 1;
        (held.layer, held.tokens) = (firing.layer, firing.tokens);
        held.fired.clear();
        held.fired.extend_from_slice(firing.fired);
        held.chosen.clear();
        held.chosen.extend_from_slice(firing.chosen.unwrap_or_default());
    }

    /// The firings of the first `tokens` tokens, layer by layer.
    pub fn firings(&self, tokens: usize) -> impl Iterator<Item = LayerFiring<'_>> {
        self.layers[..self.held].iter().map(move |held| held.first(tokens))
    }

    /// Forgets the masks and keeps their memory.
    pub fn clear(&mut self) {
        self.held = 0;
    }
}

impl HeldLayer {
    /// The firing of the first `tokens` of its tokens.
    fn first(&self, tokens: usize) -> LayerFiring<'_> {
        let tokens = tokens.min(self.tokens);
        let of_tokens = |masks: &'_ [u32]| masks.len() / self.tokens.max(1) * tokens;
        let chosen = &self.chosen[..of_tokens(&self.chosen)];
        LayerFiring {
            layer: self.layer,
            tokens,
            fired: &self.fired[..of_tokens(&self.fired)],
            chosen: Some(chosen).filter(|chosen| !chosen.is_empty()),
            ..LayerFiring::default()
        }
    }
}
