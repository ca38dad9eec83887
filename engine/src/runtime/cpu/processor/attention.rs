//! Attention on the CPU: projections, norms and rotation of heads, the caches of every sequence, and the output projection.

use smallvec::smallvec;

use super::{
    super::{
        TokenInputs,
        latent::LatentTask,
        norm::{norm_rows, norm_within},
        skipped_inputs::{self, SiteJobs, SkippedSite},
    },
    CpuProcessor, job, not_in_ram,
};
use crate::{
    cpu::ops::{AttentionShape, Queries, SeenRows, softplus},
    error::Result,
    model::{BoundAttention, BoundLatent, InputSite, NormSlot, Register},
    runtime::{Pass, Sequences},
};

impl CpuProcessor {
    /// Attention of a layer, of either form: `Out = ` the output projection of the heads.
    pub(super) fn attend(
        &mut self,
        pass: &Pass<'_>,
        attention: BoundAttention<'_>,
        sequences: &mut Sequences<'_>,
    ) -> Result<()> {
        let of = attention.config;
        if let Some(latent) = attention.latent {
            return self.latent_attention(pass, attention, latent, sequences);
        }
        self.project_inputs(pass, attention)?;
        self.norm_and_rotate(pass, attention);
        self.attend_sequences(attention, sequences)?;
        let tokens = pass.tokens.len();
        let heads = &mut self.heads[..tokens * of.q_dim()];
        if of.gated {
            self.cpu.gate(heads, &self.gates[..tokens * of.q_dim()]);
        } else if of.gate_rows > 0 {
            gate_by_softplus(heads, &self.gates[..tokens * of.gate_rows]);
        }
        self.project_heads(pass, attention)
    }

    /// Queries, keys, values and gates of the chunk, before norms and rotation.
    fn project_inputs(&mut self, pass: &Pass<'_>, attention: BoundAttention<'_>) -> Result<()> {
        let tokens = pass.tokens.len();
        let BoundAttention { layer, config: of, weights, .. } = attention;
        let skipped = self.skipped(pass, layer);
        let (d, q_dim, kv_dim) = (pass.model.config.d_model, of.q_dim(), of.own_kv_dim());
        let (q, k, v) = (&mut self.q[..tokens * q_dim], &mut self.k[..tokens * kv_dim], &mut self.v[..tokens * kv_dim]);
        let x = &self.registers[attention.from as usize][..tokens * d];
        let (gated, gates) = match of.gated {
            true => (&mut self.gated[..2 * tokens * q_dim], &mut self.gates[..tokens * q_dim]),
            false => (&mut [] as &mut [f32], &mut self.gates[..tokens * of.gate_rows]),
        };
        let projected = if of.gated { &mut *gated } else { &mut *q };
        let outputs = [projected, &mut *k, &mut *v];
        let mut jobs: SiteJobs<'_> = weights.inputs().zip(outputs).map(|(linear, out)| job(linear, out)).collect();
        let gate = weights.gate.as_ref().map(|gate| job(gate, &mut *gates));
        self.calibration.record(InputSite::Attention, x);
        match skipped {
            Some(skipped) => {
                self.cpu.prefetch(&[]);
                if let Some(gate) = gate {
                    self.cpu.matmul(&mut [gate], x, tokens);
                }
                let at = SkippedSite { skipped, site: InputSite::Attention };
                let inputs = TokenInputs { x, tokens };
                skipped_inputs::products(&self.cpu, at, jobs, inputs, &mut self.large)?;
            }
            None => {
                jobs.extend(gate);
                if pass.is_single() {
                    self.cpu.prefetch(&[&weights.output.weight]);
                }
                self.cpu.matmul(&mut jobs, x, tokens);
                drop(jobs);
            }
        }
        if weights.v.is_none() {
            v.copy_from_slice(k);
        }
        let heads = q.chunks_exact_mut(of.head_dim).zip(gates.chunks_exact_mut(of.head_dim));
        for ((q, gate), both) in heads.zip(gated.chunks_exact(2 * of.head_dim)) {
            q.copy_from_slice(&both[..of.head_dim]);
            gate.copy_from_slice(&both[of.head_dim..]);
        }
        Ok(())
    }

