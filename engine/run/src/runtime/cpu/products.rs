//! The two kinds of products of an FFN: with rows of the gate and up matrices, and the down
//! projection to the model's width. Products of several FFNs are computed together.

use smallvec::SmallVec;

use super::{
    WHAT,
    task::{FfnTask, FfnWork, is_most},
};
use crate::runtime::scratch::grow;
use thermocline_base::error::Result;
use thermocline_cpu::{Cpu, FEW_TOKENS, RowSum, RowsJob};
use thermocline_formats::format::Matrix;
use thermocline_model::{Down, Linear};

/// A matrix and a list of its rows; `None` for all rows.
pub(crate) type ListedRows<'a> = (&'a Linear, Option<&'a [u32]>);

/// Products of experts that are started together without allocating. The size suits most MoE models
/// and a shared expert.
pub(crate) type Few<T> = SmallVec<[T; 9]>;

/// Computes one token's products with `parts`, concatenated in `out`. If a list contains most of a
/// matrix's rows ([`is_most`]), all rows are read in order into `scratch`, and the listed ones are
/// copied.
pub(crate) fn some_rows<'a>(
    cpu: &Cpu,
    parts: impl Iterator<Item = ListedRows<'a>> + Clone,
    x: &[f32],
    out: &mut [f32],
    scratch: &mut Vec<f32>,
    work: &mut FfnWork,
) -> Result<()> {
    let most = |(linear, list): &ListedRows<'_>| list.is_some_and(|list| is_most(list.len(), &linear.weight));
    let room = parts.clone().filter(most).map(|(linear, _)| linear.weight.rows()).sum();
    let scratch = grow(scratch, Some(room), WHAT)?;
    let (mut jobs, mut rest, mut spare) = (Few::new(), &mut out[..], &mut scratch[..]);
    for part in parts.clone() {
        let (linear, list) = part;
        let n = list.map_or(linear.weight.rows(), <[u32]>::len);
        let mut out;
        (out, rest) = rest.split_at_mut(n);
        let rows = if most(&part) {
            (out, spare) = spare.split_at_mut(linear.weight.rows());
            None
        } else {
            list
        };
        match rows {
            Some(rows) => work.read_rows(&linear.weight, rows.len()),
            None => work.read_all(&linear.weight),
        }
        jobs.push(RowsJob { weight: &linear.weight, bias: linear.bias.as_deref(), rows, out });
    }
    cpu.matmul_rows(&mut jobs, x, 1);
    drop(jobs);
    let (mut rest, mut spare) = (&mut out[..], &scratch[..]);
    for part in parts {
        let (linear, list) = part;
        let mine;
        (mine, rest) = rest.split_at_mut(list.map_or(linear.weight.rows(), <[u32]>::len));
        if let (Some(list), true) = (list, most(&part)) {
            let all;
            (all, spare) = spare.split_at(linear.weight.rows());
            mine.iter_mut().zip(list).for_each(|(out, row)| *out = all[*row as usize]);
        }
    }
    Ok(())
}

/// Hidden values of some neurons of an FFN.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HiddenValues<'a> {
    /// The neurons; `None` for every neuron.
    pub list: Option<&'a [u32]>,
    /// `[tokens, n]`
    pub hidden: &'a [f32],
}

/// Scratch of down projections.
pub(crate) struct DownScratch<'s> {
    /// Hidden values scattered among zeros.
    pub scratch: &'s mut Vec<f32>,
    /// The outputs of several FFNs before they are summed.
    pub part: &'s mut Vec<f32>,
}

/// Sets `out` to the sum of the down projections of a task's hidden values, `[tokens, d]`, without
/// biases. The outputs of several FFNs are added in their order.
pub(crate) fn down<'a>(
    cpu: &Cpu,
    task: &FfnTask<'_>,
    values: impl Iterator<Item = HiddenValues<'a>>,
    scratch: DownScratch<'_>,
    out: &mut [f32],
    work: &mut FfnWork,
) -> Result<()> {
    let DownScratch { scratch, part } = scratch;
    let (tokens, len) = (task.tokens, out.len());
    let alone = matches!(task.blocks, [block] if block.factor == 1.0);
    let room = if alone { 0 } else { task.blocks.len().saturating_mul(len) };
    let part = grow(part, Some(room), WHAT)?;
    out.fill(0.0);
    part.fill(0.0);
    let parts = if alone { &mut *out } else { &mut *part };
    let (mut sums, mut wholes): (Few<RowSum<'_>>, Few<Whole<'_>>) = (Few::new(), Few::new());
    for ((block, values), out) in task.blocks.iter().zip(values).zip(parts.chunks_exact_mut(len.max(1))) {
        let HiddenValues { list, hidden } = values;
        match &block.ffn.down {
            Down::Neurons(down) if tokens == 1 || (task.separate && tokens <= FEW_TOKENS) => {
                let active = values.active(tokens);
                work.active += active;
                work.read_rows(&down.weight, active);
                let of_tokens = hidden.chunks_exact((hidden.len() / tokens.max(1)).max(1));
                let outs = out.chunks_exact_mut((len / tokens.max(1)).max(1));
                sums.extend(of_tokens.zip(outs).map(|(a, out)| RowSum { weight: &down.weight, rows: list, a, out }));
            }
            Down::Neurons(down) => {
                let active = match list {
                    Some(list) => cpu.accumulate_rows(&down.weight, list, hidden, tokens, out),
                    None => cpu.matmul_neurons(&down.weight, None, hidden, tokens, out),
                };
                work.active += active;
                work.read_rows(&down.weight, active);
            }
            Down::Outputs(down) => wholes.push(Whole { down: &down.weight, values, out }),
        }
    }
    cpu.accumulate_sums(&mut sums);
    drop(sums);
    outputs(cpu, wholes, tokens, scratch, work)?;
    if !alone {
        for (block, part) in task.blocks.iter().zip(part.chunks_exact(len.max(1))) {
            cpu.add_scaled(out, part, block.factor);
        }
    }
    Ok(())
}

