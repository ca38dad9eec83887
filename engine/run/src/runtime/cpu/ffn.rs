//! FFNs, or some of their neurons: `sum over neurons of down_i act(gate_i x) (up_i x)`.
//!
//! A sparse mode uses a list of neurons that only shrinks. It begins with the candidates: the
//! requested neurons without those that a predictor excludes. Then it keeps those that fire. Every
//! product reads the rows of the neurons on the current list. The chosen experts of an MoE layer
//! are several FFNs in one task.

use smallvec::smallvec;

use super::{
    TokenInputs, WHAT,
    ffn_values::{BlockSpan, FfnOutcome, Fires},
    paged_reads,
    products::{DownScratch, Few, HiddenValues, ListedRows, down, some_rows},
    skipped_inputs::{self, SkippedSite},
    sparse_rows::SparseRows,
    task::{FfnTask, FfnWork, PredictionSource},
};
use crate::runtime::{
    predictor_scores,
    scratch::{grow, held_bytes},
};
use thermocline_base::{error::Result, telemetry::neurons::Strength};
use thermocline_cpu::{Cpu, MatmulJob, RowsJob};
use thermocline_model::{Down, InputSite, Linear, Skips, mask};

/// Receives gate values (empty without gates) and up values of an FFN before its activation,
/// `[tokens, n]` each.
pub(super) type HiddenObserver<'a> = &'a mut dyn FnMut(&[f32], &[f32]);

/// Computes FFNs. The buffers grow to the size of the largest FFN and chunk.
#[derive(Debug, Default)]
pub struct CpuFfn {
    /// The gate's outputs (without gates, the up matrix's), then the hidden values:
    /// `[tokens, neurons held]`, block by block.
    pub(super) hidden: Vec<f32>,
    /// The up matrix's outputs, in the same layout.
    up: Vec<f32>,
    /// Scratch, `[tokens, n_ff]`: outputs of all rows if a list selects some, hidden values
    /// scattered among zeros, or activations of the gates.
    pub(super) scratch: Vec<f32>,
    /// `[tokens, d]`: the output of each of several FFNs.
    part: Vec<f32>,
    /// The predictor's hidden layer `[rank]` and scores `[n_ff]`.
    pub(super) predictor: [Vec<f32>; 2],
    /// The prediction as masks, `[tokens, words(n_ff)]`. For a single token also an ascending list
    /// of the neurons to compute.
    pub(super) predicted: Vec<u32>,
    candidates: Vec<u32>,
    /// The neurons whose values `hidden` holds, block by block, if these are not all neurons.
    pub(super) held: Vec<u32>,
    /// Neurons and values of separate tokens.
    pub(super) rows: SparseRows,
    /// Ranges of the values of the last task's blocks.
    spans: Vec<BlockSpan>,
    pub(super) outcome: FfnOutcome,
}

impl CpuFfn {
    /// `out[t] = sum over the task's FFNs and their neurons`, `[tokens, d]`, overwritten. The
    /// biases of gate and up are included. The biases of down are not: the caller adds them once to
    /// the sum of the parts.
    ///
    /// # Errors
    /// [`Error::Memory`](thermocline_base::error::Error::Memory) if the buffers cannot grow.
    ///
    /// # Panics
    /// If shapes disagree, a neuron does not exist, or some FFNs have a gate and others none.
    pub fn partial(&mut self, cpu: &Cpu, task: &FfnTask<'_>, out: &mut [f32]) -> Result<FfnWork> {
        self.run(cpu, task, out, None)
    }

