//! Gated inputs `[rows, cols]`: `hidden[t, i] = f(gate[t, i]) * input[t, i]`, with the functions
//! `f` of the kernel `activation`. The inputs of all rows follow each other without gaps.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{COLS, CaseRequest, FLAT_SIZES, KernelCase, PITCH, ROWS, map_elements, noise},
    ops::activation::activate,
    params::params,
};

params! {
    /// `gated_input`
    GatedInput {
        /// Columns of a row, without padding.
        cols: u32,
        /// Elements from one row of the gates, or of the result, to the next.
        pitch: u32,
        /// Rows.
        rows: u32,
        /// Invocations in one row of the grid.
        stride: u32,
        /// Index of the first input element.
        first: u32,
    }
}

/// The kernel `gated_input`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<GatedInput>("gated_input", &[Read, Read, Write], include_str!("gated_input.wgsl"), cases);

/// The oracle is that of `activation`. Values before the first input are never read.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    request.pick(&[3, 0], 1).iter().map(|kind| case(*kind, request.function_error())).collect()
}

fn case(kind: u32, tolerance: f64) -> KernelCase {
    let first = 7;
    let (gates, input) = (noise(ROWS * PITCH, 11), noise(first + ROWS * COLS, 12));
    let before = vec![7.0; ROWS * PITCH];
    let hidden = map_elements(&before, |row, col, _| {
        let up = f64::from(input[first + row * COLS + col]);
        activate(kind, f64::from(gates[row * PITCH + col]), Some(up))
    });
    let [cols, pitch, rows, stride] = FLAT_SIZES;
    KernelCase::flat("gated_input", GatedInput { cols, pitch, rows, stride, first: first as u32 })
        .named(format!("kind {kind}"))
        .set("KIND", kind)
        .input(&gates)
        .input(&input)
        .input(&before)
        .becomes(&hidden, tolerance)
}
