//! Windows of a cache: how far back its rings hold them, and copies of them in RAM to go back to.

use super::KvCache;
use crate::runtime::{
    kv_layer::{KvLayer, WindowRows},
    snapshots::TokenSnapshot,
};

impl KvCache {
    /// True if a token behind `tokens` others finds all that it sees in every layer.
    pub(super) fn is_whole(&self, tokens: usize) -> bool {
        self.kept.iter().all(|kept| kept.is_whole(tokens))
    }

    /// True if `snapshot` has the window of `layer`, and the layer is where that can be written to.
    pub(super) fn takes_window(&self, snapshot: &TokenSnapshot<WindowRows>, layer: usize) -> bool {
        let rows = &self.layers[layer];
        rows.ram.is_some() && rows.off_host.is_none() && snapshot.of.get(layer).is_some_and(Option::is_some)
    }

    /// Keeps a copy of the windows in front of the next token, of layers whose rings are in RAM.
    pub(super) fn copy_windows(&mut self) {
        if !self.kept.iter().any(|kept| kept.is_ring()) || self.windows.is_known(self.len) {
            return;
        }
        let mut copies = self.windows.take_redundant(self.window_bytes()).unwrap_or_default();
        copies.resize_with(self.layers.len(), || None);
        for (layer, copy) in copies.iter_mut().enumerate() {
            *copy = self.window_of(layer, copy.take());
        }
        self.windows.push(self.len, copies);
    }

    /// A copy of the window of `layer` in front of the next token, in the place of `old` if there is one.
    fn window_of(&self, layer: usize, old: Option<KvLayer>) -> Option<KvLayer> {
        let (ram, kept) = (self.layers[layer].ram.as_ref()?, self.kept[layer]);
        let rows = kept.copied()?;
        let new = || KvLayer::new(self.ty, self.shape.attention(layer)?, rows).ok();
        let mut copy = old.or_else(new)?;
        copy.begin_at(kept.seen_from(self.len));
        copy.extend_to(ram, self.len);
        Some(copy)
    }

    /// Takes the rings that do not hold what is in front of token `tokens` any more back to the last copy before it. Returns the
    /// number of tokens in front of that; 0 without one.
    pub(super) fn restore_windows(&mut self, tokens: usize) -> usize {
        let usable = |it: &&TokenSnapshot<WindowRows>| {
            (0..self.layers.len()).all(|at| self.kept[at].is_whole(it.tokens) || self.takes_window(it, at))
        };
        let Some(snapshot) = self.windows.until(tokens).find(usable) else { return 0 };
        for ((rows, kept), copy) in self.layers.iter_mut().zip(&mut self.kept).zip(&snapshot.of) {
            if let (Some(ram), Some(copy), false) = (&mut rows.ram, copy, kept.is_whole(snapshot.tokens)) {
                kept.restart(kept.seen_from(snapshot.tokens));
                ram.begin_at(kept.first());
                ram.extend_to(copy, snapshot.tokens);
            }
        }
        snapshot.tokens
    }
}
