//! Input of a draft head on the CPU: embeddings and hidden states, combined.

use super::{WHAT, norm::norm_rows};
use crate::runtime::scratch::{grow, held_bytes};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::Cpu;
use thermocline_model::{ModelConfig, StateInput};

/// Normed embeddings and hidden states of a chunk.
#[derive(Debug, Default)]
pub(super) struct StateInputs {
    /// `[tokens, 2 * d_model]`; the embedding of a token comes first.
    rows: Vec<f32>,
}

impl StateInputs {
    /// `residual = projection [norm(residual); norm(states)]`, for the embeddings `residual` and
    /// the hidden states `states`, `[tokens, d_model]` each.
    pub fn combine(
        &mut self,
        cpu: &Cpu,
        config: &ModelConfig,
        input: &StateInput,
        states: Option<&[f32]>,
        residual: &mut [f32],
    ) -> Result<()> {
        let Some(states) = states else {
            return Err(Error::invalid("draft head", "the hidden states of its tokens", "no hidden states"));
        };
        let (d, tokens) = (config.d_model, residual.len() / config.d_model);
        let rows = grow(&mut self.rows, residual.len().checked_mul(2), WHAT)?;
        for ((row, embedding), state) in
            rows.chunks_exact_mut(2 * d).zip(residual.chunks_exact(d)).zip(states.chunks_exact(d))
        {
            let (of_embedding, of_state) = row.split_at_mut(d);
            norm_rows(cpu, config, &input.embedding_norm, of_embedding, Some(embedding));
            norm_rows(cpu, config, &input.state_norm, of_state, Some(state));
        }
        cpu.matmul(&mut [input.projection.job(residual)], rows, tokens);
        Ok(())
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        held_bytes([&self.rows])
    }
}
