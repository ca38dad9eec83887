//! A layer of a tower on a device.

use std::ops::Range;

use super::{
    super::{
        attention::{AttentionBuffers, WORKGROUP},
        elementwise::{ActivationOp, Elementwise, GateUpRows},
        norm::NormOp,
        segment::Segment,
    },
    buffers::PictureBuffers,
    part::TowerLoader,
    products::TowerProducts,
};
use thermocline_base::error::{Error, Result};
use thermocline_gpu::{BufferRows, Op, Recorder, WorkKind, params, pitch, work_of};
use thermocline_model::{ActivationForm, Norm, TowerConfig, TowerLayer, TowerLinear};
use thermocline_shaders::limits::{ATTENTION_OUT, ATTENTION_QUERIES, ATTENTION_UNITS};

/// A [`TowerLayer`], prepared.
#[derive(Debug)]
pub(super) struct LayerOps {
    attention_norm: NormOp,
    qkv: TowerProducts,
    /// Norms and rotations of heads. Appends keys and values to those of earlier chunks.
    append: Op,
    rope: params::RopeAppend,
    scores: Op,
    of_scores: params::Attention,
    output: AddedProducts,
    ffn_norm: NormOp,
    gate_up: TowerProducts,
    activation: ActivationOp,
    n_ff: usize,
    down: AddedProducts,
    /// True if patches attend only within their window.
    windowed: bool,
}

/// A map whose result is added to the residual stream, perhaps after a norm.
#[derive(Debug)]
struct AddedProducts {
    products: TowerProducts,
    norm: Option<NormOp>,
    add: Elementwise,
}

impl LayerOps {
    /// Uploads `layer`.
    ///
    /// # Errors
    /// [`Error::Memory`] if it does not fit the budget, [`Error::Unsupported`] for heads that are
    /// too wide for the kernels, [`Error::Gpu`] if the device is lost.
    pub fn new(loader: &mut TowerLoader<'_, '_>, buffers: &PictureBuffers, layer: &TowerLayer) -> Result<Self> {
        let (gpu, config) = (loader.gpu, loader.config);
        let (stream, normed) = (&buffers.stream.part, buffers.normed());
        let attention_norm = loader.norm(&layer.attention_norm, stream, normed.buffer)?.with_pitch(config.width);
        let [query, key, value] = &layer.qkv;
        let qkv = TowerProducts::new(loader, buffers, &[query, key, value], normed, buffers.qkv())?;
        let append = append(loader, buffers, layer)?;
        let output = AddedProducts::new(loader, buffers, &layer.output, buffers.heads())?;
        let output = output.normed(loader, buffers, layer.post_attention_norm.as_ref())?;
        let ffn_norm = loader.norm(&layer.ffn_norm, stream, normed.buffer)?.with_pitch(config.width);
        let gated = layer.gate.is_some();
        let row = pitch(config.n_ff);
        let gate_up = BufferRows { buffer: &buffers.gate_up, pitch: if gated { 2 * row } else { row } };
        let maps: Vec<&TowerLinear> = layer.gate.iter().chain([&layer.up]).collect();
        let products = TowerProducts::new(loader, buffers, &maps, normed, gate_up)?;
        let form = ActivationForm { activation: config.activation, limit: None };
        let rows = GateUpRows { buffer: gate_up.buffer, gated, interleaved: false };
        let activation = ActivationOp::new(gpu, form, rows, &buffers.hidden, row)?;
        let hidden = BufferRows { buffer: &buffers.hidden, pitch: row };
        let down = AddedProducts::new(loader, buffers, &layer.down, hidden)?;
        let down = down.normed(loader, buffers, layer.post_ffn_norm.as_ref())?;
        Ok(LayerOps {
            attention_norm,
            qkv,
            append,
            rope: rope_params(config, buffers.size.patches),
            scores: scores(loader, buffers)?,
            of_scores: score_params(config, buffers.size.patches),
            output,
            ffn_norm,
            gate_up: products,
            activation,
            n_ff: config.n_ff,
            down,
            windowed: layer.windowed,
        })
    }

