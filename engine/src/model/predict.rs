//! What a predictor says of a token: one implementation for the forward pass, for training and for evaluation, so that a
//! threshold set in one holds in the others.

use super::{Predictor, PredictorKind, forward::grow};
use crate::{
    cpu::{Cpu, MatmulJob, ops::Hidden},
    error::Result,
    format::Matrix,
};

const WHAT: &str = "scratch memory";

impl Predictor {
    /// Raw scores `[tokens, n_ff]` of its inputs `x` `[tokens, d]`; `hidden` is scratch. Neuron `i` may fire where its score is
    /// at least [`Predictor::threshold`].
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the buffers cannot grow.
    ///
    /// # Panics
    /// If `x` is not `tokens` rows as wide as the predictor's.
    pub fn scores<'a>(
        &self,
        cpu: &Cpu,
        x: &[f32],
        tokens: usize,
        hidden: &mut Vec<f32>,
        scores: &'a mut Vec<f32>,
    ) -> Result<&'a [f32]> {
        let n = tokens.saturating_mul(self.neurons());
        grow(scores, Some(n), WHAT)?;
        let scores = &mut scores[..n];
        match &self.kind {
            PredictorKind::LowRank { fc1, fc2 } => {
                let rank = tokens.saturating_mul(fc1.rows());
                grow(hidden, Some(rank), WHAT)?;
                let hidden = &mut hidden[..rank];
                if tokens == 1 {
                    cpu.expect(&[fc2]);
                }
                cpu.matmul(&mut [MatmulJob { weight: fc1, bias: None, out: &mut *hidden }], x, tokens);
                cpu.activate(Hidden::Relu, hidden, None);
                cpu.expect(&[]);
                cpu.matmul(&mut [MatmulJob { weight: fc2, bias: None, out: &mut *scores }], hidden, tokens);
            }
            PredictorKind::Rows { rows, bias } => {
                cpu.matmul(&mut [MatmulJob { weight: rows, bias: bias.as_deref(), out: &mut *scores }], x, tokens);
            }
        }
        Ok(scores)
    }

    /// The matrix that [`Predictor::scores`] reads first.
    pub(super) fn first(&self) -> &Matrix {
        match &self.kind {
            PredictorKind::LowRank { fc1: first, .. } | PredictorKind::Rows { rows: first, .. } => first,
        }
    }

    /// Neurons it knows.
    pub fn neurons(&self) -> usize {
        match &self.kind {
            PredictorKind::LowRank { fc2: rows, .. } | PredictorKind::Rows { rows, .. } => rows.rows(),
        }
    }

    /// Bytes of its matrices, all of which are read for a token.
    pub fn bytes(&self) -> u64 {
        let size = |matrix: &Matrix| matrix.data().len() as u64;
        match &self.kind {
            PredictorKind::LowRank { fc1, fc2 } => size(fc1) + size(fc2),
            PredictorKind::Rows { rows, .. } => size(rows),
        }
    }
}
