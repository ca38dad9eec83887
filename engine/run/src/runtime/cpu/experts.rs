//! The FFN of an MoE layer: the weighted sum of the experts that its router chooses.

use std::{ops::Range, time::Instant};

use super::{
    ChosenExperts, CpuFfn, FfnBlock, FfnTask, FfnWork, LayerTask, RouterInputs, TokenInputs, WHAT,
    expert_firing::ExpertFiring, ffn::HiddenObserver, layer_ffn::add_bias, paged_reads, products::Few, router::Routing,
};
use crate::runtime::{
    ExpertHidden, Probe, Sparsity,
    scratch::{grow, held_bytes},
};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::{Cpu, MatmulJob};
use thermocline_formats::format::Matrix;
use thermocline_model::{ExpertWeights, FfnKind, FfnWeights, Router};

/// Routes tokens and sums the outputs of their experts. The buffers grow to the size of the largest
/// chunk.
#[derive(Debug, Default)]
pub(crate) struct MoeFfn {
    routing: Routing,
    /// Tokens that use the current expert, and their router weights.
    members: Vec<(usize, f32)>,
    /// `[members, d_model]`, inputs.
    gathered: Vec<f32>,
    /// `[members, d_model]`, outputs.
    expert_out: Vec<f32>,
    /// `[tokens, latent]`: inputs and sum of routed experts that work in a latent.
    latent: [Vec<f32>; 2],
    firing: ExpertFiring,
}

/// The experts of one layer for one chunk.
#[derive(Clone, Copy)]
struct ExpertTask<'a> {
    cpu: &'a Cpu,
    task: &'a LayerTask<'a>,
    weights: &'a ExpertWeights,
    /// True if the shared expert is computed too.
    whole: bool,
    /// True if an observer wants the neurons that fire.
    observed: bool,
}

impl ExpertTask<'_> {
    /// Sets `out` to the sum of `blocks` for the inputs, both `[tokens, d_model]`, without the
    /// biases of down projections.
    fn run(
        &self,
        ffn: &mut CpuFfn,
        blocks: &[FfnBlock<'_>],
        inputs: TokenInputs<'_>,
        out: &mut [f32],
        before: Option<HiddenObserver<'_>>,
    ) -> Result<FfnWork> {
        let task = self.task;
        let part = FfnTask {
            // A chunk is dense, even for an expert that only one of its tokens uses.
            sparsity: if task.tokens == 1 || task.separate { task.sparsity } else { Sparsity::Dense },
            separate: task.separate,
            activation_threshold: task.activation_threshold,
            observed: self.observed,
            ..FfnTask::dense(blocks, task.config.activation, inputs)
        };
        ffn.run(self.cpu, &part, out, before)
    }

    /// The router, if it weights the inputs of expert `at`.
    fn weighs_inputs(&self, at: usize) -> Option<Router> {
        let router = self.task.config.experts.filter(|_| at < self.weights.experts.len())?.router;
        router.weighs_inputs.then_some(router)
    }

    /// The range of expert `at`'s neurons in the layer.
    fn neurons(&self, at: usize, ffn: &FfnWeights) -> Range<usize> {
        let width = self.weights.experts.first().map_or(0, |expert| expert.up.weight.rows());
        at * width..at * width + ffn.up.weight.rows()
    }
}

impl MoeFfn {
    /// Chooses the experts of `task`, whose `x` is the router's input.
    pub fn route(&mut self, cpu: &Cpu, task: &LayerTask<'_>, weights: &ExpertWeights) -> Result<()> {
        let LayerTask { config, x, residual, tokens, preference, .. } = *task;
        let Some(experts) = &config.experts else {
            return Err(Error::invalid("model", "a configuration of its experts", "no such configuration"));
        };
        self.routing.route(cpu, experts, config.norm_eps, weights, RouterInputs { x, residual, tokens, preference })
    }

