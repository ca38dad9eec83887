//! The GPU as a [`Processor`].

use std::{
    ops::{ControlFlow, Range},
    sync::Arc,
};

use super::{
    GpuKv, GpuLoad,
    attention::{AttentionBuffers, AttentionOps, rotations},
    ffn::FfnOps,
    head::Head,
    loader::{Loader, bytes_to_upload, chunk_within},
    norm::{NormOp, NormWeights},
    registers::Registers,
    segment::Segment,
};
use crate::{
    error::{Error, Result},
    gpu::{Buffer, Gpu, Purpose, Uploader, pitch},
    model::{
        KvCache, KvType, Model, ModelConfig, NormSlot, Position, Probe, Processor, Register, Rotary, Sparsity, Step,
    },
};

/// A model in a device's memory, with every dispatch prepared.
#[derive(Debug)]
pub struct GpuProcessor {
    gpu: Gpu,
    /// Tells its caches from those of others.
    identity: Arc<()>,
    chunk: usize,
    registers: Registers,
    attention: AttentionBuffers,
    layers: Vec<LayerOps>,
    head: Head,
    segment: Segment,
    sparsity: Sparsity,
    /// Tokens of the current chunk, and the position of its first.
    tokens: usize,
    first: usize,
    /// Whether `Residual += Out` is still to be done.
    due: bool,
    /// What goes up: embeddings in rows of the register's pitch, and the turns of each rotation.
    rows: Vec<f32>,
    turns: Vec<Vec<f32>>,
    /// The stream as an observer sees it.
    seen: Vec<f32>,
}

/// The prepared steps of one layer.
#[derive(Debug)]
struct LayerOps {
    norms: Vec<((NormSlot, Register, Register), NormOp)>,
    attention: AttentionOps,
    attention_from: Register,
    ffn: FfnOps,
    ffn_from: Register,
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
        let (config, weights) = (&model.config, &model.weights);
        let mut uploader = Uploader::new(gpu, progress)?;
        let (wanted, available) = (bytes_to_upload(weights), gpu.arena().available());
        // No type is smaller there than in the file: what cannot fit is not begun.
        if wanted > available {
            return Err(Error::Memory { what: "weights in GPU memory", wanted, available });
        }
        uploader.expect(wanted);
        let chunk = chunk_within(gpu.caps(), config, weights, load.chunk);
        let mut loader = Loader { gpu, config, chunk, uploader };

        let registers = Registers::new(&loader)?;
        let attention = AttentionBuffers::new(&loader)?;
        let mut layers = Vec::with_capacity(config.n_layer());
        for layer in 0..config.n_layer() {
            let ffn_before = layers.last().map(|layer: &LayerOps| &layer.ffn);
            layers.push(LayerOps::new(&mut loader, &registers, &attention, ffn_before, model, layer)?);
        }
        let head = Head::new(&mut loader, &registers, weights)?;
        loader.uploader.finish()?;
        let turns = vec![Vec::new(); attention.tables.len()];
        let segment = Segment::new(gpu, upload_bytes(config, chunk), head.bytes(), load.submission)?;
        Ok(GpuProcessor {
            gpu: gpu.clone(),
            identity: Arc::new(()),
            chunk,
            registers,
            attention,
            layers,
            head,
            segment,
            sparsity: Sparsity::Dense,
            tokens: 0,
            first: 0,
            due: false,
            rows: Vec::new(),
            turns,
            seen: Vec::new(),
        })
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    fn kv_layer(&self, model: &Model, layer: usize, rotary: Option<&Rotary>, of: (usize, KvType)) -> Result<GpuKv> {
        let (attention, table) = (&self.layers[layer].attention, rotary.map(|rotary| rotary.table_of(layer)));
        GpuKv::new(&self.gpu, &model.config, &self.identity, &self.attention, attention, table, of)
    }

    /// Does what is due.
    fn add_due(&mut self) {
        if std::mem::take(&mut self.due) {
            self.registers.add.record(self.segment.recorder(), self.tokens);
        }
    }
}

