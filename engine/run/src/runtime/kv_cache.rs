//! The KV cache: keys and values of the tokens seen so far, together with recurrent states.

mod bytes;
mod context_shift;
mod prefix;
mod windows;

pub use bytes::CacheBytes;
use std::ops::Range;

use super::{
    KeptRows, KvLayer, LONGEST_PASS, PictureSpan, PictureSpans, RecurrentState, Rotary,
    kept_rows::pass_of_chunks,
    kv_layer::WindowRows,
    off_host::{OffHostRows, OffHostState},
    recurrent_state::RecurrentStates,
    snapshots::Snapshots,
};
use thermocline_base::error::{Error, Result, ScarceMemory};
use thermocline_cpu::ops::{KvType, RopePosition};
use thermocline_model::{AttentionConfig, LayerConfig, ModelConfig, Position, Rope};

/// Keys and values of one layer, in the memory of the processor that computes the layer. All
/// fields are `None` for a layer without keys and values.
#[derive(Debug, Default)]
pub(crate) struct LayerRows {
    /// In RAM, where the CPU appends to them.
    pub ram: Option<KvLayer>,
    /// In another processor's memory: either only there, or a copy of the rows in RAM for layers on
    /// that processor that read them.
    pub off_host: Option<Box<dyn OffHostRows>>,
    /// A copy in RAM of rows that are only in another processor's memory, for an assistant on the
    /// CPU. It may lack the latest rows.
    pub copy: Option<KvLayer>,
}

/// The KV cache of one conversation, with the recurrent states of models that have them. Each
/// layer's keys and values are in the memory of the processor that computes the layer, and move
/// with it. A layer whose tokens see all earlier tokens has memory for the whole context; a layer
/// with a window has a ring ([`LONGEST_PASS`]). The memory is reserved when the cache is made. The
/// system provides it as tokens arrive, and no token allocates memory.
#[derive(Debug)]
pub struct KvCache {
    ty: KvType,
    capacity: usize,
    len: usize,
    /// Most tokens that a pass may append.
    longest_pass: usize,
    layers: Vec<LayerRows>,
    /// The positions that each layer holds.
    kept: Vec<KeptRows>,
    /// Copies of windows, if layers have rings.
    windows: Snapshots<WindowRows>,
    /// True if the latest pass had separate tokens, some of which may be forgotten again.
    separate: bool,
    /// Recurrent states, if the model has any.
    pub(crate) states: Option<RecurrentStates>,
    rotary: Option<Rotary>,
    /// The pictures among the tokens.
    pictures: PictureSpans,
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

    /// Attention of a layer; `None` for a layer without keys and values of its own.
    fn attention(&self, layer: usize) -> Option<&AttentionConfig> {
        self.layers.get(layer)?.attention.as_ref().filter(|of| of.kv_from.is_none())
    }
}

impl KvCache {
    /// Makes a cache for `capacity` tokens in RAM, for the CPU.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is not enough memory, [`Error::Invalid`] for a capacity of 0,
    /// [`Error::Unsupported`] for a capacity above [`ModelConfig::dense_context`].
    pub fn new(config: &ModelConfig, capacity: usize, ty: KvType) -> Result<Self> {
        Self::for_passes(config, capacity, ty, LONGEST_PASS)
    }

    /// Makes a cache for passes of at most `pass` tokens, which decides how many positions layers
    /// with a window hold.
    ///
    /// # Errors
    /// As [`KvCache::new`].
    pub fn for_passes(config: &ModelConfig, capacity: usize, ty: KvType, pass: usize) -> Result<Self> {
        Self::made_of(config, capacity, ty, pass.max(1), |_, _| Ok(None))
    }

    /// Makes a cache for `capacity` tokens, for a processor that computes chunks of `chunk` tokens.
    /// `off_host` makes the keys and values of a layer in another processor's memory, with room for
    /// a number of positions. All others are in RAM.
    ///
    /// # Errors
    /// As [`KvCache::new`], and the errors of `off_host`.
    pub(crate) fn split(
        config: &ModelConfig,
        capacity: usize,
        ty: KvType,
        chunk: usize,
        off_host: impl FnMut(usize, usize) -> Result<Option<Box<dyn OffHostRows>>>,
    ) -> Result<Self> {
        Self::made_of(config, capacity, ty, pass_of_chunks(chunk), off_host)
    }

