//! Limited rows `[rows, cols]`: `y[t, i] = cap * tanh(y[t, i] / cap)`. Padding of a row stays
//! unchanged.

use crate::{
    Access::Write,
    Kernel,
    case::{CaseRequest, FLAT_SIZES, KernelCase, OUTLIER, PITCH, ROWS, loud_noise, map_elements},
    params::params,
};

params! {
    /// `soft_cap`
    SoftCap {
        /// Columns of a row, without padding.
        cols: u32,
        /// Elements from one row to the next.
        pitch: u32,
        /// Rows.
        rows: u32,
        /// Invocations in one row of the grid.
        stride: u32,
        /// Results are between `-cap` and `cap`.
        cap: f32,
    }
}

/// The kernel `soft_cap`.
pub(crate) const KERNEL: Kernel = Kernel::new::<SoftCap>("soft_cap", &[Write], include_str!("soft_cap.wgsl"), cases);

/// A limited element.
fn oracle(y: f64, cap: f32) -> f64 {
    f64::from(cap) * (y / f64::from(cap)).tanh()
}

/// Values around the cap, and values where some drivers compute NaN for tanh.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    request.pick(&[100.0, 4000.0], 1).iter().map(|loudest| case(*loudest, request.function_error())).collect()
}

fn case(loudest: f32, tolerance: f64) -> KernelCase {
    let (mut y, cap) = (loud_noise(ROWS * PITCH, 31, loudest), 30.0);
    y[1..3].copy_from_slice(&[OUTLIER, -OUTLIER]);
    let capped = map_elements(&y, |_, _, y| oracle(y, cap));
    let [cols, pitch, rows, stride] = FLAT_SIZES;
    KernelCase::flat("soft_cap", SoftCap { cols, pitch, rows, stride, cap })
        .named(format!("values up to {loudest}"))
        .input(&y)
        .becomes(&capped, tolerance)
}
