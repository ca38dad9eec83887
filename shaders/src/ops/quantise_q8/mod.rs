//! Activations in 8 bits: per chunk of 32 columns, `scale = max |x| / 127` and the codes
//! `round(x / scale)`. A chunk has nine words: eight words of four codes each, and the scale.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CaseRequest, KernelCase, noise, sizes},
    params::params,
};

params! {
    /// `quantise_q8`
    Quantise {
        /// 32-column chunks of a row.
        chunks: u32,
        /// Rows.
        tokens: u32,
        /// Elements from one row to the next; a multiple of 32, zero past the columns.
        x_pitch: u32,
        /// Invocations in one row of the grid.
        stride: u32,
    }
}

/// The kernel `quantise_q8`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<Quantise>("quantise_q8", &[Read, Write], include_str!("quantise_q8.wgsl"), cases).packed();

/// Words of the chunks of `x`, whose length is a multiple of 32.
pub(crate) fn oracle(x: &[f32]) -> Vec<u32> {
    let words = x.chunks_exact(32).flat_map(|chunk| {
        let most = chunk.iter().fold(0.0_f64, |most, x| most.max(f64::from(*x).abs()));
        let inverse = if most > 1e-35 { 127.0 / most } else { 0.0 };
        let code = |x: &f32| (f64::from(*x) * inverse).round_ties_even() as i8;
        let codes = chunk.chunks_exact(4).map(|four| u32::from_le_bytes([0, 1, 2, 3].map(|i| code(&four[i]) as u8)));
        codes.chain([((most / 127.0) as f32).to_bits()]).collect::<Vec<_>>()
    });
    words.collect()
}

/// Dispatches whose last chunks are in another row of the grid, and padded rows.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let shapes = [(45, 0), (9, 32), (1, 0), (72, 64)];
    request.pick(&shapes, 1).iter().map(|(chunks, padding)| case(*chunks, *padding)).collect()
}

/// Activations whose codes do not depend on how a driver divides: the fractions of the scaled
/// activations are at most 0.4, and an outlier has the code 127. Drivers may flush the scale of the
/// last chunk to zero.
fn case(chunks: usize, padding: usize) -> KernelCase {
    let tokens = 2;
    let fractions = noise(tokens * chunks * 32, 1);
    let activation = |i: usize| {
        let (chunk, col) = (i / 32, i % 32);
        // A chunk of zeros, and one whose activations are too small for a finite inverse.
        let scale = [1.0, 1024.0, 0.3, 0.0, 4e-38, 7.7][chunk % 6];
        let code = if col == chunk % 32 { 127.0 } else { (i * 37 % 253) as f32 - 126.0 + 0.4 * fractions[i] };
        if chunk + 1 == tokens * chunks { 1e-38 } else { scale * code }
    };
    let x: Vec<f32> = (0..tokens * chunks * 32).map(activation).collect();
    let rows: Vec<_> = x.chunks_exact(chunks * 32).map(|row| [row, &vec![0.0; padding]].concat()).collect();
    let quantised = oracle(&x);
    let [chunks, tokens, x_pitch] = sizes([chunks, tokens, chunks * 32 + padding]);
    let params = Quantise { chunks, tokens, x_pitch, stride: 64 };
    KernelCase::new("quantise_q8", 64, params, [1, (tokens * chunks).div_ceil(64), 1])
        .named(format!("{chunks} chunks, {padding} columns of padding"))
        .input(&rows.concat())
        .input(&vec![0_u32; quantised.len()])
        .becomes_near_words(&quantised[..quantised.len() - 1])
}
