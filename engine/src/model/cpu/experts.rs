//! Mixtures of experts.

use std::time::Instant;

use super::{CpuFfn, FfnTask, FfnWork, LayerTask, WHAT, expert_firing::ExpertFiring, layer_ffn::add_bias};
use crate::{
    cpu::{
        Cpu, MatmulJob,
        ops::{softmax_in_place, top_k},
    },
    error::{Error, Result},
    model::{ExpertWeights, Experts, Ffn, FfnWeights, ModelConfig, Probe, SharedExpert, Sparsity, forward::grow},
};

/// Chooses experts and adds up what they say. Its buffers grow to the largest chunk and stay.
#[derive(Debug, Default)]
pub(super) struct Mixture {
    /// `[tokens, experts]`
    router: Vec<f32>,
    /// `[tokens, used]`, best first, and their shares. An expert there is not is nobody.
    chosen: Vec<usize>,
    shares: Vec<f32>,
    /// One expert's tokens and their weights.
    members: Vec<(usize, f32)>,
    /// `[members, d_model]`, inputs.
    gathered: Vec<f32>,
    /// `[members, d_model]`, outputs.
    expert_out: Vec<f32>,
    firing: ExpertFiring,
}

/// What all experts of a task share.
struct Shared<'a> {
    cpu: &'a Cpu,
    config: &'a ModelConfig,
    sparsity: Sparsity,
    cut: Option<f32>,
    /// Whether an observer wants to know what fires.
    watched: bool,
}

impl<'a> Shared<'a> {
    fn new(cpu: &'a Cpu, config: &'a ModelConfig, task: &LayerTask<'_>, watched: bool) -> Self {
        // An expert with one token of many is part of a chunk all the same, and a cut only says what counts as firing.
        let sparsity = match task.sparsity {
            Sparsity::Threshold => Sparsity::Dense,
            mode if task.tokens == 1 => mode,
            _ => Sparsity::Dense,
        };
        Shared { cpu, config, sparsity, cut: task.cut, watched }
    }

    /// `out = ffn(x)`, both `[tokens, d_model]`.
    fn run(
        &self,
        ffn: &mut CpuFfn,
        weights: &FfnWeights,
        x: &[f32],
        tokens: usize,
        out: &mut [f32],
    ) -> Result<FfnWork> {
        let task = FfnTask {
            ffn: weights,
            activation: self.config.activation,
            neurons: None,
            sparsity: self.sparsity,
            guess: None,
            audited: false,
            cut: self.cut,
            x,
            tokens,
            observed: self.watched,
        };
        let work = ffn.partial(self.cpu, &task, out)?;
        add_bias(weights, out);
        Ok(work)
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
        let started = probe.wants_firing().then(Instant::now);
        self.route(cpu, experts, weights, task.x, task.tokens)?;
        if probe.wants_router() {
            probe.router(task.layer, &self.chosen);
        }
        let shared = Shared::new(cpu, config, task, started.is_some());
        if started.is_some() {
            self.firing.begin(task.ffn.neurons(), &self.chosen, task.tokens, probe.wants_strength());
        }
        let mut work = FfnWork::default();
        work.read_all(&weights.router.weight);
        self.mix(&shared, weights, ffn, task.x, task.tokens, out, &mut work)?;
        if let Some(expert) = &weights.shared {
            self.add_shared(&shared, expert, ffn, (task.x, task.tokens), out, &mut work)?;
        }
        if let Some(started) = started {
            self.firing.tell(task.layer, work, started, probe);
        }
        Ok(())
    }