    /// Computes [`CpuFfn::partial`]. `before` observes a single FFN, unless the mode skips neurons
    /// approximately.
    pub(super) fn run(
        &mut self,
        cpu: &Cpu,
        task: &FfnTask<'_>,
        out: &mut [f32],
        before: Option<HiddenObserver<'_>>,
    ) -> Result<FfnWork> {
        assert!(task.blocks.iter().all(|block| block.ffn.gate.is_some() == task.gated()), "gates in some FFNs");
        self.outcome = FfnOutcome { tokens: task.tokens, ..FfnOutcome::default() };
        self.spans.clear();
        self.held.clear();
        // The next reads are not known yet.
        cpu.prefetch(&[]);
        match task.skips(before.is_some()) {
            Skips::Nothing => {
                if task.blocks.len() > 1 {
                    paged_reads::of_blocks(task.blocks);
                }
                self.dense(cpu, task, out, before.unwrap_or(&mut |_, _| ()))
            }
            skips if task.tokens > 1 => self.sparse_rows(cpu, task, skips, out),
            skips => self.sparse(cpu, task, skips, out),
        }
    }

    fn dense(
        &mut self,
        cpu: &Cpu,
        task: &FfnTask<'_>,
        out: &mut [f32],
        before: &mut dyn FnMut(&[f32], &[f32]),
    ) -> Result<FfnWork> {
        let all = self.lay_out(task);
        let (tokens, values) = (task.tokens, task.tokens.saturating_mul(all));
        grow(&mut self.hidden, Some(values), WHAT)?;
        let mut work = FfnWork::default();
        self.gate_and_up(cpu, task, values, before, &mut work)?;
        let skipped = task.skipped();
        if skipped.is_none() {
            for (block, span) in task.blocks.iter().zip(&self.spans) {
                work.read_rows(&block.ffn.up.weight, span.len);
            }
        }
        let CpuFfn { hidden, up, scratch, part, spans, outcome, .. } = self;
        let hidden = &mut hidden[..values];
        if let Some(norm) = task.hidden_norm() {
            cpu.rms_norm(hidden, None, norm.weight, norm.eps);
        }
        if let (Some(skipped), [block]) = (skipped, task.blocks) {
            if let Some(threshold) = skipped.site(InputSite::Hidden) {
                // Neurons with small values count as silent.
                let large = grow(up, Some(values), WHAT)?;
                threshold.keep_large(hidden, large);
                hidden.copy_from_slice(large);
            }
            if let Down::Outputs(down) = &block.ffn.down {
                let n = all.max(1);
                work.active += (0..all).filter(|i| hidden.chunks_exact(n).any(|hidden| hidden[*i] != 0.0)).count();
                let jobs = smallvec![MatmulJob { weight: &down.weight, bias: None, out }];
                let at = SkippedSite { skipped, site: InputSite::Hidden };
                work.sequential += skipped_inputs::products(cpu, at, jobs, TokenInputs { x: hidden, tokens }, up)?;
                return Ok(work);
            }
        }
        let hidden = &*hidden;
        let values = task.blocks.iter().zip(&*spans);
        let values =
            values.map(|(block, span)| HiddenValues { list: block.neurons, hidden: span.values(hidden, tokens) });
        // `scratch` holds the gates' activations until [`CpuFfn::fired`]. Its other use never
        // coincides with this one.
        let expanded = if matches!(outcome.fires, Fires::Above(_)) { up } else { scratch };
        down(cpu, task, values, DownScratch { scratch: expanded, part }, out, &mut work)?;
        Ok(work)
    }

    /// Assigns the task's blocks their ranges among the values of a token. Returns the number of
    /// values.
    fn lay_out(&mut self, task: &FfnTask<'_>) -> usize {
        let mut all = 0;
        for block in task.blocks {
            let n_ff = block.ffn.up.weight.rows();
            let len = block.neurons.map_or(n_ff, <[u32]>::len);
            self.spans.push(BlockSpan { n_ff, len, first: all, list: block.neurons.map(|_| self.held.len()) });
            self.held.extend(block.neurons.filter(|_| task.observed).into_iter().flatten());
            all += len;
        }
        all
    }

