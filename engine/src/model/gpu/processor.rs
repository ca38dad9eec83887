//! The GPU as a [`Processor`].

use std::{
    ops::{ControlFlow, Range},
    sync::Arc,
};

use super::{
    GpuKv, GpuLoad, Share,
    attention::{AttentionBuffers, rotations},
    cold::NoOther,
    experts::ExpertOps,
    ffn::FfnOps,
    firing::{FiringLog, firing_log},
    head::Head,
    hot::HotOps,
    layer::{LayerOps, no_norm, same},
    loader::{Loader, bytes_to_upload, chunk_within},
    registers::Registers,
    segment::Segment,
    slab::Slab,
    split::{HandOver, hand_over_bytes, unpad},
};
use crate::{
    error::{Error, Result},
    gpu::{Buffer, Gpu, Purpose, Uploader, pitch},
    model::{
        Ffn, KvCache, KvType, Model, ModelConfig, NormSlot, Position, Probe, Processor, Register, Resident, Rotary,
        Sparsity, Steering,
    },
};

/// A model, or its last layers, in a device's memory, with every dispatch prepared.
#[derive(Debug)]
pub struct GpuProcessor {
    pub(super) gpu: Gpu,
    /// Tells its caches from those of others.
    identity: Arc<()>,
    pub(super) chunk: usize,
    pub(super) registers: Registers,
    pub(super) attention: AttentionBuffers,
    /// Those before are somebody else's.
    pub(super) first_layer: usize,
    pub(super) layers: Vec<LayerOps>,
    pub(super) head: Option<Head>,
    pub(super) segment: Segment,
    pub(super) sparsity: Sparsity,
    pub(super) steering: Steering,
    /// Tokens of the current chunk, and the position of its first.
    pub(super) tokens: usize,
    first: usize,
    /// Whether `Residual += Out` is still to be done.
    due: bool,
    /// What goes up: embeddings in rows of the register's pitch, and the turns of each rotation.
    rows: Vec<f32>,
    turns: Vec<Vec<f32>>,
    /// The stream as an observer sees it.
    seen: Vec<f32>,
    pub(super) hand_over: HandOver,
    /// Where rows of neurons that are not resident pass through.
    pub(super) slab: Option<Slab>,
    pub(super) log: FiringLog,
    /// What observers are told, as masks of neurons and of experts.
    pub(super) fired: Vec<u32>,
    pub(super) chosen: Vec<u32>,
}

impl GpuProcessor {
    /// Uploads `model` and prepares everything but caches. `progress` hears how many bytes of the file are up and how many
    /// there are; it may cancel.
    ///
    /// # Errors
    /// [`Error::Memory`] if the device's budget or limits are too small, [`Error::Unsupported`] for a variant the kernels do
    /// not have, [`Error::Cancelled`], [`Error::Gpu`] if the device is lost. All that was allocated is free again.
    pub fn load(
        gpu: &Gpu,
        model: &Model,
        load: &GpuLoad,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        Self::load_share(gpu, model, &Share::all(model.config.n_layer()), load, progress)
    }

