//! Products with the chosen experts: `y[s, r] = W[ids[s], r] . x[s / pairs_per_row] (+ bias)` for
//! pair `s` of a token and one of its experts, with `W: [experts, rows, cols]`. `expert_gemv`
//! computes pair by pair, for few tokens. `expert_gemm` computes tiles of pairs with one expert, as
//! `group_slots` makes them.

use crate::{
    Access::{Read, Write},
    Kernel, WeightType,
    case::{CaseRequest, KernelCase, NEAR, SampleWeights, noise, sizes, wide},
    ops::group_slots::{self, Groups, chosen},
    params::params,
};

params! {
    /// `expert_gemv` and `expert_gemm`
    ExpertMatmul {
        /// Rows of an expert.
        rows: u32,
        /// 32-column chunks of a row of weights.
        chunks: u32,
        /// Pairs of a token and one of its experts.
        pairs: u32,
        /// Consecutive pairs that read the same row of the input.
        pairs_per_row: u32,
        /// Elements from one input row to the next; a multiple of 32, zero past the columns.
        x_pitch: u32,
        /// Elements from one pair's output to the next's.
        y_pitch: u32,
        /// Offset of the first row of weights in a pair's output.
        y_offset: u32,
        /// The first bound expert.
        first_expert: u32,
        /// Number of bound experts.
        experts: u32,
        /// The first expert with bound biases.
        first_bias: u32,
        /// Workgroups in one row of the grid.
        stride: u32,
    }
}

/// The kernel `expert_gemv`.
pub(crate) const EXPERT_GEMV: Kernel = Kernel::new::<ExpertMatmul>(
    "expert_gemv",
    &[Read, Read, Read, Read, Read, Write],
    include_str!("expert_gemv.wgsl"),
    cases,
)
.of_weights(&WeightType::ALL);

/// The kernel `expert_gemm`.
pub(crate) const EXPERT_GEMM: Kernel = Kernel::new::<ExpertMatmul>(
    "expert_gemm",
    &[Read, Read, Read, Read, Read, Read, Write],
    include_str!("expert_gemm.wgsl"),
    cases,
)
.of_weights(&WeightType::ALL);

/// Number of experts. The first and the last are not bound.
const EXPERTS: usize = 5;
/// Rows of an expert.
const ROWS: usize = 70;
/// Columns of the output before the products.
const OFFSET: usize = 3;

/// The products of a pair. `weights` starts with expert 1, and so does `bias`.
fn oracle(weights: &SampleWeights, bias: &[f32], expert: usize, x: &[f32]) -> Vec<f64> {
    let rows = (expert - 1) * ROWS..expert * ROWS;
    rows.map(|row| weights.product(row, x) + bias.get(row).map_or(0.0, |bias| f64::from(*bias))).collect()
}

/// Few pairs, and so many that an expert has two tiles. The inputs are a row per token or per pair.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let weights = SampleWeights::new(request.ty, (EXPERTS - 2) * ROWS, 2 * request.ty.block(), 9);
    let calls = request.pick_of_type(&[[180, 2], [180, 1], [2, 2], [2, 1]], 1);
    calls.iter().flat_map(|call| of_call(request, &weights, *call)).collect()
}

/// The cases of both kernels.
fn of_call(request: &CaseRequest, weights: &SampleWeights, [pairs, pairs_per_row]: [usize; 2]) -> Vec<KernelCase> {
    // One type has no biases, because every option is compiled for every type.
    let has_bias = request.ty != WeightType::Q4_0;
    let (pitch, cols) = (ROWS + OFFSET, weights.cols);
    let (ids, x) = (chosen(pairs, EXPERTS), noise(pairs / pairs_per_row * cols, 10));
    // Biases of all experts but the first.
    let bias = noise((EXPERTS - 1) * ROWS, 11);
    let before = vec![0.25_f32; pairs * pitch];
    let mut y = wide(&before);
    for (pair, id) in ids.iter().enumerate().filter(|(_, id)| (1..EXPERTS as u32 - 1).contains(id)) {
        let (bias, x) = (if has_bias { &bias[..] } else { &[] }, &x[pair / pairs_per_row * cols..]);
        y[pair * pitch + OFFSET..][..ROWS].copy_from_slice(&oracle(weights, bias, *id as usize, x));
    }
    let [rows, chunks, pairs32, pairs_per_row, pitch] = sizes([ROWS, cols / 32, pairs, pairs_per_row, pitch]);
    let params = ExpertMatmul {
        rows,
        chunks,
        pairs: pairs32,
        pairs_per_row,
        x_pitch: cols as u32,
        y_pitch: pitch,
        y_offset: OFFSET as u32,
        first_expert: 1,
        experts: EXPERTS as u32 - 2,
        first_bias: 1,
        stride: 2,
    };
    let case = |kernel, workgroup, groups| {
        KernelCase::new(kernel, workgroup, params, groups)
            .named(format!("{pairs} pairs, {pairs_per_row} per row, bias {has_bias}, {workgroup} invocations"))
            .set("HAS_BIAS", has_bias)
            .matrix(weights)
            .input(&x)
            .input(&bias)
    };
    let each = request.pick_of_type(&[(64, 4), (32, 16)], 1).iter().map(|(workgroup, at_once)| {
        let groups = [2, rows.div_ceil(2 * at_once), pairs32];
        let case = case("expert_gemv", *workgroup, groups).set("ROWS", *at_once);
        case.input(&ids).input(&before).becomes(&y, NEAR)
    });
    let Groups { order, tiles } = group_slots::oracle(&ids, EXPERTS);
    let tiled = request.pick_of_type(&[128, 32], 1).iter().map(|workgroup| {
        let groups = [tiles.len() as u32 / 3, 2, rows.div_ceil(*workgroup)];
        let case = case("expert_gemm", *workgroup, groups);
        case.input(&order).input(&tiles).input(&before).becomes(&y, NEAR)
    });
    each.chain(tiled).collect()
}
