//! One FFN, or what some of its neurons add to it: `sum over neurons of down_i act(gate_i x) (up_i x)`.
//!
//! A sparse mode goes through a list of neurons that only shrinks: candidates (those asked for, less those a predictor rules
//! out), then those that fire. Every product reads the rows of the neurons on the list at that point.

use super::WHAT;
use crate::{
    cpu::{Cpu, MatmulJob, ops::Hidden},
    error::Result,
    format::Matrix,
    model::{Activation, Down, FfnWeights, Linear, Predictor, Sparsity, forward::grow, mask},
    telemetry::neurons::Strength,
};

/// From this share of a matrix's rows on all are read, one after the other, which memory does faster than rows here and there.
const MOST_ROWS: f64 = 0.6;

/// What of an FFN is to be computed.
#[derive(Debug, Clone, Copy)]
pub struct FfnTask<'a> {
    /// The FFN.
    pub ffn: &'a FfnWeights,
    /// Its activation.
    pub activation: Activation,
    /// The neurons that count, ascending; `None` for all.
    pub neurons: Option<&'a [u32]>,
    /// What of them may be skipped, where there is one token.
    pub sparsity: Sparsity,
    /// Which of them may fire, for [`Sparsity::Predicted`].
    pub guess: Option<Guess<'a>>,
    /// Whether the guess is only to be held against the truth: it rules nobody out.
    pub audited: bool,
    /// The cut of [`Sparsity::Threshold`].
    pub cut: Option<f32>,
    /// Inputs, `[tokens, d]`.
    pub x: &'a [f32],
    /// How many.
    pub tokens: usize,
    /// Whether it will be asked afterwards which neurons fired ([`CpuFfn::fired`]): some modes have to work for that.
    pub observed: bool,
}

/// A guess at what fires.
#[derive(Debug, Clone, Copy)]
pub enum Guess<'a> {
    /// A [`mask`] of all neurons, guessed elsewhere.
    Mask(&'a [u32]),
    /// To be asked here.
    Predictor {
        /// Whom.
        predictor: &'a Predictor,
        /// What it sees, `[d]`.
        x: &'a [f32],
        /// Added to its threshold.
        shift: f32,
    },
}

/// What a task came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FfnWork {
    /// Neurons with a part in the output, for any of the tokens.
    pub active: usize,
    /// Bytes of weights read one after the other.
    pub sequential: u64,
    /// Bytes of weights read as rows here and there.
    pub scattered: u64,
}

impl FfnWork {
    /// All bytes of weights read.
    pub fn bytes(&self) -> u64 {
        self.sequential + self.scattered
    }

    /// Adds another task's.
    pub(super) fn add(&mut self, other: FfnWork) {
        self.active += other.active;
        self.sequential += other.sequential;
        self.scattered += other.scattered;
    }

    pub(super) fn read_all(&mut self, matrix: &Matrix) {
        self.sequential += matrix.data().len() as u64;
    }

    fn read_rows(&mut self, matrix: &Matrix, rows: usize) {
        let bytes = (rows * matrix.row_bytes()) as u64;
        match is_most(rows, matrix) {
            true => self.sequential += bytes,
            false => self.scattered += bytes,
        }
    }
}

fn is_most(rows: usize, matrix: &Matrix) -> bool {
    rows as f64 > MOST_ROWS * matrix.rows() as f64
}

/// Computes FFNs. Its buffers grow to the largest and stay.
#[derive(Debug, Default)]
pub struct CpuFfn {
    /// The gate's (or, without one, the up matrix's) outputs, then the hidden values: `[tokens, neurons held]`.
    hidden: Vec<f32>,
    /// The up matrix's outputs, likewise.
    up: Vec<f32>,
    /// Something as wide as the FFN: outputs of which only some are wanted, hidden values among zeros.
    wide: Vec<f32>,
    /// The predictor's hidden layer and its scores.
    predictor: [Vec<f32>; 2],
    /// The guess, as a mask and as a list of those asked for.
    predicted: Vec<u32>,
    candidates: Vec<u32>,
    /// The neurons of which `hidden` has values.
    held: Vec<u32>,
    /// What else the last task left.
    last: Last,
}

/// Which of the values held count as fired.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum Fires {
    /// Those that are not zero.
    #[default]
    NonZero,
    /// All: others have been dropped.
    Held,
    /// Those whose gate's activation, in `wide`, exceeds this.
    Above(f32),
}

