//! Keys and values of one layer in RAM.

use thermocline_base::error::Result;
use thermocline_cpu::ops::{KvRows, KvType};
use thermocline_model::AttentionConfig;

/// Keys and values of one layer in RAM: one set of rows per key/value head.
#[derive(Debug, Clone)]
pub struct KvLayer {
    /// Keys, rotated.
    pub keys: Vec<KvRows>,
    /// Values; empty if keys are also values.
    pub values: Vec<KvRows>,
}

/// Rows of the windows before some token, by layer. `None` for layers that keep all positions or
/// are in another processor's memory.
pub(super) type WindowRows = Vec<Option<KvLayer>>;

impl KvLayer {
    /// Makes a layer without rows, with room for `room` rows of every head of `shape`.
    pub(crate) fn new(ty: KvType, shape: &AttentionConfig, room: usize) -> Result<Self> {
        let rows = |(heads, len)| (0..heads).map(|_| KvRows::new(ty, len, room)).collect::<Result<_>>();
        let [keys, values] = shape.cached_heads().map(rows);
        Ok(KvLayer { keys: keys?, values: values? })
    }

    /// Bytes that [`KvLayer::new`] reserves.
    pub(crate) fn bytes_of(ty: KvType, shape: &AttentionConfig, room: usize) -> u64 {
        let rows = |(heads, len)| (heads as u64).saturating_mul(KvRows::bytes_of(ty, len, room));
        let [keys, values] = shape.cached_heads().map(rows);
        keys.saturating_add(values)
    }

    /// Keys and values of every head.
    pub(crate) fn rows_mut(&mut self) -> impl Iterator<Item = &mut KvRows> {
        self.keys.iter_mut().chain(&mut self.values)
    }

    /// Makes row `n` of every head the next one. Later rows are dropped, and missing earlier rows
    /// become zeros.
    pub(crate) fn begin_at(&mut self, n: usize) {
        self.rows_mut().for_each(|rows| rows.begin_at(n));
    }

    /// Appends rows of `from` to every head, up to `n` rows in total.
    pub(crate) fn extend_to(&mut self, from: &Self, n: usize) {
        for (to, from) in self.keys.iter_mut().zip(&from.keys).chain(self.values.iter_mut().zip(&from.values)) {
            to.extend_to(from, n);
        }
    }

    /// Number of rows of every head.
    pub(crate) fn len(&self) -> usize {
        self.keys.first().map_or(0, KvRows::len)
    }

    /// Number of bytes reserved.
    pub(crate) fn bytes(&self) -> u64 {
        self.keys.iter().chain(&self.values).map(KvRows::bytes).sum()
    }
}
