//! Gated heads of attention `[rows, cols]`: `heads[t, i] *= g(gate)`, where `g` is the sigmoid or
//! `softplus(x) = ln(1 + e^x)`. The gates of a head follow its query, or they are in rows of their
//! own with one gate per `gate_width` elements of heads.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{
        COLS, CaseRequest, FLAT_SIZES, KernelCase, PITCH, ROWS, has, loud_noise, map_elements, noise, sigmoid, sizes,
        softplus,
    },
    params::params,
};

params! {
    /// `gate_heads`
    GateHeads {
        /// Elements of all heads together.
        cols: u32,
        /// Elements from one token's heads to the next's.
        pitch: u32,
        /// Tokens.
        rows: u32,
        /// Invocations in one row of the grid.
        stride: u32,
        /// Elements of heads per gate, or elements per head if each gate follows the query of its
        /// head.
        gate_width: u32,
        /// Elements from one token's queries and gates to the next's.
        gate_pitch: u32,
        /// Index of a token's first gate, if the gates are separate.
        gate_first: u32,
    }
}

/// The kernel `gate_heads`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<GateHeads>("gate_heads", &[Write, Read], include_str!("gate_heads.wgsl"), cases);

/// The factor of a gate.
fn oracle(gate: f64, is_softplus: bool) -> f64 {
    if is_softplus { softplus(gate) } else { sigmoid(gate) }
}

/// Gates behind their queries, and own gates per head or per element: options, and elements of
/// heads per gate. Gates reach values where exp saturates.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let dim = COLS / 3;
    let forms =
        [("", dim), ("OWN_GATES SOFTPLUS", dim), ("OWN_GATES SOFTPLUS", 1), ("OWN_GATES", dim), ("OWN_GATES", 1)];
    let forms = request.pick(&forms, 2).iter();
    forms.map(|(options, width)| case(options, *width, request.function_error())).collect()
}

fn case(options: &str, width: usize, tolerance: f64) -> KernelCase {
    let own = has(options, "OWN_GATES");
    let (first, gate_pitch) = (if own { 7 } else { 0 }, 2 * COLS + 20);
    let (heads, gates) = (noise(ROWS * PITCH, 1), loud_noise(ROWS * gate_pitch, 2, 60.0));
    let gated = map_elements(&heads, |row, col, value| {
        let (head, element) = (col / width, col % width);
        let at = if own { first + head } else { (2 * head + 1) * width + element };
        value * oracle(f64::from(gates[row * gate_pitch + at]), has(options, "SOFTPLUS"))
    });
    let [cols, pitch, rows, stride] = FLAT_SIZES;
    let [gate_width, gate_pitch, gate_first] = sizes([width, gate_pitch, first]);
    KernelCase::flat("gate_heads", GateHeads { cols, pitch, rows, stride, gate_width, gate_pitch, gate_first })
        .named(format!("{width} elements per gate, {options}"))
        .switches(&["OWN_GATES", "SOFTPLUS"], options)
        .input(&heads)
        .becomes(&gated, tolerance)
        .input(&gates)
}