    /// Computes the hidden values of FFNs with or without gates.
    fn gate_and_up(
        &mut self,
        cpu: &Cpu,
        task: &FfnTask<'_>,
        values: usize,
        before: &mut dyn FnMut(&[f32], &[f32]),
        work: &mut FfnWork,
    ) -> Result<()> {
        let CpuFfn { hidden, up, scratch, part, spans, outcome, .. } = self;
        let (tokens, skipped, gated) = (task.tokens, task.skipped(), task.gated());
        let held = if gated { values } else { 0 };
        let (hidden, up) = (&mut hidden[..values], grow(up, Some(held), WHAT)?);
        let mut jobs = Few::new();
        // Without gates the up matrix's outputs become the hidden values.
        let (mut gates, mut ups) = (&mut *hidden, &mut *up);
        if !gated {
            std::mem::swap(&mut gates, &mut ups);
        }
        for (block, span) in task.blocks.iter().zip(&*spans) {
            if let Some(of) = block.ffn.gate_beside_up() {
                let gate;
                (gate, gates) = gates.split_at_mut(tokens * span.len);
                jobs.push(job(of, block.neurons, gate));
                if skipped.is_none() {
                    work.read_rows(&of.weight, span.len);
                }
            }
            let up;
            (up, ups) = ups.split_at_mut(tokens * span.len);
            jobs.push(job(&block.ffn.up, block.neurons, up));
        }
        work.sequential += products(cpu, task, jobs, part)?;
        if !gated {
            before(&[], hidden);
            activate(cpu, task, spans, hidden, None);
            return Ok(());
        }
        if let Some(deviations) = task.gate_deviations() {
            cpu.gate_excess(hidden, values / tokens.max(1), deviations);
        }
        before(hidden, up);
        if let Some(threshold) = task.activation_threshold
            && task.observed
            && !task.activation.is_sparse()
            && skipped.is_none()
        {
            let gates = grow(scratch, Some(values), WHAT)?;
            gates.copy_from_slice(hidden);
            activate(cpu, task, spans, gates, None);
            for (block, span) in task.blocks.iter().zip(&*spans) {
                block.ffn.scale_gates(block.neurons, span.values_mut(gates, tokens));
            }
            outcome.fires = Fires::Above(threshold);
        }
        activate(cpu, task, spans, hidden, Some(up));
        Ok(())
    }

