//! Attention of patches on a device.

use std::ops::Range;

use super::{
    super::{
        attention::{AttentionBuffers, WORKGROUP},
        norm::NormOp,
        segment::Segment,
    },
    added::AddedProducts,
    buffers::PictureBuffers,
    part::TowerLoader,
    products::TowerProducts,
};
use thermocline_base::error::{Error, Result};
use thermocline_gpu::{Op, WorkKind, params, work_of};
use thermocline_model::{HeadNorms, Norm, TowerConfig, TowerLinear};
use thermocline_shaders::limits::{ATTENTION_OUT, ATTENTION_QUERIES, ATTENTION_UNITS};

/// The weights of an attention.
#[derive(Debug, Clone, Copy)]
pub(super) struct TowerAttentionWeights<'w> {
    pub norm: &'w Norm,
    /// Queries, keys and values.
    pub qkv: &'w [TowerLinear; 3],
    pub head_norms: Option<&'w HeadNorms>,
    pub output: &'w TowerLinear,
    pub post_norm: Option<&'w Norm>,
}

/// [`TowerAttentionWeights`], prepared.
#[derive(Debug)]
pub(super) struct TowerAttention {
    norm: NormOp,
    qkv: TowerProducts,
    /// Norms and rotations of heads. Appends keys and values after the keys and values of earlier
    /// chunks.
    append: Op,
    rope: params::RopeAppend,
    scores: Op,
    of_scores: params::Attention,
    output: AddedProducts,
}

impl TowerAttention {
    /// Uploads `weights`.
    ///
    /// # Errors
    /// [`Error::Memory`] if they do not fit the budget, [`Error::Unsupported`] for heads that are
    /// too wide for the kernels, [`Error::Gpu`] if the device is lost.
    pub fn new(
        loader: &mut TowerLoader<'_, '_>,
        buffers: &PictureBuffers,
        weights: TowerAttentionWeights<'_>,
    ) -> Result<Self> {
        let (config, patches) = (loader.config, loader.size.patches);
        let (stream, normed) = (&buffers.stream.part, buffers.normed());
        let norm = loader.norm(weights.norm, stream, normed.buffer)?.with_pitch(config.width);
        let [query, key, value] = weights.qkv;
        let qkv = TowerProducts::new(loader, buffers, &[query, key, value], normed, buffers.qkv())?;
        let append = append(loader, buffers, weights.head_norms)?;
        let output = AddedProducts::new(loader, buffers, weights.output, buffers.heads())?;
        let output = output.normed(loader, buffers, weights.post_norm)?;
        let scores = scores(loader, buffers)?;
        let (rope, of_scores) = (rope_params(config, patches), score_params(config, patches));
        Ok(TowerAttention { norm, qkv, append, rope, scores, of_scores, output })
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
        self.norm.record(recorder, patches, false);
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

    /// Records the attention of the patches of `chunk` to the patches of their window, after the
    /// inputs of all patches. Adds it to the residual stream of the chunk, which stays loaded.
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
        let end = windows.partition_point(|window| window.start < chunk.end);
        for window in windows[..end].iter().filter(|window| window.end > chunk.start) {
            self.record_scores(segment, chunk, window)?;
        }
        segment.expect(WorkKind::of(patches), work_of(self.output.work(), patches))?;
        let recorder = segment.recorder();
        buffers.stream.load(recorder, chunk);
        self.output.record(recorder, patches);
        Ok(())
    }

    /// Records the attention of the patches that `chunk` and `window` share, in pieces that the
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

/// Prepares norms and rotations of heads.
fn append(loader: &mut TowerLoader<'_, '_>, buffers: &PictureBuffers, norms: Option<&HeadNorms>) -> Result<Op> {
    let (gpu, config) = (loader.gpu, loader.config);
    let switch = |on: bool| f64::from(u8::from(on));
    let normed = switch(norms.is_some());
    let options = [
        ("NEOX", switch(config.rope.is_some_and(|rope| !rope.interleaved))),
        ("ROPE", switch(config.rope.is_some())),
        ("QK_NORM", normed),
        ("V_NORM", normed),
        ("KV_F32", 1.0),
    ];
    let norms = norms.map(|norms| Ok::<_, Error>([loader.vector(&norms.query)?, loader.vector(&norms.key)?]));
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