    /// Records queries, keys and values of the patches of `chunk`.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost.
    pub fn record_inputs(&self, segment: &mut Segment, buffers: &PictureBuffers, chunk: &Range<usize>) -> Result<()> {
        let patches = chunk.len();
        segment.expect(WorkKind::of(patches), work_of(self.qkv.work, patches))?;
        let recorder = segment.recorder();
        buffers.stream.load(recorder, chunk);
        self.attention_norm.record(recorder, patches, false);
        self.qkv.record(recorder, patches);
        if let Some(rotations) = &buffers.rotations {
            rotations.load(recorder, chunk);
        }
        let positions = params::TokenPositions { first: chunk.start as u32, ..self.rope.positions };
        let heads = self.rope.n_head + 2 * self.rope.n_kv_head;
        recorder.dispatch(&self.append, &params::RopeAppend { positions, ..self.rope }, [heads, patches as u32, 1]);
        buffers.queries.store(recorder, chunk);
        Ok(())
    }

    /// Records attention and FFN of the patches of `chunk`, after the inputs of all patches.
    /// `windows` are the patches of each window.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost.
    pub fn record_outputs(
        &self,
        segment: &mut Segment,
        buffers: &PictureBuffers,
        chunk: &Range<usize>,
        windows: &[Range<usize>],
    ) -> Result<()> {
        let patches = chunk.len();
        buffers.queries.load(segment.recorder(), chunk);
        let picture = 0..buffers.size.patches;
        let windows = if self.windowed { windows } else { std::slice::from_ref(&picture) };
        for window in windows {
            self.record_scores(segment, chunk, window)?;
        }
        let work = self.output.products.work + self.gate_up.work + self.down.products.work;
        segment.expect(WorkKind::of(patches), work_of(work, patches))?;
        let recorder = segment.recorder();
        buffers.stream.load(recorder, chunk);
        self.output.record(recorder, patches);
        self.ffn_norm.record(recorder, patches, false);
        self.gate_up.record(recorder, patches);
        self.activation.record(recorder, patches, self.n_ff, None);
        self.down.record(recorder, patches);
        buffers.stream.store(recorder, chunk);
        Ok(())
    }

    /// Records the attention of those patches of `chunk` that are in `window`, in pieces that the
    /// device's pace allows.
    fn record_scores(&self, segment: &mut Segment, chunk: &Range<usize>, window: &Range<usize>) -> Result<()> {
        let params::Attention { n_head, q_pitch, .. } = self.of_scores;
        let rows = chunk.start.max(window.start)..chunk.end.min(window.end);
        let group = ATTENTION_QUERIES as usize;
        // Every patch multiplies queries with keys, and weights with values.
        let of_group = (group * window.len()) as u64 * 2 * u64::from(q_pitch);
        let groups = usize::try_from(segment.most(WorkKind::Scores) / of_group.max(1)).unwrap_or(usize::MAX);
        let step = groups.max(1).saturating_mul(group);
        for first in rows.clone().step_by(step) {
            let patches = step.min(rows.end - first);
            segment.expect(WorkKind::Scores, of_group * patches.div_ceil(group) as u64)?;
            let [tokens, position, row] = [patches, first, first - chunk.start].map(|size| size as u32);
            let [seen_start, seen_end] = [window.start, window.end].map(|size| size as u32);
            let params = params::Attention { tokens, position, row, seen_start, seen_end, ..self.of_scores };
            let parts = (q_pitch / n_head.max(1)).div_ceil(ATTENTION_OUT);
            segment.recorder().dispatch(&self.scores, &params, [n_head, tokens.div_ceil(ATTENTION_QUERIES), parts]);
        }
        Ok(())
    }
}

impl AddedProducts {
    fn new(
        loader: &mut TowerLoader<'_, '_>,
        buffers: &PictureBuffers,
        map: &TowerLinear,
        x: BufferRows<'_>,
    ) -> Result<Self> {
        let (width, out) = (loader.config.width, buffers.out());
        let products = TowerProducts::new(loader, buffers, &[map], x, out)?;
        let rows = [&buffers.stream.part, out.buffer];
        let add = Elementwise::new(loader.gpu, "add", &[("DELTA_SCALE", 1.0)], &rows, width, width)?;
        Ok(AddedProducts { products, norm: None, add })
    }