impl HiddenValues<'_> {
    /// Number of neurons with a non-zero value for any of `tokens` tokens.
    fn active(&self, tokens: usize) -> usize {
        let n = self.hidden.len() / tokens.max(1);
        (0..n).filter(|i| (0..tokens).any(|t| self.hidden[t * n + i] != 0.0)).count()
    }
}

/// An output-major down projection, which is read whole.
struct Whole<'a> {
    down: &'a Matrix,
    values: HiddenValues<'a>,
    /// `[tokens, d]`
    out: &'a mut [f32],
}

/// Computes products of output-major matrices. Their hidden values are first scattered into a row
/// of zeros.
fn outputs(cpu: &Cpu, wholes: Few<Whole<'_>>, tokens: usize, scratch: &mut Vec<f32>, work: &mut FfnWork) -> Result<()> {
    let listed = wholes.iter().filter(|of| of.values.list.is_some());
    let room = listed.map(|of| tokens.saturating_mul(of.down.cols())).fold(0, usize::saturating_add);
    let (mut spare, mut inputs, mut jobs) = (grow(scratch, Some(room), WHAT)?, Few::new(), Few::new());
    for Whole { down, values, out } in wholes {
        let HiddenValues { list, hidden } = values;
        let n_ff = down.cols();
        work.active += values.active(tokens);
        work.read_all(down);
        jobs.push(RowsJob { weight: down, bias: None, rows: None, out });
        let Some(list) = list else {
            inputs.push(hidden);
            continue;
        };
        let among;
        (among, spare) = spare.split_at_mut(tokens * n_ff);
        among.fill(0.0);
        for (among, hidden) in among.chunks_exact_mut(n_ff).zip(hidden.chunks_exact(list.len().max(1))) {
            list.iter().zip(hidden).for_each(|(at, hidden)| among[*at as usize] = *hidden);
        }
        inputs.push(&*among);
    }
    cpu.matmul_each(&mut jobs, &inputs, tokens);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{
        Sparsity,
        cpu::{
            CpuFfn, FfnBlock, TokenInputs,
            tests::{D, ffn, noise},
        },
    };
    use thermocline_cpu::CpuOptions;
    use thermocline_model::{Activation, FfnWeights};

    /// Output-major down projections of several FFNs at once equal those of each FFN alone, for any
    /// number of threads and any lists of neurons.
    #[test]
    fn joint_down_projections_equal_those_of_each_ffn_alone() {
        let mut seed = 21;
        let ffns: Vec<FfnWeights> = [16, 40, 7].into_iter().map(|n_ff| ffn(true, n_ff, &mut seed)).collect();
        let x: Vec<f32> = (0..3 * D).map(|_| noise(&mut seed)).collect();
        let some: Vec<u32> = vec![0, 2, 3, 5];
        for threads in [1, 3] {
            let cpu = Cpu::new(&CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap();
            for (sparsity, listed, tokens) in [
                (Sparsity::Dense, false, 1),
                (Sparsity::Dense, true, 1),
                (Sparsity::Exact, false, 1),
                (Sparsity::Exact, true, 1),
                (Sparsity::Dense, true, 3),
            ] {
                let factor = |at: usize| 0.25 + 0.5 * at as f32;
                let neurons = |at: usize| (listed && at != 1).then_some(&some[..]);
                let block = |(at, ffn)| FfnBlock { factor: factor(at), neurons: neurons(at), ..FfnBlock::whole(ffn) };
                let blocks: Vec<FfnBlock<'_>> = ffns.iter().enumerate().map(block).collect();
                let run = |blocks: &[FfnBlock<'_>]| {
                    let inputs = TokenInputs { x: &x[..tokens * D], tokens };
                    let task = FfnTask { sparsity, ..FfnTask::dense(blocks, Activation::Relu, inputs) };
                    let mut out = vec![f32::NAN; tokens * D];
                    let work = CpuFfn::default().partial(&cpu, &task, &mut out).unwrap();
                    (out, work)
                };
                let (together, work) = run(&blocks);
                let (mut apart, mut sum) = (vec![0.0; tokens * D], FfnWork::default());
                for block in &blocks {
                    let (out, work) = run(&[FfnBlock { factor: 1.0, ..*block }]);
                    apart.iter_mut().zip(out).for_each(|(apart, y)| *apart += block.factor * y);
                    sum.add(work);
                }
                assert_eq!(work, sum, "{sparsity} {listed} {tokens}");
                let off = together.iter().zip(&apart).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
                assert!(off < 1e-5 && work.active > 0, "{sparsity} {listed} {tokens}: {off}");
            }
        }
    }
}
