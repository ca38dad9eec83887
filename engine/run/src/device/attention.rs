//! Attention of a layer on the device, except the kernels that are bound to a KV cache
//! ([`KvPage`]).

use std::ops::Range;

use smallvec::SmallVec;
use thermocline_shaders::{DecodeGrid, decode_heads, head_pitch, limits};

use super::{
    elementwise,
    kv_page::KvPage,
    latent::{LatentBuffers, LatentOps},
    loader::GpuLoader,
    norm::NormOp,
    product::Product,
    registers::Registers,
    segment::Segment,
};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::ops::{AttentionWindow, HeadSizes};
use thermocline_gpu::{
    Buffer, BufferRows, Caps, Gpu, MemoryUse, Op, Purpose, Recorder, WorkKind, params, pitch, work_of,
};
use thermocline_model::{
    AttentionConfig, BoundAttention, GateFunction, HeadGates, Linear, ModelConfig, Norm, NormKind, NormSlot,
    QueryScale, Register,
};

/// Workgroups among which `attention_decode` divides a long context.
const WORKGROUPS: u64 = 512;
/// Invocations of a workgroup, for kernels that support any number.
pub(super) const WORKGROUP: u32 = 128;

/// Buffers that all layers share, large enough for any of them.
#[derive(Debug)]
pub(crate) struct AttentionBuffers {
    /// `[chunk, q | k | v | gates]`
    pub qkv: Buffer,
    /// `[chunk, n_head, head_pitch]`, rotated.
    pub q: Buffer,
    /// `[chunk, n_head * value_dim]`
    pub heads: Buffer,
    pub(super) latent: Option<LatentBuffers>,
    /// Partial results of `attention_decode`'s splits.
    pub partials: Buffer,
    /// Cosine and sine, `[chunk, dims / 2, 2]`, per rotation table.
    pub tables: Vec<Buffer>,
    eps: f32,
}

/// Sizes of one layer's attention on a device.
#[derive(Debug, Clone)]
pub(crate) struct AttentionLayout {
    pub shape: AttentionConfig,
    /// Rotated elements of a head; 0 if heads are not rotated.
    pub dims: usize,
    /// Row pitches in floats: of queries, keys, values and gates together; of queries; of the
    /// heads' outputs.
    pub qkv_pitch: usize,
    pub q_pitch: usize,
    pub heads_pitch: usize,
    /// Query heads per workgroup of `attention_decode`.
    pub decode_heads: u32,
    pub(super) workgroups: u32,
    /// Floats of `attention_decode`'s partial results.
    partials: usize,
}

/// One layer's matrices and norms.
#[derive(Debug)]
pub(crate) struct AttentionOps {
    pub layout: AttentionLayout,
    pub(super) inputs: AttentionInputs,
    output: Product,
    pub(super) merge: Op,
    /// Multiplies the heads' outputs by their gates.
    gate: Option<Op>,
    /// Norm of all heads' outputs.
    heads_norm: Option<NormOp>,
    pub q_norm: Option<Buffer>,
    pub k_norm: Option<Buffer>,
    /// True if each norm covers all heads together.
    pub norms_all: bool,
    /// `[n_head]`: scores of keys without values.
    pub sinks: Option<Buffer>,
}

/// The rows of a chunk that belong to one conversation, and its cache.
#[derive(Debug)]
pub(crate) struct CacheRows<'a> {
    pub rows: Range<usize>,
    pub pages: &'a [KvPage],
    /// Position of the first row, and the number of positions in the layer's ring.
    pub position: usize,
    pub capacity: usize,
    /// The places of the pictures with tokens among the rows, if their tokens see all of them.
    pub pictures: SmallVec<[Range<usize>; 2]>,
}

impl<'a> CacheRows<'a> {
    /// Some of the rows, without their pictures.
    pub(super) fn stretch(&self, rows: Range<usize>) -> CacheRows<'a> {
        let CacheRows { pages, capacity, .. } = *self;
        let (position, first) = (self.position + rows.start, self.rows.start);
        let rows = first + rows.start..first + rows.end;
        CacheRows { rows, pages, position, capacity, pictures: SmallVec::new() }
    }
}

/// The matrices before attention's kernels.
#[derive(Debug)]
pub(super) enum AttentionInputs {
    /// Queries, keys, values and gates.
    Heads(Product),
    /// The matrices of latent attention, including the matrices of values after attention.
    Latent(Box<LatentOps>),
}

