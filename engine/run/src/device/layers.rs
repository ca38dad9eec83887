//! The last layers of a model on a device, but for their FFNs: embedding, norms, attention, residual stream and head.

use std::{ops::Range, sync::Arc};

use super::{
    attention::rotated,
    head::Head,
    layer::GpuLayer,
    loader::GpuLoader,
    part_buffers::{PartBuffers, no_buffers},
    registers::{Registers, pad, unpad},
    segment::{RingBytes, Segment},
    step::{GpuStep, LayerBuffers, StepContext},
};
use crate::runtime::Sequences;
use thermocline_base::error::{Error, Result};
use thermocline_gpu::{Buffer, Gpu, pitch};
use thermocline_model::{BoundStep, Model, ModelConfig, Position, Register, Weights};

/// Layers from one on to the last, in a device's memory with every dispatch prepared, and the head if it is there.
#[derive(Debug)]
pub(crate) struct GpuLayers {
    pub gpu: Gpu,
    /// Tells its caches from those of other processors.
    pub(super) identity: Arc<()>,
    /// Most tokens of a chunk: rows of a register.
    pub chunk: usize,
    pub registers: Registers,
    pub(super) parts: PartBuffers,
    pub(super) first_layer: usize,
    pub(super) layers: Vec<GpuLayer>,
    head: Option<Head>,
    pub segment: Segment,
    /// Tokens of the current chunk.
    tokens: usize,
    /// `Residual += Out` is still to be done.
    due: bool,
    /// Uploaded when a chunk begins: embeddings, `[tokens, pitch(d_model)]`, and per rotation table its cosines and sines,
    /// `[tokens, dims]`.
    rows: Vec<f32>,
    rotations: Vec<Vec<f32>>,
    /// The residual stream read back, `[tokens, d_model]`.
    read_back: Vec<f32>,
}

impl GpuLayers {
    /// No layer yet; the first that [`GpuLayers::push`] adds is `first_layer`. Work of several tokens of more than `most_work`
    /// is split into several submissions, however quick the device is.
    ///
    /// # Errors
    /// [`Error::Memory`] if the device's budget or limits are too small, [`Error::Unsupported`] for a variant the kernels do not
    /// have, [`Error::Gpu`] if the device is lost.
    pub fn new(loader: &mut GpuLoader<'_, '_>, first_layer: usize, most_work: u64) -> Result<Self> {
        let (gpu, config, chunk) = (loader.gpu, loader.config, loader.chunk);
        let registers = Registers::new(loader)?;
        let parts = PartBuffers::new(loader)?;
        let rotations = vec![Vec::new(); parts.attention.tables.len()];
        let rings = RingBytes { up: upload_bytes(config, chunk), down: registers.row_bytes() };
        let segment = Segment::new(gpu, rings, config.n_layer(), most_work)?;
        Ok(GpuLayers {
            gpu: gpu.clone(),
            identity: Arc::new(()),
            chunk,
            registers,
            parts,
            first_layer,
            layers: Vec::new(),
            head: None,
            segment,
            tokens: 0,
            due: false,
            rows: Vec::new(),
            rotations,
            read_back: Vec::new(),
        })
    }

    /// Uploads the layer behind the last one; returns its number.
    pub fn push(&mut self, loader: &mut GpuLoader<'_, '_>, model: &Model) -> Result<usize> {
        let layer = self.first_layer + self.layers.len();
        let built = self.build(loader, model, layer)?;
        self.layers.push(built);
        Ok(layer)
    }

    fn build(&self, loader: &mut GpuLoader<'_, '_>, model: &Model, layer: usize) -> Result<GpuLayer> {
        let buffers = LayerBuffers { registers: &self.registers, parts: &self.parts, others: &self.layers };
        GpuLayer::new(loader, buffers, model, layer)
    }

    /// Uploads `layer`, which is the one before the first.
    pub fn push_front(&mut self, loader: &mut GpuLoader<'_, '_>, model: &Model, layer: usize) -> Result<()> {
        let built = self.build(loader, model, layer)?;
        self.layers.insert(0, built);
        self.first_layer = layer;
        Ok(())
    }

    /// The layers that are here.
    pub fn range(&self) -> Range<usize> {
        self.first_layer..self.first_layer + self.layers.len()
    }

    /// The prepared steps of `layer`.
    pub fn layer(&self, layer: usize) -> Result<&GpuLayer> {
        let found = layer.checked_sub(self.first_layer).and_then(|at| self.layers.get(at));
        let expected = || format!("one from {} on", self.first_layer);
        found.ok_or_else(|| Error::invalid("layer on the GPU", expected(), layer))
    }

    /// Multiply-adds of a token in the heaviest step of the layers that are here, but for their FFNs.
    pub fn heaviest_step(&self) -> u64 {
        self.layers.iter().flat_map(|layer| &layer.steps).map(GpuStep::work).max().unwrap_or(0)
    }