    /// Adds the norm of the result, if there is one.
    fn normed(self, loader: &mut TowerLoader<'_, '_>, buffers: &PictureBuffers, norm: Option<&Norm>) -> Result<Self> {
        let out = buffers.out().buffer;
        let width = loader.config.width;
        let norm = norm.map(|norm| Ok::<_, Error>(loader.norm(norm, out, out)?.with_pitch(width)));
        Ok(AddedProducts { norm: norm.transpose()?, ..self })
    }

    fn record(&self, recorder: &mut Recorder, rows: usize) {
        self.products.record(recorder, rows);
        if let Some(norm) = &self.norm {
            norm.record(recorder, rows, false);
        }
        self.add.record(recorder, rows);
    }
}

/// Prepares norms and rotations of heads.
fn append(loader: &mut TowerLoader<'_, '_>, buffers: &PictureBuffers, layer: &TowerLayer) -> Result<Op> {
    let (gpu, config) = (loader.gpu, loader.config);
    let switch = |on: bool| f64::from(u8::from(on));
    let normed = switch(layer.head_norms.is_some());
    let options = [
        ("NEOX", switch(config.rope.is_some_and(|rope| !rope.interleaved))),
        ("ROPE", switch(config.rope.is_some())),
        ("QK_NORM", normed),
        ("V_NORM", normed),
        ("KV_F32", 1.0),
    ];
    let norms = layer
        .head_norms
        .as_ref()
        .map(|norms| Ok::<_, Error>([loader.vector(&norms.query)?, loader.vector(&norms.key)?]));
    let norms = norms.transpose()?;
    let [q_norm, k_norm] = norms.as_ref().map_or([gpu.nothing(); 2], |[query, key]| [query, key]);
    let table = buffers.rotations.as_ref().map_or(gpu.nothing(), |rotations| &rotations.part);
    let of = [buffers.qkv().buffer, table, q_norm, k_norm, &buffers.queries.part, &buffers.keys, &buffers.values];
    // Each head has one workgroup.
    let workgroup = (config.heads.head_dim as u32 / 2).next_multiple_of(32).clamp(32, WORKGROUP);
    Op::of(gpu, "rope_append", workgroup, &options, &of)
}

/// Prepares the scores.
fn scores(loader: &TowerLoader<'_, '_>, buffers: &PictureBuffers) -> Result<Op> {
    let (gpu, head_dim) = (loader.gpu, loader.config.heads.head_dim);
    let most = 4 * ATTENTION_UNITS as usize;
    if head_dim > most {
        return Err(Error::unsupported("head width of a tower on the GPU", head_dim, format!("up to {most}")));
    }
    let options = [("HEAD_DIM", head_dim as f64), ("VALUE_DIM", head_dim as f64), ("KV_F32", 1.0), ("SINKS", 0.0)];
    let of = [&buffers.queries.part, &buffers.keys, &buffers.values, gpu.nothing(), buffers.heads().buffer];
    Op::of(gpu, "attention_prompt", AttentionBuffers::PROMPT_WORKGROUP, &options, &of)
}

/// Parameters of `rope_append`, without the place of a chunk.
fn rope_params(config: &TowerConfig, patches: usize) -> params::RopeAppend {
    let heads = config.heads;
    let [n_head, n_kv_head, head_dim, value_dim, width, capacity] =
        [heads.n_head, heads.n_kv_head, heads.head_dim, heads.value_dim, config.width, patches].map(|n| n as u32);
    params::RopeAppend {
        positions: params::TokenPositions { first: 0, beta: 0.0, length: 1, offset: 0 },
        n_head,
        n_kv_head,
        first_kv_head: 0,
        kv_heads: n_kv_head,
        head_dim,
        value_dim,
        dims: if config.rope.is_some() { head_dim } else { 0 },
        qkv_pitch: 3 * width,
        q_pitch: width,
        capacity,
        eps: config.norm_eps,
        row: 0,
    }
}

/// Parameters of `attention_prompt`, without the place of a chunk.
fn score_params(config: &TowerConfig, patches: usize) -> params::Attention {
    let [n_head, width, capacity] = [config.heads.n_head, config.width, patches].map(|n| n as u32);
    params::Attention {
        n_head,
        n_kv_head: n_head,
        kv_heads: n_head,
        q_pitch: width,
        out_pitch: width,
        capacity,
        splits: 1,
        scale: config.score_scale,
        ..params::Attention::default()
    }
}
