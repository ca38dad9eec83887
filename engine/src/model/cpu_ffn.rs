//! Feed-forward networks on the CPU: dense, and mixtures of experts.

use super::{Activation, Down, ExpertWeights, Experts, Ffn, FfnWeights, Model, Probe, SharedExpert, forward::grow};
use crate::{
    cpu::{
        Cpu, MatmulJob,
        ops::{Hidden, softmax_in_place, top_k},
    },
    error::{Error, Result},
};

const WHAT: &str = "scratch memory";

/// Buffers of an FFN; they grow to the largest chunk and stay.
#[derive(Debug, Default)]
pub(super) struct FfnScratch {
    hidden: HiddenScratch,
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

/// `[tokens, n_ff]` each.
#[derive(Debug, Default)]
struct HiddenScratch {
    gate: Vec<f32>,
    up: Vec<f32>,
}

impl FfnScratch {
    /// Bytes held.
    pub(super) fn bytes(&self) -> u64 {
        let HiddenScratch { gate, up } = &self.hidden;
        let floats = [gate, up, &self.router, &self.gathered, &self.expert_out].map(Vec::capacity);
        (floats.iter().sum::<usize>() * size_of::<f32>()) as u64
    }
}

impl From<Activation> for Hidden {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::Relu => Hidden::Relu,
            Activation::ReluSquared => Hidden::ReluSquared,
            Activation::Silu => Hidden::Silu,
            Activation::GeluTanh => Hidden::GeluTanh,
            Activation::GeluErf => Hidden::GeluErf,
            Activation::DRelu => Hidden::DRelu,
        }
    }
}

impl HiddenScratch {
    /// `out = down(act(gate x) * up x)`; `before` sees gate and up just before the activation.
    fn run(
        &mut self,
        cpu: &Cpu,
        form: Hidden,
        ffn: &FfnWeights,
        x: &[f32],
        out: &mut [f32],
        tokens: usize,
        before: &mut dyn FnMut(&[f32], &[f32]),
    ) -> Result<()> {
        let n = tokens.checked_mul(ffn.up.weight.rows());
        grow(&mut self.up, n, WHAT)?;
        let up = &mut self.up[..tokens * ffn.up.weight.rows()];
        let up_job = MatmulJob { weight: &ffn.up.weight, bias: ffn.up.bias.as_deref(), out: up };
        let hidden = match &ffn.gate {
            Some(gate_weight) => {
                grow(&mut self.gate, n, WHAT)?;
                let gate = &mut self.gate[..up_job.out.len()];
                let bias = gate_weight.bias.as_deref();
                let mut jobs = [MatmulJob { weight: &gate_weight.weight, bias, out: gate }, up_job];
                cpu.matmul(&mut jobs, x, tokens);
                let [MatmulJob { out: gate, .. }, MatmulJob { out: up, .. }] = jobs;
                before(gate, up);
                cpu.activate(form, gate, Some(up));
                gate
            }
            None => {
                let mut jobs = [up_job];
                cpu.matmul(&mut jobs, x, tokens);
                let [MatmulJob { out: up, .. }] = jobs;
                before(&[], up);
                cpu.activate(form, up, None);
                up
            }
        };
        match &ffn.down {
            Down::Outputs(down) => {
                cpu.matmul(&mut [MatmulJob { weight: &down.weight, bias: down.bias.as_deref(), out }], hidden, tokens);
            }
            Down::Neurons(down) => cpu.matmul_neurons(&down.weight, down.bias.as_deref(), hidden, tokens, out),
        }
        Ok(())
    }
}

impl FfnScratch {
    /// `out = ffn(x)` of `layer`, both `[tokens, d_model]`.
    pub(super) fn run(
        &mut self,
        cpu: &Cpu,
        model: &Model,
        layer: usize,
        x: &[f32],
        out: &mut [f32],
        tokens: usize,
        probe: &mut dyn Probe,
    ) -> Result<()> {
        let form = Hidden::from(model.config.activation);
        match &model.weights.layers[layer].ffn {
            Ffn::Dense(ffn) => {
                let mut before = |gate: &[f32], up: &[f32]| probe.ffn_hidden(layer, tokens, gate, up);
                self.hidden.run(cpu, form, ffn, x, out, tokens, &mut before)
            }
            Ffn::Experts(weights) => {
                let Some(experts) = &model.config.experts else {
                    return Err(Error::invalid("model", "a configuration of its experts", "none"));
                };
                self.route(cpu, experts, weights, x, tokens)?;
                probe.router(layer, &self.chosen);
                self.mix(cpu, form, experts, weights, x, out)?;
                match &weights.shared {
                    Some(shared) => self.add_shared(cpu, form, shared, x, out, tokens),
                    None => Ok(()),
                }
            }
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
        cpu: &Cpu,
        form: Hidden,
        experts: &Experts,
        weights: &ExpertWeights,
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
            self.hidden.run(cpu, form, expert, gathered, result, rows, &mut |_, _| ())?;
            for (from, (t, weight)) in result.chunks_exact(d).zip(&self.members) {
                cpu.add_scaled(&mut out[t * d..][..d], from, *weight);
            }
        }
        Ok(())
    }

    /// `out += sigmoid(gate x) * ffn(x)` for every token.
    fn add_shared(
        &mut self,
        cpu: &Cpu,
        form: Hidden,
        shared: &SharedExpert,
        x: &[f32],
        out: &mut [f32],
        tokens: usize,
    ) -> Result<()> {
        let d = x.len() / tokens;
        grow(&mut self.router, Some(tokens), WHAT)?;
        grow(&mut self.expert_out, Some(x.len()), WHAT)?;
        let (gates, result) = (&mut self.router[..tokens], &mut self.expert_out[..x.len()]);
        let bias = shared.gate.bias.as_deref();
        cpu.matmul(&mut [MatmulJob { weight: &shared.gate.weight, bias, out: gates }], x, tokens);
        self.hidden.run(cpu, form, &shared.ffn, x, result, tokens, &mut |_, _| ())?;
        for ((out, from), gate) in out.chunks_exact_mut(d).zip(result.chunks_exact(d)).zip(&*gates) {
            cpu.add_scaled(out, from, 1.0 / (1.0 + (-gate).exp()));
        }
        Ok(())
    }
}