/// Bytes that go up with a chunk: the embedding's rows, and each rotation's turns.
pub(super) fn upload_bytes(config: &ModelConfig, chunk: usize) -> u64 {
    let (dims, tables) = rotations(config);
    (chunk * (pitch(config.d_model) + dims * tables) * size_of::<f32>()) as u64
}

impl LayerOps {
    fn new(
        loader: &mut Loader<'_, '_>,
        registers: &Registers,
        attention: &AttentionBuffers,
        ffn_before: Option<&FfnOps>,
        model: &Model,
        layer: usize,
    ) -> Result<Self> {
        let (config, weights) = (&model.config, &model.weights.layers[layer]);
        let (mut norms, mut attention_from, mut ffn_from) = (Vec::new(), Register::Normed, Register::Normed);
        for step in &config.steps {
            match *step {
                Step::Norm { norm, from, into } => {
                    let Some(of) = weights.norm(norm) else { return Err(no_norm(layer, norm)) };
                    let of = NormWeights::new(loader, of)?;
                    let adds = from == Register::Residual && into != Register::Out;
                    let delta = adds.then(|| registers.get(Register::Out));
                    let op = NormOp::new(loader, &of, registers.get(from), delta, registers.get(into))?;
                    norms.push(((norm, from, into), op));
                }
                Step::Attention { from } => attention_from = from,
                Step::Ffn { from } => ffn_from = from,
                Step::AddOut => {}
            }
        }
        for from in [attention_from, ffn_from] {
            if from == Register::Out {
                return Err(Error::invalid("layer program", "products that do not read `Out`", format!("{from:?}")));
            }
        }
        let out = (registers.get(Register::Out), registers.pitch);
        let window = config.layers[layer].window;
        let from = registers.get(attention_from);
        let attention = AttentionOps::new(loader, attention, &weights.attention, window, from, out)?;
        let ffn = FfnOps::new(loader, ffn_before, &weights.ffn, registers.get(ffn_from), out)?;
        Ok(LayerOps { norms, attention, attention_from, ffn, ffn_from })
    }
}

fn no_norm(layer: usize, norm: NormSlot) -> Error {
    Error::invalid("layer program", "norms the model has", format!("{norm:?} in layer {layer}"))
}

/// A step may only read what it was prepared for.
fn same(prepared: Register, asked: Register) -> Result<()> {
    if prepared == asked {
        return Ok(());
    }
    Err(Error::invalid("layer program", format!("a step that reads {prepared:?}"), format!("{asked:?}")))
}

impl Processor for GpuProcessor {
    fn max_chunk(&self) -> usize {
        self.chunk
    }

    fn kv_cache(&mut self, model: &Model, capacity: usize, ty: KvType) -> Result<KvCache> {
        let all = GpuKv::bytes_of(&model.config, capacity, ty).saturating_mul(self.layers.len() as u64);
        let available = self.gpu.arena().available();
        if all > available {
            return Err(Error::Memory { what: "KV cache", wanted: all, available });
        }
        let rotary = Rotary::new(&model.config, capacity);
        let of = (capacity, ty);
        KvCache::split(&model.config, capacity, ty, |layer| self.kv_layer(model, layer, rotary.as_ref(), of).map(Some))
    }

    fn holds(&self, kv: &KvCache) -> bool {
        (0..self.layers.len()).all(|layer| kv.device_layer(layer).is_some_and(|kv| kv.is_of(&self.identity)))
    }

    fn take_kv(&mut self, model: &Model, kv: &mut KvCache) -> Result<()> {
        for layer in 0..self.layers.len() {
            if kv.device_layer(layer).is_none() {
                let to = self.kv_layer(model, layer, kv.rotary(), (kv.capacity(), kv.ty()))?;
                kv.move_to_device(layer, to, &mut self.segment)?;
            }
        }
        Ok(())
    }

