//! Attention on the CPU: projections, norms and rotation of heads, the caches of all sequences, and
//! the output projection.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::{
    TokenInputs, WHAT,
    latent::{LatentAttention, LatentTask},
    norm::{norm_heads, norm_within},
    skipped_inputs::{self, InputCalibration, SiteJobs, SkippedSite},
};
use crate::runtime::{
    Sequences,
    scratch::{grow, held_bytes},
};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::{
    Cpu,
    ops::{AttentionScratch, AttentionShape, HeadSizes, PositionBias, Queries, RopeRows, SeenRows, softplus},
};
use thermocline_model::{
    AttentionConfig, AttentionWeights, BoundAttention, GateFunction, HeadGates, InputSite, KeyBias, ModelConfig,
    NormSlot, QueryScale, SkippedInputs,
};

/// The attention of a layer for one chunk of tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttentionTask<'a, 'm> {
    pub cpu: &'a Cpu,
    pub config: &'m ModelConfig,
    pub attention: BoundAttention<'m>,
    /// Input, `[tokens, d_model]`.
    pub x: &'a [f32],
    pub tokens: usize,
    /// Small inputs that the products skip.
    pub skipped: Option<&'m SkippedInputs>,
}

/// Computes attention. The buffers grow to the size of the largest chunk.
#[derive(Debug, Default)]
pub(super) struct CpuAttention {
    /// Place of each of the chunk's tokens in its sequence.
    pub places: Vec<usize>,
    /// One entry per rotation table of the cache, for the chunk's positions.
    rotations: Vec<RopeRows>,
    /// `[tokens, n_head * head_dim]`, rotated in place.
    q: Vec<f32>,
    /// `[tokens, n_kv_head * head_dim]`, rotated in place.
    k: Vec<f32>,
    /// `[tokens, n_kv_head * value_dim]`
    v: Vec<f32>,
    /// `[tokens, n_head * value_dim]`
    heads: Vec<f32>,
    /// `[tokens, n_head, query | gate]`, and gates `[tokens, n_head * head_dim]`, if heads are
    /// gated.
    gated: Vec<f32>,
    gates: Vec<f32>,
    /// `[tokens, inputs]`: the large inputs of a product that skips small ones.
    large: Vec<f32>,
    latent: LatentAttention,
    scratch: AttentionScratch,
}

impl CpuAttention {
    /// Reserves the buffers of `tokens` tokens.
    pub fn fit(&mut self, config: &ModelConfig, tokens: usize) -> Result<()> {
        let widest = |of: fn(&AttentionConfig) -> usize| config.attentions().map(of).max().unwrap_or(0);
        let [q_dim, k_dim, v_dim] = [HeadSizes::q_dim, HeadSizes::k_dim, HeadSizes::v_dim].map(|of_kind| {
            let of_layers = config.attentions().filter(|of| of.latent.is_none());
            of_layers.map(|of| of_kind(&of.heads)).max().unwrap_or(0)
        });
        for (buffer, dim) in [
            (&mut self.q, q_dim),
            (&mut self.heads, widest(AttentionConfig::output_cols)),
            (&mut self.gated, widest(|of| if of.gate == Some(HeadGates::InQueries) { of.q_rows() } else { 0 })),
            (&mut self.gates, widest(AttentionConfig::gates)),
            (&mut self.k, k_dim),
            (&mut self.v, v_dim),
        ] {
            grow(buffer, tokens.checked_mul(dim), WHAT)?;
        }
        Ok(())
    }

    /// Begins a chunk of the rows of `sequences`: computes their places and rotations.
    pub fn begin(&mut self, sequences: &Sequences<'_>) {
        self.places.clear();
        self.places.extend(sequences.places());
        let tables = sequences.rotary().map_or(&[][..], |rotary| rotary.tables());
        self.rotations.resize_with(tables.len(), RopeRows::default);
        for (rows, table) in self.rotations.iter_mut().zip(tables) {
            rows.fill(table, sequences.positions());
        }
    }

    /// Computes the outputs of the heads, with either kind of attention. [`CpuAttention::project`]
    /// projects them.
    pub fn attend(
        &mut self,
        task: &AttentionTask<'_, '_>,
        sequences: &mut Sequences<'_>,
        calibration: &mut InputCalibration,
    ) -> Result<()> {
        let AttentionTask { cpu, attention, x, tokens, .. } = *task;
        let BoundAttention { layer, config: of, weights, .. } = attention;
        if let Some(latent) = attention.latent {
            let (places, rotation) = (&self.places[..], of.positions.rope_in(&self.rotations));
            let task = LatentTask { layer, shape: of, latent, weights, tokens, places, rotation };
            let heads = &mut self.heads[..tokens * of.output_cols()];
            return self.latent.run(cpu, &task, x, sequences, &mut self.scratch, heads);
        }
        self.project_inputs(task, calibration)?;
        self.norm_and_rotate(task);
        self.attend_sequences(task, sequences)?;
        let heads = &mut self.heads[..tokens * of.output_cols()];
        let gates = &self.gates[..tokens * of.gates()];
        match of.gate {
            Some(HeadGates::InQueries) => cpu.gate(heads, gates),
            Some(HeadGates::OwnMatrix { function, .. }) => gate_heads(heads, gates, function),
            None => {}
        }
        Ok(())
    }

