//! The scan of Mamba-2, token by token. Each head has a state `S` `[state rows, width]`. With the
//! head's input `x`, the vectors `B` and `C` of its group and the step
//! `dt = clamp(softplus(step + dt_bias), least, most)`, the state becomes
//! `S = e^(a * dt) * S + B (dt * x)^T`, and the outputs are `S^T C + d * x`. The device writes the
//! state back.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CLOSE, CaseRequest, KernelCase, loud_noise, noise, sizes, softplus, wide},
    limits::SCAN_ROWS,
    params::params,
};

params! {
    /// `mamba2_scan`, grid (columns of the state in groups of `COLUMNS`; `heads`)
    Mamba2Scan {
        /// Tokens of the chunk.
        tokens: u32,
        /// Heads.
        heads: u32,
        /// Groups of consecutive heads, a divisor of `heads`.
        groups: u32,
        /// Elements of a head's input.
        width: u32,
        /// Elements from one token's inputs, `B` and `C` to the next's.
        vectors_pitch: u32,
        /// Elements from one token's steps to the next's.
        rates_pitch: u32,
        /// Offset of the steps in a row.
        steps_at: u32,
        /// Elements from one token's outputs to the next's.
        out_pitch: u32,
        /// Least step.
        least: f32,
        /// Largest step, finite.
        most: f32,
        /// First row of this sequence's tokens in the buffers that sequences share.
        row: u32,
    }
}

/// The kernel `mamba2_scan`.
pub(crate) const KERNEL: Kernel = Kernel::new::<Mamba2Scan>(
    "mamba2_scan",
    &[Read, Read, Read, Write, Write],
    include_str!("mamba2_scan.wgsl"),
    cases,
);

/// Advances a head's state past a token, and returns the outputs.
fn oracle(state: &mut [f64], [x, b, c]: [&[f64]; 3], [a, d, dt]: [f64; 3]) -> Vec<f64> {
    let mut out: Vec<f64> = x.iter().map(|x| d * x).collect();
    for (j, row) in state.chunks_exact_mut(x.len()).enumerate() {
        for (i, s) in row.iter_mut().enumerate() {
            *s = (a * dt).exp() * *s + b[j] * dt * x[i];
            out[i] += *s * c[j];
        }
    }
    out
}

/// Workgroups with 8 or 3 columns of the state. Some steps are nearly zero, and others forget the
/// whole state.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let shapes = [[6, 20, 2, 24, 8], [4, 16, 1, 16, 1], [3, 7, 3, 5, 9], [2, 40, 1, 128, 24], [6, 80, 2, 24, 8]];
    let shapes = [&shapes[..], &[[1, 16, 1, 256, 17], [4, 16, 2, 16, 5]]].concat();
    let shapes = request.pick(&shapes, 1).iter();
    shapes.flat_map(|shape| request.pick(&[8, 3], 1).iter().map(|columns| case(*shape, *columns))).collect()
}

fn case([heads, width, groups, state_rows, tokens]: [usize; 5], columns: u32) -> KernelCase {
    let [least, most] = if heads % 2 == 1 { [0.01, 0.1] } else { [0.0, f32::MAX] };
    // Another sequence's row precedes the tokens.
    let (row, steps_at, inner) = (1, 3, heads * width);
    let (vectors_pitch, rates_pitch, out_pitch) = (inner + 2 * groups * state_rows + 5, heads + 4, inner + 2);
    let vectors = noise((row + tokens) * vectors_pitch, 1);
    let rates: Vec<f32> = loud_noise((row + tokens) * rates_pitch, 2, 12.0).iter().map(|step| step - 4.0).collect();
    let a: Vec<f32> = noise(heads, 3).iter().map(|a| -4.0 * a.abs()).collect();
    let of_heads = [a, noise(heads, 4), noise(heads, 5)].concat();
    let (before, out) = (noise(inner * state_rows, 6), vec![7.0_f32; (row + tokens) * out_pitch]);
    let (mut state, mut outputs, elements) = (wide(&before), wide(&out), wide(&vectors));
    for (t, h) in (row..row + tokens).flat_map(|t| (0..heads).map(move |h| (t, h))) {
        let [a, dt_bias, d] = [0, 1, 2].map(|part| f64::from(of_heads[part * heads + h]));
        let step = softplus(f64::from(rates[t * rates_pitch + steps_at + h]) + dt_bias);
        let b = inner + h / (heads / groups) * state_rows;
        let of_token = [(h * width, width), (b, state_rows), (b + groups * state_rows, state_rows)];
        let of_token = of_token.map(|(at, len)| &elements[t * vectors_pitch + at..][..len]);
        let state = &mut state[h * state_rows * width..][..state_rows * width];
        let sums = oracle(state, of_token, [a, d, step.clamp(least.into(), most.into())]);
        outputs[t * out_pitch + h * width..][..width].copy_from_slice(&sums);
    }
    let name = format!("{heads} heads of {state_rows} x {width}, {tokens} tokens, {columns} columns");
    let [tokens, heads, groups, width, vectors_pitch, rates_pitch, steps_at, out_pitch, row, rows] =
        sizes([tokens, heads, groups, width, vectors_pitch, rates_pitch, steps_at, out_pitch, row, state_rows]);
    let limits = Mamba2Scan { least, most, ..Default::default() };
    let params =
        Mamba2Scan { tokens, heads, groups, width, vectors_pitch, rates_pitch, steps_at, out_pitch, row, ..limits };
    let groups = [width.div_ceil(columns), heads, 1];
    KernelCase::new("mamba2_scan", rows.div_ceil(SCAN_ROWS) * columns, params, groups)
        .named(name)
        .set("STATE_ROWS", rows)
        .set("COLUMNS", columns)
        .input(&vectors)
        .input(&rates)
        .input(&of_heads)
        .input(&before)
        .becomes(&state, CLOSE)
        .input(&out)
        .becomes(&outputs, CLOSE)
}
