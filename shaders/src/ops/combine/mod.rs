//! The sum of the outputs of a token's experts: `out[t] = sum over s of weights[t, s] * y[t, s]`
//! with `y: [tokens, used, cols]`, over the experts on this device. A shared expert adds
//! `sigmoid(gate[t]) * shared[t]`, or `shared[t]` if it has no gate. The sum may also add the
//! earlier `out[t]`, which holds the outputs of experts on other devices.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CLOSE, CaseRequest, KernelCase, has, noise, sigmoid, sizes},
    limits::NO_NEURON,
    params::params,
};

params! {
    /// `combine`
    Combine {
        /// Columns of a row, without padding.
        cols: u32,
        /// Elements from one row to the next, in the outputs of the experts and of the shared
        /// expert, and in the sum.
        pitch: u32,
        /// Rows of the sum.
        tokens: u32,
        /// Experts a token uses.
        used: u32,
        /// Elements from one token's gate to the next's.
        gate_pitch: u32,
        /// Number of experts on the device. Outputs of experts with a place at or above it are
        /// ignored.
        resident: u32,
        /// 1 if the existing output value is part of the sum, else 0.
        add: u32,
        /// Invocations in one row of the grid.
        stride: u32,
    }
}

/// The kernel `combine`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<Combine>("combine", &[Read, Read, Read, Read, Read, Write], include_str!("combine.wgsl"), cases);

/// One element of the sum: `before + weights . y + sigmoid(gate) * shared`. Each product is a
/// router weight and an expert's output.
fn oracle(before: f64, products: impl Iterator<Item = [f32; 2]>, shared: Option<f32>, gate: Option<f32>) -> f64 {
    let experts: f64 = products.map(|[weight, y]| f64::from(weight) * f64::from(y)).sum();
    let open = gate.map_or(1.0, |gate| sigmoid(gate.into()));
    before + experts + open * shared.map_or(0.0, f64::from)
}

/// Padded and unpadded rows, with one or more experts per token.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let forms = request.pick(&["SHARED GATED ADD", "SHARED", "GATED"], 1);
    let shapes = request.pick(&[[45, 64, 4], [1, 32, 1], [45, 64, 2], [128, 128, 8]], 1).iter();
    shapes.flat_map(|shape| forms.iter().map(|options| case(*shape, options))).collect()
}

/// A case in which `options` are what the sum adds to the experts' outputs.
fn case([cols, pitch, used]: [usize; 3], options: &str) -> KernelCase {
    let (with_shared, gated, add) = (has(options, "SHARED"), has(options, "GATED"), has(options, "ADD"));
    let (tokens, gate_pitch, resident) = (3, 32, 5);
    let pairs = tokens * used;
    let (mut y, router_weights) = (noise(pairs * pitch, 1), noise(pairs, 2));
    let (shared, gate) = (noise(tokens * pitch, 3), noise(tokens * gate_pitch, 4));
    let places: Vec<u32> = (0..pairs).map(|pair| [4, 0, 5, NO_NEURON][pair % 4]).collect();
    // The outputs of experts that are elsewhere are not written, and must not be added.
    let rows = y.chunks_exact_mut(pitch).zip(&places);
    rows.filter(|(_, place)| **place >= resident).for_each(|(row, _)| row.fill(f32::NAN));
    // Elements past the columns stay unchanged.
    let mut sums = vec![9.0; tokens * pitch];
    for (token, col) in (0..tokens).flat_map(|token| (0..cols).map(move |col| (token, col))) {
        let here = (token * used..(token + 1) * used).filter(|pair| places[*pair] < resident);
        let products = here.map(|pair| [router_weights[pair], y[pair * pitch + col]]);
        let at = token * pitch + col;
        let (shared, gate) = (with_shared.then_some(shared[at]), gated.then_some(gate[token * gate_pitch]));
        sums[at] = oracle(if add { sums[at] } else { 0.0 }, products, shared, gate);
    }
    let [cols32, pitch32, used32, tokens32, gate_pitch] = sizes([cols, pitch, used, tokens, gate_pitch]);
    let (add, stride) = (u32::from(add), 96);
    let params =
        Combine { cols: cols32, pitch: pitch32, tokens: tokens32, used: used32, gate_pitch, resident, add, stride };
    KernelCase::new("combine", 32, params, [3, (tokens32 * cols32).div_ceil(stride), 1])
        .named(format!("{used} outputs of {cols} columns, {options}"))
        .switches(&["SHARED", "GATED"], options)
        .input(&y)
        .input(&router_weights)
        .input(&places)
        .input(&shared)
        .input(&gate)
        .input(&vec![9.0_f32; tokens * pitch])
        .becomes(&sums, CLOSE)
}
