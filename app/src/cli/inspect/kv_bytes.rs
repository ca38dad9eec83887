//! Bytes of a model's KV cache: what a token takes, and the whole training context.

use std::fmt;

use thermocline_engine::{
    model::ModelConfig,
    runtime::{KvCache, KvType},
};

use super::super::units;

/// Bytes of a KV cache in RAM.
pub struct KvBytes {
    /// Of a token, while it is in every layer's window.
    pub token: u64,
    /// Of a token more once the windows of the layers that have one are full.
    pub behind_windows: u64,
    /// Of the whole training context.
    pub whole: u64,
}

impl KvBytes {
    /// Of the caches of a model.
    pub fn of(config: &ModelConfig, ty: KvType) -> Self {
        let of = |tokens| KvCache::bytes_for(config, tokens, ty);
        let whole = of(config.context_length);
        let more = of(config.context_length.saturating_add(1)).saturating_sub(whole);
        KvBytes { token: of(1), behind_windows: more, whole }
    }
}

impl fmt::Display for KvBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} per token", units::bytes(self.token))?;
        if self.behind_windows != self.token {
            write!(f, ", {} once the windows are full", units::bytes(self.behind_windows))?;
        }
        write!(f, ", {} in all", units::bytes(self.whole))
    }
}