    fn sparse(&mut self, cpu: &Cpu, task: &FfnTask<'_>, skips: Skips, out: &mut [f32]) -> Result<FfnWork> {
        let mut work = FfnWork::default();
        if skips == Skips::NotPredicted {
            self.predict(cpu, task, &mut work)?;
        }
        let CpuFfn { hidden, up, scratch, part, candidates, held, spans, outcome, .. } = self;
        let predicted = (outcome.predicted && !task.recall_check).then_some(&candidates[..]);
        if let ([block], Some(candidates)) = (task.blocks, predicted) {
            paged_reads::of_candidates(block.ffn, candidates);
        }
        let firing = task.blocks.iter().map(|block| -> ListedRows<'_> {
            (block.ffn.firing_rows(predicted.is_some()), predicted.or(block.neurons))
        });
        let len = |(linear, list): ListedRows<'_>| list.map_or(linear.weight.rows(), <[u32]>::len);
        let n = firing.clone().map(len).sum();
        let hidden = grow(hidden, Some(n), WHAT)?;
        some_rows(cpu, firing.clone(), task.x, hidden, scratch, &mut work)?;
        if let Some(deviations) = task.gate_deviations() {
            cpu.gate_excess(hidden, n, deviations);
        }
        let threshold = skips.activation_threshold();
        if threshold.is_some() {
            let mut acted = grow(up, Some(n), WHAT)?;
            acted.copy_from_slice(hidden);
            for (block, part) in task.blocks.iter().zip(firing.clone()) {
                let of_block;
                (of_block, acted) = acted.split_at_mut(len(part));
                cpu.activate(block.ffn.form(task.activation), of_block, None);
            }
            outcome.fires = Fires::Held;
        }
        let mut from = 0;
        for (block, part) in task.blocks.iter().zip(firing) {
            let (first, n) = (held.len(), len(part));
            let neuron = |i: usize| part.1.map_or(i, |list| list[i] as usize);
            match threshold {
                Some(threshold) => keep(held, n, |i| block.ffn.exceeds(neuron(i), up[from + i], threshold)),
                None => keep(held, n, |i| hidden[from + i] > 0.0),
            }
            // In ascending order, so that no value is overwritten before it has moved.
            for (to, at) in held.iter().enumerate().skip(first) {
                hidden[to] = hidden[from + *at as usize];
            }
            if let Some(list) = part.1 {
                held[first..].iter_mut().for_each(|at| *at = list[*at as usize]);
            }
            spans.push(BlockSpan { n_ff: part.0.weight.rows(), len: held.len() - first, first, list: Some(first) });
            from += n;
        }
        let hidden = &mut hidden[..held.len()];
        let lists = spans.iter().map(|span| span.listed(held));
        paged_reads::of_firing(task.blocks, lists.clone());
        if task.gated() {
            let up = grow(up, Some(held.len()), WHAT)?;
            let ups = task.blocks.iter().zip(lists.clone()).map(|(block, list)| (&block.ffn.up, list));
            some_rows(cpu, ups, task.x, up, scratch, &mut work)?;
            activate(cpu, task, spans, hidden, Some(up));
        } else {
            activate(cpu, task, spans, hidden, None);
        }
        if let Some(norm) = task.hidden_norm() {
            norm.apply_listed(held, hidden);
        }
        let hidden = &*hidden;
        let values = spans.iter().zip(lists).map(|(span, list)| HiddenValues { list, hidden: span.values(hidden, 1) });
        down(cpu, task, values, DownScratch { scratch, part }, out, &mut work)?;
        Ok(work)
    }

    /// Finds the candidates: neurons to compute that may fire.
    fn predict(&mut self, cpu: &Cpu, task: &FfnTask<'_>, work: &mut FfnWork) -> Result<()> {
        let [block] = task.blocks else { return Ok(()) };
        let n_ff = block.ffn.up.weight.rows();
        self.predicted.resize(mask::words(n_ff), 0);
        match task.prediction {
            Some(PredictionSource::Mask(mask)) => self.predicted.copy_from_slice(mask),
            Some(PredictionSource::Predictor { predictor, x, shift }) => {
                let [hidden, scores] = &mut self.predictor;
                let (scores, read) = predictor_scores(predictor, cpu, x, 1, hidden, scores)?;
                mask::fill(&mut self.predicted, n_ff, |i| scores[i] >= predictor.threshold + shift);
                work.sequential += read;
            }
            None => return Ok(()),
        }
        self.outcome.predicted = true;
        self.candidates.clear();
        match block.neurons {
            Some(list) => {
                let predicted = |i: &&u32| mask::contains(&self.predicted, **i as usize);
                self.candidates.extend(list.iter().filter(predicted));
            }
            None => self.candidates.extend(mask::neurons(&self.predicted)),
        }
        Ok(())
    }

    /// Sets the bits of the fired neurons of an FFN in `mask`, `[tokens, words(n_ff)]`, and leaves
    /// other bits alone. The last task must have been [`FfnTask::observed`].
    ///
    /// # Panics
    /// If the mask is shorter, or the task had no such block.
    pub fn fired(&self, block: usize, mask: &mut [u32]) {
        let FfnOutcome { tokens, fires, .. } = self.outcome;
        if self.outcome.rows {
            let width = (mask.len() / tokens.max(1)).max(1);
            for (mask, (list, hidden)) in mask.chunks_exact_mut(width).zip(self.rows.values(tokens)) {
                mask::insert_some(mask, list, |i| fires == Fires::Held || hidden[i] != 0.0);
            }
            return;
        }
        let span = self.spans[block];
        let (hidden, n, list) = (span.values(&self.hidden, tokens), span.len, span.listed(&self.held));
        for (t, mask) in mask.chunks_exact_mut(mask::words(span.n_ff).max(1)).take(tokens).enumerate() {
            let hidden = &hidden[t * n..][..n];
            let above =
                |threshold: f32| move |i: usize| span.values(&self.scratch, tokens)[t * n + i].abs() > threshold;
            match (list, fires) {
                (None, Fires::NonZero | Fires::Held) => mask::fill(mask, n, |i| hidden[i] != 0.0),
                (None, Fires::Above(threshold)) => mask::fill(mask, n, above(threshold)),
                (Some(list), Fires::NonZero) => mask::insert_some(mask, list, |i| hidden[i] != 0.0),
                (Some(list), Fires::Held) => mask::insert_some(mask, list, |_| true),
                (Some(list), Fires::Above(threshold)) => mask::insert_some(mask, list, above(threshold)),
            }
        }
    }

    /// The hidden values of an FFN in the last task, which must have been [`FfnTask::observed`].
    ///
    /// # Panics
    /// If the task had no such block.
    pub fn strength(&self, block: usize) -> Strength<'_> {
        if self.outcome.rows {
            // The values are scattered among zeros by `sparse_rows`.
            return Strength::All(&self.scratch[..self.outcome.values]);
        }
        let span = self.spans[block];
        let values = span.values(&self.hidden, self.outcome.tokens);
        match span.listed(&self.held) {
            None => Strength::All(values),
            Some(neurons) => Strength::Listed { neurons, values },
        }
    }

    /// The prediction of the last task as a [`mask`], if there was one.
    pub fn predicted(&self) -> Option<&[u32]> {
        self.outcome.predicted.then_some(&self.predicted[..])
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        let floats = [&self.hidden, &self.up, &self.scratch, &self.part].into_iter().chain(&self.predictor);
        let lists = [&self.predicted, &self.candidates, &self.held];
        held_bytes(floats) + held_bytes(lists) + self.rows.bytes()
    }
}

