//! Scaled rows `[rows, cols]`: `x[t, i] = factor * (x[t, i] + scale * delta[t, i])`, or
//! `x[t, i] *= factor` without an addition. Padding of a row stays unchanged.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CaseRequest, FLAT_SIZES, KernelCase, PITCH, ROUNDED, ROWS, map_elements, noise},
    params::params,
};

params! {
    /// `scale`
    Scale {
        /// Columns of a row, without padding.
        cols: u32,
        /// Elements from one row to the next.
        pitch: u32,
        /// Rows.
        rows: u32,
        /// Invocations in one row of the grid.
        stride: u32,
        /// Factor on every element.
        factor: f32,
    }
}

/// The kernel `scale`.
pub(crate) const KERNEL: Kernel = Kernel::new::<Scale>("scale", &[Write, Read], include_str!("scale.wgsl"), cases);

/// A scaled element.
fn oracle(x: f64, delta: Option<f64>, factor: f32) -> f64 {
    f64::from(factor) * (x + 0.5 * delta.unwrap_or(0.0))
}

/// With and without the addition.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    request.pick(&[true, false], 1).iter().map(|add| case(*add)).collect()
}

fn case(add: bool) -> KernelCase {
    let (x, delta, factor) = (noise(ROWS * PITCH, 9), noise(ROWS * PITCH, 10), 1.5);
    let delta_at = |row: usize, col: usize| add.then(|| f64::from(delta[row * PITCH + col]));
    let scaled = map_elements(&x, |row, col, x| oracle(x, delta_at(row, col), factor));
    let [cols, pitch, rows, stride] = FLAT_SIZES;
    KernelCase::flat("scale", Scale { cols, pitch, rows, stride, factor })
        .named(format!("add {add}"))
        .set("ADD_DELTA", add)
        .set("DELTA_SCALE", 0.5)
        .input(&x)
        .becomes(&scaled, ROUNDED)
        .input(&delta)
}
