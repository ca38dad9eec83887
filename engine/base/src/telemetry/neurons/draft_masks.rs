//! Firings of a pass with drafts, held until sampling decides which drafts are drawn.

use super::LayerFiring;

/// Masks of the neurons that fire and the experts that are chosen, in every layer of a pass. The
/// pass computes a token and drafts of the tokens after it. Only drawn tokens are part of a text,
/// and the draw happens after the pass.
#[derive(Debug, Default)]
pub struct DraftMasks {
    /// Memory of all layers that were ever held. The first `held` entries belong to this pass.
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
    /// `[tokens, experts.div_ceil(32)]`. Empty in a layer without experts.
    chosen: Vec<u32>,
}

impl DraftMasks {
    /// Holds the masks of a layer. Predictions are not held, because drafts are computed in modes
    /// without a predictor.
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

    /// Discards the masks but keeps their memory.
    pub fn clear(&mut self) {
        self.held = 0;
    }
}

impl HeldLayer {
    /// The firing of the layer's first `tokens` tokens.
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
