//! The down projection with one row per neuron, for many tokens.

use bytemuck::{bytes_of, cast_slice};
use thermocline_shaders::{WeightType, limits::GEMM_NEURONS_COLUMNS, params};

use crate::gpu::{
    Call, Gpu, assert_close, bytes, noise,
    weights::{Weights, grids_of},
};

/// Contents of the output before the dispatch.
const BEFORE: f32 = 0.5;

#[test]
fn many_tokens_share_tiles_of_neurons() {
    let gpu = Gpu::get();
    for ty in WeightType::ALL {
        for (rows, blocks, tokens) in [(1_usize, 1, 1), (70, 3, 67), (300, 2, 130)] {
            let cols = blocks * ty.block();
            let pitch = rows.next_multiple_of(32);
            let weights = Weights::random(ty, rows, cols, 1);
            // Padding after the neurons of a row must be ignored.
            let hidden = noise(tokens * pitch, 2);
            let sum = |t: usize, c: usize| -> f64 {
                let products = (0..rows).map(|k| f64::from(hidden[t * pitch + k]) * weights.values[k * cols + c]);
                products.sum()
            };
            let sums: Vec<f64> = (0..tokens * cols).map(|at| sum(at / cols, at % cols)).collect();
            for (tier, (workgroup, splits, first, accumulate)) in gpu.tiers().into_iter().flat_map(|tier| {
                let layouts: &[(u32, usize, usize, bool)] = &[(128, 1, 0, false), (32, 4, 2, false), (96, 20, 1, true)];
                grids_of(ty, layouts).iter().map(move |layout| (tier, *layout))
            }) {
                let partial = tokens * cols;
                let mut partials = vec![BEFORE; (first + splits + 1) * partial];
                let [chunks, neurons, tokens, hidden_pitch, splits32, first32] =
                    [cols / 32, rows, tokens, pitch, splits, first].map(|v| v as u32);
                let params = params::SparseDown {
                    chunks,
                    neurons,
                    tokens,
                    hidden_pitch,
                    splits: splits32,
                    first: first32,
                    accumulate: u32::from(accumulate),
                };
                let call = Call {
                    kernel: "gemm_neurons",
                    tier,
                    weights: Some(ty),
                    overrides: &[("WORKGROUP_SIZE", f64::from(workgroup))],
                    params: bytes_of(&params),
                    buffers: &[cast_slice(&weights.main), cast_slice(&weights.aux), bytes(&hidden), bytes(&partials)],
                    workgroups: (
                        tokens.div_ceil(workgroup / 2),
                        (cols as u32).div_ceil(GEMM_NEURONS_COLUMNS),
                        splits32,
                    ),
                };
                partials = gpu.run(&call, 3);
                let what = format!("{ty} {rows}x{cols} {tokens} {tier} {workgroup} {splits}");
                let (before, rest) = partials.split_at(first * partial);
                let (partials_of_splits, after) = rest.split_at(splits * partial);
                assert!(before.iter().chain(after).all(|partial| *partial == BEFORE), "{what}: partial sums of others");
                let there = if accumulate { BEFORE * splits as f32 } else { 0.0 };
                let got: Vec<f32> = (0..partial)
                    .map(|at| partials_of_splits.iter().skip(at).step_by(partial).sum::<f32>() - there)
                    .collect();
                assert_close(&got, &sums, 1e-4, &what);
            }
        }
    }
}
