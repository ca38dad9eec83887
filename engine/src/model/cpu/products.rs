//! The two kinds of products FFNs are made of: with rows of gate and up matrices, and back to the model's width. Those of several
//! FFNs are done together.

use smallvec::SmallVec;

use super::{
    WHAT,
    task::{FfnTask, FfnWork, is_most},
};
use crate::{
    cpu::{Cpu, RowSum, RowsJob},
    error::Result,
    format::Matrix,
    model::{Down, Linear, forward::grow},
};

/// A matrix and its rows on a list, or all.
pub(super) type Part<'a> = (&'a Linear, Option<&'a [u32]>);

/// Experts whose products are begun together without allocating: as many as most mixtures use, and one for every token.
pub(super) type Few<T> = SmallVec<[T; 9]>;

/// One token's products with `parts`, one behind the other in `out`. A list with most of a matrix's rows has all of them read, in
/// order, into `wide`.
pub(super) fn some_rows<'a>(
    cpu: &Cpu,
    parts: impl Iterator<Item = Part<'a>> + Clone,
    x: &[f32],
    out: &mut [f32],
    wide: &mut Vec<f32>,
    work: &mut FfnWork,
) -> Result<()> {
    let most = |(linear, list): &Part<'_>| list.is_some_and(|list| is_most(list.len(), &linear.weight));
    let room = parts.clone().filter(most).map(|(linear, _)| linear.weight.rows()).sum();
    grow(wide, Some(room), WHAT)?;
    let (mut jobs, mut rest, mut spare) = (Few::new(), &mut out[..], &mut wide[..room]);
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
    let (mut rest, mut spare) = (&mut out[..], &wide[..room]);
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

/// Hidden values of which FFNs' neurons.
#[derive(Debug, Clone, Copy)]
pub(super) struct Values<'a> {
    /// Whose, in the order of the task's blocks; `None` for every neuron.
    pub list: Option<&'a [u32]>,
    /// `[tokens, n]`
    pub hidden: &'a [f32],
}

/// `out =` the hidden values of a task's FFNs back to `[tokens, d]`, without the biases. `wide` and `part` are scratch.
pub(super) fn down<'a>(
    cpu: &Cpu,
    task: &FfnTask<'_>,
    values: impl Iterator<Item = Values<'a>>,
    (wide, part): (&mut Vec<f32>, &mut Vec<f32>),
    out: &mut [f32],
    work: &mut FfnWork,
) -> Result<()> {
    let mut sums = Few::new();
    let alone = task.blocks.len() == 1;
    out.fill(0.0);
    for (block, Values { list, hidden }) in task.blocks.iter().zip(values) {
        match &block.ffn.down {
            Down::Neurons(down) if task.tokens == 1 => {
                let active = hidden.iter().filter(|a| **a != 0.0).count();
                work.read_rows(&down.weight, active);
                sums.push(RowSum { weight: &down.weight, rows: list, a: hidden, share: block.share });
            }
            down => {
                let alone = alone && block.share == 1.0;
                if !alone {
                    grow(part, Some(out.len()), WHAT)?;
                    part[..out.len()].fill(0.0);
                }
                let into = if alone { &mut *out } else { &mut part[..out.len()] };
                match down {
                    Down::Neurons(down) => {
                        let active = match list {
                            Some(list) => cpu.accumulate_rows(&down.weight, list, hidden, task.tokens, into),
                            None => cpu.matmul_neurons(&down.weight, None, hidden, task.tokens, into),
                        };
                        work.active += active;
                        work.read_rows(&down.weight, active);
                    }
                    Down::Outputs(down) => {
                        work.active += outputs(cpu, &down.weight, list, hidden, task.tokens, wide, into)?;
                        work.read_all(&down.weight);
                    }
                }
                if !alone {
                    cpu.add_scaled(out, &part[..out.len()], block.share);
                }
            }
        }
    }
    work.active += cpu.accumulate_sums(&sums, out);
    Ok(())
}

/// The same with a matrix that has a row per output: hidden values stand among zeros, and all of it is read. Returns how many
/// neurons have a part in it.
fn outputs(
    cpu: &Cpu,
    down: &Matrix,
    list: Option<&[u32]>,
    hidden: &[f32],
    tokens: usize,
    wide: &mut Vec<f32>,
    out: &mut [f32],
) -> Result<usize> {
    let n_ff = down.cols();
    let n = list.map_or(n_ff, <[u32]>::len);
    let active = (0..n).filter(|i| (0..tokens).any(|t| hidden[t * n + i] != 0.0)).count();
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
    cpu.matmul_rows(&mut [RowsJob { weight: down, bias: None, rows: None, out }], hidden, tokens);
    Ok(active)
}
