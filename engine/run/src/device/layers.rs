//! The last layers of a model on a device, without their FFNs: embedding, norms, attention,
//! residual stream and head.

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
use crate::runtime::{Pass, Sequences};
use thermocline_base::error::{Error, Result};
use thermocline_gpu::{Buffer, Gpu, pitch};
use thermocline_model::{BoundStep, Model, ModelConfig, Position, Register, Weights};

/// The layers from a first one to the last in a device's memory, with all dispatches prepared.
/// Includes the head if it is on the device.
#[derive(Debug)]
pub(crate) struct GpuLayers {
    pub gpu: Gpu,
    /// Distinguishes the caches of these layers from caches of other processors.
    pub(super) identity: Arc<()>,
    /// Most tokens per chunk: the rows of a register.
    pub chunk: usize,
    /// As [`GpuLoad::threshold_ratio`](super::GpuLoad::threshold_ratio).
    pub(super) threshold_ratio: f32,
    pub registers: Registers,
    pub(super) parts: PartBuffers,
    pub(super) first_layer: usize,
    pub(super) layers: Vec<GpuLayer>,
    head: Option<Head>,
    pub segment: Segment,
    /// Tokens of the current chunk.
    tokens: usize,
    /// True if `Residual += Out` is still due.
    due: bool,
    /// Data uploaded at the start of a chunk: embeddings, `[tokens, pitch(d_model)]`, and cosines
    /// and sines of each rotation table, `[tokens, dims]`.
    rows: Vec<f32>,
    rotations: Vec<Vec<f32>>,
    /// The residual stream read back, `[tokens, d_model]`.
    read_back: Vec<f32>,
}

