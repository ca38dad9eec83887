//! Hidden activations of an FFN: `hidden[t, i] = f(gate[t, i]) * up[t, i]` for gate and up
//! `[rows, cols]`, or `f(gate[t, i])` without up. Results are 0 where `|f(gate)|`, or its product
//! with the neuron's scale, is at most a threshold. Gates and ups of a row are side by side, or
//! they alternate.

use std::f64::consts::PI;

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{COLS, CaseRequest, FLAT_SIZES, KernelCase, OUTLIER, PITCH, ROWS, has, loud_noise, map_elements, noise},
    params::params,
};

params! {
    /// `activation`
    Activation {
        /// Neurons.
        cols: u32,
        /// Elements from one row of the output to the next.
        pitch: u32,
        /// Rows.
        rows: u32,
        /// Invocations in one row of the grid.
        stride: u32,
        /// Neurons give 0 if the magnitude of their gate's activation, with `SCALED` times the
        /// neuron's scale, is at most this value. Negative: no threshold.
        threshold: f32,
    }
}

/// The kernel `activation`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<Activation>("activation", &[Read, Read, Write], include_str!("activation.wgsl"), cases);

/// `f(gate) * up`, or `f(gate)` without `up`. `kind` is the kernel's `KIND`, which selects `f`.
pub(crate) fn activate(kind: u32, gate: f64, up: Option<f64>) -> f64 {
    limited_activate(kind, 0.0, gate, up)
}

/// [`activate`] with a `limit`, unless it is 0. `f(gate)` is at most `limit`, and `up` is between
/// `-limit` and `limit`.
pub(crate) fn limited_activate(kind: u32, limit: f64, gate: f64, up: Option<f64>) -> f64 {
    let limit = if limit > 0.0 { limit } else { f64::INFINITY };
    let f = match kind {
        1 => gate.max(0.0).powi(2),
        2 => gate / (1.0 + (-gate).exp()),
        3 => 0.5 * gate * (1.0 + ((2.0 / PI).sqrt() * (gate + 0.044715 * gate.powi(3))).tanh()),
        4 => 0.5 * gate * (1.0 + libm::erf(gate / 2.0_f64.sqrt())),
        6 => gate.min(7.0) / (1.0 + (-1.702 * gate.min(7.0)).exp()),
        _ => gate.max(0.0),
    };
    let up = up.map(|up| up.clamp(-limit, limit));
    let factor = up.map_or(1.0, |up| match kind {
        5 => up.max(0.0),
        6 => up.clamp(-7.0, 7.0) + 1.0,
        _ => up,
    });
    f.min(limit) * factor
}

/// Forms of the input, and thresholds of gates.
const FORMS: [(&str, f32); 9] = [
    ("GATED INTERLEAVED SCALED", 0.25),
    ("", -1.0),
    ("GATED", -1.0),
    ("GATED INTERLEAVED", -1.0),
    ("GATED INTERLEAVED", 0.5),
    ("GATED", 0.0),
    ("GATED SCALED", 0.5),
    ("GATED", 0.25),
    ("", 2.0),
];

/// Every function, also with a limit, in every form of the input. Gates and ups reach values where
/// tanh and exp saturate.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let limits = [0.0; 7].into_iter().chain([3.5, 0.25, 5.0]);
    let functions: Vec<(u32, f64)> = [0, 1, 2, 3, 4, 5, 6, 2, 3, 6].into_iter().zip(limits).collect();
    let functions = request.pick(&functions, 7).iter();
    let tolerance = request.function_error();
    let of_form = |(options, threshold): &(&str, f32)| {
        let cases = functions.clone().map(|(kind, limit)| case(*kind, *limit, options, *threshold, tolerance));
        cases.collect::<Vec<_>>()
    };
    request.pick(&FORMS, 1).iter().flat_map(of_form).collect()
}

fn case(kind: u32, limit: f64, options: &str, threshold: f32, tolerance: f64) -> KernelCase {
    let (gated, interleaved) = (has(options, "GATED"), has(options, "INTERLEAVED"));
    let mut input = loud_noise(ROWS * 2 * PITCH, 5, 60.0);
    input[3] = OUTLIER;
    let scales: Vec<f32> = noise(COLS, 6).iter().map(|scale| 1.0 + scale).collect();
    let scale = |col: usize| if has(options, "SCALED") { f64::from(scales[col]) } else { 1.0 };
    let (row_len, step) = if gated { (2 * PITCH, if interleaved { 1 } else { COLS }) } else { (PITCH, 0) };
    let before = vec![7.0; ROWS * PITCH];
    let hidden = map_elements(&before, |row, col, _| {
        let at = row * row_len + if interleaved { 2 * col } else { col };
        let (gate, up) = (f64::from(input[at]), f64::from(input[at + step]));
        let is_silent = limited_activate(kind, limit, gate, None).abs() * scale(col) <= f64::from(threshold);
        if is_silent { 0.0 } else { limited_activate(kind, limit, gate, gated.then_some(up)) }
    });
    let [cols, pitch, rows, stride] = FLAT_SIZES;
    KernelCase::flat("activation", Activation { cols, pitch, rows, stride, threshold })
        .named(format!("kind {kind}, limit {limit}, threshold {threshold}, {options}"))
        .set("KIND", kind)
        .set("LIMIT", limit)
        .switches(&["GATED", "INTERLEAVED", "SCALED"], options)
        .input(&input)
        .input(&scales)
        .input(&before)
        .becomes(&hidden, tolerance)
}