    /// The same for a part of `model`. Whoever has the rest calls [`GpuProcessor::ffn_with`] for its layers.
    pub(crate) fn load_share(
        gpu: &Gpu,
        model: &Model,
        share: &Share<'_>,
        load: &GpuLoad,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        let (config, weights) = (&model.config, &model.weights);
        let mut uploader = Uploader::new(gpu, progress)?;
        let (wanted, available) = (bytes_to_upload(weights, share), gpu.arena().available());
        // No type is smaller there than in the file: what cannot fit is not begun.
        if wanted > available {
            return Err(Error::Memory { what: "weights in GPU memory", wanted, available });
        }
        uploader.expect(wanted);
        let chunk = chunk_within(gpu.caps(), config, weights, load.chunk);
        let mut loader = Loader { gpu, config, chunk, predictors: share.predictors, uploader };

        let registers = Registers::new(&loader)?;
        let attention = AttentionBuffers::new(&loader)?;
        let mut layers: Vec<LayerOps> = Vec::with_capacity(share.ffn.len());
        for (layer, ffn) in (share.first_layer..config.n_layer()).zip(&share.ffn) {
            let before: Vec<&FfnOps> = layers.iter().map(|layer| &layer.ffn).collect();
            layers.push(LayerOps::new(&mut loader, &registers, &attention, &before, model, layer, *ffn)?);
        }
        let head = if share.head { Some(Head::new(&mut loader, &registers, weights)?) } else { None };
        loader.uploader.finish()?;
        let turns = vec![Vec::new(); attention.tables.len()];
        let log = firing_log(gpu, &layers, config.n_layer(), chunk)?;
        let residual = chunk as u64 * registers.row_bytes();
        let down = head.as_ref().map_or(residual, Head::bytes) + log.bytes();
        let rings = (upload_bytes(config, chunk), down);
        let mut segment = Segment::new(gpu, rings, config.n_layer(), load.submission)?;
        segment.reserve(hand_over_bytes(&layers, &registers, chunk))?;
        Ok(GpuProcessor {
            gpu: gpu.clone(),
            identity: Arc::new(()),
            chunk,
            registers,
            attention,
            first_layer: share.first_layer,
            layers,
            head,
            segment,
            sparsity: Sparsity::Dense,
            steering: Steering::default(),
            tokens: 0,
            first: 0,
            due: false,
            rows: Vec::new(),
            turns,
            seen: Vec::new(),
            hand_over: HandOver::default(),
            slab: None,
            log,
            fired: Vec::new(),
            chosen: Vec::new(),
        })
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(super) fn kv_layer(
        &self,
        model: &Model,
        layer: usize,
        rotary: Option<&Rotary>,
        of: (usize, KvType),
    ) -> Result<GpuKv> {
        let (attention, table) = (&self.layer(layer)?.attention, rotary.map(|rotary| rotary.table_of(layer)));
        GpuKv::new(&self.gpu, &model.config, &self.identity, &self.attention, attention, table, of)
    }

    /// Does what is due.
    pub(super) fn add_due(&mut self) {
        if std::mem::take(&mut self.due) {
            self.registers.add.record(self.segment.recorder(), self.tokens);
        }
    }

    /// A layer's steps.
    pub(super) fn layer(&self, layer: usize) -> Result<&LayerOps> {
        let ops = layer.checked_sub(self.first_layer).and_then(|at| self.layers.get(at));
        let expected = || format!("one from {} on", self.first_layer);
        ops.ok_or_else(|| Error::invalid("layer on the GPU", expected(), layer))
    }

    /// Whether neurons of `ffn` can be resident one by one: where a neuron is a row of each matrix; or experts, in a mixture.
    pub(crate) fn places_neurons(ffn: &Ffn) -> bool {
        HotOps::can_hold(ffn) || ExpertOps::can_hold(ffn)
    }

    /// Which neurons of a layer are resident; `None` if they are not placed one by one, or the FFN is a mixture.
    pub(crate) fn hot_mask(&self, layer: usize) -> Option<&[u32]> {
        Some(&self.layer(layer).ok()?.ffn.hot()?.resident)
    }

    /// Announces a chunk of `tokens` tokens at the end of `kv`.
    pub(crate) fn place(&mut self, tokens: usize, kv: &KvCache) {
        (self.tokens, self.first, self.due) = (tokens, kv.len(), false);
        self.log.clear();
        let tables = kv.rotary().map_or(&[][..], |rotary| rotary.tables());
        for (turns, table) in self.turns.iter_mut().zip(tables) {
            turns.clear();
            table.extend_turns(self.first, tokens, turns);
        }
    }

    /// `Residual = residual`, `[tokens, d_model]`, for the chunk that was placed.
    pub(crate) fn begin_from(&mut self, residual: &[f32]) -> Result<()> {
        super::split::pad(residual, self.registers.d_model, self.registers.pitch, &mut self.rows);
        self.start(None)
    }

    /// Uploads what the chunk begins with, the residual stream's rows or the ids of `tokens`, and its turns.
    fn start(&mut self, tokens: Option<(&[u32], &Buffer)>) -> Result<()> {
        let (begins, to) = match tokens {
            Some((ids, to)) => (bytemuck::cast_slice(ids), to),
            None => (bytemuck::cast_slice(&self.rows), self.registers.get(Register::Residual)),
        };
        let mut pieces: Vec<(&[u8], &Buffer, u64)> = vec![(begins, to, 0)];
        let turns = self.turns.iter().zip(&self.attention.tables);
        pieces.extend(turns.map(|(turns, table)| (bytemuck::cast_slice(turns), table, 0)));
        self.segment.begin(&pieces)
    }

    /// The residual stream of some of the chunk's tokens, `[tokens.len(), d_model]`.
    pub(crate) fn residual_of(&mut self, tokens: Range<usize>) -> Result<&[f32]> {
        self.add_due();
        let (d_model, row_bytes) = (self.registers.d_model, self.registers.row_bytes());
        let (start, bytes) = (tokens.start as u64 * row_bytes, tokens.len() as u64 * row_bytes);
        let seen = &mut self.seen;
        let piece = (self.registers.get(Register::Residual), start, bytes);
        self.segment.read(&[piece], |read| unpad(read, row_bytes as usize, d_model, seen))?;
        Ok(&self.seen)
    }

    /// Reads the residual stream of some of the chunk's tokens, which ends the chunk.
    pub(crate) fn end_with(&mut self, tokens: Range<usize>) -> Result<&[f32]> {
        self.log.bring(&mut self.segment);
        self.residual_of(tokens)?;
        self.log.brought(&self.segment);
        Ok(&self.seen)
    }

    fn no_head() -> Error {
        Error::invalid("head on the GPU", "one that is loaded", "none")
    }
}

/// Bytes that go up at once: the embedding's rows (or whatever the residual stream begins with), and each rotation's turns; or
/// somebody else's part of an FFN's output, in rows as wide as any type's blocks make them.
pub(super) fn upload_bytes(config: &ModelConfig, chunk: usize) -> u64 {
    let (dims, tables) = rotations(config);
    let begin = pitch(config.d_model) + dims * tables;
    (chunk * begin.max(config.d_model.next_multiple_of(256)) * size_of::<f32>()) as u64
}

impl Processor for GpuProcessor {
    fn max_chunk(&self) -> usize {
        self.chunk
    }

