//! Sparse FFNs of separate tokens. Each token computes the neurons that fire for it, and the rows
//! of all these neurons (the union) are read once. If the union is so large that computing all rows
//! for all tokens is faster, all rows are computed.

use super::{
    CpuFfn, TokenInputs, WHAT,
    ffn::{job, keep},
    ffn_values::{FfnOutcome, Fires},
    task::{FfnTask, FfnWork, PredictionSource, lists_pay},
};
use crate::runtime::{predictor_scores, scratch::grow};
use thermocline_base::error::Result;
use thermocline_cpu::{Cpu, MatmulJob, RowSum, TokenRows};
use thermocline_model::{Down, Linear, Skips, mask};

/// The neurons of one token.
#[derive(Debug, Default)]
pub(super) struct TokenNeurons {
    /// Neurons computed so far, ascending.
    list: Vec<u32>,
    /// Gate outputs of these neurons (without gates, up outputs), then their hidden values.
    hidden: Vec<f32>,
    /// The up matrix's outputs.
    up: Vec<f32>,
}

/// Tokens of a batch; their buffers are reused.
#[derive(Debug, Default)]
pub(super) struct SparseRows {
    tokens: Vec<TokenNeurons>,
    /// `[words(n_ff)]`: mask of the neurons of any token.
    union: Vec<u32>,
}

impl SparseRows {
    /// The neurons of each of `tokens` tokens, and their hidden values.
    pub fn values(&self, tokens: usize) -> impl Iterator<Item = (&[u32], &[f32])> {
        self.tokens.iter().take(tokens).map(|it| (&it.list[..], &it.hidden[..]))
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let words = |it: &TokenNeurons| it.list.capacity() + it.hidden.capacity() + it.up.capacity();
        (self.tokens.iter().map(words).sum::<usize>() + self.union.capacity()) as u64 * 4
    }

    /// Number of neurons, of `n_ff`, that any token has.
    fn union(&mut self, tokens: usize, n_ff: usize) -> usize {
        self.union.clear();
        self.union.resize(mask::words(n_ff), 0);
        for token in &self.tokens[..tokens] {
            mask::insert_some(&mut self.union, &token.list, |_| true);
        }
        mask::count(&self.union)
    }

    /// Computes the products of `linear` with every token's neurons, into `up` or `hidden`.
    /// `scratch` is overwritten.
    fn product(
        &mut self,
        cpu: &Cpu,
        linear: &Linear,
        into_up: bool,
        TokenInputs { x, tokens }: TokenInputs<'_>,
        scratch: &mut Vec<f32>,
        work: &mut FfnWork,
    ) -> Result<()> {
        let n_ff = linear.weight.rows();
        let union = self.union(tokens, n_ff);
        let wanted: usize = self.tokens[..tokens].iter().map(|token| token.list.len()).sum();
        let d = x.len() / tokens;
        for token in &mut self.tokens[..tokens] {
            let out = if into_up { &mut token.up } else { &mut token.hidden };
            out.clear();
            out.resize(token.list.len(), 0.0);
        }
        if lists_pay(union, wanted, tokens, n_ff) {
            work.read_rows(&linear.weight, union);
            let of = self.tokens[..tokens].iter_mut().zip(x.chunks_exact(d));
            let mut jobs: Vec<TokenRows<'_>> = of
                .map(|(TokenNeurons { list, hidden, up }, x)| TokenRows {
                    rows: list,
                    x,
                    out: if into_up { up } else { hidden },
                })
                .collect();
            cpu.matmul_lists(&linear.weight, linear.bias.as_deref(), &mut jobs);
            return Ok(());
        }
        work.read_all(&linear.weight);
        let all = grow(scratch, tokens.checked_mul(n_ff), WHAT)?;
        cpu.matmul_rows(&mut [job(linear, None, &mut *all)], x, tokens);
        for (token, all) in self.tokens[..tokens].iter_mut().zip(all.chunks_exact(n_ff)) {
            let TokenNeurons { list, hidden, up } = token;
            let out = if into_up { up } else { hidden };
            out.iter_mut().zip(&*list).for_each(|(out, at)| *out = all[*at as usize]);
        }
        Ok(())
    }
}

