//! Multi-head latent attention (DeepSeek V2) on the CPU, absorbed. Each head's key matrix maps its
//! query to the latent's width. The queries attend to the cached latents, and each head's value
//! matrix is applied to the weighted sum.
//!
//! A cached row is `[rotated key | latent]` and serves as key and value, so the cache holds
//! `rope + rank` elements per token.

use smallvec::SmallVec;

use super::{
    WHAT,
    attention::{grow_queries, not_in_ram, shape_of},
};
use crate::runtime::{
    Sequences,
    scratch::{grow, held_bytes},
};
use thermocline_base::error::Result;
use thermocline_cpu::{
    Cpu, MatmulJob, RowsJob,
    ops::{AttentionScratch, Queries, RopeRows, SeenRows},
};
use thermocline_model::{AttentionConfig, AttentionWeights, BoundLatent, Linear};

/// Buffers of latent attention. They grow to the size of the largest chunk.
#[derive(Debug, Default)]
pub(super) struct LatentAttention {
    /// `[tokens, q_rank]`
    low: Vec<f32>,
    /// `[tokens, n_head, nope_dim + rope]`
    queries: Vec<f32>,
    /// `[tokens, latent | rotated]`, as projected.
    projected: Vec<f32>,
    /// `[n_head, tokens, nope_dim]`, then `[n_head, tokens, rank]` of attention's output.
    inputs: Vec<f32>,
    /// `[n_head, tokens, rank]` of queries, then `[n_head, tokens, v_dim]` of values.
    outputs: Vec<f32>,
    /// `[tokens, rotated | latent]`
    keys: Vec<f32>,
    /// `[tokens, n_head, rotated | latent]`
    wide_queries: Vec<f32>,
    /// `[tokens, n_head, rotated | latent]`, of which the latent is used.
    wide_out: Vec<f32>,
}

/// One layer's latent attention for one chunk.
pub(super) struct LatentTask<'a> {
    pub layer: usize,
    pub shape: &'a AttentionConfig,
    pub latent: BoundLatent<'a>,
    pub weights: &'a AttentionWeights,
    pub tokens: usize,
    /// Place of each token in its sequence.
    pub places: &'a [usize],
    pub rotation: Option<&'a RopeRows>,
}

/// Rows of all heads, `[n_head, tokens, width]`.
struct HeadRows<T> {
    rows: T,
    width: usize,
}

impl LatentAttention {
    /// Sets `heads` to each head's values, `[tokens, n_head * v_dim]`, for the input `x`,
    /// `[tokens, d_model]`. Appends the latents of each sequence's rows to its cache.
    pub fn run(
        &mut self,
        cpu: &Cpu,
        task: &LatentTask<'_>,
        x: &[f32],
        sequences: &mut Sequences<'_>,
        scratch: &mut AttentionScratch,
        heads: &mut [f32],
    ) -> Result<()> {
        let LatentTask { layer, shape, weights, latent, tokens, .. } = *task;
        let width = shape.heads.head_dim;
        let room = tokens.checked_mul(shape.heads.q_dim());
        grow(&mut self.wide_queries, room, WHAT)?;
        grow(&mut self.wide_out, room, WHAT)?;
        self.project(cpu, task, x)?;
        self.absorb(cpu, shape, latent, tokens)?;
        let (queries, keys) =
            (&mut self.wide_queries[..tokens * shape.heads.q_dim()], &mut self.keys[..tokens * width]);
        if let Some(rotation) = task.rotation {
            cpu.rope(queries, shape.heads.q_dim(), width, rotation);
            cpu.rope(keys, width, width, rotation);
        }
        if let Some(scale) = shape.scores.query_scale {
            grow_queries(queries, shape.heads.q_dim(), scale, task.places);
        }
        let attention = shape_of(shape, weights);
        for (rows, kv) in sequences.iter_mut() {
            let first = kv.len();
            let Some(cache) = kv.layer_mut(layer) else { return Err(not_in_ram(layer)) };
            cpu.push_rows(&mut cache.keys, first, &keys[rows.start * width..rows.end * width], width);
            let of_heads = rows.start * shape.heads.q_dim()..rows.end * shape.heads.q_dim();
            let (queries, out) =
                (Queries { q: &queries[of_heads.clone()], first, whole: &[] }, &mut self.wide_out[of_heads]);
            let seen = SeenRows { keys: &cache.keys, values: &cache.keys };
            cpu.attention(&attention, queries, seen, out, scratch);
        }
        self.values(cpu, shape, latent, tokens, heads)
    }

