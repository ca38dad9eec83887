//! Projections of multi-head latent attention (DeepSeek V2) on the device, absorbed as on the CPU.
//! A matrix per head maps the query to the latent's width. Another maps the weighted sum of latents
//! to the head's value. Both are products of pairs of a token and a head, like the products of
//! experts.
//!
//! A cached row is `[latent | rotated key]` on the device. The product of values reads the
//! beginning of the row.

use super::{
    attention::{AttentionBuffers, AttentionLayout, CacheRows},
    loader::GpuLoader,
    norm::NormOp,
    product::Product,
};
use thermocline_base::error::{Error, Result};
use thermocline_gpu::{
    Buffer, BufferRows, Epilogue, ExpertInput, ExpertMatmul, ExpertPairs, MatmulOutput, MemoryUse, Purpose, Recorder,
    Usage, params, pitch,
};
use thermocline_model::{AttentionConfig, AttentionWeights, LatentConfig, LatentWeights, Linear};

/// Invocations of a `latent_append` workgroup, which computes a head or a key.
pub(super) const WORKGROUP: u32 = 128;

/// Buffers that all layers share.
#[derive(Debug)]
pub(super) struct LatentBuffers {
    n_head: usize,
    /// `[chunk, pitch(q_rank)]`, for models with low-rank queries.
    low: Option<Buffer>,
    /// `[chunk, latent | rotated key]`, as projected.
    pub projected: Buffer,
    /// `[pairs, pitch(nope_dim)]`: the unrotated parts of queries.
    pub inputs: Buffer,
    /// `[chunk, n_head * v_dim]`
    pub values: Buffer,
    /// `[pairs]` u32: each pair's head.
    heads: Buffer,
    groups: ExpertPairs,
}

impl LatentBuffers {
    /// Returns `None` for a model without latent attention.
    pub fn new(loader: &mut GpuLoader<'_, '_>) -> Result<Option<Self>> {
        // The largest sizes over all layers, per token: heads, and elements of each buffer.
        let of = |attention: &AttentionConfig| {
            let (latent, n_head) = (attention.latent?, attention.heads.n_head);
            let low = latent.q_rank.map_or(0, pitch);
            let (inputs, values) = (n_head * pitch(latent.nope_dim), n_head * latent.v_dim);
            Some([n_head, low, pitch(attention.heads.head_dim), inputs, values])
        };
        let sizes = loader.config.attentions().filter_map(of);
        let most = sizes.reduce(|a: [usize; 5], b| std::array::from_fn(|at| a[at].max(b[at])));
        let (chunk, Some([n_head, low, projected, inputs, values])) = (loader.chunk, most) else { return Ok(None) };
        let pairs = chunk * n_head;
        let heads = loader.gpu.arena().buffer(Purpose::Scratch, "heads of pairs", pairs as u64 * 4, Usage::Storage)?;
        let ids: Vec<u32> = (0..pairs).map(|pair| (pair % n_head) as u32).collect();
        loader.uploader.bytes(&heads, 0, bytemuck::cast_slice(&ids))?;
        let low = (low > 0).then(|| loader.scratch("low-rank queries", chunk * low));
        Ok(Some(LatentBuffers {
            n_head,
            low: low.transpose()?,
            projected: loader.scratch("latents", chunk * projected)?,
            inputs: loader.scratch("queries before their latent", chunk * inputs)?,
            // The output matrix reads whole chunks of columns.
            values: loader.scratch("values of heads", chunk * values + 32)?,
            groups: ExpertPairs::new(loader.gpu, &heads, pairs, n_head)?,
            heads,
        }))
    }
}

/// One layer's matrices around its attention.
#[derive(Debug)]
pub(super) struct LatentOps {
    /// Low-rank queries and their norm.
    low: Option<(Product, NormOp)>,
    queries: Product,
    projected: Product,
    /// Norm of the latent, `[rank]`.
    pub norm: Buffer,
    /// Maps the heads' queries to the latent's width.
    keys: ExpertMatmul,
    /// Maps the sums of latents to the heads' values.
    values: ExpertMatmul,
    of: LatentConfig,
    /// Multiply-adds per token.
    pub work: u64,
}

