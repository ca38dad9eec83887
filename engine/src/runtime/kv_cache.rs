//! The KV cache: keys and values of the tokens seen so far, and recurrent states beside them.

use super::{KvLayer, RecurrentState, Rotary, recurrent_state::RecurrentStates};
use crate::{
    cpu::{
        Isa,
        ops::{KvType, RopeRows},
    },
    device::{GpuKv, GpuState, Segment},
    error::{Error, Result},
    gpu::Recorder,
    model::{AttentionConfig, LayerConfig, ModelConfig, Position, Rope},
};

/// Keys and values of one layer, in the memory of the processor that computes the layer.
#[derive(Debug)]
enum LayerRows {
    /// The layer has no keys and values of its own.
    None,
    Ram(KvLayer),
    Device(GpuKv),
    /// In RAM, where they are appended to, and a copy on a device for the layers there that read them.
    Both(KvLayer, GpuKv),
}

/// The KV cache of one conversation, with the recurrent states of models that have them. Every layer's keys and values are in the memory of the processor that computes the layer, and
/// move with it. Memory for the whole context is reserved when it is made; the system provides it as tokens arrive, and nothing is
/// allocated per token.
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
        let shape =
            CacheShape { position: config.position, ropes: config.ropes.clone(), layers: config.layers.clone() };
        let row = |of: &AttentionConfig| of.cached_rows() as u64 * ty.row_bytes(of.head_dim) as u64;
        (0..config.n_layer()).filter_map(|layer| shape.attention(layer)).map(row).sum()
    }

    /// A cache for `capacity` tokens: the layers that `device` makes are on a device, the others in RAM.
    ///
    /// # Errors
    /// As [`KvCache::new`], and those of `device`.
    pub(crate) fn split(
        config: &ModelConfig,
        capacity: usize,
        ty: KvType,
        mut device: impl FnMut(usize) -> Result<Option<GpuKv>>,
    ) -> Result<Self> {
        if capacity == 0 {
            return Err(Error::invalid("context length", "at least 1", capacity));
        }
        let shape =
            CacheShape { position: config.position, ropes: config.ropes.clone(), layers: config.layers.clone() };
        let wanted = Self::token_bytes(config, ty).saturating_mul(capacity as u64);
        let (mut layers, mut available) = (Vec::with_capacity(config.n_layer()), 0);
        for layer in 0..config.n_layer() {
            let Some(of) = shape.attention(layer) else {
                layers.push(LayerRows::None);
                continue;
            };
            layers.push(match device(layer)? {
                Some(device) => LayerRows::Device(device),
                None => {
                    let rows = KvLayer::new(ty, of, capacity);
                    let rows = rows.map_err(|_| Error::Memory { what: "KV cache", wanted, available })?;
                    available += rows.bytes();
                    LayerRows::Ram(rows)
                }
            });
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
        let bytes = |layer: &LayerRows| match layer {
            LayerRows::None => 0,
            LayerRows::Ram(rows) => rows.bytes(),
            LayerRows::Device(rows) => rows.bytes(),
            LayerRows::Both(rows, copy) => rows.bytes() + copy.bytes(),
        };
        self.layers.iter().map(bytes).sum::<u64>() + self.states.as_ref().map_or(0, RecurrentStates::bytes)
    }

    /// Forgets all but the first `n` tokens. Recurrent states can only be taken back to a snapshot: then fewer are left, and
    /// [`KvCache::len`] says how many.
    pub fn truncate(&mut self, n: usize) {
        let (n, now) = (self.len.min(n), self.len);
        self.len = self.states.as_mut().map_or(n, |states| states.rewind(n, now));
        for layer in &mut self.layers {
            if let LayerRows::Ram(layer) | LayerRows::Both(layer, _) = layer {
                layer.rows_mut().for_each(|rows| rows.truncate(self.len));
            }
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

    /// The same on a device.
    pub(crate) fn advance_device_state(&mut self, layer: usize) -> Option<&GpuState> {
        self.states.as_mut()?.advance_device_layer(layer)
    }

    /// The recurrent state of `layer`, if it is on a device.
    pub(crate) fn device_state(&self, layer: usize) -> Option<&GpuState> {
        self.states.as_ref()?.device_layer(layer)
    }

    /// True if `layer` has a recurrent state.
    pub(crate) fn has_state(&self, layer: usize) -> bool {
        self.states.as_ref().is_some_and(|states| states.has_layer(layer))
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
            let LayerRows::Ram(layer) = layer else { continue };
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
        match self.layers.get_mut(layer) {
            Some(LayerRows::Ram(rows) | LayerRows::Both(rows, _)) => Some(rows),
            _ => None,
        }
    }

    /// True if all of it is in RAM.
    pub fn on_host(&self) -> bool {
        let on_device = |rows: &LayerRows| matches!(rows, LayerRows::Device(_) | LayerRows::Both(..));
        !self.states.as_ref().is_some_and(RecurrentStates::on_device) && !self.layers.iter().any(on_device)
    }

    /// Takes away what layers on a device share: copies of keys and values that are in RAM, and the use of others'.
    pub(crate) fn unbind_kv(&mut self) {
        for (layer, shape) in self.layers.iter_mut().zip(&self.shape.layers) {
            let reads_others = shape.attention.as_ref().is_some_and(|attention| attention.kv_from.is_some());
            *layer = match std::mem::replace(layer, LayerRows::None) {
                LayerRows::Both(rows, _) => LayerRows::Ram(rows),
                LayerRows::Device(_) if reads_others => LayerRows::None,
                other => other,
            };
        }
    }

    /// The keys and values of `layer` on a device, be it only as a copy.
    pub(crate) fn on_device(&self, layer: usize) -> Option<&GpuKv> {
        match self.layers.get(layer) {
            Some(LayerRows::Device(rows) | LayerRows::Both(_, rows)) => Some(rows),
            _ => None,
        }
    }

    /// Makes `to` the copy of `layer`'s keys and values, which are in RAM.
    pub(crate) fn copy_to_device(&mut self, layer: usize, to: GpuKv, segment: &mut Segment) -> Result<()> {
        let Some(place) = self.layers.get_mut(layer) else { return Ok(()) };
        *place = match std::mem::replace(place, LayerRows::None) {
            LayerRows::Ram(rows) => {
                let filled = to.fill(&rows, 0..self.len, segment);
                if filled.is_err() {
                    *place = LayerRows::Ram(rows);
                    return filled;
                }
                LayerRows::Both(rows, to)
            }
            other => other,
        };
        Ok(())
    }

    /// Brings `tokens` rows behind the last ones to the copy of `layer`, if there is one.
    pub(crate) fn update_copy(&self, layer: usize, tokens: usize, segment: &mut Segment) -> Result<()> {
        match self.layers.get(layer) {
            Some(LayerRows::Both(rows, copy)) => copy.fill(rows, self.len..self.len + tokens, segment),
            _ => Ok(()),
        }
    }

    /// Lets `layer`, which has no keys and values of its own, use others' on a device.
    pub(crate) fn bind_on_device(&mut self, layer: usize, rows: GpuKv) {
        if let Some(place @ LayerRows::None) = self.layers.get_mut(layer) {
            *place = LayerRows::Device(rows);
        }
    }

    /// Layer `layer`, if it is on a device.
    pub(crate) fn device_layer(&self, layer: usize) -> Option<&GpuKv> {
        match self.layers.get(layer) {
            Some(LayerRows::Device(rows)) => Some(rows),
            _ => None,
        }
    }

    /// Moves layer `layer` from RAM to the device, into `to`, which has the same shape. A layer that is on a device already
    /// stays where it is.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost; the layer is then still in RAM.
    pub(crate) fn move_to_device(&mut self, layer: usize, to: GpuKv, segment: &mut Segment) -> Result<()> {
        let len = self.len;
        if let Some(place @ LayerRows::Ram(_)) = self.layers.get_mut(layer) {
            if let LayerRows::Ram(rows) = place {
                to.fill(rows, 0..len, segment)?;
            }
            *place = LayerRows::Device(to);
        }
        Ok(())
    }

    /// Moves the recurrent state of `layer` from RAM to the device, into `to`. One that is on a device already stays where it is.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost; the state is then still in RAM.
    pub(crate) fn move_state_to_device(&mut self, layer: usize, to: GpuState) -> Result<()> {
        self.states.as_mut().map_or(Ok(()), |states| states.move_to_device(layer, to))
    }

    /// Moves layer `layer`, keys and values or recurrent state, from the device into RAM and frees its place there.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room in RAM, [`Error::Gpu`] if the device is lost; the layer is then still there.
    pub(crate) fn move_to_ram(&mut self, layer: usize, segment: &mut Segment) -> Result<()> {
        let (ty, capacity, len) = (self.ty, self.capacity, self.len);
        if let Some(states) = &mut self.states {
            states.move_to_ram(layer)?;
        }
        let Some(shape) = self.shape.attention(layer) else { return Ok(()) };
        if let Some(place @ LayerRows::Device(_)) = self.layers.get_mut(layer) {
            let mut rows = KvLayer::new(ty, shape, capacity)?;
            if let LayerRows::Device(from) = place {
                from.drain(&mut rows, len, segment)?;
            }
            *place = LayerRows::Ram(rows);
        }
        Ok(())
    }

    /// Copies keys, values and states of `from` until it holds `tokens` of the tokens that `from` holds; those it holds already are the
    /// same. `device` records the copies on a device. Returns the number it holds then: less with recurrent states, and none is copied
    /// from a cache of another type or place.
    ///
    /// # Errors
    /// As [`RecurrentStates::copy_from`]; nothing has changed then.
    pub(crate) fn copy_prefix(&mut self, from: &Self, tokens: usize, device: Option<&mut Recorder>) -> Result<usize> {
        let mut tokens = tokens.min(from.len).min(self.capacity);
        if let Some(states) = &from.states {
            tokens = states.latest(tokens, from.len);
        }
        let alike = |(to, from): (&LayerRows, &LayerRows)| match (to, from) {
            (LayerRows::None, LayerRows::None) | (LayerRows::Ram(_), LayerRows::Ram(_)) => true,
            (LayerRows::Device(_), LayerRows::Device(_)) | (LayerRows::Both(..), LayerRows::Both(..)) => {
                device.is_some()
            }
            _ => false,
        };
        let same = self.ty == from.ty && self.shape == from.shape && self.states.is_some() == from.states.is_some();
        if tokens <= self.len || !same || !self.layers.iter().zip(&from.layers).all(alike) {
            return Ok(self.len);
        }
        if let (Some(to), Some(states)) = (&mut self.states, &from.states) {
            to.copy_from(states, tokens, from.len)?;
        }
        let (held, mut device) = (self.len, device);
        for (to, from) in self.layers.iter_mut().zip(&from.layers) {
            if let (LayerRows::Ram(to) | LayerRows::Both(to, _), LayerRows::Ram(from) | LayerRows::Both(from, _)) =
                (&mut *to, from)
            {
                to.rows_mut().for_each(|rows| rows.truncate(held));
                to.extend_to(from, tokens);
            }
            if let (
                LayerRows::Device(to) | LayerRows::Both(_, to),
                LayerRows::Device(from) | LayerRows::Both(_, from),
                Some(recorder),
            ) = (&mut *to, from, device.as_deref_mut())
            {
                to.copy_rows(from, held..tokens, recorder);
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
