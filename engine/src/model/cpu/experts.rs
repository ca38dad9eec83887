//! Mixtures of experts.

use super::{CpuFfn, FfnTask, LayerTask, WHAT, layer_ffn::add_bias};
use crate::{
    cpu::{
        Cpu, MatmulJob,
        ops::{softmax_in_place, top_k},
    },
    error::{Error, Result},
    model::{ExpertWeights, Experts, FfnWeights, ModelConfig, Probe, SharedExpert, Sparsity, forward::grow},
};

/// Chooses experts and adds up what they say. Its buffers grow to the largest chunk and stay.
#[derive(Debug, Default)]
pub(super) struct Mixture {
    /// `[tokens, experts]`
    router: Vec<f32>,
    /// `[tokens, used]`, best first.
    chosen: Vec<usize>,
    /// One expert's tokens and their weights.
    members: Vec<(usize, f32)>,
    /// `[members, d_model]`, inputs.
    gathered: Vec<f32>,
    /// `[members, d_model]`, outputs.
    expert_out: Vec<f32>,
}

/// What all experts of a task share.
struct Shared<'a> {
    cpu: &'a Cpu,
    config: &'a ModelConfig,
    sparsity: Sparsity,
}

impl Shared<'_> {
    /// `out = ffn(x)`, both `[tokens, d_model]`.
    fn run(&self, ffn: &mut CpuFfn, weights: &FfnWeights, x: &[f32], tokens: usize, out: &mut [f32]) -> Result<()> {
        let task = FfnTask {
            ffn: weights,
            activation: self.config.activation,
            neurons: None,
            sparsity: self.sparsity,
            guess: None,
            audited: false,
            cut: None,
            x,
            tokens,
            observed: false,
        };
        ffn.partial(self.cpu, &task, out)?;
        add_bias(weights, out);
        Ok(())
    }
}

impl Mixture {
    /// `out = mixture(x)`, both `[tokens, d_model]`; `ffn` computes the experts.
    pub(super) fn run(
        &mut self,
        cpu: &Cpu,
        config: &ModelConfig,
        task: &LayerTask<'_>,
        weights: &ExpertWeights,
        ffn: &mut CpuFfn,
        out: &mut [f32],
        probe: &mut dyn Probe,
    ) -> Result<()> {
        let Some(experts) = &config.experts else {
            return Err(Error::invalid("model", "a configuration of its experts", "none"));
        };
        self.route(cpu, experts, weights, task.x, task.tokens)?;
        if probe.wants_router() {
            probe.router(task.layer, &self.chosen);
        }
        // An expert with one token of many is part of a chunk all the same.
        let sparsity = if task.tokens == 1 { task.sparsity } else { Sparsity::Dense };
        let shared = Shared { cpu, config, sparsity };
        self.mix(&shared, experts, weights, ffn, task.x, out)?;
        match &weights.shared {
            Some(expert) => self.add_shared(&shared, expert, ffn, task.x, task.tokens, out),
            None => Ok(()),
        }
    }

    /// Chooses experts: `chosen` and, in place of the router's outputs, their weights.
    fn route(&mut self, cpu: &Cpu, experts: &Experts, weights: &ExpertWeights, x: &[f32], tokens: usize) -> Result<()> {
        let n = weights.router.weight.rows();
        grow(&mut self.router, tokens.checked_mul(n), WHAT)?;
        let router = &mut self.router[..tokens * n];
        let bias = weights.router.bias.as_deref();
        cpu.matmul(&mut [MatmulJob { weight: &weights.router.weight, bias, out: router }], x, tokens);
        self.chosen.resize(tokens * experts.used, 0);
        for (shares, chosen) in router.chunks_exact_mut(n).zip(self.chosen.chunks_exact_mut(experts.used)) {
            softmax_in_place(shares);
            top_k(shares, chosen);
            if experts.renormalise {
                let sum: f32 = chosen.iter().map(|e| shares[*e]).sum();
                shares.iter_mut().for_each(|share| *share /= sum);
            }
        }
        Ok(())
    }

    /// Expert by expert, each over the tokens that chose it.
    fn mix(
        &mut self,
        shared: &Shared<'_>,
        experts: &Experts,
        weights: &ExpertWeights,
        ffn: &mut CpuFfn,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<()> {
        let tokens = self.chosen.len() / experts.used;
        let (d, n) = (x.len() / tokens, weights.experts.len());
        out.fill(0.0);
        for (e, expert) in weights.experts.iter().enumerate() {
            self.members.clear();
            for (t, chosen) in self.chosen.chunks_exact(experts.used).enumerate() {
                if chosen.contains(&e) {
                    self.members.push((t, self.router[t * n + e]));
                }
            }
            if self.members.is_empty() {
                continue;
            }
            let rows = self.members.len();
            grow(&mut self.gathered, rows.checked_mul(d), WHAT)?;
            grow(&mut self.expert_out, rows.checked_mul(d), WHAT)?;
            let (gathered, result) = (&mut self.gathered[..rows * d], &mut self.expert_out[..rows * d]);
            for (to, (t, _)) in gathered.chunks_exact_mut(d).zip(&self.members) {
                to.copy_from_slice(&x[t * d..][..d]);
            }
            shared.run(ffn, expert, gathered, rows, result)?;
            for (from, (t, weight)) in result.chunks_exact(d).zip(&self.members) {
                shared.cpu.add_scaled(&mut out[t * d..][..d], from, *weight);
            }
        }
        Ok(())
    }

    /// `out += sigmoid(gate x) * ffn(x)` for every token.
    fn add_shared(
        &mut self,
        shared: &Shared<'_>,
        expert: &SharedExpert,
        ffn: &mut CpuFfn,
        x: &[f32],
        tokens: usize,
        out: &mut [f32],
    ) -> Result<()> {
        let d = x.len() / tokens;
        grow(&mut self.router, Some(tokens), WHAT)?;
        grow(&mut self.expert_out, Some(x.len()), WHAT)?;
        let (gates, result) = (&mut self.router[..tokens], &mut self.expert_out[..x.len()]);
        let bias = expert.gate.bias.as_deref();
        shared.cpu.matmul(&mut [MatmulJob { weight: &expert.gate.weight, bias, out: gates }], x, tokens);
        shared.run(ffn, &expert.ffn, x, tokens, result)?;
        for ((out, from), gate) in out.chunks_exact_mut(d).zip(result.chunks_exact(d)).zip(&*gates) {
            shared.cpu.add_scaled(out, from, 1.0 / (1.0 + (-gate).exp()));
        }
        Ok(())
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> u64 {
        let floats = [&self.router, &self.gathered, &self.expert_out].map(Vec::capacity);
        (floats.iter().sum::<usize>() * size_of::<f32>()) as u64
    }
}