    /// The ranges of the values that decided the last choice, `[tokens]`; empty without a
    /// preference.
    pub fn ranges(&self) -> &[f32] {
        &self.routing.ranges
    }

    /// The matrices that the chosen experts of a single token read first.
    pub fn first_read<'a>(&self, weights: &'a ExpertWeights) -> Few<&'a Matrix> {
        let chosen = self.routing.chosen.iter().filter_map(|at| weights.experts.get(*at));
        chosen.map(|expert| &expert.gate.as_ref().unwrap_or(&expert.up).weight).collect()
    }

    /// `out = sum over chosen experts`, `[tokens, d_model]` like the input; `ffn` computes the
    /// experts. The input chooses the experts unless they were chosen before
    /// ([`LayerTask::routed`]).
    pub fn run(
        &mut self,
        cpu: &Cpu,
        task: &LayerTask<'_>,
        weights: &ExpertWeights,
        ffn: &mut CpuFfn,
        out: &mut [f32],
        probe: &mut dyn Probe,
    ) -> Result<()> {
        let started = probe.wants_firing().then(Instant::now);
        if !task.routed {
            self.route(cpu, task, weights)?;
        }
        if probe.wants_router() {
            probe.router(task.layer, &self.routing.chosen);
        }
        let expert_task = ExpertTask { cpu, task, weights, whole: true, observed: started.is_some() };
        if started.is_some() {
            self.firing.begin(weights.neurons(), &self.routing.chosen, task.tokens, probe.wants_strength());
        }
        if let Some((preference, experts)) = task.preference.as_ref().zip(task.config.experts) {
            probe.dropped_experts(task.layer, self.routing.drop_weak(preference, experts.used));
        }
        let mut work = FfnWork::default();
        work.read_all(&weights.router.weight);
        if let Some(gate) = weights.shared.as_ref().and_then(|expert| expert.gate.as_ref()) {
            work.read_all(&gate.weight);
        }
        self.compute(&expert_task, ffn, out, &mut work, probe)?;
        if let Some(started) = started {
            self.firing.report(task.layer, work, started, probe);
        }
        Ok(())
    }

    /// `out = sum over chosen experts of router weight times output`, `[tokens, d_model]` like the
    /// input. Ids past the last expert are skipped. Router and shared expert are not computed.
    /// Fired neurons are added to `fired`, `[tokens, words(neurons)]`, if given.
    pub fn run_chosen(
        &mut self,
        cpu: &Cpu,
        task: &LayerTask<'_>,
        chosen: ChosenExperts<'_>,
        ffn: &mut CpuFfn,
        out: &mut [f32],
        fired: Option<&mut [u32]>,
    ) -> Result<FfnWork> {
        let FfnKind::Experts(weights) = task.ffn else {
            return Err(Error::invalid("experts to compute", "the experts of an MoE layer", "a dense FFN"));
        };
        self.routing.set_choice(task.tokens, chosen)?;
        if fired.is_some() {
            self.firing.begin(weights.neurons(), &self.routing.chosen, task.tokens, false);
        }
        let expert_task = ExpertTask { cpu, task, weights, whole: false, observed: fired.is_some() };
        let mut work = FfnWork::default();
        self.compute(&expert_task, ffn, out, &mut work, &mut ())?;
        if let Some(fired) = fired {
            fired.iter_mut().zip(&self.firing.fired).for_each(|(to, from)| *to |= from);
        }
        Ok(work)
    }

    /// Computes the chosen experts, in their latent if they have one.
    fn compute(
        &mut self,
        expert_task: &ExpertTask<'_>,
        ffn: &mut CpuFfn,
        out: &mut [f32],
        work: &mut FfnWork,
        probe: &mut dyn Probe,
    ) -> Result<()> {
        let ExpertTask { cpu, task, weights, .. } = *expert_task;
        let Some(latent) = &weights.latent else { return self.compute_chosen(expert_task, ffn, out, work, probe) };
        let (mut x, mut sum) = (std::mem::take(&mut self.latent[0]), std::mem::take(&mut self.latent[1]));
        let len = task.tokens * latent.down.weight.rows();
        let (of_experts, sums) = (grow(&mut x, Some(len), WHAT)?, grow(&mut sum, Some(len), WHAT)?);
        cpu.matmul(&mut [latent.down.job(&mut *of_experts)], task.x, task.tokens);
        let in_latent = LayerTask { x: of_experts, ..*task };
        let routed = ExpertTask { task: &in_latent, whole: false, ..*expert_task };
        let done = self.compute_chosen(&routed, ffn, sums, work, probe);
        cpu.matmul(&mut [MatmulJob { weight: &latent.up.weight, bias: None, out }], sums, task.tokens);
        self.latent = [x, sum];
        done?;
        work.read_all(&latent.down.weight);
        work.read_all(&latent.up.weight);
        if let Some(expert) = weights.shared.as_ref().filter(|_| expert_task.whole) {
            let (at, shows) = (weights.experts.len(), probe.wants_ffn_hidden());
            self.find_members(expert_task, at);
            work.add(self.compute_expert(expert_task, at, &expert.ffn, ffn, out, shows.then_some(probe))?);
            self.add_expert_bias(expert_task, at, &expert.ffn, out);
        }
        Ok(())
    }

    /// Computes the chosen experts: for a single token together, for a chunk one after the other.
    fn compute_chosen(
        &mut self,
        expert_task: &ExpertTask<'_>,
        ffn: &mut CpuFfn,
        out: &mut [f32],
        work: &mut FfnWork,
        probe: &mut dyn Probe,
    ) -> Result<()> {
        let shows = probe.wants_ffn_hidden();
        // Experts that are computed together must share an input.
        if expert_task.task.tokens == 1 && !shows && expert_task.weighs_inputs(0).is_none() {
            work.add(self.compute_token(expert_task, ffn, out)?);
            return Ok(());
        }
        out.fill(0.0);
        let ExpertTask { weights, whole, .. } = *expert_task;
        let shared = weights.shared.iter().filter(|_| whole).map(|expert| &expert.ffn);
        let all = weights.experts.iter().chain(shared).enumerate();
        for (at, expert) in all.clone() {
            self.find_members(expert_task, at);
            if !self.members.is_empty() {
                // The disk reads the next expert while this one is computed.
                let next = all.clone().skip(at + 1).find(|(at, _)| self.is_used(expert_task, *at));
                next.into_iter().for_each(|(_, expert)| paged_reads::of_expert(expert));
                work.add(self.compute_expert(expert_task, at, expert, ffn, out, shows.then_some(&mut *probe))?);
            }
        }
        // In the order of a single token: first all sums, then all biases.
        for (at, expert) in all {
            self.add_expert_bias(expert_task, at, expert, out);
        }
        Ok(())
    }

    /// Finds the tokens that use expert `at`, and their router weights. The shared expert's index
    /// follows the last expert's.
    fn find_members(&mut self, expert_task: &ExpertTask<'_>, at: usize) {
        let tokens = expert_task.task.tokens;
        self.members.clear();
        match at < expert_task.weights.experts.len() {
            true => self.members.extend(self.routing.members(at, tokens)),
            false => self.members.extend(self.routing.gates.iter().copied().take(tokens).enumerate()),
        }
    }

    /// True if a token uses expert `at`.
    fn is_used(&self, expert_task: &ExpertTask<'_>, at: usize) -> bool {
        at >= expert_task.weights.experts.len() || self.routing.chosen.contains(&at)
    }

    /// Adds the bias of expert `at`, if it has one, to the rows of `out` of the tokens that use it.
    fn add_expert_bias(&mut self, expert_task: &ExpertTask<'_>, at: usize, expert: &FfnWeights, out: &mut [f32]) {
        if expert.down.linear().bias.is_none() {
            return;
        }
        self.find_members(expert_task, at);
        let (d, routed) = (out.len() / expert_task.task.tokens, expert_task.weighs_inputs(at));
        for (t, weight) in &self.members {
            let factor = routed.map_or(*weight, |router| router.factors(*weight)[1]);
            add_bias(expert, factor, &mut out[t * d..][..d]);
        }
    }

    /// Computes expert `at` for the tokens that use it, without its bias.
    fn compute_expert(
        &mut self,
        expert_task: &ExpertTask<'_>,
        at: usize,
        expert: &FfnWeights,
        ffn: &mut CpuFfn,
        out: &mut [f32],
        probe: Option<&mut dyn Probe>,
    ) -> Result<FfnWork> {
        let ExpertTask { cpu, task, .. } = *expert_task;
        let (rows, d) = (self.members.len(), task.x.len() / task.tokens);
        let gathered = grow(&mut self.gathered, rows.checked_mul(d), WHAT)?;
        let result = grow(&mut self.expert_out, rows.checked_mul(d), WHAT)?;
        let weighs_inputs = expert_task.weighs_inputs(at);
        for (to, (t, weight)) in gathered.chunks_exact_mut(d).zip(&mut self.members) {
            to.copy_from_slice(&task.x[*t * d..][..d]);
            if let Some(router) = weighs_inputs {
                let [input, output] = router.factors(*weight);
                to.iter_mut().for_each(|x| *x *= input);
                *weight = output;
            }
        }
        let members = &self.members;
        let mut before = probe.map(|probe| {
            move |gate: &[f32], up: &[f32]| {
                probe.expert_hidden(&ExpertHidden { layer: task.layer, expert: at, members, gate, up });
            }
        });
        let before = before.as_mut().map(|before| before as HiddenObserver<'_>);
        let inputs = TokenInputs { x: gathered, tokens: rows };
        let work = expert_task.run(ffn, &[FfnBlock::whole(expert)], inputs, result, before)?;
        if expert_task.observed {
            self.firing.note(ffn, 0, expert_task.neurons(at, expert), members.iter().map(|(t, _)| *t));
        }
        for (from, (t, factor)) in result.chunks_exact(d).zip(members) {
            cpu.add_scaled(&mut out[t * d..][..d], from, *factor);
        }
        Ok(work)
    }

    /// Computes the chosen experts of one token and the shared expert, all at once.
    fn compute_token(&mut self, expert_task: &ExpertTask<'_>, ffn: &mut CpuFfn, out: &mut [f32]) -> Result<FfnWork> {
        let ExpertTask { task, weights, .. } = *expert_task;
        let experts = &weights.experts;
        let mut numbers: Few<(usize, f32)> =
            self.routing.chosen.iter().copied().zip(self.routing.router_weights.iter().copied()).collect();
        numbers.retain(|(at, _)| *at < experts.len());
        // In the order of the file.
        numbers.sort_unstable_by_key(|(at, _)| *at);
        let block = |ffn, factor| FfnBlock { factor, ..FfnBlock::whole(ffn) };
        let mut blocks: Few<FfnBlock<'_>> = numbers.iter().map(|(at, factor)| block(&experts[*at], *factor)).collect();
        if let (Some(expert), true) = (&weights.shared, expert_task.whole) {
            let gate = self.routing.gates[0];
            numbers.push((experts.len(), gate));
            blocks.push(block(&expert.ffn, gate));
        }
        let work = expert_task.run(ffn, &blocks, TokenInputs { x: task.x, tokens: 1 }, out, None)?;
        blocks.iter().for_each(|block| add_bias(block.ffn, block.factor, out));
        if expert_task.observed {
            for (at, ((number, _), block)) in numbers.iter().zip(&blocks).enumerate() {
                self.firing.note(ffn, at, expert_task.neurons(*number, block.ffn), 0..1);
            }
        }
        Ok(work)
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let floats = [&self.gathered, &self.expert_out].into_iter().chain(&self.latent);
        held_bytes(floats) + held_bytes([&self.members]) + self.routing.bytes() + self.firing.bytes()
    }
}