impl AttentionLayout {
    /// Computes the sizes of an attention layer of this `shape` under the limits of `caps`.
    pub fn new(caps: &Caps, config: &ModelConfig, shape: &AttentionConfig) -> Self {
        let HeadSizes { n_head, n_kv_head, head_dim, value_dim } = shape.heads;
        let (queries, heads) = (n_head * head_pitch(head_dim as u32) as usize, shape.heads.out_dim());
        let [n_head, n_kv_head, head_dim, value_dim] = [n_head, n_kv_head, head_dim, value_dim].map(|n| n as u32);
        let decode_heads = decode_heads(n_head, n_kv_head, head_dim);
        // A workgroup's partial results are small, so only narrow limits make this less than
        // WORKGROUPS.
        let partial = u64::from(decode_heads) * (u64::from(head_pitch(value_dim)) + 4) * 4;
        let workgroups = (caps.max_binding / partial).clamp(1, WORKGROUPS) as u32;
        // Latent attention's rows are slots, without padding between two tokens.
        let (q_pitch, heads_pitch, projected) = match shape.latent {
            Some(_) => (queries, heads, shape.q_rows()),
            None => {
                let projected = shape.q_rows() + shape.own_k_dim() + shape.own_v_dim() + shape.gate_rows();
                (pitch(queries), pitch(heads), projected)
            }
        };
        AttentionLayout {
            dims: shape.positions.rope_in(&config.ropes).map_or(0, |rope| rope.dims),
            qkv_pitch: pitch(projected),
            q_pitch,
            heads_pitch,
            decode_heads,
            workgroups,
            partials: DecodeGrid::max_partials_len(n_head, value_dim, decode_heads, workgroups),
            shape: shape.clone(),
        }
    }

    /// Returns the positions from `first` on, with the growth of queries, as the kernels read them.
    pub fn positions(&self, first: usize) -> params::TokenPositions {
        let unscaled = QueryScale { beta: 0.0, length: 1, offset: 0 };
        let QueryScale { beta, length, offset } = self.shape.scores.query_scale.unwrap_or(unscaled);
        let [length, offset] = [length, offset].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        params::TokenPositions { first: first as u32, beta, length, offset }
    }
}

impl AttentionBuffers {
    pub fn new(loader: &mut GpuLoader<'_, '_>) -> Result<Self> {
        let (gpu, config, chunk) = (loader.gpu, loader.config, loader.chunk);
        let latent = LatentBuffers::new(loader)?;
        let [partials, qkv, q, heads] = Self::floats(gpu.caps(), config, chunk);
        let tables = config.ropes.iter().map(|rope| loader.scratch("rotations", chunk * rope.dims));
        Ok(AttentionBuffers {
            latent,
            tables: tables.collect::<Result<_>>()?,
            partials: loader.scratch("partial attention", partials)?,
            heads: loader.scratch("attention's output", heads)?,
            qkv: loader.scratch("queries, keys and values", qkv)?,
            q: loader.scratch("queries", q)?,
            eps: config.norm_eps,
        })
    }

    /// Floats of partial results, of queries with keys and values, of queries, and of heads'
    /// outputs: each for the layer that needs most.
    fn floats(caps: &Caps, config: &ModelConfig, chunk: usize) -> [usize; 4] {
        let layouts = config.attentions().map(|shape| AttentionLayout::new(caps, config, shape));
        // Products read whole chunks of 32 columns.
        let heads = |it: &AttentionLayout| (chunk * it.heads_pitch).next_multiple_of(32) + 32;
        let of = |it: AttentionLayout| [it.partials, chunk * it.qkv_pitch, chunk * it.q_pitch, heads(&it)];
        layouts.map(of).fold([0; 4], |most, of| std::array::from_fn(|at| most[at].max(of[at])))
    }

    /// Invocations of a workgroup of `attention_prompt`, fixed in the shader.
    pub const PROMPT_WORKGROUP: u32 = 128;
}

/// Rotated elements of all rotation tables together: the floats uploaded per token.
pub(crate) fn rotated(config: &ModelConfig) -> usize {
    config.ropes.iter().map(|rope| rope.dims).sum()
}

/// Returns an error for attention that the kernels cannot compute.
///
/// # Errors
/// [`Error::Unsupported`] names what the kernels lack.
pub(super) fn check(of: &AttentionConfig) -> Result<()> {
    if of.positions.key_bias.is_some() {
        return Err(Error::unsupported("positions on the GPU", "ALiBi", "rotary ones"));
    }
    match of.window {
        Some(AttentionWindow { length, chunked: true, .. }) => {
            Err(Error::unsupported("window of attention on the GPU", format!("chunks of {length}"), "one that slides"))
        }
        Some(AttentionWindow { ahead: 1.., .. }) => {
            Err(Error::unsupported("attention on the GPU", "attention to later tokens", "attention to earlier tokens"))
        }
        _ => Ok(()),
    }
}

