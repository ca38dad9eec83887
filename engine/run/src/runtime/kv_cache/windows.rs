//! Windows of a cache: how far back its rings reach, and copies of windows in RAM to go back to.

use super::KvCache;
use crate::runtime::{
    kv_layer::{KvLayer, WindowRows},
    snapshots::TokenSnapshot,
};

impl KvCache {
    /// True if every layer holds the window of the token after `tokens` tokens.
    pub(super) fn is_whole(&self, tokens: usize) -> bool {
        self.kept.iter().all(|kept| kept.is_whole(tokens))
    }

    /// True if `snapshot` has the window of `layer`, and the layer's rows are in memory where the
    /// window can be written.
    pub(super) fn takes_window(&self, snapshot: &TokenSnapshot<WindowRows>, layer: usize) -> bool {
        let rows = &self.layers[layer];
        rows.ram.is_some() && rows.off_host.is_none() && snapshot.of.get(layer).is_some_and(Option::is_some)
    }

    /// Keeps a copy of the windows before the next token, for layers whose rings are in RAM.
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

    /// Copies the window of `layer` before the next token, into `old` if given.
    fn window_of(&self, layer: usize, old: Option<KvLayer>) -> Option<KvLayer> {
        let (ram, kept) = (self.layers[layer].ram.as_ref()?, self.kept[layer]);
        let rows = kept.copied()?;
        let new = || KvLayer::new(self.ty, self.shape.attention(layer)?, rows).ok();
        let mut copy = old.or_else(new)?;
        copy.begin_at(kept.seen_from(self.len));
        copy.extend_to(ram, self.len);
        Some(copy)
    }

    /// Takes the rings that do not hold the window before token `tokens` back to the last copy
    /// before it. Returns the number of tokens before that copy, or 0 if there is no copy.
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
