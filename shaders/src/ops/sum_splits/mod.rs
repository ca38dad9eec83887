//! Sum of the partial sums of `sparse_down` or `gemm_neurons`, which are `[splits, tokens, cols]`:
//! `out[t, c] = sum_s partials[s, t, c] + bias[c]`. The bias is optional.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CLOSE, CaseRequest, KernelCase, noise, sizes, wide},
    params::params,
};

params! {
    /// `sum_splits`
    SumSplits {
        /// Columns of a row, without padding.
        cols: u32,
        /// Elements from one row of the sum to the next.
        pitch: u32,
        /// Rows of the sum, and of each partial sum.
        tokens: u32,
        /// Partial sums.
        splits: u32,
        /// Elements from one partial sum to the next.
        partial_pitch: u32,
        /// Invocations in one row of the grid.
        stride: u32,
    }
}

/// The kernel `sum_splits`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<SumSplits>("sum_splits", &[Read, Read, Write], include_str!("sum_splits.wgsl"), cases);

/// Sum of the element `at` of all partial sums, which have `len` elements.
fn oracle(partials: &[f32], len: usize, at: usize) -> f64 {
    partials.iter().skip(at).step_by(len).map(|partial| f64::from(*partial)).sum()
}

/// Numbers of partial sums that are a multiple of the four loads in flight, and others.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let shapes = [[3, 96, 5, 64], [1, 32, 1, 128], [5, 1280, 64, 256], [3, 64, 3, 128], [1, 256, 3, 64]];
    let biased = request.pick(&[true, false], 1).iter();
    biased.flat_map(|biased| request.pick(&shapes, 1).iter().map(|shape| case(*shape, *biased))).collect()
}

fn case([tokens, cols, splits, workgroup]: [usize; 4], biased: bool) -> KernelCase {
    let (pitch, partial_pitch, stride) = (cols + 3, cols + 32, 2 * workgroup);
    let len = tokens * partial_pitch;
    let (partials, bias, before) = (noise(splits * len, 1), noise(cols, 2), vec![7.0_f32; tokens * pitch]);
    let mut sums = wide(&before);
    for (token, col) in (0..tokens).flat_map(|token| (0..cols).map(move |col| (token, col))) {
        let sum = oracle(&partials, len, token * partial_pitch + col);
        sums[token * pitch + col] = sum + if biased { f64::from(bias[col]) } else { 0.0 };
    }
    let groups = (tokens * cols).div_ceil(stride) as u32;
    let [cols, pitch, tokens, splits, partial_pitch, stride] =
        sizes([cols, pitch, tokens, splits, partial_pitch, stride]);
    let params = SumSplits { cols, pitch, tokens, splits, partial_pitch, stride };
    KernelCase::new("sum_splits", workgroup as u32, params, [2, groups, 1])
        .named(format!("{splits} of {tokens} x {cols}, bias: {biased}"))
        .set("HAS_BIAS", biased)
        .input(&partials)
        .input(&bias)
        .input(&before)
        .becomes(&sums, CLOSE)
}
