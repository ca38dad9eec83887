//! Attention of a layer on the device, except the kernels that are bound to a KV cache ([`KvOps`]).

use thermocline_shaders::{DecodeGrid, decode_heads, head_pitch, limits};

use super::{kv::KvOps, loader::Loader, product::Product};
use crate::{
    error::{Error, Result},
    gpu::{Buffer, Caps, Gpu, Op, Purpose, Recorder, params, pitch},
    model::{AttentionWeights, ModelConfig, NormKind, Position},
};

/// Most tokens computed by `attention_decode`: each has workgroups of its own, which divide its keys. More tokens are computed by
/// `attention_prompt`, in tiles of queries.
const FEW_TOKENS: usize = 8;
/// Workgroups that `attention_decode` is split into in long contexts.
const WORKGROUPS: u64 = 512;
/// Invocations of a workgroup, for kernels written for any number.
const WORKGROUP: u32 = 128;
/// Widest head that `attention_prompt` takes.
const MOST_PROMPT_HEAD: usize = 256;

/// Buffers and sizes that all layers share.
#[derive(Debug)]
pub(crate) struct AttentionBuffers {
    pub n_head: usize,
    pub n_kv_head: usize,
    pub head_dim: usize,
    /// Rotated elements of a head; 0 with learned positions.
    pub dims: usize,
    /// `[chunk, q | k | v]`
    pub qkv: Buffer,
    pub qkv_pitch: usize,
    /// `[chunk, n_head, head_pitch]`, rotated.
    pub q: Buffer,
    pub q_pitch: usize,
    /// `[chunk, n_head * head_dim]`
    pub heads: Buffer,
    pub heads_pitch: usize,
    /// Partial results of `attention_decode`'s splits.
    pub partials: Buffer,
    /// Cosine and sine, `[chunk, dims / 2, 2]`, per rotation table.
    pub tables: Vec<Buffer>,
    merge: Op,
    /// Query heads per workgroup of `attention_decode`.
    pub decode_heads: u32,
    workgroups: u32,
    scale: f32,
    softcap: f32,
    eps: f32,
    /// Growth of queries with their position: its weight and step.
    query_scale: (f32, u32),
}

/// One layer's matrices and norms.
#[derive(Debug)]
pub(crate) struct AttentionOps {
    qkv: Product,
    output: Product,
    pub q_norm: Option<Buffer>,
    pub k_norm: Option<Buffer>,
    /// The norms are of all heads together.
    pub norms_all: bool,
    window: usize,
}

impl AttentionBuffers {
    pub fn new(loader: &Loader<'_, '_>) -> Result<Self> {
        let (gpu, config, chunk) = (loader.gpu, loader.config, loader.chunk);
        let (n_head, n_kv_head, head_dim) = (config.n_head, config.n_kv_head, config.head_dim);
        if head_dim > limits::ATTENTION_UNITS as usize * 4 {
            let most = limits::ATTENTION_UNITS * 4;
            return Err(unsupported("head width on the GPU", head_dim, &format!("up to {most}")));
        }
        let (qkv_pitch, q_pitch, heads_pitch) = pitches(config);
        let (heads, workgroups, partials) = splits(gpu.caps(), config);
        let partials = loader.scratch("partial attention", partials)?;
        let (dims, tables) = rotations(config);
        let tables = (0..tables).map(|_| loader.scratch("rotations", chunk * dims));
        let tables = tables.collect::<Result<Vec<_>>>()?;
        let out = loader.scratch("attention's output", chunk * heads_pitch)?;
        let units = (head_width(config) / 4) as u32;
        let pipeline =
            gpu.pipelines().get("attention_merge", None, WORKGROUP.max(units), &[("HEAD_DIM", head_dim as f64)])?;
        Ok(AttentionBuffers {
            n_head,
            n_kv_head,
            head_dim,
            dims,
            qkv: loader.scratch("queries, keys and values", chunk * qkv_pitch)?,
            qkv_pitch,
            q: loader.scratch("queries", chunk * q_pitch)?,
            q_pitch,
            merge: Op::new(gpu, &pipeline, &[(&partials).into(), (&out).into()])?,
            heads: out,
            heads_pitch,
            partials,
            tables,
            decode_heads: heads,
            workgroups,
            scale: config.attention_scale,
            softcap: config.attention_softcap.unwrap_or(0.0),
            eps: config.norm_eps,
            query_scale: config.query_scale.map_or((0.0, 1), |scale| (scale.beta, scale.length as u32)),
        })
    }

