//! Keys and values of the tokens seen so far.

use super::{LayerConfig, ModelConfig, Position, Rotary, gpu::GpuKv};
use crate::{
    cpu::{
        Isa,
        ops::{KvRows, KvType, RopeRows},
    },
    error::{Error, Result},
};

/// Cache of one layer: one set of rows per key/value head.
#[derive(Debug, Clone)]
pub struct KvLayer {
    /// Keys, rotated.
    pub keys: Vec<KvRows>,
    /// Values.
    pub values: Vec<KvRows>,
}

/// Where the rows are.
#[derive(Debug)]
enum Home {
    /// One per layer.
    Host(Vec<KvLayer>),
    /// In a device's memory.
    Device(GpuKv),
}

/// The cache of one conversation. Memory for the whole context is reserved when it is made; the system provides it as
/// tokens arrive, and nothing is allocated per token.
#[derive(Debug)]
pub struct KvCache {
    ty: KvType,
    capacity: usize,
    len: usize,
    bytes: u64,
    kv_dim: usize,
    head_dim: usize,
    n_layer: usize,
    home: Home,
    rotary: Option<Rotary>,
    /// What the rotations follow from.
    positions: Box<(Position, Vec<LayerConfig>)>,
}

impl KvCache {
    /// A cache for `capacity` tokens in RAM, where the CPU works on it.
    ///
    /// # Errors
    /// [`Error::Memory`] if that much cannot be had, [`Error::Invalid`] for a capacity of 0.
    pub fn new(config: &ModelConfig, capacity: usize, ty: KvType) -> Result<Self> {
        at_least_one(capacity)?;
        let rows_wanted = (2 * config.n_layer() as u64 * config.n_kv_head as u64).saturating_mul(capacity as u64);
        let wanted = rows_wanted.saturating_mul(ty.row_bytes(config.head_dim) as u64);
        let mut bytes = 0;
        let mut rows = || {
            let rows = KvRows::new(ty, config.head_dim, capacity);
            let rows = rows.map_err(|_| Error::Memory { what: "KV cache", wanted, available: bytes })?;
            bytes += rows.bytes();
            Ok(rows)
        };
        let layers = (0..config.n_layer())
            .map(|_| {
                let keys = (0..config.n_kv_head).map(|_| rows()).collect::<Result<_>>()?;
                let values = (0..config.n_kv_head).map(|_| rows()).collect::<Result<_>>()?;
                Ok(KvLayer { keys, values })
            })
            .collect::<Result<_>>()?;
        Ok(Self::at(Home::Host(layers), config, capacity, ty, bytes))
    }

    /// A cache for `capacity` tokens that `device` makes.
    pub(super) fn on_device(
        config: &ModelConfig,
        capacity: usize,
        device: impl FnOnce() -> Result<GpuKv>,
    ) -> Result<Self> {
        at_least_one(capacity)?;
        let device = device()?;
        let (ty, bytes) = (device.ty, device.bytes);
        Ok(Self::at(Home::Device(device), config, capacity, ty, bytes))
    }

    fn at(home: Home, config: &ModelConfig, capacity: usize, ty: KvType, bytes: u64) -> Self {
        KvCache {
            ty,
            capacity,
            len: 0,
            bytes,
            kv_dim: config.kv_dim(),
            head_dim: config.head_dim,
            n_layer: config.n_layer(),
            home,
            rotary: Rotary::new(config, capacity),
            positions: Box::new((config.position.clone(), config.layers.clone())),
        }
    }

    /// Encoding.
    pub fn ty(&self) -> KvType {
        self.ty
    }

    /// Tokens in the cache.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no token has been seen.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tokens it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes reserved, to the byte.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Forgets all but the first `n` tokens.
    pub fn truncate(&mut self, n: usize) {
        self.len = self.len.min(n);
        let Home::Host(layers) = &mut self.home else { return };
        for rows in layers.iter_mut().flat_map(|layer| layer.keys.iter_mut().chain(&mut layer.values)) {
            rows.truncate(self.len);
        }
    }

    /// Forgets `discard` tokens after the first `keep` and moves the later ones down, turning their keys to their new
    /// positions. What later tokens saw of the forgotten ones stays in them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if positions are learned: those are in the embedding and cannot be turned; or if the cache is on
    /// a device. The caller has to compute the tokens again. [`Error::Invalid`] if there are not that many tokens.
    pub fn shift(&mut self, keep: usize, discard: usize) -> Result<()> {
        let unsupported = |got: &str, supported: &str| Error::Unsupported {
            what: "context shift",
            got: got.to_owned(),
            supported: supported.to_owned(),
        };
        let Some(rotary) = &self.rotary else {
            return Err(unsupported("learned positions", "rotary positions"));
        };
        let Home::Host(layers) = &mut self.home else {
            return Err(unsupported("a cache on a device", "a cache in RAM"));
        };
        if keep.checked_add(discard).is_none_or(|end| end > self.len) {
            let got = format!("{keep} kept and {discard} discarded");
            return Err(Error::invalid("context shift", format!("at most {} tokens", self.len), got));
        }
        if discard == 0 {
            return Ok(());
        }
        let isa = Isa::choose(None)?;
        let turns: Vec<RopeRows> = rotary.tables().iter().map(|table| RopeRows::shift(table, discard)).collect();
        let mut key = vec![0.0; self.head_dim];
        for (index, layer) in layers.iter_mut().enumerate() {
            let turn = &turns[rotary.table_of(index)];
            for rows in layer.keys.iter_mut().chain(&mut layer.values) {
                rows.truncate(self.len);
                rows.remove(keep, discard);
            }
            for rows in &mut layer.keys {
                for i in keep..rows.len() {
                    rows.get(i, &mut key);
                    turn.rotate(isa, 0, &mut key);
                    rows.set(i, &key);
                }
            }
        }
        self.len -= discard;
        Ok(())
    }

    /// The rotations its keys have, if positions are rotary.
    pub fn rotary(&self) -> Option<&Rotary> {
        self.rotary.as_ref()
    }

    /// Layer `layer`, to append to and to read, if it is in RAM. Rows past [`KvCache::len`] belong to a chunk not yet
    /// complete.
    pub fn layer_mut(&mut self, layer: usize) -> Option<&mut KvLayer> {
        match &mut self.home {
            Home::Host(layers) => layers.get_mut(layer),
            Home::Device(_) => None,
        }
    }

    /// Whether it is in RAM.
    pub fn on_host(&self) -> bool {
        matches!(self.home, Home::Host(_))
    }

    /// What the device holds, if it is on one.
    pub(super) fn device(&self) -> Option<&GpuKv> {
        match &self.home {
            Home::Host(_) => None,
            Home::Device(device) => Some(device),
        }
    }

    /// Declares `tokens` more rows of every layer complete.
    pub(super) fn advance(&mut self, tokens: usize) {
        self.len += tokens;
    }

    /// Whether the cache was made for a model of this shape.
    pub(super) fn fits(&self, config: &ModelConfig) -> bool {
        self.n_layer == config.n_layer()
            && self.head_dim == config.head_dim
            && self.kv_dim == config.kv_dim()
            && self.positions.0 == config.position
            && self.positions.1 == config.layers
    }
}

fn at_least_one(capacity: usize) -> Result<()> {
    if capacity == 0 {
        return Err(Error::invalid("context length", "at least 1", capacity));
    }
    Ok(())
}
