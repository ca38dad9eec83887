//! Which experts tokens use.

use super::WHAT;
use crate::{
    cpu::{
        Cpu, MatmulJob,
        ops::{softmax_in_place, top_k},
    },
    error::{Error, Result},
    model::{ExpertWeights, Experts, forward::grow},
};

/// The experts that some tokens use, and with what shares. Its buffers grow to the largest chunk and stay.
#[derive(Debug, Default)]
pub struct Routing {
    /// `[tokens, experts]`
    scores: Vec<f32>,
    /// `[tokens]`: what the expert counts that every token passes through.
    gates: Vec<f32>,
    /// `[tokens, used]`, best first, and their shares. An expert there is not is nobody.
    chosen: Vec<usize>,
    shares: Vec<f32>,
}

impl Routing {
    /// Asks the router of `weights` about inputs `[tokens, d]`.
    ///
    /// # Errors
    /// [`Error::Memory`] if the buffers cannot grow.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn ask(
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
        self.shares.clear();
        for (shares, chosen) in scores.chunks_exact_mut(n).zip(self.chosen.chunks_exact_mut(experts.used)) {
            softmax_in_place(shares);
            top_k(shares, chosen);
            let sum = if experts.renormalise { chosen.iter().map(|e| shares[*e]).sum() } else { 1.0 };
            self.shares.extend(chosen.iter().map(|e| shares[*e] / sum));
        }
        Ok(())
    }

    /// Takes what somebody else has chosen, `[tokens, used]`. The expert that every token passes through is not theirs.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are not as many ids as shares, or not equally many for every token.
    pub(super) fn take(&mut self, tokens: usize, (ids, shares): (&[u32], &[f32])) -> Result<()> {
        if ids.len() != shares.len() || !ids.len().is_multiple_of(tokens.max(1)) {
            let expected = format!("as many ids as shares for each of {tokens} tokens");
            return Err(Error::invalid("chosen experts", expected, format!("{} and {}", ids.len(), shares.len())));
        }
        self.chosen.clear();
        self.chosen.extend(ids.iter().map(|id| *id as usize));
        self.shares.clear();
        self.shares.extend_from_slice(shares);
        Ok(())
    }

    /// Chosen experts, `[tokens, used]`, best first.
    pub fn chosen(&self) -> &[usize] {
        &self.chosen
    }

    /// What each of them counts.
    pub fn shares(&self) -> &[f32] {
        &self.shares
    }

    /// What the shared expert counts for each of the tokens that were asked about, where there is one.
    pub fn gates(&self) -> &[f32] {
        &self.gates
    }

    /// The tokens, of `tokens`, that use `expert`, and its shares.
    pub fn members(&self, expert: usize, tokens: usize) -> impl Iterator<Item = (usize, f32)> {
        let used = (self.chosen.len() / tokens.max(1)).max(1);
        let slots = self.chosen.iter().zip(&self.shares).enumerate();
        let ours = slots.filter(move |(_, (chosen, _))| **chosen == expert);
        ours.map(move |(slot, (_, share))| (slot / used, *share))
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> u64 {
        let floats = [&self.scores, &self.gates, &self.shares].map(Vec::capacity);
        (floats.iter().sum::<usize>() * size_of::<f32>() + self.chosen.capacity() * size_of::<usize>()) as u64
    }
}
