//! The KV cache: keys and values of the tokens seen so far, and recurrent states beside them.

use super::{
    KvLayer, RecurrentState, Rotary,
    off_host::{OffHostRows, OffHostState},
    recurrent_state::RecurrentStates,
};
use crate::{
    cpu::{
        Isa,
        ops::{KvType, RopeRows},
    },
    error::{Error, Result},
    gpu::Recorder,
    model::{AttentionConfig, LayerConfig, ModelConfig, Position, Rope},
};

/// Keys and values of one layer, in the memory of the processor that computes the layer; none of either kind for a layer without
/// any.
#[derive(Debug, Default)]
pub(crate) struct LayerRows {
    /// In RAM, where the CPU appends to them.
    pub ram: Option<KvLayer>,
    /// In another processor's memory: there alone, or a copy of those in RAM for the layers there that read them.
    pub off_host: Option<Box<dyn OffHostRows>>,
}

/// The KV cache of one conversation, with the recurrent states of models that have them. Every layer's keys and values are in the
/// memory of the processor that computes the layer, and move with it. Memory for the whole context is reserved when it is made;
/// the system provides it as tokens arrive, and nothing is allocated per token.
#[derive(Debug)]
pub struct KvCache {
    ty: KvType,
    capacity: usize,
    len: usize,
    layers: Vec<LayerRows>,
    /// Recurrent states, beside keys and values.
    states: Option<RecurrentStates>,
    rotary: Option<Rotary>,
    shape: Box<CacheShape>,
}

/// The parts of a model's configuration that its caches depend on.
#[derive(Debug, PartialEq)]
struct CacheShape {
    position: Position,
    ropes: Vec<Rope>,
    layers: Vec<LayerConfig>,
}

impl CacheShape {
    fn new(config: &ModelConfig) -> Self {
        CacheShape { position: config.position, ropes: config.ropes.clone(), layers: config.layers.clone() }
    }

    /// Attention of a layer; `None` without keys and values of its own.
    fn attention(&self, layer: usize) -> Option<&AttentionConfig> {
        self.layers.get(layer)?.attention.as_ref().filter(|of| of.kv_from.is_none())
    }
}

impl KvCache {
    /// A cache for `capacity` tokens in RAM, where the CPU works on it.
    ///
    /// # Errors
    /// [`Error::Memory`] if that much cannot be had, [`Error::Invalid`] for a capacity of 0.
    pub fn new(config: &ModelConfig, capacity: usize, ty: KvType) -> Result<Self> {
        Self::split(config, capacity, ty, |_| Ok(None))
    }

    /// Bytes of the keys and values of one token.
    pub fn token_bytes(config: &ModelConfig, ty: KvType) -> u64 {
        let shape = CacheShape::new(config);
        let row = |of: &AttentionConfig| of.cached_rows() as u64 * ty.row_bytes(of.head_dim) as u64;
        (0..config.n_layer()).filter_map(|layer| shape.attention(layer)).map(row).sum()
    }

    /// A cache for `capacity` tokens: the keys and values that `off_host` makes of a layer are there, the others in RAM.
    ///
    /// # Errors
    /// As [`KvCache::new`], and those of `off_host`.
    pub(crate) fn split(
        config: &ModelConfig,
        capacity: usize,
        ty: KvType,
        mut off_host: impl FnMut(usize) -> Result<Option<Box<dyn OffHostRows>>>,
    ) -> Result<Self> {
        if capacity == 0 {
            return Err(Error::invalid("context length", "at least 1", capacity));
        }
        let shape = CacheShape::new(config);
        let wanted = Self::token_bytes(config, ty).saturating_mul(capacity as u64);
        let (mut layers, mut available) = (Vec::with_capacity(config.n_layer()), 0);
        for layer in 0..config.n_layer() {
            let mut rows = LayerRows::default();
            if let Some(of) = shape.attention(layer) {
                rows.off_host = off_host(layer)?;
                if rows.off_host.is_none() {
                    let ram = KvLayer::new(ty, of, capacity);
                    let ram = ram.map_err(|_| Error::Memory { what: "KV cache", wanted, available })?;
                    available += ram.bytes();
                    rows.ram = Some(ram);
                }
            }
            layers.push(rows);
        }
        let (states, rotary) = (RecurrentStates::new(config)?, Rotary::new(config, capacity));
        Ok(KvCache { ty, capacity, len: 0, layers, states, rotary, shape: Box::new(shape) })
    }

    /// Encoding of the rows in RAM. A device has none of eight bits: its rows are [`KvType::F16`] instead.
    pub fn ty(&self) -> KvType {
        self.ty
    }