/// Activates the gates (without gates, the up values) of a task's blocks and multiplies them by
/// `up`. All blocks are computed at once unless a block has its own limit.
fn activate(cpu: &Cpu, task: &FfnTask<'_>, spans: &[BlockSpan], hidden: &mut [f32], up: Option<&[f32]>) {
    if task.blocks.iter().all(|block| block.ffn.limit.is_none()) {
        return cpu.activate(task.activation, hidden, up);
    }
    for (block, span) in task.blocks.iter().zip(spans) {
        let up = up.map(|up| span.values(up, task.tokens));
        cpu.activate(block.ffn.form(task.activation), span.values_mut(hidden, task.tokens), up);
    }
}

pub(super) fn job<'a>(linear: &'a Linear, rows: Option<&'a [u32]>, out: &'a mut [f32]) -> RowsJob<'a> {
    RowsJob { weight: &linear.weight, bias: linear.bias.as_deref(), rows, out }
}

/// Computes the products of an FFN's first matrices with its inputs, or only with the large inputs
/// if others are skipped. Returns the bytes of weights read if inputs are skipped, otherwise 0.
fn products(cpu: &Cpu, task: &FfnTask<'_>, mut jobs: Few<RowsJob<'_>>, large: &mut Vec<f32>) -> Result<u64> {
    let Some(skipped) = task.skipped() else {
        cpu.matmul_rows(&mut jobs, task.x, task.tokens);
        return Ok(0);
    };
    let jobs = jobs.into_iter().map(|RowsJob { weight, bias, out, .. }| MatmulJob { weight, bias, out });
    let at = SkippedSite { skipped, site: InputSite::Ffn };
    skipped_inputs::products(cpu, at, jobs.collect(), TokenInputs { x: task.x, tokens: task.tokens }, large)
}

/// Appends to `list` the numbers below `n` for which `is_in` is true. It does not branch on
/// `is_in`, because a CPU could not predict such branches.
pub(super) fn keep(list: &mut Vec<u32>, n: usize, is_in: impl Fn(usize) -> bool) {
    let mut len = list.len();
    list.resize(len + n, 0);
    for i in 0..n {
        list[len] = i as u32;
        len += usize::from(is_in(i));
    }
    list.truncate(len);
}