impl LatentOps {
    /// Uploads a layer's matrices. They read `x` and write queries to the buffers of attention,
    /// whose result is in its `heads`.
    pub fn new(
        loader: &mut GpuLoader<'_, '_>,
        attention: &AttentionBuffers,
        buffers: &LatentBuffers,
        layout: &AttentionLayout,
        weights: &AttentionWeights,
        behind: &LatentWeights,
        x: &Buffer,
    ) -> Result<Self> {
        let shape = &layout.shape;
        let Some(of) = shape.latent else {
            return Err(Error::invalid("latent attention", "sizes of its latent", "none"));
        };
        let aligned = shape.heads.head_dim.is_multiple_of(4) && shape.output_cols().is_multiple_of(4);
        if !aligned || shape.heads.n_head != buffers.n_head {
            return Err(Error::unsupported(
                "latent attention on the GPU",
                format!("keys of {}, {} values of {} elements", shape.heads.head_dim, shape.heads.n_head, of.v_dim),
                format!("keys, and values together, of multiples of 4, {} values in every layer", buffers.n_head),
            ));
        }
        let what = MemoryUse { purpose: Purpose::Attention, what: "attention weights" };
        let queries = BufferRows { buffer: &attention.qkv, pitch: layout.qkv_pitch };
        let (low, queries) = match (&behind.low_q, &buffers.low) {
            (Some((linear, norm)), Some(low)) => {
                let into = BufferRows { buffer: low, pitch: pitch(linear.weight.rows()) };
                let product = Product::new(loader, what, &[linear], x, into)?;
                let norm = NormOp::in_place(loader, norm, low)?.with_eps(of.norm_eps);
                let queries = Product::new(loader, what, &[&weights.q], low, queries)?;
                (Some((product, norm)), queries)
            }
            _ => (None, Product::new(loader, what, &[&weights.q], x, queries)?),
        };
        let projected: Vec<&Linear> = weights.k.iter().collect();
        let into = BufferRows { buffer: &buffers.projected, pitch: pitch(shape.heads.head_dim) };
        let projected = Product::new(loader, what, &projected, x, into)?;
        let width = layout.q_pitch / shape.heads.n_head;
        let inputs = BufferRows { buffer: &buffers.inputs, pitch: pitch(of.nope_dim) };
        let keys = by_head(loader, &behind.keys, buffers, inputs, BufferRows { buffer: &attention.q, pitch: width })?;
        let heads = BufferRows { buffer: &attention.heads, pitch: shape.heads.head_dim };
        let values = BufferRows { buffer: &buffers.values, pitch: of.v_dim };
        let values = by_head(loader, &behind.values, buffers, heads, values)?;
        let of_heads = shape.heads.n_head * of.rank * (of.nope_dim + of.v_dim);
        let work = low.as_ref().map_or(0, |(product, _)| product.work) + queries.work + projected.work;
        let work = work + of_heads as u64;
        let norm = loader.vector("the latent's norm", &behind.norm.weight)?;
        Ok(LatentOps { low, queries, projected, norm, keys, values, of, work })
    }

    /// Records queries as wide as keys for `tokens` tokens, and appends keys. Each cache's rows are
    /// appended by a separate dispatch.
    pub fn record_inputs(
        &self,
        recorder: &mut Recorder,
        buffers: &LatentBuffers,
        layout: &AttentionLayout,
        tokens: usize,
        caches: &[CacheRows<'_>],
    ) {
        if let Some((low, norm)) = &self.low {
            low.record(recorder, tokens);
            norm.record(recorder, tokens, false);
        }
        self.queries.record(recorder, tokens);
        self.projected.record(recorder, tokens);
        let shape = &layout.shape;
        let [n_head, nope_dim, rope_dim, rank, queries_pitch, projected_pitch, inputs_pitch] = [
            shape.heads.n_head,
            self.of.nope_dim,
            shape.latent_rope_dim(),
            self.of.rank,
            layout.qkv_pitch,
            pitch(shape.heads.head_dim),
            pitch(self.of.nope_dim),
        ]
        .map(|n| n as u32);
        for of in caches {
            let params = params::LatentAppend {
                positions: layout.positions(of.position),
                n_head,
                nope_dim,
                rope_dim,
                rank,
                queries_pitch,
                projected_pitch,
                inputs_pitch,
                capacity: of.capacity as u32,
                eps: self.of.norm_eps,
                row: of.rows.start as u32,
            };
            // The latent is a single head and therefore has a single page.
            for page in of.pages {
                recorder.dispatch(&page.append, &params, [n_head + 1, of.rows.len() as u32, 1]);
            }
        }
        let pairs = tokens * shape.heads.n_head;
        let grouped = buffers.groups.pay(tokens, pairs);
        if grouped {
            buffers.groups.record(recorder, pairs);
        }
        self.keys.record(recorder, pairs, grouped);
    }

    /// Records the values of heads, which the output matrix reads. The pairs are grouped in the
    /// same way as for the queries.
    pub fn record_values(&self, recorder: &mut Recorder, buffers: &LatentBuffers, n_head: usize, tokens: usize) {
        let pairs = tokens * n_head;
        self.values.record(recorder, pairs, buffers.groups.pay(tokens, pairs));
    }
}

/// Prepares the product of every pair with its head's matrix. `x` and `y` have one row per pair.
fn by_head(
    loader: &mut GpuLoader<'_, '_>,
    linears: &[Linear],
    buffers: &LatentBuffers,
    x: BufferRows<'_>,
    y: BufferRows<'_>,
) -> Result<ExpertMatmul> {
    let matrices: Vec<_> = linears.iter().map(|linear| &linear.weight).collect();
    let matrix = loader.uploader.matrix(Purpose::Attention, "attention weights of heads", &matrices)?;
    let BufferRows { buffer: x, pitch: x_pitch } = x;
    let input =
        ExpertInput { x, x_pitch, pairs_per_row: 1, places: &buffers.heads, groups: &buffers.groups, bias: None };
    let output = MatmulOutput { buffer: y.buffer, pitch: y.pitch, offset: 0, epilogue: Epilogue::Store };
    ExpertMatmul::new(loader.gpu, &matrix, 0..linears.len(), &input, &output)
}