    /// Tokens in the cache.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if no token has been seen.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tokens it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes reserved, to the byte, snapshots of recurrent states included.
    pub fn bytes(&self) -> u64 {
        let bytes = |layer: &LayerRows| {
            layer.ram.as_ref().map_or(0, KvLayer::bytes) + layer.off_host.as_ref().map_or(0, |rows| rows.bytes())
        };
        self.layers.iter().map(bytes).sum::<u64>() + self.states.as_ref().map_or(0, RecurrentStates::bytes)
    }

    /// Forgets all but the first `n` tokens. Recurrent states can only be taken back to a snapshot: then fewer are left, and
    /// [`KvCache::len`] says how many.
    pub fn truncate(&mut self, n: usize) {
        let (n, now) = (self.len.min(n), self.len);
        self.len = self.states.as_mut().map_or(n, |states| states.rewind(n, now));
        for layer in self.layers.iter_mut().filter_map(|layer| layer.ram.as_mut()) {
            layer.rows_mut().for_each(|rows| rows.truncate(self.len));
        }
    }

    /// True if it has recurrent states.
    pub fn is_recurrent(&self) -> bool {
        self.states.is_some()
    }

    /// Keeps a copy of the recurrent states, to which [`KvCache::truncate`] can go back: for the border of a message.
    pub fn take_snapshot(&mut self) {
        if let Some(states) = &mut self.states {
            states.take_snapshot(self.len);
        }
    }

    /// The recurrent state of `layer` behind the tokens seen so far, if it has one and it is in RAM.
    pub fn state(&self, layer: usize) -> Option<&RecurrentState> {
        self.states.as_ref()?.layer(layer)
    }

    /// The recurrent state of `layer`, to be advanced by the chunk that is computed.
    pub(crate) fn advance_state(&mut self, layer: usize) -> Option<&mut RecurrentState> {
        self.states.as_mut()?.advance_layer(layer)
    }

    /// The same in another processor's memory.
    pub(crate) fn advance_state_off_host(&mut self, layer: usize) -> Option<&dyn OffHostState> {
        self.states.as_mut()?.advance_layer_off_host(layer)
    }

    /// The recurrent state of `layer`, if it is in another processor's memory.
    pub(crate) fn state_off_host(&self, layer: usize) -> Option<&dyn OffHostState> {
        self.states.as_ref()?.layer_off_host(layer)
    }

    /// True if `layer` has a recurrent state.
    pub(crate) fn has_state(&self, layer: usize) -> bool {
        self.states.as_ref().is_some_and(|states| states.has_layer(layer))
    }

    /// Moves the recurrent state of `layer` from RAM into `to`. One that is in another processor's memory already stays where it
    /// is.
    ///
    /// # Errors
    /// Those of [`OffHostState::restore`]; the state is then still in RAM.
    pub(crate) fn move_state_off_host(&mut self, layer: usize, to: Box<dyn OffHostState>) -> Result<()> {
        self.states.as_mut().map_or(Ok(()), |states| states.move_off_host(layer, to))
    }

    /// Moves the recurrent state of `layer` into RAM and frees its place elsewhere.
    ///
    /// # Errors
    /// Those of [`OffHostState::save`]; the state is then still there.
    pub(crate) fn move_state_to_ram(&mut self, layer: usize) -> Result<()> {
        self.states.as_mut().map_or(Ok(()), |states| states.move_to_ram(layer))
    }

    /// Takes recurrent states back that have seen a part of a chunk.
    pub(crate) fn drop_unfinished(&mut self) {
        if self.states.as_ref().is_some_and(RecurrentStates::is_unfinished) {
            self.truncate(self.len);
        }
    }

