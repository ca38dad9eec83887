//! Limited values of some columns of rows: `y[t, first + i] = min(max(x[t, first + i], least),
//! most)`. Other elements of `y` stay unchanged.

use crate::{
    Access::Write,
    Kernel,
    case::{CaseRequest, FLAT_SIZES, KernelCase, PITCH, ROUNDED, ROWS, UNTOUCHED, loud_noise, map_elements},
    params::params,
};

params! {
    /// `limit_values`
    LimitValues {
        /// Columns that are limited.
        cols: u32,
        /// Elements from one row to the next.
        pitch: u32,
        /// Rows.
        rows: u32,
        /// Invocations in one row of the grid.
        stride: u32,
        /// First of the columns.
        first: u32,
        /// Least result.
        least: f32,
        /// Largest result.
        most: f32,
    }
}

/// The kernel `limit_values`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<LimitValues>("limit_values", &[Write, Write], include_str!("limit_values.wgsl"), cases);

/// A limited value.
fn oracle(x: f64, least: f32, most: f32) -> f64 {
    x.max(f64::from(least)).min(f64::from(most))
}

/// Columns in the middle of a row and from its beginning, with limits on one side or on both.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let all = [(17, -2.0, 3.5), (0, 1.0, f32::MAX), (31, f32::MIN, -0.5)];
    request.pick(&all, 1).iter().map(|(first, least, most)| case(*first, *least, *most)).collect()
}

fn case(first: usize, least: f32, most: f32) -> KernelCase {
    let x = loud_noise(ROWS * PITCH, 33, 9.0);
    let shifted: Vec<f32> = (0..ROWS * PITCH).map(|at| x.get(at + first).copied().unwrap_or(0.0)).collect();
    let mut limited = vec![f64::from(UNTOUCHED); ROWS * PITCH];
    let [cols, pitch, rows, stride] = FLAT_SIZES;
    let of_columns = map_elements(&shifted, |_, _, x| oracle(x, least, most));
    for (row, col) in (0..ROWS).flat_map(|row| (0..cols as usize).map(move |col| (row, col))) {
        limited[row * PITCH + col + first] = of_columns[row * PITCH + col];
    }
    KernelCase::flat("limit_values", LimitValues { cols, pitch, rows, stride, first: first as u32, least, most })
        .named(format!("columns from {first} on, {least} to {most}"))
        .input(&x)
        .input(&vec![UNTOUCHED; ROWS * PITCH])
        .becomes(&limited, ROUNDED)
}
