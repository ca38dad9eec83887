//! Down projection with one row of weights per neuron: `y[t] = sum of hidden[t, k] * W[k]` with
//! `hidden: [tokens, neurons]`, `W: [neurons, cols]`. The neurons are split into ranges, whose
//! partial sums `[splits, tokens, cols]` are for `sum_splits`. `sparse_down` is for few tokens, and
//! may skip rows of neurons that no token needs. `gemm_neurons` is for many tokens.

use crate::{
    Access::{Read, Write},
    Kernel, WeightType,
    case::{CaseRequest, KernelCase, SampleWeights, noise, sizes},
    limits::{GEMM_NEURONS_COLUMNS, SPARSE_DOWN_TOKENS},
    params::params,
};

params! {
    /// `sparse_down` and `gemm_neurons`
    SparseDown {
        /// 32-column chunks of a row of weights.
        chunks: u32,
        /// Rows of the weights.
        neurons: u32,
        /// Rows of the hidden activations.
        tokens: u32,
        /// Elements from one token's hidden activations to the next's; a multiple of 4.
        hidden_pitch: u32,
        /// Ranges of neurons. Each range has a row of `32 * chunks` partial sums per token.
        splits: u32,
        /// Index of the first partial sum, among the partial sums of all matrices.
        first: u32,
        /// 1 if the sums are added to the existing values, else 0.
        accumulate: u32,
    }
}

/// The kernel `sparse_down`.
pub(crate) const SPARSE_DOWN: Kernel =
    Kernel::new::<SparseDown>("sparse_down", &[Read, Read, Read, Write], include_str!("sparse_down.wgsl"), cases)
        .of_weights(&WeightType::ALL);

/// The kernel `gemm_neurons`.
pub(crate) const GEMM_NEURONS: Kernel =
    Kernel::new::<SparseDown>("gemm_neurons", &[Read, Read, Read, Write], include_str!("gemm_neurons.wgsl"), cases)
        .of_weights(&WeightType::ALL);

/// How the work is divided.
#[derive(Debug)]
struct SparseDownGrid {
    kernel: &'static str,
    workgroup: u32,
    /// Invocations that read a row side by side.
    strip: u32,
    /// Tokens of a workgroup.
    tokens: u32,
    splits: usize,
    /// Partial sums of other matrices, before those of this one.
    first: usize,
    skip: bool,
    accumulate: bool,
}

const GRIDS: [SparseDownGrid; 10] = [
    sparse([64, 16, 1], [1, 0], true, false),
    sparse([64, 16, 2], [1, 0], true, false),
    tiles(64, [2, 0], false),
    sparse([96, 12, 3], [5, 1], true, true),
    sparse([128, 64, 8], [1, 1], false, false),
    sparse([256, 16, 2], [64, 1], true, false),
    sparse([128, 8, 1], [3, 1], false, true),
    tiles(128, [1, 0], false),
    tiles(32, [4, 2], false),
    tiles(96, [20, 1], true),
];

/// A grid of `sparse_down`: workgroup, strip and tokens, then splits and first partial sum.
const fn sparse(
    [workgroup, strip, tokens]: [u32; 3],
    [splits, first]: [usize; 2],
    skip: bool,
    accumulate: bool,
) -> SparseDownGrid {
    SparseDownGrid { kernel: "sparse_down", workgroup, strip, tokens, splits, first, skip, accumulate }
}

/// A grid of `gemm_neurons`.
const fn tiles(workgroup: u32, [splits, first]: [usize; 2], accumulate: bool) -> SparseDownGrid {
    let (strip, tokens) = (0, workgroup / 2);
    SparseDownGrid { kernel: "gemm_neurons", workgroup, strip, tokens, splits, first, skip: false, accumulate }
}

/// Contents of the partial sums before the dispatch.
const BEFORE: f32 = 0.5;

/// Partial sums of ranges that consist of units of `unit` neurons.
fn oracle(weights: &SampleWeights, hidden: &[&[f32]], splits: usize, unit: usize) -> Vec<f64> {
    let neurons = hidden[0].len();
    let range = neurons.div_ceil(unit).div_ceil(splits) * unit;
    let mut partials = Vec::new();
    for split in 0..splits {
        for hidden in hidden {
            let mut sums = vec![0.0; weights.cols];
            for neuron in (split * range..(split + 1) * range).take_while(|neuron| *neuron < neurons) {
                let value = f64::from(hidden[neuron]);
                sums.iter_mut().zip(weights.row(neuron)).for_each(|(sum, weight)| *sum += value * weight);
            }
            partials.extend(sums);
        }
    }
    partials
}

/// Shapes that do not fill tiles or groups of tokens.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let mut cases = Vec::new();
    for [neurons, cols, tokens] in request.pick(&[[75, 256, 41], [1, 1, 1], [300, 96, 67]], 1) {
        let weights = SampleWeights::new(request.ty, *neurons, cols.next_multiple_of(request.ty.block()), 1);
        // Every type has at least the difficult ones.
        let grids = match request.pick_of_type(&GRIDS, 3) {
            [_] => &GRIDS[..3],
            grids => grids,
        };
        cases.extend(grids.iter().map(|grid| case(&weights, *neurons, *tokens, grid)));
    }
    cases
}

fn case(weights: &SampleWeights, neurons: usize, tokens: usize, grid: &SparseDownGrid) -> KernelCase {
    let SparseDownGrid { kernel, workgroup, strip, splits, first, accumulate, .. } = *grid;
    let tiled = kernel == "gemm_neurons";
    let (cols, pitch) = (weights.cols, neurons.next_multiple_of(32));
    // Some neurons are silent. Padding after the neurons of a row is ignored.
    let hidden: Vec<f32> = noise(tokens * pitch, 2).iter().map(|value| value.max(-0.5) + 0.5).collect();
    let rows: Vec<&[f32]> = hidden.chunks_exact(pitch).map(|row| &row[..neurons]).collect();
    let sums = oracle(weights, &rows, splits, if tiled { 32 } else { 4 });
    let skipped = first * tokens * cols;
    let before = vec![BEFORE; skipped + sums.len() + SPARSE_DOWN_TOKENS as usize * cols];
    let mut partials = vec![f64::from(BEFORE); before.len()];
    let added = if accumulate { f64::from(BEFORE) } else { 0.0 };
    partials[skipped..].iter_mut().zip(sums).for_each(|(partial, sum)| *partial = sum + added);
    let [chunks, neurons, tokens, hidden_pitch, splits, first] =
        sizes([cols / 32, neurons, tokens, pitch, splits, first]);
    let params = SparseDown { chunks, neurons, tokens, hidden_pitch, splits, first, accumulate: u32::from(accumulate) };
    let of_tokens = tokens.div_ceil(grid.tokens);
    let case = if tiled {
        let groups = [of_tokens, (32 * chunks).div_ceil(GEMM_NEURONS_COLUMNS), splits];
        KernelCase::new(kernel, workgroup, params, groups)
    } else {
        let groups = [of_tokens, (4 * chunks).div_ceil(strip), splits];
        let case = KernelCase::new(kernel, workgroup, params, groups);
        case.set("STRIP", strip).set("TOKENS", grid.tokens).set("SKIP", grid.skip)
    };
    case.named(format!("{neurons} neurons, {chunks} chunks, {tokens} tokens, {grid:?}"))
        .matrix(weights)
        .input(&hidden)
        .input(&before)
        .becomes(&partials, 1e-4)
}