    /// Forgets `discard` tokens after the first `keep` and moves the later ones down, rotating their keys to their new positions by
    /// `isa`. Their values still depend on the forgotten tokens.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if positions are learned: those are in the embedding and cannot be rotated; with recurrent states, which
    /// cannot forget tokens; or if the cache is on a device. The caller has to compute the tokens again. [`Error::Invalid`] if there are not that many tokens.
    pub fn shift(&mut self, isa: Isa, keep: usize, discard: usize) -> Result<()> {
        let unsupported = |got: &str, supported: &str| Error::Unsupported {
            what: "context shift",
            got: got.to_owned(),
            supported: supported.to_owned(),
        };
        let Some(rotary) = &self.rotary else {
            return Err(unsupported("learned positions", "rotary positions"));
        };
        if self.states.is_some() {
            return Err(unsupported("recurrent states", "attention in every layer"));
        }
        if !self.on_host() {
            return Err(unsupported("a cache on a device", "a cache in RAM"));
        }
        if keep.checked_add(discard).is_none_or(|end| end > self.len) {
            let got = format!("{keep} kept and {discard} discarded");
            return Err(Error::invalid("context shift", format!("at most {} tokens", self.len), got));
        }
        if discard == 0 {
            return Ok(());
        }
        let rotations: Vec<RopeRows> = rotary.tables().iter().map(|table| RopeRows::shift(table, discard)).collect();
        let mut key = Vec::new();
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let Some(layer) = &mut layer.ram else { continue };
            for rows in layer.rows_mut() {
                rows.truncate(self.len);
                rows.remove(keep, discard);
            }
            let Some((rotation, of)) =
                rotary.table_of(index).and_then(|table| rotations.get(table)).zip(self.shape.attention(index))
            else {
                continue;
            };
            key.resize(of.head_dim, 0.0);
            for rows in &mut layer.keys {
                for i in keep..rows.len() {
                    rows.get(i, &mut key);
                    rotation.rotate(isa, 0, &mut key);
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
        self.layers.get_mut(layer)?.ram.as_mut()
    }

    /// True if all of it is in RAM.
    pub fn on_host(&self) -> bool {
        let on_host = |rows: &LayerRows| rows.off_host.is_none();
        !self.states.as_ref().is_some_and(RecurrentStates::off_host) && self.layers.iter().all(on_host)
    }

    /// The keys and values of `layer`, wherever they are.
    pub(crate) fn rows(&self, layer: usize) -> Option<&LayerRows> {
        self.layers.get(layer)
    }

    /// The keys and values of `layer`, if they are in another processor's memory alone.
    pub(crate) fn rows_off_host(&self, layer: usize) -> Option<&dyn OffHostRows> {
        self.rows(layer).filter(|rows| rows.ram.is_none())?.off_host.as_deref()
    }

    /// The keys and values of `layer`, to be moved.
    pub(crate) fn rows_mut(&mut self, layer: usize) -> Option<&mut LayerRows> {
        self.layers.get_mut(layer)
    }

    /// Room in RAM for the keys and values of `layer`; `None` for a layer without any of its own.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room.
    pub(crate) fn room_in_ram(&self, layer: usize) -> Result<Option<KvLayer>> {
        self.shape.attention(layer).map(|shape| KvLayer::new(self.ty, shape, self.capacity)).transpose()
    }

    /// Drops what is in another processor's memory only because layers there read it: copies of keys and values that are in RAM,
    /// and the use of other layers'.
    pub(crate) fn drop_copies(&mut self) {
        for (at, layer) in self.layers.iter_mut().enumerate() {
            if layer.ram.is_some() || self.shape.attention(at).is_none() {
                layer.off_host = None;
            }
        }
    }

    /// Copies keys, values and states of `from` until it holds `tokens` of the tokens that `from` holds; those it holds already
    /// are the same. `recorder` records copies in another processor's memory. Returns the number it holds then: less with
    /// recurrent states, and none is copied from a cache of another type or place.
    ///
    /// # Errors
    /// As [`RecurrentStates::copy_from`] and [`OffHostRows::copy_rows`]; nothing has changed then, unless what is recorded is
    /// submitted.
    pub(crate) fn copy_prefix(
        &mut self,
        from: &Self,
        tokens: usize,
        mut recorder: Option<&mut Recorder>,
    ) -> Result<usize> {
        let mut tokens = tokens.min(from.len).min(self.capacity);
        if let Some(states) = &from.states {
            tokens = states.latest(tokens, from.len);
        }
        let alike = |(to, from): (&LayerRows, &LayerRows)| {
            let places = |rows: &LayerRows| (rows.ram.is_some(), rows.off_host.is_some());
            places(to) == places(from) && (to.off_host.is_none() || recorder.is_some())
        };
        let same = self.ty == from.ty && self.shape == from.shape && self.states.is_some() == from.states.is_some();
        if tokens <= self.len || !same || !self.layers.iter().zip(&from.layers).all(alike) {
            return Ok(self.len);
        }
        let held = self.len;
        for (to, from) in self.layers.iter().zip(&from.layers) {
            if let (Some(to), Some(from), Some(recorder)) = (&to.off_host, &from.off_host, recorder.as_deref_mut()) {
                to.copy_rows(&**from, held..tokens, recorder)?;
            }
        }
        if let (Some(to), Some(states)) = (&mut self.states, &from.states) {
            to.copy_from(states, tokens, from.len)?;
        }
        for (to, from) in self.layers.iter_mut().zip(&from.layers) {
            if let (Some(to), Some(from)) = (&mut to.ram, &from.ram) {
                to.rows_mut().for_each(|rows| rows.truncate(held));
                to.extend_to(from, tokens);
            }
        }
        self.len = tokens;
        Ok(tokens)
    }

    /// Declares `tokens` more rows of every layer complete.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.len += tokens;
        if let Some(states) = &mut self.states {
            states.finish(self.len);
        }
    }

    /// True if the cache was made for a model of this shape.
    pub(crate) fn fits(&self, config: &ModelConfig) -> bool {
        let shape = &self.shape;
        shape.position == config.position && shape.ropes == config.ropes && shape.layers == config.layers
    }
}
