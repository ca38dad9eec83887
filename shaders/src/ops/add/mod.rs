//! Sum of rows `[rows, cols]`: `x[t, i] += scale * delta[t, i]`. Padding of a row stays unchanged.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CaseRequest, FLAT_SIZES, KernelCase, PITCH, ROUNDED, ROWS, map_elements, noise},
    params::params,
};

params! {
    /// `add` and similar kernels with one element per invocation
    Elements {
        /// Columns of a row, without padding.
        cols: u32,
        /// Elements from one row to the next.
        pitch: u32,
        /// Rows.
        rows: u32,
        /// Invocations in one row of the grid.
        stride: u32,
    }
}

/// The kernel `add`.
pub(crate) const KERNEL: Kernel = Kernel::new::<Elements>("add", &[Write, Read], include_str!("add.wgsl"), cases);

/// An element of the sum.
fn oracle(x: f64, delta: f64, scale: f64) -> f64 {
    x + scale * delta
}

/// The factor is 1 in most models.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    request.pick(&[1.0, 0.75], 1).iter().map(|scale| case(*scale)).collect()
}

fn case(scale: f64) -> KernelCase {
    let (x, delta) = (noise(ROWS * PITCH, 7), noise(ROWS * PITCH, 8));
    let sums = map_elements(&x, |row, col, x| oracle(x, f64::from(delta[row * PITCH + col]), scale));
    let [cols, pitch, rows, stride] = FLAT_SIZES;
    KernelCase::flat("add", Elements { cols, pitch, rows, stride })
        .named(format!("{scale} times the second operand"))
        .set("DELTA_SCALE", scale)
        .input(&x)
        .becomes(&sums, ROUNDED)
        .input(&delta)
}