    /// Computes the chunk's queries, keys, values and gates, before norms and rotation.
    fn project_inputs(&mut self, task: &AttentionTask<'_, '_>, calibration: &mut InputCalibration) -> Result<()> {
        let AttentionTask { cpu, attention, x, tokens, skipped, .. } = *task;
        let BoundAttention { config: of, weights, .. } = attention;
        let (q_dim, k_dim, v_dim) = (of.heads.q_dim(), of.own_k_dim(), of.own_v_dim());
        let (q, k, v) = (&mut self.q[..tokens * q_dim], &mut self.k[..tokens * k_dim], &mut self.v[..tokens * v_dim]);
        let gates = &mut self.gates[..tokens * of.gates()];
        let in_queries = of.gate == Some(HeadGates::InQueries);
        let gated = &mut self.gated[..if in_queries { tokens * of.q_rows() } else { 0 }];
        let projected = if in_queries { &mut *gated } else { &mut *q };
        let outputs = [projected, &mut *k, &mut *v];
        let mut jobs: SiteJobs<'_> = weights.inputs().zip(outputs).map(|(linear, out)| linear.job(out)).collect();
        let gate = weights.gate.as_ref().map(|gate| gate.job(&mut *gates));
        calibration.record(InputSite::Attention, x);
        match skipped {
            Some(skipped) => {
                cpu.prefetch(&[]);
                if let Some(gate) = gate {
                    cpu.matmul(&mut [gate], x, tokens);
                }
                let at = SkippedSite { skipped, site: InputSite::Attention };
                let inputs = TokenInputs { x, tokens };
                skipped_inputs::products(cpu, at, jobs, inputs, &mut self.large)?;
            }
            None => {
                jobs.extend(gate);
                if tokens == 1 {
                    cpu.prefetch(&[&weights.output.weight]);
                }
                cpu.matmul(&mut jobs, x, tokens);
                drop(jobs);
            }
        }
        if weights.v.is_none() {
            v.copy_from_slice(k);
        }
        let head_dim = of.heads.head_dim;
        let heads = q.chunks_exact_mut(head_dim).zip(gates.chunks_exact_mut(head_dim));
        for ((q, gate), both) in heads.zip(gated.chunks_exact(2 * head_dim)) {
            q.copy_from_slice(&both[..head_dim]);
            gate.copy_from_slice(&both[head_dim..]);
        }
        Ok(())
    }

    /// Norms the heads, rotates them by their tokens' positions, and applies the growth of queries.
    fn norm_and_rotate(&mut self, task: &AttentionTask<'_, '_>) {
        let AttentionTask { cpu, config, attention, tokens, .. } = *task;
        let BoundAttention { config: of, weights, .. } = attention;
        let (HeadSizes { head_dim, value_dim, .. }, q_dim, k_dim) = (of.heads, of.heads.q_dim(), of.own_k_dim());
        let q = &mut self.q[..tokens * q_dim];
        let (k, v) = (&mut self.k[..tokens * k_dim], &mut self.v[..tokens * of.own_v_dim()]);
        let norm = |q: &mut [f32], k: &mut [f32]| {
            for (norm, x) in [(&weights.q_norm, q), (&weights.k_norm, k)] {
                if let Some(norm) = norm {
                    norm_heads(cpu, config, norm, head_dim, x);
                }
            }
        };
        if !of.positions.norm_after_rope {
            norm(q, k);
        }
        if of.values.normed {
            cpu.divide_by_rms(v, value_dim, config.norm_eps);
        }
        if of.values.scale != 1.0 {
            v.iter_mut().for_each(|x| *x *= of.values.scale);
        }
        if let Some(rows) = of.positions.rope_in(&self.rotations) {
            cpu.rope(q, q_dim, head_dim, rows);
            if of.kv_from.is_none() {
                cpu.rope(k, k_dim, head_dim, rows);
            }
        }
        if of.positions.norm_after_rope {
            norm(q, k);
        }
        if let Some(scale) = of.scores.query_scale {
            grow_queries(q, q_dim, scale, &self.places);
        }
    }