impl AttentionOps {
    pub fn new(
        loader: &mut GpuLoader<'_, '_>,
        buffers: &AttentionBuffers,
        attention: BoundAttention<'_>,
        registers: &Registers,
    ) -> Result<Self> {
        let BoundAttention { from, config: shape, weights, norms, .. } = attention;
        let (from, out) = (registers.get(from), registers.rows(Register::Out));
        let most = limits::ATTENTION_UNITS as usize * 4;
        let longest = shape.heads.longest();
        if longest > most {
            return Err(Error::unsupported("head width on the GPU", longest, format!("up to {most}")));
        }
        check(shape)?;
        let layout = AttentionLayout::new(loader.gpu.caps(), loader.config, shape);
        let what = MemoryUse { purpose: Purpose::Attention, what: "attention weights" };
        let (inputs, output) = match (weights.latent.as_deref(), &buffers.latent) {
            (Some(behind), Some(latent)) => {
                let inputs = LatentOps::new(loader, buffers, latent, &layout, weights, behind, from)?;
                let mut output = Product::new(loader, what, &[&weights.output], &latent.values, out)?;
                output.set_x_pitch(shape.output_cols());
                (AttentionInputs::Latent(Box::new(inputs)), output)
            }
            _ => {
                // Without a matrix of values, the keys' matrix projects the values too.
                let keys_again = weights.k.as_ref().filter(|_| weights.v.is_none());
                let linears: Vec<&Linear> = weights.inputs().chain(keys_again).chain(&weights.gate).collect();
                let qkv = BufferRows { buffer: &buffers.qkv, pitch: layout.qkv_pitch };
                let inputs = Product::new(loader, what, &linears, from, qkv)?;
                let output = Product::new(loader, what, &[&weights.output], &buffers.heads, out)?;
                (AttentionInputs::Heads(inputs), output)
            }
        };
        let mut norm = |norm: &Option<Norm>| match norm {
            Some(_) if loader.config.norm == NormKind::Layer => {
                Err(Error::unsupported("norm of heads on the GPU", "layer norm", "RMS norm"))
            }
            Some(norm) => loader.vector("a head's norm", &norm.weight).map(Some),
            None => Ok(None),
        };
        let (q_norm, k_norm) = (norm(&weights.q_norm)?, norm(&weights.k_norm)?);
        if q_norm.is_some() != k_norm.is_some() && shape.kv_from.is_none() {
            return Err(Error::unsupported("norm of heads on the GPU", "of queries or keys alone", "both or none"));
        }
        // A norm over all heads equals a norm per head if there is only one head.
        let wider = |norm: &Option<Norm>| norm.iter().any(|norm| norm.weight.len() != shape.heads.head_dim);
        let norms_all = wider(&weights.q_norm) || wider(&weights.k_norm);
        if norms_all && shape.gate == Some(HeadGates::InQueries) {
            return Err(Error::unsupported("norm of gated heads on the GPU", "of all heads together", "of each head"));
        }
        let sinks = weights.sinks.as_ref().map(|sinks| loader.vector("sinks", sinks)).transpose()?;
        let value_dim = shape.heads.value_dim as u32;
        let (vectors, value_dim) = (head_pitch(value_dim) / 4, ("VALUE_DIM", value_dim.into()));
        let of = [&buffers.partials, &buffers.heads];
        let merge = Op::of(loader.gpu, "attention_merge", WORKGROUP.max(vectors), &[value_dim], &of)?;
        let gate = shape.gate.map(|gate| {
            let switch = |on: bool| f64::from(u8::from(on));
            let softplus = matches!(gate, HeadGates::OwnMatrix { function: GateFunction::Softplus, .. });
            let overrides = [("OWN_GATES", switch(gate != HeadGates::InQueries)), ("SOFTPLUS", switch(softplus))];
            let of = [&buffers.heads, &buffers.qkv];
            Op::of(loader.gpu, "gate_heads", elementwise::WORKGROUP, &overrides, &of)
        });
        let gate = gate.transpose()?;
        let heads_norm = NormOp::within(loader, norms, NormSlot::Heads, &buffers.heads)?;
        Ok(AttentionOps { layout, inputs, output, merge, gate, heads_norm, q_norm, k_norm, norms_all, sinks })
    }