impl CpuFfn {
    /// Computes [`CpuFfn::partial`] of one FFN for separate tokens, in a mode that skips neurons.
    /// Each token gets the bits of a single-token pass.
    pub(super) fn sparse_rows(
        &mut self,
        cpu: &Cpu,
        task: &FfnTask<'_>,
        skips: Skips,
        out: &mut [f32],
    ) -> Result<FfnWork> {
        let (mut work, tokens) = (FfnWork::default(), task.tokens);
        let [block] = task.blocks else { return Ok(work) };
        let n_ff = block.ffn.up.weight.rows();
        let mut rows = std::mem::take(&mut self.rows);
        rows.tokens.resize_with(rows.tokens.len().max(tokens), Default::default);
        self.outcome = FfnOutcome { tokens, rows: true, values: tokens * n_ff, ..FfnOutcome::default() };
        let inputs = TokenInputs { x: task.x, tokens };
        if skips == Skips::NotPredicted && self.predict_rows(cpu, task, n_ff, &mut work)? && !task.recall_check {
            let masks = self.predicted.chunks_exact(mask::words(n_ff).max(1));
            for (token, mask) in rows.tokens.iter_mut().zip(masks) {
                token.list.clear();
                match block.neurons {
                    Some(list) => {
                        token.list.extend(list.iter().filter(|neuron| mask::contains(mask, **neuron as usize)));
                    }
                    None => token.list.extend(mask::neurons(mask)),
                }
            }
            rows.product(cpu, block.ffn.firing_rows(true), false, inputs, &mut self.scratch, &mut work)?;
        } else {
            self.every_row(cpu, task, block.ffn.firing_rows(false), &mut rows.tokens, &mut work)?;
        }
        let threshold = skips.activation_threshold();
        self.keep_firing(cpu, task, threshold, &mut rows.tokens[..tokens]);
        if task.gated() {
            rows.product(cpu, &block.ffn.up, true, inputs, &mut self.scratch, &mut work)?;
        }
        for TokenNeurons { list, hidden, up } in &mut rows.tokens[..tokens] {
            cpu.activate(block.ffn.form(task.activation), hidden, task.gated().then_some(&up[..]));
            if let Some(norm) = task.hidden_norm() {
                norm.apply_listed(list, hidden);
            }
        }
        self.down_rows(cpu, task, &mut rows, out, &mut work)?;
        self.rows = rows;
        Ok(work)
    }

    /// Predicts the neurons of every token, as masks. Returns false without a predictor.
    fn predict_rows(&mut self, cpu: &Cpu, task: &FfnTask<'_>, n_ff: usize, work: &mut FfnWork) -> Result<bool> {
        let Some(PredictionSource::Predictor { predictor, x, shift }) = task.prediction else { return Ok(false) };
        let [hidden, scores] = &mut self.predictor;
        let (scores, read) = predictor_scores(predictor, cpu, x, task.tokens, hidden, scores)?;
        work.sequential += read;
        let words = mask::words(n_ff);
        self.predicted.clear();
        self.predicted.resize(task.tokens * words, 0);
        let masks = self.predicted.chunks_exact_mut(words.max(1));
        for (mask, scores) in masks.zip(scores.chunks_exact(n_ff)) {
            mask::fill(mask, n_ff, |i| scores[i] >= predictor.threshold + shift);
        }
        self.outcome.predicted = true;
        Ok(true)
    }