    fn made_of(
        config: &ModelConfig,
        capacity: usize,
        ty: KvType,
        longest_pass: usize,
        mut off_host: impl FnMut(usize, usize) -> Result<Option<Box<dyn OffHostRows>>>,
    ) -> Result<Self> {
        if capacity == 0 {
            return Err(Error::invalid("context length", "at least 1", capacity));
        }
        if let Some(most) = config.dense_context.filter(|most| capacity > *most) {
            return Err(Error::unsupported(
                "context of a model with sparse attention in long contexts (InfLLM-v2)",
                format!("{capacity} tokens"),
                format!("up to {most} tokens, for which attention is dense"),
            ));
        }
        // The keys of an encoder live for one pass.
        let ty = if config.is_encoder() { KvType::F32 } else { ty };
        let shape = CacheShape::new(config);
        let wanted = CacheBytes::of(config, capacity, ty).rows;
        let kept: Vec<_> = (0..config.n_layer()).map(|at| KeptRows::new(config, at, capacity, longest_pass)).collect();
        let (mut layers, mut available) = (Vec::with_capacity(config.n_layer()), 0);
        for layer in 0..config.n_layer() {
            let mut rows = LayerRows::default();
            if let Some(of) = shape.attention(layer) {
                rows.off_host = off_host(layer, kept[layer].room())?;
                if rows.off_host.is_none() {
                    let ram = KvLayer::new(ty, of, kept[layer].room());
                    let ram = ram.map_err(|_| Error::memory(ScarceMemory::KvCache, "KV cache", wanted, available))?;
                    available += ram.bytes();
                    rows.ram = Some(ram);
                }
            }
            layers.push(rows);
        }
        let (states, rotary) = (RecurrentStates::new(config)?, Rotary::new(config, capacity));
        Ok(KvCache {
            ty,
            capacity,
            len: 0,
            longest_pass,
            layers,
            kept,
            windows: Snapshots::default(),
            separate: false,
            states,
            rotary,
            pictures: PictureSpans::new(config),
            shape: Box::new(shape),
        })
    }

    /// Encoding of the rows in RAM. A device has no eight-bit rows and uses [`KvType::F16`]
    /// instead.
    pub fn ty(&self) -> KvType {
        self.ty
    }

    /// Number of tokens in the cache.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if no token has been seen.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of tokens that the cache can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Most tokens that a pass may append. More tokens would overwrite positions that the first one
    /// sees.
    pub fn longest_pass(&self) -> usize {
        let rings = self.kept.iter().any(|kept| kept.is_ring());
        if rings { self.longest_pass } else { usize::MAX }
    }

    /// Bytes of keys, values and states, in the cache's type, that computing the token after
    /// `tokens` tokens reads.
    pub fn read_bytes(&self, tokens: usize) -> u64 {
        let rows = |of: &AttentionConfig| {
            let seen = tokens.min(of.seen().length) as u64;
            seen * of.cached_bytes(|len| self.ty.row_bytes(len))
        };
        let attention = self.shape.layers.iter().filter_map(|layer| layer.attention.as_ref()).map(rows);
        let states = self.shape.layers.iter().filter_map(LayerConfig::state).map(|state| state.bytes());
        attention.chain(states).sum()
    }

    /// Forgets all but the first `n` tokens. Recurrent states can only go back to a token of the
    /// latest pass of separate tokens ([`KvCache::reserve_separate`]), to the token before a
    /// revocable pass ([`KvCache::begin_revocable`]), or to a snapshot. Layers
    /// with a window need the window before the token, or else go back to a snapshot as well. A
    /// picture whose tokens read all of it is forgotten as a whole. Fewer tokens may then be left;
    /// [`KvCache::len`] is their number.
    pub fn truncate(&mut self, n: usize) {
        let n = self.pictures.whole_tokens(self.len.min(n));
        let mut left = self.states.as_mut().map_or(n, |states| states.rewind(n, self.len));
        if !self.is_whole(left) {
            let whole = self.restore_windows(left);
            left = self.states.as_mut().map_or(whole, |states| states.rewind(whole, left));
            if left < whole {
                left = self.states.as_mut().map_or(0, |states| states.rewind(0, left));
            }
        }
        self.len = left;
        self.windows.truncate(left);
        self.pictures.truncate(left);
        if left == 0 {
            self.kept.iter_mut().for_each(KeptRows::clear);
        }
        for layer in self.layers.iter_mut().flat_map(|layer| layer.ram.iter_mut().chain(&mut layer.copy)) {
            layer.rows_mut().for_each(|rows| rows.truncate(self.len));
        }
    }

