//! Per-layer inputs, beside the residual stream, on the CPU.

use std::ops::Range;

use super::{WHAT, paged_reads};
use crate::runtime::scratch::{grow, held_bytes};
use thermocline_base::error::Result;
use thermocline_cpu::Cpu;
use thermocline_model::{ModelConfig, PerLayerTable, PerLayerWeights};

/// The per-layer inputs of a chunk's tokens, and scratch memory.
#[derive(Debug, Default)]
pub(crate) struct PerLayerInputs {
    /// `[layers, tokens, w]`
    inputs: Vec<f32>,
    /// `[tokens, layers * w]`: projections of embeddings.
    projected: Vec<f32>,
    /// `[layers * w]`: a token's row of the table. Also `[tokens, w]`: a layer's gates.
    row: Vec<f32>,
    /// Elements of one layer's inputs: `tokens * w`.
    layer: usize,
}

impl PerLayerInputs {
    /// Computes the inputs of `tokens`, whose embeddings are `x`, `[tokens, d_model]`.
    pub fn fill(
        &mut self,
        cpu: &Cpu,
        config: &ModelConfig,
        table: &PerLayerTable,
        tokens: &[u32],
        x: &[f32],
    ) -> Result<()> {
        let (all, width) = (table.rows.cols(), table.norm.weight.len());
        let inputs = grow(&mut self.inputs, tokens.len().checked_mul(all), WHAT)?;
        let projected = grow(&mut self.projected, tokens.len().checked_mul(all), WHAT)?;
        let row = grow(&mut self.row, Some(all), WHAT)?;
        self.layer = tokens.len() * width;
        cpu.matmul(&mut [table.projection.job(&mut *projected)], x, tokens.len());
        cpu.scale(projected, 1.0 / (config.d_model as f32).sqrt());
        cpu.rms_norm(projected, None, &table.norm.weight, config.norm_eps);
        let scale = (width as f32).sqrt();
        paged_reads::of_table(&table.rows, tokens);
        for (t, (id, projected)) in tokens.iter().zip(projected.chunks_exact(all)).enumerate() {
            table.rows.dequantise_row(*id as usize, row);
            let layers = projected.chunks_exact(width).zip(row.chunks_exact(width)).enumerate();
            for (layer, (projected, row)) in layers {
                let inputs = &mut inputs[layer * self.layer + t * width..][..width];
                for ((input, projected), row) in inputs.iter_mut().zip(projected).zip(row) {
                    *input = (projected + scale * row) * std::f32::consts::FRAC_1_SQRT_2;
                }
            }
        }
        Ok(())
    }

    /// Sets `out` to what a layer computes from its inputs and `x`, both `[tokens, d_model]`.
    pub fn apply(
        &mut self,
        cpu: &Cpu,
        config: &ModelConfig,
        layer: usize,
        weights: &PerLayerWeights,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<()> {
        let gate = grow(&mut self.row, Some(self.layer), WHAT)?;
        let tokens = self.layer / weights.gate.weight.rows().max(1);
        cpu.matmul(&mut [weights.gate.job(&mut *gate)], x, tokens);
        cpu.activate(config.activation, gate, Some(&self.inputs[layer * self.layer..][..self.layer]));
        cpu.matmul(&mut [weights.output.job(out)], gate, tokens);
        Ok(())
    }

    /// The inputs of `layers`, `[layers, tokens, w]`.
    pub fn of(&self, layers: Range<usize>) -> &[f32] {
        self.inputs.get(layers.start * self.layer..layers.end * self.layer).unwrap_or_default()
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        held_bytes([&self.inputs, &self.projected, &self.row])
    }
}