    /// Computes the products of `first` with all requested neurons, which every token then has.
    fn every_row(
        &mut self,
        cpu: &Cpu,
        task: &FfnTask<'_>,
        first: &Linear,
        rows: &mut [TokenNeurons],
        work: &mut FfnWork,
    ) -> Result<()> {
        let [block] = task.blocks else { return Ok(()) };
        let n = block.neurons.map_or(first.weight.rows(), <[u32]>::len);
        let all = grow(&mut self.hidden, task.tokens.checked_mul(n), WHAT)?;
        cpu.matmul_rows(&mut [job(first, block.neurons, &mut *all)], task.x, task.tokens);
        work.read_rows(&first.weight, n);
        if let Some(deviations) = task.gate_deviations() {
            cpu.gate_excess(all, n, deviations);
        }
        for (token, all) in rows.iter_mut().zip(all.chunks_exact(n.max(1))) {
            token.list.clear();
            match block.neurons {
                Some(list) => token.list.extend_from_slice(list),
                None => token.list.extend(0..n as u32),
            }
            token.hidden.clear();
            token.hidden.extend_from_slice(all);
        }
        Ok(())
    }

    /// Drops the neurons that do not fire, or with a threshold those that do not exceed it.
    fn keep_firing(&mut self, cpu: &Cpu, task: &FfnTask<'_>, threshold: Option<f32>, rows: &mut [TokenNeurons]) {
        if threshold.is_some() {
            self.outcome.fires = Fires::Held;
        }
        let [block] = task.blocks else { return };
        let form = block.ffn.form(task.activation);
        for TokenNeurons { list, hidden, up } in rows {
            if threshold.is_some() {
                up.clear();
                up.extend_from_slice(hidden);
                cpu.activate(form, up, None);
            }
            self.held.clear();
            match threshold {
                Some(threshold) => {
                    keep(&mut self.held, list.len(), |i| block.ffn.exceeds(list[i] as usize, up[i], threshold));
                }
                None => keep(&mut self.held, list.len(), |i| hidden[i] > 0.0),
            }
            // In ascending order, so that no value is overwritten before it has moved.
            for (to, at) in self.held.iter().enumerate() {
                (list[to], hidden[to]) = (list[*at as usize], hidden[*at as usize]);
            }
            list.truncate(self.held.len());
            hidden.truncate(self.held.len());
        }
        self.held.clear();
    }

    /// Computes the down projection of every token's neurons.
    fn down_rows(
        &mut self,
        cpu: &Cpu,
        task: &FfnTask<'_>,
        rows: &mut SparseRows,
        out: &mut [f32],
        work: &mut FfnWork,
    ) -> Result<()> {
        let [block] = task.blocks else { return Ok(()) };
        let (n_ff, d, tokens) = (block.ffn.up.weight.rows(), out.len() / task.tokens, task.tokens);
        out.fill(0.0);
        let union = rows.union(tokens, n_ff);
        work.active += union;
        match &block.ffn.down {
            Down::Neurons(down) => {
                work.read_rows(&down.weight, union);
                let of = rows.tokens.iter().zip(out.chunks_exact_mut(d.max(1)));
                let sum = |(token, out)| {
                    let TokenNeurons { list, hidden, .. }: &TokenNeurons = token;
                    RowSum { weight: &down.weight, rows: Some(list), a: hidden, out }
                };
                cpu.accumulate_sums(&mut of.map(sum).collect::<Vec<_>>());
            }
            Down::Outputs(down) => {
                work.read_all(&down.weight);
                let all = scattered(rows, tokens, n_ff, &mut self.scratch)?;
                cpu.matmul(&mut [MatmulJob { weight: &down.weight, bias: None, out }], all, tokens);
            }
        }
        if task.observed {
            scattered(rows, tokens, n_ff, &mut self.scratch)?;
        }
        Ok(())
    }
}

/// Scatters hidden values among zeros, `[tokens, n_ff]`, in `scratch`.
fn scattered<'w>(rows: &SparseRows, tokens: usize, n_ff: usize, scratch: &'w mut Vec<f32>) -> Result<&'w [f32]> {
    let all = grow(scratch, tokens.checked_mul(n_ff), WHAT)?;
    all.fill(0.0);
    for (all, (list, hidden)) in all.chunks_exact_mut(n_ff.max(1)).zip(rows.values(tokens)) {
        list.iter().zip(hidden).for_each(|(at, value)| all[*at as usize] = *value);
    }
    Ok(all)
}