    fn kv_cache(&mut self, model: &Model, capacity: usize, ty: KvType) -> Result<KvCache> {
        let mine = self.first_layer..self.first_layer + self.layers.len();
        let all = GpuKv::bytes_of(&model.config, capacity, ty).saturating_mul(self.layers.len() as u64);
        let available = self.gpu.arena().available();
        if all > available {
            return Err(Error::Memory { what: "KV cache", wanted: all, available });
        }
        let rotary = Rotary::new(&model.config, capacity);
        let of = (capacity, ty);
        KvCache::split(&model.config, capacity, ty, |layer| match mine.contains(&layer) {
            true => self.kv_layer(model, layer, rotary.as_ref(), of).map(Some),
            false => Ok(None),
        })
    }

    fn holds(&self, kv: &KvCache) -> bool {
        let here = |layer| kv.device_layer(layer).is_some_and(|kv| kv.is_of(&self.identity));
        (0..self.first_layer).all(|layer| kv.device_layer(layer).is_none())
            && (self.first_layer..self.first_layer + self.layers.len()).all(here)
    }

    fn take_kv(&mut self, model: &Model, kv: &mut KvCache) -> Result<()> {
        for layer in 0..self.first_layer {
            kv.move_to_ram(layer, &mut self.segment)?;
        }
        for layer in self.first_layer..self.first_layer + self.layers.len() {
            if kv.device_layer(layer).is_none() {
                let to = self.kv_layer(model, layer, kv.rotary(), (kv.capacity(), kv.ty()))?;
                kv.move_to_device(layer, to, &mut self.segment)?;
            }
        }
        Ok(())
    }

    fn return_kv(&mut self, kv: &mut KvCache) -> Result<()> {
        for layer in 0..self.first_layer + self.layers.len() {
            if kv.device_layer(layer).is_some_and(|kv| kv.is_of(&self.identity)) {
                kv.move_to_ram(layer, &mut self.segment)?;
            }
        }
        Ok(())
    }

    fn set_budget(&mut self, _: &Model, bytes: u64, _: &mut [&mut KvCache]) -> Result<()> {
        self.gpu.arena().set_budget(bytes)
    }

    fn begin(&mut self, model: &Model, tokens: &[u32], kv: &KvCache) -> Result<()> {
        let (config, weights) = (&model.config, &model.weights);
        self.place(tokens.len(), kv);
        if let Some(embedding) = self.head.as_ref().and_then(|head| head.embedding.clone()) {
            self.start(Some((tokens, &embedding.ids)))?;
            embedding.record(self.segment.recorder(), tokens.len());
            return Ok(());
        }
        let (d_model, pitch) = (self.registers.d_model, self.registers.pitch);
        self.rows.clear();
        self.rows.resize(tokens.len() * pitch, 0.0);
        self.seen.resize(d_model, 0.0);
        for (i, (row, id)) in self.rows.chunks_exact_mut(pitch).zip(tokens).enumerate() {
            let row = &mut row[..d_model];
            weights.token_embedding.dequantise_row(*id as usize, row);
            if config.embedding_scale != 1.0 {
                row.iter_mut().for_each(|x| *x *= config.embedding_scale);
            }
            if let (Position::Learned { offset }, Some(table)) = (&config.position, &weights.position_embedding) {
                let position = &mut self.seen[..d_model];
                table.dequantise_row(self.first + i + offset, position);
                row.iter_mut().zip(position).for_each(|(x, position)| *x += *position);
            }
        }
        self.start(None)
    }