    /// Sizes of the scratch buffers, in floats.
    pub fn scratch_floats(caps: &Caps, config: &ModelConfig, chunk: usize) -> Vec<usize> {
        let (qkv, q, heads) = pitches(config);
        let (dims, tables) = rotations(config);
        let mut all = vec![splits(caps, config).2, chunk * qkv, chunk * q, chunk * heads];
        all.resize(all.len() + tables, chunk * dims);
        all
    }

    /// Elements of the longest row of a buffer.
    pub fn widest(config: &ModelConfig) -> usize {
        let (qkv, q, heads) = pitches(config);
        qkv.max(q).max(heads)
    }

    /// Invocations of a workgroup of `attention_decode`.
    pub fn decode_workgroup(&self) -> u32 {
        WORKGROUP.max(head_pitch(self.head_dim as u32) / 4).max(16 * self.decode_heads).next_multiple_of(32)
    }

    /// Invocations of a workgroup of `rope_append`: one workgroup per head.
    pub fn rope_workgroup(&self) -> u32 {
        (self.head_dim as u32 / 2).next_multiple_of(32).clamp(32, WORKGROUP)
    }

    /// Invocations of a workgroup of `attention_prompt`, fixed in the shader.
    pub const PROMPT_WORKGROUP: u32 = 128;
}

/// Elements of a padded head.
fn head_width(config: &ModelConfig) -> usize {
    head_pitch(config.head_dim as u32) as usize
}

/// Row pitches in floats: of queries, keys and values together, of queries, of the heads' outputs.
fn pitches(config: &ModelConfig) -> (usize, usize, usize) {
    let heads = config.n_head * config.head_dim;
    (pitch(heads + 2 * config.kv_dim()), pitch(config.n_head * head_width(config)), pitch(heads))
}

/// Division of `attention_decode`: query heads per workgroup, workgroups, and floats of the partial results.
fn splits(caps: &Caps, config: &ModelConfig) -> (u32, u32, usize) {
    let [n_head, n_kv_head, head_dim] = [config.n_head, config.n_kv_head, config.head_dim].map(|n| n as u32);
    let heads = decode_heads(n_head, n_kv_head, head_dim);
    // A workgroup's partials are few bytes, so that this is less than WORKGROUPS only under narrow limits.
    let partial = u64::from(heads) * (head_width(config) as u64 + 4) * 4;
    let workgroups = (caps.max_binding / partial).clamp(1, WORKGROUPS) as u32;
    (heads, workgroups, DecodeGrid::max_partials_len(n_head, head_dim, heads, workgroups))
}

/// Rotated elements of a head, and number of rotation tables.
pub(crate) fn rotations(config: &ModelConfig) -> (usize, usize) {
    match &config.position {
        Position::Rope(rope) => (rope.dims, kinds_of_rotation(config)),
        Position::Learned { .. } => (0, 0),
    }
}