#[derive(Debug, Default, Clone, Copy)]
struct Last {
    tokens: usize,
    n_ff: usize,
    /// Whether `held` does not matter, being every neuron.
    all: bool,
    fires: Fires,
    /// Whether there was a guess.
    predicted: bool,
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

impl FfnTask<'_> {
    /// The mode, after what it needs turned out to be missing.
    fn mode(&self) -> Sparsity {
        match self.sparsity {
            _ if self.tokens != 1 => Sparsity::Dense,
            Sparsity::Exact | Sparsity::Predicted if !self.activation.is_sparse() => Sparsity::Dense,
            Sparsity::Predicted if self.guess.is_none() => Sparsity::Exact,
            Sparsity::Threshold if self.ffn.gate.is_none() || self.cut.is_none() => Sparsity::Dense,
            mode => mode,
        }
    }
}

impl CpuFfn {
    /// `out[t] = sum over the task's neurons`, `[tokens, d]`, overwritten. The biases of gate and up take part, that of down does
    /// not: who adds parts up adds it once.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the buffers cannot grow.
    ///
    /// # Panics
    /// If shapes disagree, or a neuron does not exist.
    pub fn partial(&mut self, cpu: &Cpu, task: &FfnTask<'_>, out: &mut [f32]) -> Result<FfnWork> {
        self.run(cpu, task, out, &mut |_, _| ())
    }

    /// The same; `before` sees gate and up (`[tokens, n]`) just before the activation where nothing is skipped.
    pub(super) fn run(
        &mut self,
        cpu: &Cpu,
        task: &FfnTask<'_>,
        out: &mut [f32],
        before: &mut dyn FnMut(&[f32], &[f32]),
    ) -> Result<FfnWork> {
        self.last = Last { tokens: task.tokens, n_ff: task.ffn.up.weight.rows(), ..Last::default() };
        match task.mode() {
            Sparsity::Dense => self.dense(cpu, task, out, before),
            mode => self.sparse(cpu, task, mode, out),
        }
    }

    fn dense(
        &mut self,
        cpu: &Cpu,
        task: &FfnTask<'_>,
        out: &mut [f32],
        before: &mut dyn FnMut(&[f32], &[f32]),
    ) -> Result<FfnWork> {
        let CpuFfn { hidden, up, wide, held, last, .. } = self;
        let (ffn, form) = (task.ffn, Hidden::from(task.activation));
        let n = task.neurons.map_or(last.n_ff, <[u32]>::len);
        let values = task.tokens.saturating_mul(n);
        let mut work = FfnWork::default();
        grow(hidden, Some(values), WHAT)?;
        let hidden = &mut hidden[..values];
        let product = |jobs: &mut [MatmulJob<'_>]| match task.neurons {
            Some(list) => cpu.matmul_rows(jobs, list, task.x, task.tokens),
            None => cpu.matmul(jobs, task.x, task.tokens),
        };
        match &ffn.gate {
            Some(gate) => {
                grow(up, Some(values), WHAT)?;
                let up = &mut up[..values];
                product(&mut [job(gate, hidden), job(&ffn.up, up)]);
                work.read_rows(&gate.weight, n);
                before(hidden, up);
                if let Some(cut) = task.cut
                    && task.observed
                    && !task.activation.is_sparse()
                {
                    grow(wide, Some(values), WHAT)?;
                    wide[..values].copy_from_slice(hidden);
                    cpu.activate(form, &mut wide[..values], None);
                    last.fires = Fires::Above(cut);
                }
                cpu.activate(form, hidden, Some(up));
            }
            None => {
                product(&mut [job(&ffn.up, hidden)]);
                before(&[], hidden);
                cpu.activate(form, hidden, None);
            }
        }
        work.read_rows(&ffn.up.weight, n);
        match task.neurons {
            Some(list) if task.observed => list.clone_into(held),
            _ => last.all = task.neurons.is_none(),
        }
        // What was above the cut is needed later; the other use of `wide` is not with it.
        let expanded = if matches!(last.fires, Fires::Above(_)) { up } else { wide };
        down(cpu, ffn, task.neurons, hidden, task.tokens, expanded, out, &mut work)?;
        Ok(work)
    }

