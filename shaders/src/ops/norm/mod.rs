//! Norm of rows, with an addition before it: `x += scale * delta`, then RMS norm
//! `y = x / sqrt(mean(x^2) + eps) * weight`, or layer norm, which subtracts the mean first and adds
//! a bias. The device writes the sum back to `x`.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CLOSE, CaseRequest, KernelCase, NEAR, OUTLIER, has, noise, sizes, wide},
    params::params,
};

params! {
    /// `norm`
    Norm {
        /// Columns of a row, without padding.
        cols: u32,
        /// Elements from one row to the next, in input and output.
        pitch: u32,
        /// Rows, one workgroup each.
        rows: u32,
        /// Workgroups in one row of the grid.
        stride: u32,
        /// Added under the square root.
        eps: f32,
    }
}

/// The kernel `norm`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<Norm>("norm", &[Write, Read, Read, Read, Write], include_str!("norm.wgsl"), cases);

/// The norm of a row, with a bias if it is a layer norm.
fn oracle(row: &[f64], weight: &[f32], bias: Option<&[f32]>, eps: f32) -> Vec<f64> {
    let cols = row.len() as f64;
    let mean = if bias.is_some() { row.iter().sum::<f64>() / cols } else { 0.0 };
    let variance = row.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / cols;
    let scale = 1.0 / (variance + f64::from(eps)).sqrt();
    let normed = row.iter().zip(weight).map(|(value, weight)| (value - mean) * scale * f64::from(*weight));
    normed.enumerate().map(|(i, value)| value + bias.map_or(0.0, |bias| f64::from(bias[i]))).collect()
}

/// Rows of several lengths. In the longest rows, an invocation has several vectors. They use the
/// engine's workgroup for long rows, which devices narrow to their limit. An outlier makes the
/// squares of an RMS norm large. A large mean shows whether a layer norm centres the values before
/// it computes the variance.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let forms = [("ADD_DELTA", 128), ("LAYER HAS_BIAS", 96), ("", 64), ("LAYER HAS_BIAS ADD_DELTA", 32)];
    let shapes = request.pick(&[[1000, 1024], [1, 4], [7, 32], [64, 64], [129, 160]], 1).iter();
    let cases = shapes.flat_map(|shape| forms.iter().map(|(options, workgroup)| case(*shape, options, *workgroup)));
    let long = ["ADD_DELTA", "LAYER HAS_BIAS"].map(|options| case([4501, 4512], options, 1024));
    cases.chain(long).collect()
}

fn case([cols, pitch]: [usize; 2], options: &str, workgroup: u32) -> KernelCase {
    let (layer, add) = (has(options, "LAYER"), has(options, "ADD_DELTA"));
    let (rows, eps) = (3, 1e-5_f32);
    let mut x: Vec<f32> = noise(rows * pitch, 1);
    if layer {
        x.iter_mut().for_each(|value| *value += 30.0);
    } else {
        x[cols / 2] = OUTLIER;
    }
    let (delta, weight, bias) = (noise(rows * pitch, 2), noise(pitch, 3), noise(pitch, 4));
    let factor = if cols == 64 { 0.75 } else { 1.0 };
    let (mut sums, mut normed) = (wide(&x), vec![0.0; rows * pitch]);
    for at in (0..rows).map(|row| row * pitch) {
        if add {
            let deltas = delta[at..].iter().map(|delta| factor * f64::from(*delta));
            sums[at..at + cols].iter_mut().zip(deltas).for_each(|(sum, delta)| *sum += delta);
        }
        let bias = layer.then_some(&bias[..cols]);
        normed[at..at + cols].copy_from_slice(&oracle(&sums[at..at + cols], &weight, bias, eps));
    }
    // Two rows of the grid.
    let [cols32, pitch32, rows32] = sizes([cols, pitch, rows]);
    let params = Norm { cols: cols32, pitch: pitch32, rows: rows32, stride: 2, eps };
    KernelCase::new("norm", workgroup, params, [2, 2, 1])
        .named(format!("{cols} columns, {options}"))
        .switches(&["LAYER", "HAS_BIAS", "ADD_DELTA"], options)
        .set("DELTA_SCALE", factor)
        .input(&x)
        .becomes(&sums, CLOSE)
        .input(&delta)
        .input(&weight)
        .input(&bias)
        .input(&vec![0.0_f32; rows * pitch])
        .becomes(&normed, if cols == 1 { 1e-2 } else { NEAR })
}