    /// `out = sum over given experts of their share times what they say`, both `[tokens, d_model]`: `ids` and `shares` are
    /// `[tokens, used]`, and an id that is no expert's is left out. Neither the router nor the shared expert is asked. What fired
    /// is added to `fired`, `[tokens, words(neurons)]`, where somebody wants it.
    pub(super) fn given(
        &mut self,
        cpu: &Cpu,
        config: &ModelConfig,
        task: &LayerTask<'_>,
        (ids, shares): (&[u32], &[f32]),
        ffn: &mut CpuFfn,
        out: &mut [f32],
        fired: Option<&mut [u32]>,
    ) -> Result<FfnWork> {
        let Ffn::Experts(weights) = task.ffn else {
            return Err(Error::invalid("experts to compute", "those of a mixture", "an FFN for every token"));
        };
        let used = ids.len() / task.tokens.max(1);
        if ids.len() != shares.len() || used * task.tokens != ids.len() {
            let expected = format!("as many ids as shares for each of {} tokens", task.tokens);
            return Err(Error::invalid("chosen experts", expected, format!("{} and {}", ids.len(), shares.len())));
        }
        self.chosen.clear();
        self.chosen.extend(ids.iter().map(|id| *id as usize));
        self.shares.clear();
        self.shares.extend_from_slice(shares);
        if fired.is_some() {
            self.firing.begin(task.ffn.neurons(), &self.chosen, task.tokens, false);
        }
        let shared = Shared::new(cpu, config, task, fired.is_some());
        let mut work = FfnWork::default();
        self.mix(&shared, weights, ffn, task.x, task.tokens, out, &mut work)?;
        if let Some(fired) = fired {
            fired.iter_mut().zip(self.firing.fired()).for_each(|(to, from)| *to |= from);
        }
        Ok(work)
    }

    /// Chooses experts, and their shares.
    fn route(&mut self, cpu: &Cpu, experts: &Experts, weights: &ExpertWeights, x: &[f32], tokens: usize) -> Result<()> {
        let n = weights.router.weight.rows();
        grow(&mut self.router, tokens.checked_mul(n), WHAT)?;
        let router = &mut self.router[..tokens * n];
        let bias = weights.router.bias.as_deref();
        cpu.matmul(&mut [MatmulJob { weight: &weights.router.weight, bias, out: router }], x, tokens);
        self.chosen.resize(tokens * experts.used, 0);
        self.shares.clear();
        for (shares, chosen) in router.chunks_exact_mut(n).zip(self.chosen.chunks_exact_mut(experts.used)) {
            softmax_in_place(shares);
            top_k(shares, chosen);
            let sum = if experts.renormalise { chosen.iter().map(|e| shares[*e]).sum() } else { 1.0 };
            self.shares.extend(chosen.iter().map(|e| shares[*e] / sum));
        }
        Ok(())
    }

    /// Expert by expert, each over the tokens that chose it.
    fn mix(
        &mut self,
        shared: &Shared<'_>,
        weights: &ExpertWeights,
        ffn: &mut CpuFfn,
        x: &[f32],
        tokens: usize,
        out: &mut [f32],
        work: &mut FfnWork,
    ) -> Result<()> {
        let (d, used) = (x.len() / tokens, (self.chosen.len() / tokens).max(1));
        out.fill(0.0);
        for (e, expert) in weights.experts.iter().enumerate() {
            self.members.clear();
            let chosen = self.chosen.iter().zip(&self.shares).enumerate().filter(|(_, (chosen, _))| **chosen == e);
            self.members.extend(chosen.map(|(slot, (_, share))| (slot / used, *share)));
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
            work.add(shared.run(ffn, expert, gathered, rows, result)?);
            if shared.watched {
                let width = expert.up.weight.rows();
                self.firing.note(ffn, (e * width, width), self.members.iter().map(|(t, _)| *t));
            }
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
        (x, tokens): (&[f32], usize),
        out: &mut [f32],
        work: &mut FfnWork,
    ) -> Result<()> {
        let d = x.len() / tokens;
        grow(&mut self.router, Some(tokens), WHAT)?;
        grow(&mut self.expert_out, Some(x.len()), WHAT)?;
        let (gates, result) = (&mut self.router[..tokens], &mut self.expert_out[..x.len()]);
        let bias = expert.gate.bias.as_deref();
        shared.cpu.matmul(&mut [MatmulJob { weight: &expert.gate.weight, bias, out: gates }], x, tokens);
        work.read_all(&expert.gate.weight);
        work.add(shared.run(ffn, &expert.ffn, x, tokens, result)?);
        if shared.watched {
            self.firing.note_last(ffn, expert.ffn.up.weight.rows());
        }
        for ((out, from), gate) in out.chunks_exact_mut(d).zip(result.chunks_exact(d)).zip(&*gates) {
            shared.cpu.add_scaled(out, from, 1.0 / (1.0 + (-gate).exp()));
        }
        Ok(())
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> u64 {
        let floats = [&self.router, &self.shares, &self.gathered, &self.expert_out].map(Vec::capacity);
        (floats.iter().sum::<usize>() * size_of::<f32>()) as u64 + self.firing.bytes()
    }
}