    fn sparse(&mut self, cpu: &Cpu, task: &FfnTask<'_>, mode: Sparsity, out: &mut [f32]) -> Result<FfnWork> {
        let mut work = FfnWork::default();
        if mode == Sparsity::Predicted {
            self.guess(cpu, task, &mut work)?;
        }
        let CpuFfn { hidden, up, wide, candidates, held, last, .. } = self;
        let list = if last.predicted && !task.audited { Some(&candidates[..]) } else { task.neurons };
        let (ffn, form) = (task.ffn, Hidden::from(task.activation));
        let n = list.map_or(last.n_ff, <[u32]>::len);
        grow(hidden, Some(n), WHAT)?;
        some_rows(cpu, ffn.gate.as_ref().unwrap_or(&ffn.up), list, task.x, &mut hidden[..n], wide, &mut work)?;
        match (mode, task.cut) {
            (Sparsity::Threshold, Some(cut)) => {
                grow(up, Some(n), WHAT)?;
                let acted = &mut up[..n];
                acted.copy_from_slice(&hidden[..n]);
                cpu.activate(form, acted, None);
                keep(held, n, |i| acted[i].abs() > cut);
                last.fires = Fires::Held;
            }
            _ => keep(held, n, |i| hidden[i] > 0.0),
        }
        // Ascending, so that nothing is overwritten before it has moved.
        for (to, at) in held.iter().enumerate() {
            hidden[to] = hidden[*at as usize];
        }
        if let Some(list) = list {
            held.iter_mut().for_each(|at| *at = list[*at as usize]);
        }
        let hidden = &mut hidden[..held.len()];
        if ffn.gate.is_some() {
            grow(up, Some(held.len()), WHAT)?;
            let up = &mut up[..held.len()];
            some_rows(cpu, &ffn.up, Some(held.as_slice()), task.x, up, wide, &mut work)?;
            cpu.activate(form, hidden, Some(up));
        } else {
            cpu.activate(form, hidden, None);
        }
        down(cpu, ffn, Some(held.as_slice()), hidden, 1, wide, out, &mut work)?;
        Ok(work)
    }

    /// Candidates: those asked for that may fire.
    fn guess(&mut self, cpu: &Cpu, task: &FfnTask<'_>, work: &mut FfnWork) -> Result<()> {
        let n_ff = self.last.n_ff;
        self.predicted.resize(mask::words(n_ff), 0);
        match task.guess {
            Some(Guess::Mask(guess)) => self.predicted.copy_from_slice(guess),
            Some(Guess::Predictor { predictor, x, shift }) => {
                let [hidden, scores] = &mut self.predictor;
                let scores = predictor.scores(cpu, x, 1, hidden, scores)?;
                mask::fill(&mut self.predicted, n_ff, |i| scores[i] >= predictor.threshold + shift);
                work.sequential += predictor.bytes();
            }
            None => return Ok(()),
        }
        self.last.predicted = true;
        self.candidates.clear();
        match task.neurons {
            Some(list) => {
                let guessed = |i: &&u32| mask::contains(&self.predicted, **i as usize);
                self.candidates.extend(list.iter().filter(guessed));
            }
            None => self.candidates.extend(mask::neurons(&self.predicted)),
        }
        Ok(())
    }

    /// Which neurons fired in the last task, which was [`FfnTask::observed`]: sets their bits in `mask`,
    /// `[tokens, words(n_ff)]`, and leaves others alone.
    ///
    /// # Panics
    /// If the mask is shorter.
    pub fn fired(&self, mask: &mut [u32]) {
        let Last { tokens, n_ff, all, fires, .. } = self.last;
        let n = if all { n_ff } else { self.held.len() };
        for (t, mask) in mask.chunks_exact_mut(mask::words(n_ff).max(1)).take(tokens).enumerate() {
            let hidden = &self.hidden[t * n..][..n];
            let above = |cut: f32| move |i: usize| self.wide[t * n + i].abs() > cut;
            match (all, fires) {
                (true, Fires::NonZero | Fires::Held) => mask::fill(mask, n, |i| hidden[i] != 0.0),
                (true, Fires::Above(cut)) => mask::fill(mask, n, above(cut)),
                (false, Fires::NonZero) => mask::insert_some(mask, &self.held, |i| hidden[i] != 0.0),
                (false, Fires::Held) => mask::insert_some(mask, &self.held, |_| true),
                (false, Fires::Above(cut)) => mask::insert_some(mask, &self.held, above(cut)),
            }
        }
    }