/// Most rotation tables a context can have ([`crate::runtime::Rotary`]).
fn kinds_of_rotation(config: &ModelConfig) -> usize {
    let rotated = config.layers.iter().filter(|layer| layer.rotated);
    let mut kinds: Vec<(u32, bool)> = rotated.map(|layer| (layer.rope_base.to_bits(), layer.rope_scaled)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds.len()
}

fn unsupported(what: &'static str, got: impl ToString, supported: &str) -> Error {
    Error::Unsupported { what, got: got.to_string(), supported: supported.to_owned() }
}

impl AttentionOps {
    pub fn new(
        loader: &mut Loader<'_, '_>,
        buffers: &AttentionBuffers,
        weights: &AttentionWeights,
        window: Option<usize>,
        from: &Buffer,
        (out, pitch): (&Buffer, usize),
    ) -> Result<Self> {
        let into = (&buffers.qkv, buffers.qkv_pitch);
        let what = (Purpose::Attention, "attention weights");
        let qkv = Product::new(loader, what, &[&weights.q, &weights.k, &weights.v], from, into)?;
        let output = Product::new(loader, what, &[&weights.output], &buffers.heads, (out, pitch))?;
        let mut norm = |norm: &Option<crate::model::Norm>| match norm {
            Some(_) if loader.config.norm == NormKind::Layer => {
                Err(unsupported("norm of heads on the GPU", "layer norm", "RMS norm"))
            }
            Some(norm) => loader.vector("a head's norm", &norm.weight).map(Some),
            None => Ok(None),
        };
        let (q_norm, k_norm) = (norm(&weights.q_norm)?, norm(&weights.k_norm)?);
        if q_norm.is_some() != k_norm.is_some() {
            return Err(unsupported("norm of heads on the GPU", "of queries or keys alone", "both or none"));
        }
        // A single head is all of them.
        let wider = |norm: &Option<crate::model::Norm>| norm.iter().any(|norm| norm.weight.len() != buffers.head_dim);
        let norms_all = wider(&weights.q_norm) || wider(&weights.k_norm);
        Ok(AttentionOps { qkv, output, q_norm, k_norm, norms_all, window: window.unwrap_or(0) })
    }

    /// Records the attention of `tokens` tokens, the first at position `first` of a cache of `capacity` rows.
    pub fn record(
        &self,
        recorder: &mut Recorder,
        gpu: &Gpu,
        buffers: &AttentionBuffers,
        cache: &KvOps,
        tokens: usize,
        (first, capacity): (usize, usize),
    ) {
        self.qkv.record(recorder, tokens);
        let [n_head, n_kv_head, head_dim, dims] =
            [buffers.n_head, buffers.n_kv_head, buffers.head_dim, buffers.dims].map(|n| n as u32);
        let [position, capacity, q_pitch, out_pitch] =
            [first, capacity, buffers.q_pitch, buffers.heads_pitch].map(|n| n as u32);
        let rope = params::RopeAppend {
            n_head,
            n_kv_head,
            head_dim,
            dims,
            qkv_pitch: buffers.qkv_pitch as u32,
            q_pitch,
            position,
            capacity,
            eps: buffers.eps,
            query_beta: buffers.query_scale.0,
            query_length: buffers.query_scale.1,
        };
        recorder.dispatch(&cache.rope, &rope, [n_head + 2 * n_kv_head, tokens as u32, 1]);
        let mut params = params::Attention {
            n_head,
            n_kv_head,
            q_pitch,
            out_pitch,
            tokens: tokens as u32,
            position,
            capacity,
            window: self.window as u32,
            span: 0,
            splits: 1,
            scale: buffers.scale,
            softcap: buffers.softcap,
        };
        match &cache.prompt {
            Some(prompt) if tokens > FEW_TOKENS => {
                let groups = (tokens as u32).div_ceil(limits::ATTENTION_QUERIES);
                recorder.dispatch(prompt, &params, [n_head, groups, 1]);
            }
            _ => {
                let workgroups = buffers.workgroups.min(gpu.caps().max_groups);
                let grid = DecodeGrid::new(&params, buffers.decode_heads, workgroups);
                (params.span, params.splits) = (grid.span, grid.splits);
                let decode = if grid.splits == 1 { &cache.decode } else { &cache.decode_split };
                recorder.dispatch(decode, &params, grid.workgroups().into());
                if grid.splits > 1 {
                    let merge = params::AttentionMerge { n_head, out_pitch, splits: grid.splits };
                    recorder.dispatch(&buffers.merge, &merge, [n_head, tokens as u32, 1]);
                }
            }
        }
        self.output.record(recorder, tokens);
    }

    /// Multiply-adds of `tokens` tokens, each of which sees at most `seen` keys.
    pub fn work(&self, buffers: &AttentionBuffers, tokens: usize, seen: usize) -> u64 {
        let seen = if self.window == 0 { seen } else { seen.min(self.window) };
        let keys = 2 * buffers.n_head * buffers.head_dim * seen;
        (self.qkv.work + self.output.work + keys as u64) * tokens as u64
    }
}

/// True if `attention_prompt` can take heads this wide.
pub(crate) fn has_prompt_kernel(head_dim: usize) -> bool {
    head_dim <= MOST_PROMPT_HEAD
}
