//! Mixtures of experts.

use std::time::Instant;

use super::{
    CpuFfn, FfnBlock, FfnTask, FfnWork, LayerTask, WHAT, expert_firing::ExpertFiring, layer_ffn::add_bias,
    products::Few, routing::Routing,
};
use crate::{
    cpu::Cpu,
    error::{Error, Result},
    model::{ExpertWeights, Ffn, FfnWeights, ModelConfig, Probe, Sparsity, forward::grow},
};

/// Chooses experts and adds up what they say. Its buffers grow to the largest chunk and stay.
#[derive(Debug, Default)]
pub(super) struct Mixture {
    routing: Routing,
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
    task: &'a LayerTask<'a>,
    weights: &'a ExpertWeights,
    /// Whether the expert that every token passes through is ours to compute.
    whole: bool,
    /// Whether an observer wants to know what fires.
    watched: bool,
}

impl Shared<'_> {
    /// `out =` the sum of `blocks` for `tokens` tokens, both `[tokens, d_model]`.
    fn run(
        &self,
        ffn: &mut CpuFfn,
        blocks: &[FfnBlock<'_>],
        (x, tokens): (&[f32], usize),
        out: &mut [f32],
        before: &mut dyn FnMut(&[f32], &[f32]),
    ) -> Result<FfnWork> {
        let task = FfnTask {
            blocks,
            activation: self.config.activation,
            // An expert with one token of many is part of a chunk all the same.
            sparsity: if self.task.tokens == 1 { self.task.sparsity } else { Sparsity::Dense },
            guess: None,
            audited: false,
            cut: self.task.cut,
            x,
            tokens,
            observed: self.watched,
        };
        let work = ffn.run(self.cpu, &task, out, before)?;
        blocks.iter().for_each(|block| add_bias(block.ffn, block.share, out));
        Ok(work)
    }

    /// The neurons of expert `at` among the layer's: the first, and how many.
    fn neurons(&self, at: usize, ffn: &FfnWeights) -> (usize, usize) {
        let width = self.weights.experts.first().map_or(0, |expert| expert.up.weight.rows());
        (at * width, ffn.up.weight.rows())
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
        self.routing.ask(cpu, experts, weights, task.x, task.tokens)?;
        if probe.wants_router() {
            probe.router(task.layer, self.routing.chosen());
        }
        let shared = Shared { cpu, config, task, weights, whole: true, watched: started.is_some() };
        if started.is_some() {
            self.firing.begin(task.ffn.neurons(), self.routing.chosen(), task.tokens, probe.wants_strength());
        }
        let mut work = FfnWork::default();
        work.read_all(&weights.router.weight);
        if let Some(expert) = &weights.shared {
            work.read_all(&expert.gate.weight);
        }
        self.mix(&shared, ffn, out, &mut work, probe)?;
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
        given: (&[u32], &[f32]),
        ffn: &mut CpuFfn,
        out: &mut [f32],
        fired: Option<&mut [u32]>,
    ) -> Result<FfnWork> {
        let Ffn::Experts(weights) = task.ffn else {
            return Err(Error::invalid("experts to compute", "those of a mixture", "an FFN for every token"));
        };
        self.routing.take(task.tokens, given)?;
        if fired.is_some() {
            self.firing.begin(task.ffn.neurons(), self.routing.chosen(), task.tokens, false);
        }
        let shared = Shared { cpu, config, task, weights, whole: false, watched: fired.is_some() };
        let mut work = FfnWork::default();
        self.mix(&shared, ffn, out, &mut work, &mut ())?;
        if let Some(fired) = fired {
            fired.iter_mut().zip(self.firing.fired()).for_each(|(to, from)| *to |= from);
        }
        Ok(work)
    }

    /// What the chosen experts say. A single token's are computed together, those of a chunk one after the other.
    fn mix(
        &mut self,
        shared: &Shared<'_>,
        ffn: &mut CpuFfn,
        out: &mut [f32],
        work: &mut FfnWork,
        probe: &mut dyn Probe,
    ) -> Result<()> {
        let shows = probe.wants_ffn_hidden();
        if shared.task.tokens == 1 && !shows {
            work.add(self.one(shared, ffn, out)?);
            return Ok(());
        }
        out.fill(0.0);
        let Shared { task, weights, .. } = shared;
        let all = weights.shared.iter().filter(|_| shared.whole).map(|expert| &expert.ffn);
        for (at, expert) in weights.experts.iter().chain(all).enumerate() {
            self.members.clear();
            match at < weights.experts.len() {
                true => self.members.extend(self.routing.members(at, task.tokens)),
                false => self.members.extend(self.routing.gates().iter().copied().take(task.tokens).enumerate()),
            }
            if !self.members.is_empty() {
                work.add(self.members_of(shared, (at, expert), ffn, out, shows.then_some(&mut *probe))?);
            }
        }
        Ok(())
    }

    /// What expert `at` says, over the tokens that use it.
    fn members_of(
        &mut self,
        shared: &Shared<'_>,
        (at, expert): (usize, &FfnWeights),
        ffn: &mut CpuFfn,
        out: &mut [f32],
        probe: Option<&mut dyn Probe>,
    ) -> Result<FfnWork> {
        let (members, task) = (&self.members, shared.task);
        let (rows, d) = (members.len(), task.x.len() / task.tokens);
        grow(&mut self.gathered, rows.checked_mul(d), WHAT)?;
        grow(&mut self.expert_out, rows.checked_mul(d), WHAT)?;
        let (gathered, result) = (&mut self.gathered[..rows * d], &mut self.expert_out[..rows * d]);
        for (to, (t, _)) in gathered.chunks_exact_mut(d).zip(members) {
            to.copy_from_slice(&task.x[t * d..][..d]);
        }
        let mut probe = probe;
        let mut before = |gate: &[f32], up: &[f32]| {
            if let Some(probe) = &mut probe {
                probe.expert_hidden(task.layer, at, task.tokens, members, gate, up);
            }
        };
        let work = shared.run(ffn, &[FfnBlock::whole(expert)], (gathered, rows), result, &mut before)?;
        if shared.watched {
            self.firing.note(ffn, 0, shared.neurons(at, expert), members.iter().map(|(t, _)| *t));
        }
        for (from, (t, share)) in result.chunks_exact(d).zip(members) {
            shared.cpu.add_scaled(&mut out[t * d..][..d], from, *share);
        }
        Ok(work)
    }

    /// What the chosen experts of one token say, and the one that every token passes through: all of them at once.
    fn one(&mut self, shared: &Shared<'_>, ffn: &mut CpuFfn, out: &mut [f32]) -> Result<FfnWork> {
        let Shared { task, weights, .. } = shared;
        let experts = &weights.experts;
        let mut numbers: Few<(usize, f32)> =
            self.routing.chosen().iter().copied().zip(self.routing.shares().iter().copied()).collect();
        numbers.retain(|(at, _)| *at < experts.len());
        // In the order of the file.
        numbers.sort_unstable_by_key(|(at, _)| *at);
        let block = |ffn, share| FfnBlock { share, ..FfnBlock::whole(ffn) };
        let mut blocks: Few<FfnBlock<'_>> = numbers.iter().map(|(at, share)| block(&experts[*at], *share)).collect();
        if let (Some(expert), true) = (&weights.shared, shared.whole) {
            let gate = self.routing.gates()[0];
            numbers.push((experts.len(), gate));
            blocks.push(block(&expert.ffn, gate));
        }
        let work = shared.run(ffn, &blocks, (task.x, 1), out, &mut |_, _| ())?;
        if shared.watched {
            for (at, ((number, _), block)) in numbers.iter().zip(&blocks).enumerate() {
                self.firing.note(ffn, at, shared.neurons(*number, block.ffn), 0..1);
            }
        }
        Ok(work)
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> u64 {
        let floats = [&self.gathered, &self.expert_out].map(Vec::capacity).iter().sum::<usize>() * size_of::<f32>();
        let members = self.members.capacity() * size_of::<(usize, f32)>();
        (floats + members) as u64 + self.routing.bytes() + self.firing.bytes()
    }
}