    /// The last task's hidden values, which was [`FfnTask::observed`].
    pub fn strength(&self) -> Strength<'_> {
        let Last { tokens, n_ff, all, .. } = self.last;
        if all {
            Strength::All(&self.hidden[..tokens * n_ff])
        } else {
            Strength::Listed { neurons: &self.held, values: &self.hidden[..tokens * self.held.len()] }
        }
    }

    /// The guess of the last task as a [`mask`], if there was one.
    pub fn predicted(&self) -> Option<&[u32]> {
        self.last.predicted.then_some(&self.predicted[..])
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> u64 {
        let [rank, scores] = &self.predictor;
        let floats = [&self.hidden, &self.up, &self.wide, rank, scores].map(Vec::capacity);
        let lists = [&self.predicted, &self.candidates, &self.held].map(Vec::capacity);
        (floats.iter().chain(&lists).sum::<usize>() * size_of::<f32>()) as u64
    }
}

fn job<'a>(linear: &'a Linear, out: &'a mut [f32]) -> MatmulJob<'a> {
    MatmulJob { weight: &linear.weight, bias: linear.bias.as_deref(), out }
}

/// One token's product with the rows on a list, or with all.
fn some_rows(
    cpu: &Cpu,
    linear: &Linear,
    list: Option<&[u32]>,
    x: &[f32],
    out: &mut [f32],
    wide: &mut Vec<f32>,
    work: &mut FfnWork,
) -> Result<()> {
    match list {
        Some(list) if is_most(list.len(), &linear.weight) => {
            grow(wide, Some(linear.weight.rows()), WHAT)?;
            let wide = &mut wide[..linear.weight.rows()];
            cpu.matmul(&mut [job(linear, wide)], x, 1);
            out.iter_mut().zip(list).for_each(|(out, row)| *out = wide[*row as usize]);
            work.read_all(&linear.weight);
        }
        Some(list) => {
            cpu.matmul_rows(&mut [job(linear, out)], list, x, 1);
            work.read_rows(&linear.weight, list.len());
        }
        None => {
            cpu.matmul(&mut [job(linear, out)], x, 1);
            work.read_all(&linear.weight);
        }
    }
    Ok(())
}

/// The hidden values of the neurons on a list (of all, without one) back to `d`, without the bias.
fn down(
    cpu: &Cpu,
    ffn: &FfnWeights,
    list: Option<&[u32]>,
    hidden: &[f32],
    tokens: usize,
    wide: &mut Vec<f32>,
    out: &mut [f32],
    work: &mut FfnWork,
) -> Result<()> {
    match &ffn.down {
        Down::Neurons(down) => {
            work.active = match list {
                Some(list) => {
                    out.fill(0.0);
                    cpu.accumulate_rows(&down.weight, list, hidden, tokens, out)
                }
                None => cpu.matmul_neurons(&down.weight, None, hidden, tokens, out),
            };
            work.read_rows(&down.weight, work.active);
        }
        Down::Outputs(down) => {
            let n_ff = down.weight.cols();
            let n = list.map_or(n_ff, <[u32]>::len);
            work.active = (0..n).filter(|i| (0..tokens).any(|t| hidden[t * n + i] != 0.0)).count();
            let hidden = match list {
                Some(list) => {
                    let values = tokens.saturating_mul(n_ff);
                    grow(wide, Some(values), WHAT)?;
                    let wide = &mut wide[..values];
                    wide.fill(0.0);
                    for (wide, hidden) in wide.chunks_exact_mut(n_ff).zip(hidden.chunks_exact(n.max(1))) {
                        list.iter().zip(hidden).for_each(|(at, hidden)| wide[*at as usize] = *hidden);
                    }
                    wide
                }
                None => hidden,
            };
            cpu.matmul(&mut [MatmulJob { weight: &down.weight, bias: None, out }], hidden, tokens);
            work.read_all(&down.weight);
        }
    }
    Ok(())
}

/// Makes `list` the numbers below `n` that `is_in` says yes to. Without a branch on it: it is a coin toss to the processor.
fn keep(list: &mut Vec<u32>, n: usize, is_in: impl Fn(usize) -> bool) {
    list.clear();
    list.resize(n, 0);
    let mut len = 0;
    for i in 0..n {
        list[len] = i as u32;
        len += usize::from(is_in(i));
    }
    list.truncate(len);
}