    fn return_kv(&mut self, kv: &mut KvCache) -> Result<()> {
        for layer in 0..self.layers.len() {
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
        (self.tokens, self.first, self.due) = (tokens.len(), kv.len(), false);
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
        let tables = kv.rotary().map_or(&[][..], |rotary| rotary.tables());
        for (turns, table) in self.turns.iter_mut().zip(tables) {
            turns.clear();
            table.extend_turns(self.first, tokens.len(), turns);
        }
        let residual = self.registers.get(Register::Residual);
        let mut pieces: Vec<(&[u8], &Buffer, u64)> = vec![(bytemuck::cast_slice(&self.rows), residual, 0)];
        let turns = self.turns.iter().zip(&self.attention.tables);
        pieces.extend(turns.map(|(turns, table)| (bytemuck::cast_slice(turns), table, 0)));
        self.segment.begin(&pieces)
    }

    fn norm(&mut self, _: &Model, layer: usize, norm: NormSlot, from: Register, into: Register) -> Result<()> {
        let prepared = self.layers[layer].norms.iter().find(|(of, _)| *of == (norm, from, into));
        let Some((_, op)) = prepared else { return Err(no_norm(layer, norm)) };
        if self.due && !op.adds() && [from, into].iter().any(|it| matches!(it, Register::Residual | Register::Out)) {
            self.due = false;
            self.registers.add.record(self.segment.recorder(), self.tokens);
        }
        op.record(self.segment.recorder(), self.tokens, self.due);
        if op.adds() {
            self.due = false;
        }
        Ok(())
    }

    fn attention(&mut self, _: &Model, layer: usize, from: Register, kv: &mut KvCache) -> Result<()> {
        self.add_due();
        let capacity = kv.capacity();
        let ops = &self.layers[layer];
        same(ops.attention_from, from)?;
        let Some(cache) = kv.device_layer(layer).map(GpuKv::ops) else {
            return Err(Error::invalid("KV cache", format!("one on the device with a layer {layer}"), "another"));
        };
        let at = (self.first, capacity);
        ops.attention.record(self.segment.recorder(), &self.gpu, &self.attention, cache, self.tokens, at);
        self.segment.worked(ops.attention.work(&self.attention, self.tokens, self.first + self.tokens), self.tokens)
    }

    fn ffn(&mut self, _: &Model, layer: usize, from: Register, probe: &mut dyn Probe) -> Result<()> {
        self.add_due();
        let ops = &self.layers[layer];
        same(ops.ffn_from, from)?;
        ops.ffn.record(&mut self.segment, self.tokens, layer, probe)?;
        self.segment.worked(ops.ffn.work() * self.tokens as u64, self.tokens)
    }

    fn add_out(&mut self) -> Result<()> {
        self.add_due();
        self.due = true;
        Ok(())
    }

    fn residual(&mut self) -> Result<&[f32]> {
        self.add_due();
        let (d_model, row_bytes) = (self.registers.d_model, self.registers.row_bytes());
        let bytes = self.tokens as u64 * row_bytes;
        let seen = &mut self.seen;
        seen.resize(self.tokens * d_model, 0.0);
        self.segment.read(&[(self.registers.get(Register::Residual), 0, bytes)], |read| {
            for (to, from) in seen.chunks_exact_mut(d_model).zip(read.chunks_exact(row_bytes as usize)) {
                bytemuck::cast_slice_mut(to).copy_from_slice(&from[..d_model * 4]);
            }
        })?;
        Ok(&self.seen)
    }

    fn head(&mut self, _: &Model, tokens: Range<usize>, logits: &mut [f32]) -> Result<()> {
        let due = std::mem::take(&mut self.due);
        self.head.logits(&mut self.segment, &self.registers, due, tokens, logits)
    }

    fn top(&mut self, _: &Model, token: usize, ids: &mut [u32], logits: &mut [f32]) -> Result<()> {
        let due = std::mem::take(&mut self.due);
        self.head.top(&mut self.segment, &self.registers, due, token, ids, logits)
    }

    fn finish(&mut self) -> Result<()> {
        self.due = false;
        self.segment.submit()
    }

    fn set_sparsity(&mut self, mode: Sparsity) {
        self.sparsity = mode;
    }

    fn scratch_bytes(&self) -> u64 {
        let arena = self.gpu.arena();
        arena.used_for(Purpose::Scratch) + arena.used_for(Purpose::Staging)
    }
}
