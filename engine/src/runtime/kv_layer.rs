//! Keys and values of one layer in RAM.

use crate::{
    cpu::ops::{KvRows, KvType},
    error::Result,
};

/// Keys and values of one layer in RAM: one set of rows per key/value head.
#[derive(Debug, Clone)]
pub struct KvLayer {
    /// Keys, rotated.
    pub keys: Vec<KvRows>,
    /// Values.
    pub values: Vec<KvRows>,
}

impl KvLayer {
    /// No rows yet, with room for `capacity`, per head `head_dim` wide.
    pub(crate) fn new(ty: KvType, (heads, head_dim): (usize, usize), capacity: usize) -> Result<Self> {
        let rows = || (0..heads).map(|_| KvRows::new(ty, head_dim, capacity)).collect::<Result<_>>();
        Ok(KvLayer { keys: rows()?, values: rows()? })
    }

    /// Keys and values of every head.
    pub(crate) fn rows_mut(&mut self) -> impl Iterator<Item = &mut KvRows> {
        self.keys.iter_mut().chain(&mut self.values)
    }

    /// Bytes reserved.
    pub(crate) fn bytes(&self) -> u64 {
        self.keys.iter().chain(&self.values).map(KvRows::bytes).sum()
    }
}
