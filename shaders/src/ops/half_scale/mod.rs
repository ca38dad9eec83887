//! Scales of rows for products of 16-bit floats: `scales[t] = (2^(14 - e), 2^(e - 14))`, where
//! `2^e <= max |x[t, i]| < 2^(e + 1)` over the columns of row `t`. Rows of zeros and of tiny
//! numbers have `e = -100`.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CaseRequest, KernelCase, noise, sizes},
    params::params,
};

params! {
    /// `half_scale`
    HalfScale {
        /// 32-column chunks of a row.
        chunks: u32,
        /// Elements from one row to the next; a multiple of 32.
        x_pitch: u32,
    }
}

/// The kernel `half_scale`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<HalfScale>("half_scale", &[Read, Write], include_str!("half_scale.wgsl"), cases).for_cooperative();

/// The scale of a row and its inverse.
pub(crate) fn oracle(row: &[f32]) -> [f64; 2] {
    let largest = row.iter().fold(0.0, |largest: f64, x| largest.max(f64::from(*x).abs()));
    let exponent = largest.log2().floor().max(-100.0) - 14.0;
    [(-exponent).exp2(), exponent.exp2()]
}

/// Rows with an outlier, of zeros, of tiny numbers and of the largest ones. Elements after the
/// columns are larger.
fn cases(_request: &CaseRequest) -> Vec<KernelCase> {
    let (chunks, pitch, largest) = (5, 192, [1e5, 0.0, 3e-4, 1.0, 65504.0, 1e-30, 3e38_f32]);
    let mut x = noise(largest.len() * pitch, 9);
    let mut scales = Vec::new();
    for (row, largest) in x.chunks_exact_mut(pitch).zip(largest) {
        let (columns, padding) = row.split_at_mut(chunks * 32);
        columns.iter_mut().for_each(|value| *value *= largest / 2.0);
        columns[77] = -largest;
        padding.fill(f32::MAX);
        scales.extend(oracle(columns).map(|scale| (scale as f32).to_bits()));
    }
    let [chunks, x_pitch, rows] = sizes([chunks, pitch, largest.len()]);
    let case = KernelCase::new("half_scale", 32, HalfScale { chunks, x_pitch }, [rows, 1, 1]).input(&x);
    vec![case.input(&vec![0_u32; scales.len()]).becomes_words(&scales)]
}