    /// True if the cache has recurrent states.
    pub fn is_recurrent(&self) -> bool {
        self.states.is_some()
    }

    /// Makes memory for a pass of at most `tokens` separate tokens after which
    /// [`KvCache::truncate`] can keep any number of them. Returns the most tokens of such a pass.
    /// Recurrent states limit it to one more than [`MOST_PLANES`](super::MOST_PLANES), or to fewer
    /// if memory is short.
    pub fn reserve_separate(&mut self, tokens: usize) -> usize {
        let Some(states) = &mut self.states else { return tokens };
        tokens.min(1 + states.reserve_planes(tokens.saturating_sub(1)))
    }

    /// Prepares for a pass that [`KvCache::truncate`] can forget: recurrent states are copied, and
    /// can go back to the present token. At most [`MOST_PLANES`](super::MOST_PLANES) passes in a
    /// row can be forgotten. Returns false if this pass would be one more, or if memory is short.
    pub fn begin_revocable(&mut self) -> bool {
        self.states.as_mut().is_none_or(|states| states.save_plane(self.len))
    }

    /// Frees the memory of [`KvCache::reserve_separate`] and of [`KvCache::begin_revocable`].
    pub fn free_separate(&mut self) {
        if let Some(states) = &mut self.states {
            states.free_planes();
        }
    }

    /// Keeps a copy of recurrent states and windows, to which [`KvCache::truncate`] can go back.
    /// Called at the border of a message.
    pub fn take_snapshot(&mut self) {
        if let Some(states) = &mut self.states {
            states.take_snapshot(self.len);
        }
        self.copy_windows();
    }

    /// The recurrent state of `layer` after the tokens seen so far, if the layer has one and it is
    /// in RAM.
    pub fn state(&self, layer: usize) -> Option<&RecurrentState> {
        self.states.as_ref()?.layer(layer)
    }

    /// The recurrent state of `layer`, if it is in another processor's memory.
    pub(crate) fn state_off_host(&self, layer: usize) -> Option<&dyn OffHostState> {
        self.states.as_ref()?.layer_off_host(layer)
    }

    /// Takes back recurrent states that have seen a part of a chunk.
    pub(crate) fn drop_unfinished(&mut self) {
        if self.states.as_ref().is_some_and(|states| states.unfinished) {
            self.truncate(self.len);
        }
    }

    /// Notes the pictures among the tokens that are appended next. A picture of which the cache
    /// holds the first tokens continues if it is one of them.
    pub(crate) fn extend_pictures(&mut self, next: &[PictureSpan]) {
        self.pictures.extend(self.len, next);
    }

    /// Takes over the pictures of `other`, for the cache of a draft head or draft model whose first
    /// token is token `origin` of the other. Only positions follow from them.
    pub fn follow_pictures(&mut self, other: &Self, origin: usize) {
        self.pictures.follow(&other.pictures, origin);
    }

    /// The pictures among the tokens.
    pub(crate) fn pictures(&self) -> &PictureSpans {
        &self.pictures
    }

    /// The position by which the token at `place` is rotated.
    pub fn position(&self, place: usize) -> RopePosition {
        self.pictures.position(place)
    }

    /// The rotations of the keys, if positions are rotary.
    pub fn rotary(&self) -> Option<&Rotary> {
        self.rotary.as_ref()
    }

    /// Keys and values of `layer`, if they are in RAM. Rows past [`KvCache::len`] belong to a chunk
    /// that is not complete yet.
    pub fn layer_mut(&mut self, layer: usize) -> Option<&mut KvLayer> {
        self.layers.get_mut(layer)?.ram.as_mut()
    }