    /// Computes each sequence's heads, `[tokens, n_head * value_dim]`. Appends keys and values to
    /// the sequence's cache, unless the layer reads another layer's.
    fn attend_sequences(&mut self, task: &AttentionTask<'_, '_>, sequences: &mut Sequences<'_>) -> Result<()> {
        let cpu = task.cpu;
        let BoundAttention { layer, config: of, weights, .. } = task.attention;
        let (q_dim, k_dim, v_dim, out_dim) = (of.heads.q_dim(), of.own_k_dim(), of.own_v_dim(), of.output_cols());
        let source = of.kv_from.unwrap_or(layer);
        let mut shape = shape_of(of, weights);
        for (rows, kv) in sequences.iter_mut() {
            let mut first = kv.len();
            if task.config.reads_other_keys {
                // The token has no keys in the other model's cache, and that model has other
                // windows.
                first = first.saturating_sub(1);
                shape.window.length = of.seen().length.min(kv.latest_held(source).max(1));
            }
            let of_rows = |dim: usize| rows.start * dim..rows.end * dim;
            if of.kv_from.is_none() {
                let Some(cache) = kv.layer_mut(source) else { return Err(not_in_ram(source)) };
                cpu.push_rows(&mut cache.keys, first, &self.k[of_rows(k_dim)], k_dim);
                cpu.push_rows(&mut cache.values, first, &self.v[of_rows(v_dim)], v_dim);
            }
            let pictures = kv.pictures().among(first..first + rows.len()).filter(|_| of.whole_pictures);
            let whole: SmallVec<[Range<usize>; 2]> = pictures.collect();
            let Some(cache) = kv.readable(source) else { return Err(not_in_ram(source)) };
            let queries = Queries { q: &self.q[of_rows(q_dim)], first, whole: &whole };
            let seen = SeenRows { keys: &cache.keys, values: &cache.values };
            cpu.attention(&shape, queries, seen, &mut self.heads[of_rows(out_dim)], &mut self.scratch);
        }
        Ok(())
    }

    /// Sets `out` to the output projection of the heads, `[tokens, d_model]`.
    pub fn project(
        &mut self,
        task: &AttentionTask<'_, '_>,
        calibration: &mut InputCalibration,
        out: &mut [f32],
    ) -> Result<()> {
        let AttentionTask { cpu, config, attention, tokens, skipped, .. } = *task;
        let BoundAttention { config: of, weights, norms, .. } = attention;
        let heads = &mut self.heads[..tokens * of.output_cols()];
        norm_within(cpu, config, norms, NormSlot::Heads, heads);
        calibration.record(InputSite::Heads, heads);
        let job = weights.output.job(out);
        match skipped {
            Some(skipped) => {
                let at = SkippedSite { skipped, site: InputSite::Heads };
                let inputs = TokenInputs { x: heads, tokens };
                skipped_inputs::products(cpu, at, smallvec![job], inputs, &mut self.large)?;
            }
            None => cpu.matmul(&mut [job], heads, tokens),
        }
        Ok(())
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let own = [&self.q, &self.k, &self.v, &self.heads, &self.gated, &self.gates, &self.large];
        held_bytes(own) + self.scratch.bytes() + self.latent.bytes()
    }
}

/// The sizes and variants of the kernel that computes the attention of a layer.
pub(super) fn shape_of<'a>(of: &'a AttentionConfig, weights: &'a AttentionWeights) -> AttentionShape<'a> {
    let key_bias = of.positions.key_bias.as_ref();
    AttentionShape {
        heads: of.heads,
        scale: of.scores.scale,
        softcap: of.scores.softcap,
        window: of.seen(),
        sinks: weights.sinks.as_deref(),
        key_bias: key_bias.map(|KeyBias { slopes, scale, by_distance }| PositionBias {
            slopes,
            scale: *scale,
            by_distance: *by_distance,
        }),
    }
}

/// Scales queries `[tokens, q_dim]` by the growth at their tokens' places.
pub(super) fn grow_queries(queries: &mut [f32], q_dim: usize, scale: QueryScale, places: &[usize]) {
    for (query, at) in queries.chunks_exact_mut(q_dim).zip(places) {
        let factor = scale.at(*at);
        query.iter_mut().for_each(|q| *q *= factor);
    }
}

/// `heads *= function(gates)`, where each gate covers the same number of elements.
fn gate_heads(heads: &mut [f32], gates: &[f32], function: GateFunction) {
    let each = (heads.len() / gates.len().max(1)).max(1);
    for (head, gate) in heads.chunks_exact_mut(each).zip(gates) {
        let factor = match function {
            GateFunction::Softplus => softplus(*gate),
            GateFunction::Sigmoid => 1.0 / (1.0 + (-*gate).exp()),
        };
        head.iter_mut().for_each(|x| *x *= factor);
    }
}

/// The error of a cache that is not in RAM.
pub(super) fn not_in_ram(layer: usize) -> Error {
    Error::invalid("KV cache", format!("one in RAM with a layer {layer}"), "another")
}