    /// Records the attention of `tokens` tokens, the rows of `caches`.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost.
    pub fn record(
        &self,
        segment: &mut Segment,
        gpu: &Gpu,
        buffers: &AttentionBuffers,
        caches: &[CacheRows<'_>],
        tokens: usize,
    ) -> Result<()> {
        let (layout, kind) = (&self.layout, WorkKind::of(tokens));
        segment.expect(kind, work_of(self.inputs_work(), tokens))?;
        let recorder = segment.recorder();
        match (&self.inputs, &buffers.latent) {
            (AttentionInputs::Latent(inputs), Some(latent)) => {
                inputs.record_inputs(recorder, latent, layout, tokens, caches);
            }
            (AttentionInputs::Heads(inputs), _) => {
                inputs.record(recorder, tokens);
                caches.iter().for_each(|of| self.record_heads(recorder, buffers, of));
            }
            // A model with latent attention always has these buffers.
            (AttentionInputs::Latent(_), None) => return Ok(()),
        }
        for of in caches {
            self.record_scores(segment, gpu, of)?;
        }
        segment.expect(kind, work_of(self.output.work, tokens))?;
        self.record_output(segment.recorder(), gpu, buffers, tokens);
        Ok(())
    }

    /// Records the gates, the norm and the matrices after the heads' outputs.
    fn record_output(&self, recorder: &mut Recorder, gpu: &Gpu, buffers: &AttentionBuffers, tokens: usize) {
        let (layout, shape) = (&self.layout, &self.layout.shape);
        let out_pitch = layout.heads_pitch as u32;
        if let Some(gate) = &self.gate {
            let workgroup = gate.pipeline().workgroup();
            let width = shape.output_cols();
            let (groups, stride) = elementwise::flat_grid(gpu, tokens * width, workgroup);
            let (cols, rows, gate_pitch) = (width as u32, tokens as u32, layout.qkv_pitch as u32);
            let gate_width = match shape.gate {
                Some(HeadGates::OwnMatrix { rows, .. }) => width / rows,
                Some(HeadGates::InQueries) | None => shape.heads.head_dim,
            };
            let gate_first = shape.q_rows() + shape.own_k_dim() + shape.own_v_dim();
            let [gate_width, gate_first] = [gate_width, gate_first].map(|n| n as u32);
            let params = params::GateHeads { cols, pitch: out_pitch, rows, stride, gate_width, gate_pitch, gate_first };
            recorder.dispatch(gate, &params, groups);
        }
        if let Some(norm) = &self.heads_norm {
            norm.record(recorder, tokens, false);
        }
        if let (AttentionInputs::Latent(inputs), Some(latent)) = (&self.inputs, &buffers.latent) {
            inputs.record_values(recorder, latent, shape.heads.n_head, tokens);
        }
        self.output.record(recorder, tokens);
    }

    /// Records norms and rotations of queries and keys, and appends keys and values to one cache.
    fn record_heads(&self, recorder: &mut Recorder, buffers: &AttentionBuffers, of: &CacheRows<'_>) {
        let (layout, shape) = (&self.layout, &self.layout.shape);
        let HeadSizes { n_head, n_kv_head, head_dim, value_dim } = shape.heads;
        let [n_head, n_kv_head, head_dim, value_dim, dims] =
            [n_head, n_kv_head, head_dim, value_dim, layout.dims].map(|n| n as u32);
        let [qkv_pitch, q_pitch, capacity, row] =
            [layout.qkv_pitch, layout.q_pitch, of.capacity, of.rows.start].map(|n| n as u32);
        let mut rope = params::RopeAppend {
            positions: layout.positions(of.position),
            n_head,
            n_kv_head,
            first_kv_head: 0,
            kv_heads: 0,
            head_dim,
            value_dim,
            dims,
            qkv_pitch,
            q_pitch,
            capacity,
            eps: buffers.eps,
            row,
        };
        let appends = shape.kv_from.is_none();
        for page in of.pages.iter().take(if appends { of.pages.len() } else { 1 }) {
            rope.first_kv_head = page.heads.start as u32;
            rope.kv_heads = page.heads.len() as u32;
            // The first page's dispatch also computes the queries.
            let queries = if rope.first_kv_head == 0 { n_head } else { 0 };
            let appended = if appends { 2 * rope.kv_heads } else { 0 };
            recorder.dispatch(&page.append, &rope, [queries + appended, of.rows.len() as u32, 1]);
        }
    }

    /// Multiply-adds per token in the matrices before attention.
    fn inputs_work(&self) -> u64 {
        match &self.inputs {
            AttentionInputs::Heads(inputs) => inputs.work,
            AttentionInputs::Latent(inputs) => inputs.work,
        }
    }

    /// Multiply-adds per token in the matrices before attention or in the matrices after it,
    /// whichever is more.
    pub fn work(&self) -> u64 {
        self.inputs_work().max(self.output.work)
    }
}