impl GpuLayers {
    /// Starts without layers. The first layer that [`GpuLayers::push`] adds is `first_layer`. Work
    /// of several tokens above `most_work` is split into several submissions, even if the device is
    /// fast.
    ///
    /// # Errors
    /// [`Error::Memory`] if the device's budget or limits are too small, [`Error::Unsupported`] for
    /// a variant without kernels, [`Error::Gpu`] if the device is lost.
    pub fn new(loader: &mut GpuLoader<'_, '_>, first_layer: usize, most_work: u64) -> Result<Self> {
        let (gpu, config, chunk) = (loader.gpu, loader.config, loader.chunk);
        let registers = Registers::new(loader)?;
        let parts = PartBuffers::new(loader)?;
        let rotations = vec![Vec::new(); parts.attention.tables.len()];
        let rings = RingBytes { up: upload_bytes(config, chunk), down: registers.row_bytes() };
        let segment = Segment::new(gpu, rings, config.n_layer(), most_work)?;
        Ok(GpuLayers {
            gpu: gpu.clone(),
            threshold_ratio: loader.threshold_ratio,
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

    /// Uploads the layer that follows the last one and returns its index.
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

    /// Uploads `layer`, which must precede the first layer on the device.
    pub fn push_front(&mut self, loader: &mut GpuLoader<'_, '_>, model: &Model, layer: usize) -> Result<()> {
        let built = self.build(loader, model, layer)?;
        self.layers.insert(0, built);
        self.first_layer = layer;
        Ok(())
    }

    /// The range of layers on the device.
    pub fn range(&self) -> Range<usize> {
        self.first_layer..self.first_layer + self.layers.len()
    }

    /// The prepared steps of `layer`.
    pub fn layer(&self, layer: usize) -> Result<&GpuLayer> {
        let found = layer.checked_sub(self.first_layer).and_then(|at| self.layers.get(at));
        let expected = || format!("a layer from {} on", self.first_layer);
        found.ok_or_else(|| Error::invalid("layer on the GPU", expected(), layer))
    }

    /// Multiply-adds per token in the heaviest step of the layers on the device, without their
    /// FFNs.
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

    /// True if the head is on the device.
    pub fn has_head(&self) -> bool {
        self.head.is_some()
    }

    /// Makes room for reading back a chunk's results (logits, or the residual stream) together with
    /// `more` bytes.
    pub fn reserve_results(&mut self, more: u64) -> Result<()> {
        let rows = self.chunk as u64 * self.registers.row_bytes();
        let head = self.head.as_ref().map(Head::bytes);
        // Several streams are read back for merging before the head, wherever the head is.
        let streams = self.parts.altup.as_ref().map(|altup| altup.streams.bytes());
        self.segment.reserve_down(head.max(streams).unwrap_or(rows) + more)
    }

    /// Starts a chunk of `sequences`' rows whose first layers are computed elsewhere.
    pub fn start_chunk(&mut self, sequences: &Sequences<'_>) {
        (self.tokens, self.due) = (sequences.rows(), false);
        self.segment.start_chunk(self.tokens);
        let tables = sequences.rotary().map_or(&[][..], |rotary| rotary.tables());
        for (rotations, table) in self.rotations.iter_mut().zip(tables) {
            rotations.clear();
            table.extend_rotations(sequences.positions(), rotations);
        }
    }

    /// Begins the chunk: `Residual = embedding(tokens) * scale (+ learned positions)`, or the
    /// pass's inputs.
    pub fn begin(&mut self, pass: &Pass<'_>, sequences: &Sequences<'_>) -> Result<()> {
        let Pass { model, tokens, .. } = *pass;
        let (config, weights) = (&model.config, &model.weights);
        self.start_chunk(sequences);
        let embedding = self.head.as_ref().and_then(|head| head.embedding.clone());
        if let Some(embedding) = embedding.filter(|_| pass.inputs.is_empty()) {
            self.upload_inputs(Some((tokens, &embedding.ids)), &[])?;
            embedding.record(self.segment.recorder(), tokens.len());
            return Ok(());
        }
        let (d_model, pitch) = (self.registers.d_model, self.registers.pitch);
        self.rows.clear();
        self.rows.resize(tokens.len() * pitch, 0.0);
        self.read_back.resize(d_model, 0.0);
        let rows = self.rows.chunks_exact_mut(pitch).zip(tokens).zip(sequences.places());
        for (n, ((row, id), at)) in rows.enumerate() {
            let row = &mut row[..d_model];
            if let Some(input) = pass.input(n) {
                row.copy_from_slice(input);
                continue;
            }
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

    /// Sets `Residual = residual`, `[tokens, d_model]`, for the chunk that was started. `per_layer`
    /// holds the inputs of the device's layers, `[layers, tokens, w]`. In a model with several
    /// streams, `residual` holds all of them, `[streams, tokens, d_model]`.
    pub fn begin_with(&mut self, residual: &[f32], per_layer: &[f32]) -> Result<()> {
        pad(residual, self.registers.d_model, self.registers.pitch, &mut self.rows);
        self.upload_inputs(None, per_layer)
    }

    /// Sets `Residual = residual`, `[tokens, d_model]`, in the middle of a chunk.
    pub fn replace_residual(&mut self, residual: &[f32]) -> Result<()> {
        pad(residual, self.registers.d_model, self.registers.pitch, &mut self.rows);
        self.segment.upload(&[(bytemuck::cast_slice(&self.rows), self.registers.get(Register::Residual), 0)])
    }

    /// `Residual += values` for the rows of the pass that have values to add after `layer`.
    pub fn add_inputs(&mut self, pass: &Pass<'_>, layer: usize) -> Result<()> {
        let (d_model, pitch) = (self.registers.d_model, self.registers.pitch);
        self.add_due();
        // An upload is the first of its submission.
        self.segment.submit()?;
        self.rows.clear();
        self.rows.resize(self.tokens * pitch, 0.0);
        // The addition scales what it adds.
        let scale = 1.0 / pass.model.config.residual_scale;
        for (rows, values) in pass.added_after(layer) {
            let to = self.rows[rows.start * pitch..rows.end * pitch].chunks_exact_mut(pitch);
            for (to, from) in to.zip(values.chunks_exact(d_model)) {
                to.iter_mut().zip(from).for_each(|(to, from)| *to = from * scale);
            }
        }
        self.segment.upload(&[(bytemuck::cast_slice(&self.rows), self.registers.get(Register::Out), 0)])?;
        self.registers.add.record(self.segment.recorder(), self.tokens);
        Ok(())
    }

    /// Bytes between the starts of consecutive streams.
    fn stream_bytes(&self) -> u64 {
        self.chunk as u64 * self.registers.row_bytes()
    }

    /// Reads back all streams of some of the chunk's tokens, `[streams, tokens.len(), d_model]`,
    /// instead of the residual stream.
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

    /// Uploads the rows of the residual stream or the ids of `tokens`, the chunk's rotations, and
    /// the per-layer inputs.
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

    /// Computes a step of a layer on the device. For a router or an FFN it only prepares the input;
    /// [`DeviceFfn`](super::device_ffn::DeviceFfn) computes the part on the device.
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

    /// Records the deferred addition.
    fn add_due(&mut self) {
        if std::mem::take(&mut self.due) {
            self.registers.add.record(self.segment.recorder(), self.tokens);
        }
    }

    /// Reads back the residual stream for some of the chunk's tokens.
    pub fn read_residual(&mut self, tokens: Range<usize>) -> Result<()> {
        self.add_due();
        self.read_register(Register::Residual, tokens)
    }

    /// Reads back a register for some of the chunk's tokens, instead of the residual stream.
    pub fn read_register(&mut self, register: Register, tokens: Range<usize>) -> Result<()> {
        let (d_model, row_bytes) = (self.registers.d_model, self.registers.row_bytes());
        let (start, bytes) = (tokens.start as u64 * row_bytes, tokens.len() as u64 * row_bytes);
        let read_back = &mut self.read_back;
        let piece = (self.registers.get(register), start, bytes);
        self.segment.read(&[piece], |read| unpad(read, row_bytes as usize, d_model, read_back))
    }

    /// The rows read back last, `[tokens, d_model]`.
    pub fn residual(&self) -> &[f32] {
        &self.read_back
    }

    /// Computes final norm and head of the chunk's `tokens` and reads the logits back into
    /// `logits`, `[tokens.len(), n_vocab]`.
    pub fn logits(&mut self, tokens: Range<usize>, logits: &mut [f32]) -> Result<()> {
        self.segment.enter(None);
        let due = std::mem::take(&mut self.due);
        let head = self.head.as_ref().ok_or_else(no_head)?;
        head.logits(&mut self.segment, &self.registers, due, tokens, logits)
    }

    /// Finds the largest logits of one token and their ids, in descending order.
    pub fn top(&mut self, token: usize, ids: &mut [u32], logits: &mut [f32]) -> Result<()> {
        self.segment.enter(None);
        let due = std::mem::take(&mut self.due);
        let head = self.head.as_ref().ok_or_else(no_head)?;
        head.top(&mut self.segment, &self.registers, due, token, ids, logits)
    }

    /// Skips the deferred addition: the chunk is over, and no step reads the residual stream.
    pub fn forget_due(&mut self) {
        self.due = false;
    }
}

fn no_head() -> Error {
    Error::invalid("head on the GPU", "a loaded head", "no head")
}

/// Most bytes of one upload. It is either the rows and rotations at the start of a chunk, or the
/// CPU's partial sums of an FFN. The rows of partial sums are as wide as the blocks of any weight
/// type require.
fn upload_bytes(config: &ModelConfig, chunk: usize) -> u64 {
    let begin = config.streams() * pitch(config.d_model) + rotated(config) + config.per_layer_inputs();
    (chunk * begin.max(config.d_model.next_multiple_of(256)) * size_of::<f32>()) as u64
}
