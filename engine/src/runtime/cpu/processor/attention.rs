//! Attention on the CPU: projections, norms and rotation of heads, the caches of every sequence, and the output projection.

use smallvec::smallvec;

use super::{
    super::{
        latent::LatentTask,
        recurrent::softplus,
        skipped_inputs::{self, SiteJobs},
    },
    CpuProcessor, job, norm_rows, not_in_ram,
};
use crate::{
    cpu::ops::AttentionShape,
    error::{Error, Result},
    model::{AttentionConfig, AttentionWeights, InputSite, Model, NormSlot, Register},
    runtime::Sequences,
};

impl CpuProcessor {
    /// Attention of a layer, of either form: `Out = ` the output projection of the heads.
    pub(super) fn attend(
        &mut self,
        model: &Model,
        layer: usize,
        from: Register,
        sequences: &mut Sequences<'_>,
    ) -> Result<()> {
        let config = &model.config;
        let parts = (&config.layers[layer].attention, &model.weights.layers[layer].attention);
        let (Some(of), Some(weights)) = parts else { return Err(no_attention(layer)) };
        if of.latent.is_some() {
            return self.latent_attention(model, layer, (of, weights), from, sequences);
        }
        let skipped = self.skipped(model, layer);
        let (d, q_dim, kv_dim) = (config.d_model, of.q_dim(), of.own_kv_dim());
        let (q, k, v) = (
            &mut self.q[..self.tokens * q_dim],
            &mut self.k[..self.tokens * kv_dim],
            &mut self.v[..self.tokens * kv_dim],
        );
        let x = &self.registers[from as usize][..self.tokens * d];
        let (gated, gates) = match of.gated {
            true => (&mut self.gated[..2 * self.tokens * q_dim], &mut self.gates[..self.tokens * q_dim]),
            false => (&mut [] as &mut [f32], &mut self.gates[..self.tokens * of.gate_rows]),
        };
        let projected = if of.gated { &mut *gated } else { &mut *q };
        let outputs = [projected, &mut *k, &mut *v];
        let mut jobs: SiteJobs<'_> = weights.inputs().zip(outputs).map(job).collect();
        let gate = weights.gate.as_ref().map(|gate| job((gate, &mut *gates)));
        self.calibration.record(InputSite::Attention, x);
        match skipped {
            Some(skipped) => {
                self.cpu.prefetch(&[]);
                if let Some(gate) = gate {
                    self.cpu.matmul(&mut [gate], x, self.tokens);
                }
                let site = (skipped, InputSite::Attention);
                skipped_inputs::products(&self.cpu, site, jobs, (x, self.tokens), &mut self.large)?;
            }
            None => {
                jobs.extend(gate);
                if self.tokens == 1 {
                    self.cpu.prefetch(&[&weights.output.weight]);
                }
                self.cpu.matmul(&mut jobs, x, self.tokens);
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
        let heads = &mut self.heads[..self.tokens * q_dim];
        for (rows, kv) in sequences.iter_mut() {
            let first = kv.len();
            let Some(cache) = kv.layer_mut(source) else { return Err(not_in_ram(source)) };
            let (of_q, of_kv) = (rows.start * q_dim..rows.end * q_dim, rows.start * kv_dim..rows.end * kv_dim);
            if of.kv_from.is_none() {
                self.cpu.push_rows(&mut cache.keys, first, &k[of_kv.clone()], kv_dim);
                self.cpu.push_rows(&mut cache.values, first, &v[of_kv], kv_dim);
            }
            let (q, heads, scratch) = (&q[of_q.clone()], &mut heads[of_q], &mut self.attention);
            self.cpu.attention(&shape, q, &cache.keys, &cache.values, first, heads, scratch);
        }
        if of.gated {
            self.cpu.gate(heads, gates);
        } else if of.gate_rows > 0 {
            gate_by_softplus(heads, gates);
        }
        self.project_heads(model, layer, (of, weights))
    }

    /// Latent attention: [`Processor::attention`] of layers that have it.
    fn latent_attention(
        &mut self,
        model: &Model,
        layer: usize,
        (of, weights): (&AttentionConfig, &AttentionWeights),
        from: Register,
        sequences: &mut Sequences<'_>,
    ) -> Result<()> {
        let tokens = self.tokens;
        let rotation = of.rope.and_then(|table| self.rotations.get(table));
        let task = LatentTask { config: &model.config, layer, shape: of, weights, tokens, rotation };
        let x = &self.registers[from as usize][..tokens * model.config.d_model];
        let heads = &mut self.heads[..tokens * of.output_cols()];
        self.latent.run(&self.cpu, &task, x, sequences, &mut self.attention, heads)?;
        self.project_heads(model, layer, (of, weights))
    }

    /// `Out = ` the output projection of the heads.
    fn project_heads(
        &mut self,
        model: &Model,
        layer: usize,
        (of, weights): (&AttentionConfig, &AttentionWeights),
    ) -> Result<()> {
        self.expect_ffn(model, layer);
        let skipped = self.skipped(model, layer);
        let heads = &mut self.heads[..self.tokens * of.output_cols()];
        if let Some(norm) = model.weights.layers[layer].norm(NormSlot::Heads) {
            norm_rows(&self.cpu, &model.config, norm, heads, None);
        }
        self.calibration.record(InputSite::Heads, heads);
        let out = &mut self.registers[Register::Out as usize][..self.tokens * model.config.d_model];
        let (job, tokens) = (job((&weights.output, out)), self.tokens);
        match skipped {
            Some(skipped) => {
                let site = (skipped, InputSite::Heads);
                skipped_inputs::products(&self.cpu, site, smallvec![job], (heads, tokens), &mut self.large)?;
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

/// The error of a step that the layer has no weights for.
fn no_attention(layer: usize) -> Error {
    Error::invalid("layer program", "attention that the model has", format!("attention in layer {layer}"))
}