    /// Computes queries `[tokens, n_head, nope_dim + rope]`, and keys `[tokens, rotated | latent]`
    /// with the latent's norm.
    fn project(&mut self, cpu: &Cpu, task: &LatentTask<'_>, x: &[f32]) -> Result<()> {
        let LatentTask { shape, weights, tokens, .. } = *task;
        let BoundLatent { config: latent, weights: behind } = task.latent;
        let (width, rope) = (shape.heads.head_dim, shape.latent_rope_dim());
        let queries = grow(&mut self.queries, tokens.checked_mul(shape.q_rows()), WHAT)?;
        let projected = grow(&mut self.projected, tokens.checked_mul(width), WHAT)?;
        let keys = grow(&mut self.keys, tokens.checked_mul(width), WHAT)?;
        let low_rank = behind.low_q.as_ref().map_or(0, |(low, _)| low.weight.rows());
        let low = grow(&mut self.low, tokens.checked_mul(low_rank), WHAT)?;
        let first = if behind.low_q.is_some() { &mut *low } else { &mut *queries };
        let outputs = [first, &mut *projected];
        let mut jobs: SmallVec<[MatmulJob<'_>; 2]> =
            weights.inputs().zip(outputs).map(|(linear, out)| linear.job(out)).collect();
        cpu.matmul(&mut jobs, x, tokens);
        drop(jobs);
        if let Some((_, norm)) = &behind.low_q {
            cpu.rms_norm(low, None, &norm.weight, latent.norm_eps);
            cpu.matmul(&mut [weights.q.job(queries)], low, tokens);
        }
        for (key, row) in keys.chunks_exact_mut(width).zip(projected.chunks_exact(width)) {
            let (rotated, of_latent) = key.split_at_mut(rope);
            rotated.copy_from_slice(&row[latent.rank..]);
            cpu.rms_norm(of_latent, Some(&row[..latent.rank]), &behind.norm.weight, latent.norm_eps);
        }
        Ok(())
    }

    /// Computes queries as wide as keys, `[tokens, n_head, rotated | latent]`.
    fn absorb(
        &mut self,
        cpu: &Cpu,
        shape: &AttentionConfig,
        BoundLatent { config: latent, weights: behind }: BoundLatent<'_>,
        tokens: usize,
    ) -> Result<()> {
        let (n_head, width, rope) = (shape.heads.n_head, shape.heads.head_dim, shape.latent_rope_dim());
        let (nope, rank) = (latent.nope_dim, latent.rank);
        grow(&mut self.inputs, tokens.checked_mul(n_head * nope), WHAT)?;
        grow(&mut self.outputs, tokens.checked_mul(n_head * rank), WHAT)?;
        for (i, query) in self.queries[..tokens * n_head * (nope + rope)].chunks_exact(nope + rope).enumerate() {
            let (token, head) = (i / n_head, i % n_head);
            self.inputs[(head * tokens + token) * nope..][..nope].copy_from_slice(&query[..nope]);
            self.wide_queries[i * width..][..rope].copy_from_slice(&query[nope..]);
        }
        let inputs = HeadRows { rows: &self.inputs[..], width: nope };
        by_head(cpu, &behind.keys, inputs, HeadRows { rows: &mut self.outputs[..], width: rank }, tokens);
        for (i, query) in self.wide_queries[..tokens * n_head * width].chunks_exact_mut(width).enumerate() {
            let (token, head) = (i / n_head, i % n_head);
            query[rope..].copy_from_slice(&self.outputs[(head * tokens + token) * rank..][..rank]);
        }
        Ok(())
    }

    /// Sets `heads` to the values of attention's output.
    fn values(
        &mut self,
        cpu: &Cpu,
        shape: &AttentionConfig,
        BoundLatent { config: latent, weights: behind }: BoundLatent<'_>,
        tokens: usize,
        heads: &mut [f32],
    ) -> Result<()> {
        let (n_head, width, rope) = (shape.heads.n_head, shape.heads.head_dim, shape.latent_rope_dim());
        let (rank, v_dim) = (latent.rank, latent.v_dim);
        grow(&mut self.inputs, tokens.checked_mul(n_head * rank), WHAT)?;
        grow(&mut self.outputs, tokens.checked_mul(n_head * v_dim), WHAT)?;
        for (i, out) in self.wide_out[..tokens * n_head * width].chunks_exact(width).enumerate() {
            let (token, head) = (i / n_head, i % n_head);
            self.inputs[(head * tokens + token) * rank..][..rank].copy_from_slice(&out[rope..]);
        }
        let inputs = HeadRows { rows: &self.inputs[..], width: rank };
        by_head(cpu, &behind.values, inputs, HeadRows { rows: &mut self.outputs[..], width: v_dim }, tokens);
        for (i, value) in heads.chunks_exact_mut(v_dim).enumerate() {
            let (token, head) = (i / n_head, i % n_head);
            value.copy_from_slice(&self.outputs[(head * tokens + token) * v_dim..][..v_dim]);
        }
        Ok(())
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let buffers = [&self.low, &self.queries, &self.projected, &self.inputs, &self.outputs];
        held_bytes(buffers.into_iter().chain([&self.keys, &self.wide_queries, &self.wide_out]))
    }
}

/// `outputs[head] = linears[head] inputs[head]`
fn by_head(cpu: &Cpu, linears: &[Linear], inputs: HeadRows<&[f32]>, outputs: HeadRows<&mut [f32]>, tokens: usize) {
    let inputs = inputs.rows.chunks_exact(tokens * inputs.width).take(linears.len());
    let inputs: SmallVec<[&[f32]; 32]> = inputs.collect();
    let outputs = outputs.rows.chunks_exact_mut(tokens * outputs.width);
    let jobs = linears.iter().zip(outputs).map(|(linear, out)| RowsJob {
        weight: &linear.weight,
        bias: linear.bias.as_deref(),
        rows: None,
        out,
    });
    let mut jobs: SmallVec<[RowsJob<'_>; 32]> = jobs.collect();
    cpu.matmul_each(&mut jobs, &inputs, tokens);
}