    /// Norms of the heads, rotation by their tokens' positions, and growth of queries.
    fn norm_and_rotate(&mut self, pass: &Pass<'_>, attention: BoundAttention<'_>) {
        let BoundAttention { config: of, weights, .. } = attention;
        let tokens = pass.tokens.len();
        let config = &pass.model.config;
        let (q_dim, kv_dim) = (of.q_dim(), of.own_kv_dim());
        let q = &mut self.q[..tokens * q_dim];
        let (k, v) = (&mut self.k[..tokens * kv_dim], &mut self.v[..tokens * kv_dim]);
        for (norm, x) in [(&weights.q_norm, &mut *q), (&weights.k_norm, &mut *k)] {
            if let Some(norm) = norm {
                norm_rows(&self.cpu, config, norm, x, None);
            }
        }
        if of.norm_values {
            self.cpu.divide_by_rms(v, of.head_dim, config.norm_eps);
        }
        if let Some(rows) = of.rope.and_then(|table| self.rotations.get(table)) {
            self.cpu.rope(q, q_dim, of.head_dim, rows);
            if of.kv_from.is_none() {
                self.cpu.rope(k, kv_dim, of.head_dim, rows);
            }
        }
        if let Some(scale) = config.query_scale {
            for (q, at) in q.chunks_exact_mut(q_dim).zip(&self.positions) {
                let factor = scale.at(*at);
                q.iter_mut().for_each(|q| *q *= factor);
            }
        }
    }

    /// Each sequence's heads, `[tokens, n_head * head_dim]`; its keys and values are appended to its cache, unless the layer reads
    /// another's.
    fn attend_sequences(&mut self, attention: BoundAttention<'_>, sequences: &mut Sequences<'_>) -> Result<()> {
        let BoundAttention { layer, config: of, weights, .. } = attention;
        let (q_dim, kv_dim) = (of.q_dim(), of.own_kv_dim());
        let source = of.kv_from.unwrap_or(layer);
        let shape = AttentionShape {
            n_head: of.n_head,
            n_kv_head: of.n_kv_head,
            head_dim: of.head_dim,
            scale: of.scale,
            softcap: of.softcap,
            window: of.window,
            sinks: weights.sinks.as_deref(),
        };
        for (rows, kv) in sequences.iter_mut() {
            let first = kv.len();
            let Some(cache) = kv.layer_mut(source) else { return Err(not_in_ram(source)) };
            let (of_q, of_kv) = (rows.start * q_dim..rows.end * q_dim, rows.start * kv_dim..rows.end * kv_dim);
            if of.kv_from.is_none() {
                self.cpu.push_rows(&mut cache.keys, first, &self.k[of_kv.clone()], kv_dim);
                self.cpu.push_rows(&mut cache.values, first, &self.v[of_kv], kv_dim);
            }
            let queries = Queries { q: &self.q[of_q.clone()], first };
            let seen = SeenRows { keys: &cache.keys, values: &cache.values };
            self.cpu.attention(&shape, queries, seen, &mut self.heads[of_q], &mut self.attention);
        }
        Ok(())
    }

    /// The same where keys and values come from a latent.
    fn latent_attention(
        &mut self,
        pass: &Pass<'_>,
        attention: BoundAttention<'_>,
        latent: BoundLatent<'_>,
        sequences: &mut Sequences<'_>,
    ) -> Result<()> {
        let BoundAttention { layer, config: of, weights, .. } = attention;
        let tokens = pass.tokens.len();
        let rotation = of.rope.and_then(|table| self.rotations.get(table));
        let task = LatentTask { config: &pass.model.config, layer, shape: of, latent, weights, tokens, rotation };
        let x = &self.registers[attention.from as usize][..pass.register_len()];
        let heads = &mut self.heads[..tokens * of.output_cols()];
        self.latent.run(&self.cpu, &task, x, sequences, &mut self.attention, heads)?;
        self.project_heads(pass, attention)
    }

    /// `Out = ` the output projection of the heads.
    fn project_heads(&mut self, pass: &Pass<'_>, attention: BoundAttention<'_>) -> Result<()> {
        let BoundAttention { layer, config: of, weights, norms, .. } = attention;
        self.expect_ffn(pass, layer);
        let skipped = self.skipped(pass, layer);
        let heads = &mut self.heads[..pass.tokens.len() * of.output_cols()];
        norm_within(&self.cpu, &pass.model.config, norms, NormSlot::Heads, heads);
        self.calibration.record(InputSite::Heads, heads);
        let out = &mut self.registers[Register::Out as usize][..pass.register_len()];
        let (job, tokens) = (job(&weights.output, out), pass.tokens.len());
        match skipped {
            Some(skipped) => {
                let at = SkippedSite { skipped, site: InputSite::Heads };
                let inputs = TokenInputs { x: heads, tokens };
                skipped_inputs::products(&self.cpu, at, smallvec![job], inputs, &mut self.large)?;
            }
            None => self.cpu.matmul(&mut [job], heads, tokens),
        }
        Ok(())
    }
}

/// `heads *= softplus(gates)`, where each gate is of equally many elements.
fn gate_by_softplus(heads: &mut [f32], gates: &[f32]) {
    let each = (heads.len() / gates.len().max(1)).max(1);
    for (head, gate) in heads.chunks_exact_mut(each).zip(gates) {
        let factor = softplus(*gate);
        head.iter_mut().for_each(|x| *x *= factor);
    }
}