    /// Uploads the head.
    pub fn add_head(&mut self, loader: &mut GpuLoader<'_, '_>, weights: &Weights) -> Result<()> {
        self.head = Some(Head::new(loader, &self.registers, weights)?);
        Ok(())
    }

    /// Frees the head.
    pub fn drop_head(&mut self) {
        self.head = None;
    }

    /// True if the head is here.
    pub fn has_head(&self) -> bool {
        self.head.is_some()
    }

    /// Makes room for reading back a chunk's results (logits, or the residual stream) and `more` bytes with them.
    pub fn reserve_results(&mut self, more: u64) -> Result<()> {
        let rows = self.chunk as u64 * self.registers.row_bytes();
        let head = self.head.as_ref().map(Head::bytes);
        // Several streams go back to be merged before the head, wherever that is.
        let streams = self.parts.altup.as_ref().map(|altup| altup.streams.bytes());
        self.segment.reserve_down(head.max(streams).unwrap_or(rows) + more)
    }

    /// Starts a chunk of `sequences`' rows, of which the first layers are computed elsewhere.
    pub fn start_chunk(&mut self, sequences: &Sequences<'_>) {
        (self.tokens, self.due) = (sequences.rows(), false);
        self.segment.start_chunk(self.tokens);
        let tables = sequences.rotary().map_or(&[][..], |rotary| rotary.tables());
        for (rotations, table) in self.rotations.iter_mut().zip(tables) {
            rotations.clear();
            table.extend_rotations(sequences.positions(), rotations);
        }
    }

    /// Begins a chunk: `Residual = embedding(tokens) * scale (+ learned positions)`.
    pub fn begin(&mut self, model: &Model, tokens: &[u32], sequences: &Sequences<'_>) -> Result<()> {
        let (config, weights) = (&model.config, &model.weights);
        self.start_chunk(sequences);
        if let Some(embedding) = self.head.as_ref().and_then(|head| head.embedding.clone()) {
            self.upload_inputs(Some((tokens, &embedding.ids)), &[])?;
            embedding.record(self.segment.recorder(), tokens.len());
            return Ok(());
        }
        let (d_model, pitch) = (self.registers.d_model, self.registers.pitch);
        self.rows.clear();
        self.rows.resize(tokens.len() * pitch, 0.0);
        self.read_back.resize(d_model, 0.0);
        for ((row, id), at) in self.rows.chunks_exact_mut(pitch).zip(tokens).zip(sequences.positions()) {
            let row = &mut row[..d_model];
            weights.token_embedding.dequantise_row(*id as usize, row);
            if config.embedding_scale != 1.0 {
                row.iter_mut().for_each(|x| *x *= config.embedding_scale);
            }
            if let (Position::Learned { offset }, Some(table)) = (&config.position, &weights.position_embedding) {
                let position = &mut self.read_back[..d_model];
                table.dequantise_row(at + offset, position);
                row.iter_mut().zip(position).for_each(|(x, position)| *x += *position);
            }
        }
        self.upload_inputs(None, &[])
    }

    /// `Residual = residual`, `[tokens, d_model]`, for the chunk that was announced, with the inputs that the layers here have of their
    /// own, `[layers, tokens, w]`. In a model with several streams `residual` is all of them, `[streams, tokens, d_model]`.
    pub fn begin_with(&mut self, residual: &[f32], per_layer: &[f32]) -> Result<()> {
        pad(residual, self.registers.d_model, self.registers.pitch, &mut self.rows);
        self.upload_inputs(None, per_layer)
    }

    /// `Residual = residual`, `[tokens, d_model]`, in the middle of a chunk.
    pub fn replace_residual(&mut self, residual: &[f32]) -> Result<()> {
        pad(residual, self.registers.d_model, self.registers.pitch, &mut self.rows);
        self.segment.upload(&[(bytemuck::cast_slice(&self.rows), self.registers.get(Register::Residual), 0)])
    }

    /// Bytes from one stream to the next.
    fn stream_bytes(&self) -> u64 {
        self.chunk as u64 * self.registers.row_bytes()
    }

    /// Reads back the streams of some of the chunk's tokens, `[streams, tokens.len(), d_model]`, in place of the residual stream.
    pub fn read_streams(&mut self, tokens: Range<usize>) -> Result<()> {
        self.add_due();
        let altup = self.parts.altup.as_ref().ok_or_else(no_buffers)?;
        let (d_model, row_bytes, between) = (self.registers.d_model, self.registers.row_bytes(), self.stream_bytes());
        let (start, bytes) = (tokens.start as u64 * row_bytes, tokens.len() as u64 * row_bytes);
        let read_back = &mut self.read_back;
        let count = altup.streams.bytes() / between;
        let pieces: Vec<_> = (0..count).map(|at| (&altup.streams, at * between + start, bytes)).collect();
        self.segment.read(&pieces, |read| unpad(read, row_bytes as usize, d_model, read_back))
    }