    fn norm(&mut self, _: &Model, layer: usize, norm: NormSlot, from: Register, into: Register) -> Result<()> {
        self.segment.enter(Some(layer));
        let step = (norm, from, into);
        let touched = self.due && [from, into].iter().any(|it| matches!(it, Register::Residual | Register::Out));
        let prepared = self.layer(layer)?.norms.iter().position(|(of, _)| *of == step);
        let Some(at) = prepared else { return Err(no_norm(layer, norm)) };
        let ops = &self.layers[layer - self.first_layer];
        let op = &ops.norms[at].1;
        if touched && !op.adds() {
            self.due = false;
            self.registers.add.record(self.segment.recorder(), self.tokens);
        }
        op.record(self.segment.recorder(), self.tokens, self.due);
        if op.adds() {
            self.due = false;
        }
        if let Some(hot) = ops.ffn.hot().filter(|hot| ops.feeds_ffn == Some(step) && self.asks(hot))
            && let Some(predictor) = &hot.predictor
        {
            let shift = self.steering.shift.get(layer).copied().unwrap_or(0.0);
            predictor.record(self.segment.recorder(), shift);
        }
        Ok(())
    }

    fn attention(&mut self, _: &Model, layer: usize, from: Register, kv: &mut KvCache) -> Result<()> {
        self.segment.enter(Some(layer));
        self.add_due();
        let capacity = kv.capacity();
        same(self.layer(layer)?.attention_from, from)?;
        let ops = &self.layers[layer - self.first_layer];
        let Some(cache) = kv.device_layer(layer).map(GpuKv::ops) else {
            return Err(Error::invalid("KV cache", format!("one on the device with a layer {layer}"), "another"));
        };
        let at = (self.first, capacity);
        ops.attention.record(self.segment.recorder(), &self.gpu, &self.attention, cache, self.tokens, at);
        self.segment.worked(ops.attention.work(&self.attention, self.tokens, self.first + self.tokens), self.tokens)
    }

    fn ffn(&mut self, _: &Model, layer: usize, from: Register, probe: &mut dyn Probe) -> Result<()> {
        self.ffn_with(layer, from, probe, &mut NoOther)
    }

    fn add_out(&mut self) -> Result<()> {
        self.add_due();
        self.due = true;
        Ok(())
    }

    fn residual(&mut self) -> Result<&[f32]> {
        self.residual_of(0..self.tokens)
    }

    fn head(&mut self, _: &Model, tokens: Range<usize>, logits: &mut [f32]) -> Result<()> {
        self.segment.enter(None);
        let due = std::mem::take(&mut self.due);
        let head = self.head.as_ref().ok_or_else(Self::no_head)?;
        self.log.bring(&mut self.segment);
        head.logits(&mut self.segment, &self.registers, due, tokens, logits)?;
        self.log.brought(&self.segment);
        Ok(())
    }

    fn top(&mut self, _: &Model, token: usize, ids: &mut [u32], logits: &mut [f32]) -> Result<()> {
        self.segment.enter(None);
        let due = std::mem::take(&mut self.due);
        let head = self.head.as_ref().ok_or_else(Self::no_head)?;
        self.log.bring(&mut self.segment);
        head.top(&mut self.segment, &self.registers, due, token, ids, logits)?;
        self.log.brought(&self.segment);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.due = false;
        if !self.log.bring(&mut self.segment) && !self.segment.is_timed() {
            return self.segment.submit();
        }
        self.segment.read(&[], |_| ())?;
        self.log.brought(&self.segment);
        Ok(())
    }

    fn report(&mut self, _: &Model, probe: &mut dyn Probe) {
        self.report_firing(probe);
    }

    fn set_sparsity(&mut self, mode: Sparsity) {
        self.sparsity = mode;
    }

    fn time(&mut self, on: bool) {
        self.segment.time(on);
    }

    fn steer(&mut self, steering: &Steering) {
        self.steering.clone_from(steering);
    }

    fn resident(&self, model: &Model) -> Option<Resident> {
        Some(self.held(model))
    }

    fn scratch_bytes(&self) -> u64 {
        let arena = self.gpu.arena();
        arena.used_for(Purpose::Scratch) + arena.used_for(Purpose::Staging)
    }
}
