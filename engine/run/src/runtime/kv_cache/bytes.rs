//! Bytes of a conversation's cache, existing or planned.

use super::KvCache;
use crate::runtime::{
    KeptRows, KvLayer, LONGEST_PASS,
    kept_rows::pass_of_chunks,
    recurrent_state::{RecurrentStates, planes_bytes},
    snapshots,
};
use thermocline_cpu::ops::KvType;
use thermocline_model::{AttentionConfig, ModelConfig};

/// Bytes of one conversation's cache. Plans and caches count snapshots with the same functions, so
/// no cache takes more than was planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheBytes {
    /// Keys and values.
    pub rows: u64,
    /// Recurrent states.
    pub states: u64,
    /// Most bytes of the states after each token of a pass of separate tokens, to which a
    /// conversation with drafts can go back.
    pub planes: u64,
    /// Most bytes of the copies of windows and recurrent states to which the conversation can go
    /// back.
    pub snapshots: u64,
}

impl CacheBytes {
    /// Bytes of a cache for `capacity` tokens, entirely in RAM.
    pub fn of(config: &ModelConfig, capacity: usize, ty: KvType) -> Self {
        Self::in_ram(config, capacity, ty, LONGEST_PASS, |_| true)
    }

    /// Bytes in RAM of a cache for `capacity` tokens and chunks of `chunk` tokens. `in_ram` is true
    /// for layers with keys, values and states in RAM. Only the windows of these layers are copied,
    /// but the states of all layers.
    pub fn in_ram(
        config: &ModelConfig,
        capacity: usize,
        ty: KvType,
        chunk: usize,
        in_ram: impl Fn(usize) -> bool,
    ) -> Self {
        let (mut bytes, mut window) = (CacheBytes::default(), 0_u64);
        for (at, layer) in config.layers.iter().enumerate().filter(|(at, _)| in_ram(*at)) {
            bytes.states += layer.state().map_or(0, |state| state.bytes());
            if let Some(of) = layer.attention.as_ref().filter(|of| of.kv_from.is_none()) {
                let kept = KeptRows::new(config, at, capacity, pass_of_chunks(chunk));
                let row = of.cached_bytes(|len| ty.row_bytes(len));
                bytes.rows = bytes.rows.saturating_add(row.saturating_mul(kept.room() as u64));
                window = window.saturating_add(copied_window_bytes(ty, of, kept));
            }
        }
        bytes.planes = planes_bytes(bytes.states);
        let of = |one| snapshots::most_bytes(one, capacity);
        bytes.snapshots = of(window).saturating_add(of(config.state_bytes()));
        bytes
    }

    /// Sum of all bytes.
    pub fn total(self) -> u64 {
        self.rows.saturating_add(self.states).saturating_add(self.planes).saturating_add(self.snapshots)
    }
}

/// Bytes of a copy of a layer's window; 0 for a layer that keeps the whole context, because it
/// needs no copy.
fn copied_window_bytes(ty: KvType, of: &AttentionConfig, kept: KeptRows) -> u64 {
    kept.copied().map_or(0, |rows| KvLayer::bytes_of(ty, of, rows))
}

impl KvCache {
    /// Exact number of bytes reserved, including planes of recurrent states, and snapshots of
    /// states and windows.
    pub fn bytes(&self) -> u64 {
        let copies = self.windows.iter().flat_map(|snapshot| snapshot.of.iter().flatten()).map(KvLayer::bytes);
        self.row_bytes() + copies.sum::<u64>() + self.states.as_ref().map_or(0, RecurrentStates::bytes)
    }

    /// Bytes of the cache with the largest number of planes and snapshots, if its layers stay where
    /// they are.
    pub fn most_bytes(&self) -> u64 {
        let states = self.states.as_ref().map_or(0, |states| states.most_bytes(self.capacity));
        let windows = snapshots::most_bytes(self.window_bytes(), self.capacity);
        self.row_bytes().saturating_add(windows).saturating_add(states)
    }

    /// Bytes of keys and values.
    fn row_bytes(&self) -> u64 {
        let rows = |of: &super::LayerRows| {
            let in_ram: u64 = of.ram.iter().chain(&of.copy).map(KvLayer::bytes).sum();
            in_ram + of.off_host.as_ref().map_or(0, |rows| rows.bytes())
        };
        self.layers.iter().map(rows).sum()
    }

    /// Bytes of one copy of the windows of all layers whose rings are in RAM.
    pub(super) fn window_bytes(&self) -> u64 {
        let in_ram = (0..self.layers.len()).filter(|at| self.layers[*at].ram.is_some());
        let of = |at: usize| Some(copied_window_bytes(self.ty, self.shape.attention(at)?, self.kept[at]));
        in_ram.filter_map(of).sum()
    }
}