    /// Uploads the residual stream's rows or the ids of `tokens`, the chunk's rotations, and inputs of layers.
    fn upload_inputs(&mut self, tokens: Option<(&[u32], &Buffer)>, per_layer: &[f32]) -> Result<()> {
        let (input, to) = match tokens {
            Some((ids, to)) => (bytemuck::cast_slice(ids), to),
            None => (bytemuck::cast_slice(&self.rows), self.registers.get(Register::Residual)),
        };
        let mut pieces: Vec<(&[u8], &Buffer, u64)> = match &self.parts.altup {
            Some(altup) => {
                let one = self.tokens * self.registers.pitch * size_of::<f32>();
                let streams = input.chunks(one.max(1)).zip((0..).step_by(self.stream_bytes() as usize));
                streams.map(|(stream, at)| (stream, &altup.streams, at)).collect()
            }
            None => vec![(input, to, 0)],
        };
        let rotations = self.rotations.iter().zip(&self.parts.attention.tables);
        pieces.extend(rotations.map(|(rotations, table)| (bytemuck::cast_slice(rotations), table, 0)));
        if let Some(buffers) = self.parts.per_layer.as_ref().filter(|_| !per_layer.is_empty()) {
            pieces.push((bytemuck::cast_slice(per_layer), &buffers.inputs, 0));
        }
        self.segment.begin(&pieces)
    }

    /// Computes a step of a layer that is here. Of a router or an FFN only the input is readied: what is here of it is a
    /// [`DeviceFfn`](super::device_ffn::DeviceFfn)'s.
    pub fn step(&mut self, step: &BoundStep<'_>, sequences: &mut Sequences<'_>) -> Result<()> {
        let (layer, tokens) = (step.layer, self.tokens);
        self.segment.enter(Some(layer));
        if self.layer(layer)?.steps[step.index].waits_for_sum() {
            self.add_due();
        }
        let at = layer - self.first_layer;
        let context = StepContext {
            gpu: &self.gpu,
            segment: &mut self.segment,
            registers: &self.registers,
            parts: &self.parts,
            layer,
            at,
            tokens,
            due: &mut self.due,
        };
        self.layers[at].steps[step.index].record(context, sequences)
    }

    /// Records the addition that was put off.
    fn add_due(&mut self) {
        if std::mem::take(&mut self.due) {
            self.registers.add.record(self.segment.recorder(), self.tokens);
        }
    }

    /// Reads back the residual stream of some of the chunk's tokens.
    pub fn read_residual(&mut self, tokens: Range<usize>) -> Result<()> {
        self.add_due();
        self.read_register(Register::Residual, tokens)
    }

    /// Reads back a register of some of the chunk's tokens, in place of the residual stream.
    pub fn read_register(&mut self, register: Register, tokens: Range<usize>) -> Result<()> {
        let (d_model, row_bytes) = (self.registers.d_model, self.registers.row_bytes());
        let (start, bytes) = (tokens.start as u64 * row_bytes, tokens.len() as u64 * row_bytes);
        let read_back = &mut self.read_back;
        let piece = (self.registers.get(register), start, bytes);
        self.segment.read(&[piece], |read| unpad(read, row_bytes as usize, d_model, read_back))
    }

    /// The rows that were last read back, `[tokens, d_model]`.
    pub fn residual(&self) -> &[f32] {
        &self.read_back
    }

    /// Final norm and head of the chunk's tokens in `tokens`, read back into `logits`, `[tokens.len(), n_vocab]`.
    pub fn logits(&mut self, tokens: Range<usize>, logits: &mut [f32]) -> Result<()> {
        self.segment.enter(None);
        let due = std::mem::take(&mut self.due);
        let head = self.head.as_ref().ok_or_else(no_head)?;
        head.logits(&mut self.segment, &self.registers, due, tokens, logits)
    }

    /// The largest logits of one token and their ids, in descending order.
    pub fn top(&mut self, token: usize, ids: &mut [u32], logits: &mut [f32]) -> Result<()> {
        self.segment.enter(None);
        let due = std::mem::take(&mut self.due);
        let head = self.head.as_ref().ok_or_else(no_head)?;
        head.top(&mut self.segment, &self.registers, due, token, ids, logits)
    }

    /// Leaves out the addition that was put off: the chunk is over, and no step reads the stream.
    pub fn forget_due(&mut self) {
        self.due = false;
    }
}

fn no_head() -> Error {
    Error::invalid("head on the GPU", "one that is loaded", "none")
}

/// Most bytes uploaded at once: the rows that a chunk begins with and its rotations, or the CPU's partial sums of an FFN, whose rows
/// are as wide as any weight type's blocks make them.
fn upload_bytes(config: &ModelConfig, chunk: usize) -> u64 {
    let begin = config.streams() * pitch(config.d_model) + rotated(config) + config.per_layer_inputs();
    (chunk * begin.max(config.d_model.next_multiple_of(256)) * size_of::<f32>()) as u64
}
