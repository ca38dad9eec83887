//! The router of an MoE layer: the experts that each token uses, and their weights.

use super::WHAT;
use crate::{
    cpu::{
        Cpu, MatmulJob,
        ops::{softmax_in_place, top_k},
    },
    error::{Error, Result},
    model::{ExpertWeights, Experts},
    runtime::scratch::grow,
};

/// The experts that a chunk's tokens use, and their router weights. Its buffers grow to the largest chunk and stay.
#[derive(Debug, Default)]
pub struct Routing {
    /// `[tokens, experts]`
    scores: Vec<f32>,
    /// `[tokens]`: weight of the shared expert.
    gates: Vec<f32>,
    /// `[tokens, used]`, best first, and their router weights. A number past the last expert stands for none.
    chosen: Vec<usize>,
    router_weights: Vec<f32>,
}

impl Routing {
    /// Computes the router of `weights` for inputs `[tokens, d]`.
    ///
    /// # Errors
    /// [`Error::Memory`] if the buffers cannot grow.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn route(
        &mut self,
        cpu: &Cpu,
        experts: &Experts,
        weights: &ExpertWeights,
        x: &[f32],
        tokens: usize,
    ) -> Result<()> {
        let n = weights.router.weight.rows();
        grow(&mut self.scores, tokens.checked_mul(n), WHAT)?;
        grow(&mut self.gates, Some(tokens), WHAT)?;
        let (scores, gates) = (&mut self.scores[..tokens * n], &mut self.gates[..tokens]);
        let router = &weights.router;
        let router = MatmulJob { weight: &router.weight, bias: router.bias.as_deref(), out: &mut *scores };
        match &weights.shared {
            Some(shared) => {
                let bias = shared.gate.bias.as_deref();
                let gate = MatmulJob { weight: &shared.gate.weight, bias, out: &mut *gates };
                cpu.matmul(&mut [router, gate], x, tokens);
                gates.iter_mut().for_each(|gate| *gate = 1.0 / (1.0 + (-*gate).exp()));
            }
            None => cpu.matmul(&mut [router], x, tokens),
        }
        self.chosen.resize(tokens * experts.used, 0);
        self.router_weights.clear();
        for (probabilities, chosen) in scores.chunks_exact_mut(n).zip(self.chosen.chunks_exact_mut(experts.used)) {
            softmax_in_place(probabilities);
            top_k(probabilities, chosen);
            let sum = if experts.renormalise { chosen.iter().map(|e| probabilities[*e]).sum() } else { 1.0 };
            self.router_weights.extend(chosen.iter().map(|e| probabilities[*e] / sum));
        }
        Ok(())
    }

    /// Takes over a choice that was made elsewhere, `[tokens, used]`, without a shared expert.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are not as many ids as weights, or not equally many for every token.
    pub(crate) fn set_choice(&mut self, tokens: usize, (ids, router_weights): (&[u32], &[f32])) -> Result<()> {
        if ids.len() != router_weights.len() || !ids.len().is_multiple_of(tokens.max(1)) {
            let expected = format!("as many ids as router weights for each of {tokens} tokens");
            return Err(Error::invalid(
                "chosen experts",
                expected,
                format!("{} and {}", ids.len(), router_weights.len()),
            ));
        }
        self.chosen.clear();
        self.chosen.extend(ids.iter().map(|id| *id as usize));
        self.router_weights.clear();
        self.router_weights.extend_from_slice(router_weights);
        Ok(())
    }

    /// Chosen experts, `[tokens, used]`, best first.
    pub fn chosen(&self) -> &[usize] {
        &self.chosen
    }

    /// Their router weights, `[tokens, used]`.
    pub fn router_weights(&self) -> &[f32] {
        &self.router_weights
    }

    /// Weight of the shared expert for each token that was routed, where there is one.
    pub fn gates(&self) -> &[f32] {
        &self.gates
    }

    /// The tokens, of `tokens`, that use `expert`, and its router weights.
    pub fn members(&self, expert: usize, tokens: usize) -> impl Iterator<Item = (usize, f32)> {
        let used = (self.chosen.len() / tokens.max(1)).max(1);
        let slots = self.chosen.iter().zip(&self.router_weights).enumerate();
        let ours = slots.filter(move |(_, (chosen, _))| **chosen == expert);
        ours.map(move |(slot, (_, weight))| (slot / used, *weight))
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        let floats = [&self.scores, &self.gates, &self.router_weights].map(Vec::capacity);
        (floats.iter().sum::<usize>() * size_of::<f32>() + self.chosen.capacity() * size_of::<usize>()) as u64
    }
}