    /// Keys and values of `layer` for a reader in RAM: the rows themselves, or a copy.
    pub(crate) fn readable(&self, layer: usize) -> Option<&KvLayer> {
        let rows = self.layers.get(layer)?;
        rows.ram.as_ref().or(rows.copy.as_ref())
    }

    /// True if the whole cache is in RAM.
    pub fn on_host(&self) -> bool {
        let on_host = |rows: &LayerRows| rows.off_host.is_none();
        !self.states.as_ref().is_some_and(RecurrentStates::off_host) && self.layers.iter().all(on_host)
    }

    /// The keys and values of `layer`, wherever they are.
    pub(crate) fn rows(&self, layer: usize) -> Option<&LayerRows> {
        self.layers.get(layer)
    }

    /// The keys and values of `layer`, if they are only in another processor's memory.
    pub(crate) fn rows_off_host(&self, layer: usize) -> Option<&dyn OffHostRows> {
        self.rows(layer).filter(|rows| rows.ram.is_none())?.off_host.as_deref()
    }

    /// The keys and values of `layer`, for moving them.
    pub(crate) fn rows_mut(&mut self, layer: usize) -> Option<&mut LayerRows> {
        self.layers.get_mut(layer)
    }

    /// Makes room in RAM for the keys and values of `layer`. Returns `None` for a layer without
    /// keys and values of its own.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room.
    pub(crate) fn room_in_ram(&self, layer: usize) -> Result<Option<KvLayer>> {
        self.shape.attention(layer).map(|shape| KvLayer::new(self.ty, shape, self.kept[layer].room())).transpose()
    }

    /// Drops copies of rows for readers on another processor, and shared buffers of other layers.
    pub(crate) fn drop_copies(&mut self) {
        for (at, layer) in self.layers.iter_mut().enumerate() {
            layer.copy = None;
            if layer.ram.is_some() || self.shape.attention(at).is_none() {
                layer.off_host = None;
            }
        }
    }

    /// Notes that a pass appends `tokens` tokens. If they are `separate`, the caller may forget
    /// some of them after the pass.
    pub(crate) fn begin(&mut self, tokens: usize, separate: bool) {
        // The tokens left of the latest pass are kept.
        self.take_due_snapshots();
        self.separate = separate && tokens > 1;
        let end = self.len + tokens;
        self.kept.iter_mut().for_each(|kept| kept.write_to(end));
        if let Some(states) = &mut self.states {
            states.begin(tokens, separate);
        }
    }

    /// Number of positions for which `layer` has room.
    pub(crate) fn room(&self, layer: usize) -> usize {
        self.kept.get(layer).map_or(0, |kept| kept.room())
    }

    /// The range of the last positions that `layer` has room for. It includes all positions held,
    /// and perhaps earlier ones that no token sees any more.
    pub(crate) fn held(&self, layer: usize) -> Range<usize> {
        self.len.saturating_sub(self.room(layer))..self.len
    }

    /// Number of the last positions whose keys and values `layer` still has.
    pub(crate) fn latest_held(&self, layer: usize) -> usize {
        self.kept.get(layer).map_or(0, |kept| self.len.saturating_sub(kept.first()))
    }

    /// Marks `tokens` more rows of every layer as complete.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.len += tokens;
        if let Some(states) = &mut self.states {
            states.finish(self.len);
        }
        // Snapshots after tokens that are forgotten at once would displace useful ones.
        if !self.separate {
            self.take_due_snapshots();
        }
    }

    /// Takes snapshots of recurrent states and windows if the last ones are too old.
    fn take_due_snapshots(&mut self) {
        if let Some(states) = &mut self.states {
            states.take_due_snapshot(self.len);
        }
        if self.windows.is_due(self.len) {
            self.copy_windows();
        }
    }

    /// True if the cache was made for a model of this shape.
    pub(crate) fn fits(&self, config: &ModelConfig) -> bool {
        let shape = &self.shape;
        shape.position == config.position && shape.ropes == config.ropes && shape.layers == config.layers
    }
}
