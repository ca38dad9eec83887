//! Bytes of a model's KV cache: of a token, of the whole training context, and of snapshots.

use std::fmt;

use thermocline_engine::{
    model::ModelConfig,
    runtime::{CacheBytes, KvType},
};

use thermocline_host::units;

/// Bytes of a KV cache in RAM.
pub struct KvBytes {
    /// Bytes of a token while it is in every layer's window.
    pub token: u64,
    /// Bytes that another token adds after the windows of all layers with one are full.
    pub behind_windows: u64,
    /// Bytes of the whole training context.
    pub whole: u64,
    /// The most bytes that copies of windows and recurrent states take in such a context.
    pub snapshots: u64,
}

impl KvBytes {
    /// Computes the bytes of a model's caches.
    pub fn of(config: &ModelConfig, ty: KvType) -> Self {
        let of = |tokens| CacheBytes::of(config, tokens, ty);
        let CacheBytes { rows: whole, snapshots, .. } = of(config.context_length);
        let more = of(config.context_length.saturating_add(1)).rows.saturating_sub(whole);
        KvBytes { token: of(1).rows, behind_windows: more, whole, snapshots }
    }
}

impl fmt::Display for KvBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} per token", units::bytes(self.token))?;
        if self.behind_windows != self.token {
            write!(f, ", {} once the windows are full", units::bytes(self.behind_windows))?;
        }
        write!(f, ", {} in all", units::bytes(self.whole))?;
        match self.snapshots {
            0 => Ok(()),
            most => write!(f, " and up to {} of snapshots", units::bytes(most)),
        }
    }
}
