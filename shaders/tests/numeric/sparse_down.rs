//! The down projection with one row per neuron.

use bytemuck::{bytes_of, cast_slice};
use thermocline_shaders::{Tier, WeightType, limits::SPARSE_DOWN_TOKENS, params};

use crate::gpu::{
    Call, Gpu, assert_close, bytes, noise,
    weights::{Weights, grids_of},
};

/// How the work is divided.
#[derive(Debug, Clone, Copy)]
struct Grid {
    workgroup: u32,
    strip: u32,
    splits: u32,
    /// Tokens per workgroup.
    tokens: u32,
    skip: bool,
    accumulate: bool,
}

const GRIDS: [Grid; 4] = [
    Grid { workgroup: 96, strip: 12, splits: 5, tokens: 3, skip: true, accumulate: true },
    Grid { workgroup: 128, strip: 64, splits: 1, tokens: 8, skip: false, accumulate: false },
    Grid { workgroup: 256, strip: 16, splits: 64, tokens: 2, skip: true, accumulate: false },
    Grid { workgroup: 128, strip: 8, splits: 3, tokens: 1, skip: true, accumulate: false },
];

/// Weights `[rows, cols]`, and hidden activations `[tokens, rows]` of the same neurons.
struct Input<'a> {
    weights: &'a Weights,
    rows: usize,
    cols: usize,
    hidden: &'a [f32],
    tokens: usize,
    pitch: usize,
}

/// Runs both kernels and returns `[tokens, cols + 3]`, the last three columns untouched.
fn down(gpu: &Gpu, tier: Tier, ty: WeightType, grid: Grid, input: &Input<'_>, bias: &[f32]) -> Vec<f32> {
    let [tokens, rows, cols, pitch] = [input.tokens, input.rows, input.cols, input.pitch].map(|v| v as u32);
    let chunks = cols / 32;
    // Length of the partial sums. Below, room for tokens past the end is added.
    let len = (tokens * grid.splits * cols) as usize;
    // A partial sum of another matrix precedes them.
    let before = (tokens * cols) as usize;
    let mut partials = vec![f32::NAN; before + len + (SPARSE_DOWN_TOKENS * cols) as usize];
    if grid.accumulate {
        partials[before..before + len].fill(0.5);
    }
    let params = params::SparseDown {
        chunks,
        neurons: rows,
        tokens,
        hidden_pitch: pitch,
        splits: grid.splits,
        first: 1,
        accumulate: u32::from(grid.accumulate),
    };
    let call = Call {
        kernel: "sparse_down",
        tier,
        weights: Some(ty),
        overrides: &[
            ("WORKGROUP_SIZE", f64::from(grid.workgroup)),
            ("STRIP", f64::from(grid.strip)),
            ("TOKENS", f64::from(grid.tokens)),
            ("SKIP", f64::from(u8::from(grid.skip))),
        ],
        params: bytes_of(&params),
        buffers: &[
            cast_slice(&input.weights.main),
            cast_slice(&input.weights.aux),
            bytes(input.hidden),
            bytes(&partials),
        ],
        workgroups: ((chunks * 4).div_ceil(grid.strip), grid.splits, tokens.div_ceil(grid.tokens)),
    };
    let partials = gpu.run(&call, 3);
    let (others, written) = partials.split_at(before);
    let mut untouched = others.iter().chain(&written[len..]);
    assert!(untouched.all(|partial| partial.is_nan()), "{ty} {tier} {grid:?}: written beside its partial sums");
    let added = if grid.accumulate { 0.5 } else { 0.0 };
    let partials: Vec<f32> = written.iter().map(|partial| partial - added).collect();
    let out = vec![7.0_f32; (tokens * (cols + 3)) as usize];
    let params = params::SumSplits {
        cols,
        pitch: cols + 3,
        tokens,
        splits: grid.splits,
        partial_pitch: cols,
        stride: 2 * grid.workgroup,
    };
    let call = Call {
        kernel: "sum_splits",
        tier,
        weights: None,
        overrides: &[
            ("WORKGROUP_SIZE", f64::from(grid.workgroup)),
            ("HAS_BIAS", f64::from(u8::from(!bias.is_empty()))),
        ],
        params: bytes_of(&params),
        buffers: &[bytes(&partials), if bias.is_empty() { &[0; 16] } else { bytes(bias) }, bytes(&out)],
        workgroups: (2, (tokens * cols).div_ceil(2 * grid.workgroup), 1),
    };
    gpu.run(&call, 2)
}

fn expected(input: &Input<'_>, bias: &[f32]) -> Vec<f64> {
    let (cols, values) = (input.cols, &input.weights.values);
    let mut out = vec![7.0; input.tokens * (cols + 3)];
    for (hidden, out) in input.hidden.chunks_exact(input.pitch).zip(out.chunks_exact_mut(cols + 3)) {
        for (c, out) in out[..cols].iter_mut().enumerate() {
            let sum: f64 = (0..input.rows).map(|k| f64::from(hidden[k]) * values[k * cols + c]).sum();
            *out = sum + bias.get(c).map_or(0.0, |bias| f64::from(*bias));
        }
    }
    out
}

#[test]
fn sparse_down_adds_the_row_of_every_neuron() {
    let gpu = Gpu::get();
    for ty in WeightType::ALL {
        for (rows, cols, tokens) in [(1_usize, 1, 1), (37, 2, 3), (300, 5, 5)] {
            let cols = cols * ty.block();
            let pitch = rows.next_multiple_of(32);
            let weights = Weights::random(ty, rows, cols, 1);
            // Some neurons are silent.
            let hidden: Vec<f32> = noise(tokens * pitch, 2).iter().map(|v| v.max(-0.5) + 0.5).collect();
            let bias = noise(cols, 3);
            let input = Input { weights: &weights, rows, cols, hidden: &hidden, tokens, pitch };
            for bias in [&bias[..], &[]] {
                let expected = expected(&input, bias);
                for (tier, grid) in
                    gpu.tiers().into_iter().flat_map(|tier| grids_of(ty, &GRIDS).iter().map(move |grid| (tier, *grid)))
                {
                    let got = down(gpu, tier, ty, grid, &input, bias);
                    assert_close(&got, &expected, 1e-4, &format!("{ty} {rows}x{cols} {tokens} {tier} {grid:?}"));
                }
            }
        }
    }
}
