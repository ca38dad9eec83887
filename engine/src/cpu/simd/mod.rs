//! Kernels, one table per instruction set, chosen once.
//!
//! Weights are read in their file type. For quantised types activations may be rounded to 8 bits in blocks of 32 (32
//! rather than 256 wide scales: an outlier only spoils its own block): products are then exact integer arithmetic within
//! a group of weights that share a scale. Otherwise, and for float types, activations are f32. There are two shapes of kernel:
//!
//! - *dot*: rows of weights against one activation vector, for decoding. Bound by memory.
//! - *tile*: a packed panel of rows against a tile of tokens, for prompts. Bound by arithmetic.
//!
//! [`vector`] is what the operations between products are written in.
//!
//! [`scalar`](Scalar) is plain Rust: the oracle, and the path of machines without AVX2. Others override it.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod decoded;
mod portable;
mod scalar;
#[cfg(test)]
pub(crate) mod tests;
mod unpack;
pub(crate) mod vector;

pub(crate) use portable::{CodePanel, CodeTile, QuantisedRow, QuantisedRowMut, TILE_TOKENS};
pub(crate) use unpack::Grouping;

use std::fmt;

use super::Isa;
use crate::format::TensorType;

/// The kernels of one instruction set.
///
/// Slices are checked; a wrong length panics.
pub(crate) trait Kernels: Send + Sync + fmt::Debug {
    /// Rows of a panel, codes and floats alike.
    fn panel_rows(&self) -> usize;

    /// Tokens of a float tile.
    fn float_tokens(&self) -> usize;

    /// Rounds one activation vector to 8 bits.
    fn quantise(&self, x: &[f32], row: QuantisedRowMut<'_>);

    /// `out[r] = W[r] . x` for `out.len()` rows of a quantised type. While a line of `weights` is read, the one `ahead` bytes
    /// behind it is asked for.
    fn dot_codes(&self, ty: TensorType, weights: &[u8], x: QuantisedRow<'_>, ahead: isize, out: &mut [f32]);

    /// The same for rows that lie apart.
    fn dot_apart(&self, ty: TensorType, rows: &[Apart<'_>; DOT_ROWS], x: QuantisedRow<'_>, out: &mut [f32; DOT_ROWS]) {
        one_by_one(self, ty, rows, x, out);
    }

    /// `out[r] = W[r] . x` for `out.len()` rows of any type; `ahead` as in [`Kernels::dot_codes`].
    fn dot_floats(&self, ty: TensorType, weights: &[u8], x: &[f32], ahead: isize, out: &mut [f32]);

    /// Decodes whole blocks of a quantised type into codes, scales and minima (see [`unpack`]).
    fn unpack(&self, ty: TensorType, src: &[u8], codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]);

    /// Interleaves `panel_rows` rows of `codes` (`[panel_rows, n]`) into `out` (`[n / 4, panel_rows, 4]`).
    fn interleave(&self, codes: &[i8], out: &mut [i8]);

    /// Interleaves `panel_rows` rows of floats (`[panel_rows, n]`) into `out` (`[n, panel_rows]`).
    fn interleave_floats(&self, rows: &[f32], out: &mut [f32]);

    /// `bias[group, row] = -128 * sum(codes)` over groups of `len` elements of interleaved codes.
    fn bias(&self, codes: &[i8], len: usize, bias: &mut [i32]);

    /// Whole blocks of any type to f32.
    fn widen(&self, ty: TensorType, src: &[u8], dst: &mut [f32]);

    /// `acc[t, r] += W[r] . x[t]` for a panel of codes; `acc` is `[TILE_TOKENS, panel_rows]`.
    fn tile_codes(&self, panel: CodePanel<'_>, x: CodeTile<'_>, acc: &mut [f32]);

    /// `acc[t, r] += sum_k panel[k, r] x[k, t]`; `acc` is `[float_tokens, panel_rows]`.
    fn tile_floats(&self, panel: &[f32], x: &[f32], acc: &mut [f32]);

    /// `acc += a * w` for rows of any weight type, one after the other; where they come in groups of [`AXPY_ROWS`], a type may
    /// read and write `acc` once for a group.
    fn axpy(&self, ty: TensorType, rows: &[Multiple<'_>], acc: &mut [f32]);

    /// `acc += W x` for some inputs of a block; `next` is asked for meanwhile. `acc` is a multiple of [`OUTPUTS`] long.
    fn add_inputs(&self, inputs: &Inputs<'_>, _next: Option<&Inputs<'_>>, acc: &mut [f32]) {
        portable::add_inputs(inputs, acc);
    }
}

/// Inputs of a block: those whose weights share scales.
pub(crate) const INPUTS: usize = 32;

/// Outputs whose codes, of one input, are a cache line.
pub(crate) const OUTPUTS: usize = 128;

/// A block of a matrix that is stored input by input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inputs<'a> {
    /// f16, one for each output.
    pub scales: &'a [u8],
    /// `[INPUTS, outputs / 2]`, 8 too large; where in its line an output has its code says [`place_of`].
    pub codes: &'a [u8],
    /// Which inputs are not zero.
    pub active: &'a [u32],
    /// All of the block, rounded.
    pub x: &'a [i8; INPUTS],
    /// What one of `x` is.
    pub scale: f32,
    /// `scale * sum(x)`
    pub sum: f32,
}

impl Inputs<'_> {
    /// Asks for what it needs while chunk `at` of one before it is read: a share of its rows, from end to end, since memory is
    /// quickest in order.
    #[inline(always)]
    fn ask(&self, at: usize, chunks: usize) {
        let row = self.codes.len() / INPUTS;
        if let Some(scales) = self.scales.get(2 * at * OUTPUTS..).and_then(<[u8]>::first_chunk::<{ 2 * OUTPUTS }>) {
            scales.as_chunks::<64>().0.iter().for_each(|line| prefetch(line.as_ptr()));
        }
        let share = |at: usize| at * self.active.len() / chunks;
        for input in &self.active[share(at)..share(at + 1)] {
            let (lines, _) = self.codes[*input as usize * row..][..row].as_chunks::<64>();
            lines.iter().for_each(|line| prefetch(line.as_ptr()));
        }
    }
}

/// Byte of a line, and bit in the byte, where the code of one of [`OUTPUTS`] outputs begins: such that four lines interleaved
/// byte by byte, within 16 bytes at a time, are the outputs in order.
pub(crate) const fn place_of(output: usize) -> (usize, usize) {
    let (half, output) = (output / 64, output % 64);
    (output % 16 / 4 * 16 + output / 16 * 4 + output % 4, 4 * half)
}

/// Rows that are best added up together.
pub(crate) const AXPY_ROWS: usize = 4;

/// One row and its factor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Multiple<'a> {
    /// A row of weights.
    pub row: &'a [u8],
    /// What it is multiplied by.
    pub a: f32,
    /// As in [`Kernels::dot_codes`].
    pub ahead: isize,
}

/// Rows that lie apart and are multiplied at once.
pub(crate) const DOT_ROWS: usize = 4;

/// A row among others that lie apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Apart<'a> {
    /// The row.
    pub row: &'a [u8],
    /// As in [`Kernels::dot_codes`].
    pub ahead: isize,
}

/// Whether rows of a type that lie apart are multiplied at once, where there is a kernel for that; their lengths are checked.
fn are_read_together(ty: TensorType, rows: &[Apart<'_>; DOT_ROWS], x: QuantisedRow<'_>) -> bool {
    if ty != TensorType::Q4_0 {
        return false;
    }
    for of in rows {
        assert_eq!(Some(of.row.len()), ty.row_bytes(x.codes.len()), "{ty} row of {}", x.codes.len());
    }
    true
}

/// [`Kernels::dot_apart`], a row after the other.
fn one_by_one<K: Kernels + ?Sized>(
    kernels: &K,
    ty: TensorType,
    rows: &[Apart<'_>; DOT_ROWS],
    x: QuantisedRow<'_>,
    out: &mut [f32; DOT_ROWS],
) {
    for (of, out) in rows.iter().zip(out) {
        kernels.dot_codes(ty, of.row, x, of.ahead, std::slice::from_mut(out));
    }
}

/// `N` elements from `at` on.
#[inline(always)]
fn part<T, const N: usize>(of: &[T], at: usize) -> &[T; N] {
    match of[at..].first_chunk() {
        Some(part) => part,
        None => unreachable!("{N} elements at {at} of {}", of.len()),
    }
}

/// [`part`], mutable.
#[inline(always)]
fn part_mut<T, const N: usize>(of: &mut [T], at: usize) -> &mut [T; N] {
    match of[at..].first_chunk_mut() {
        Some(part) => part,
        None => unreachable!("{N} elements from {at} on"),
    }
}

/// Asks the memory for the line of an address, which need not exist; a hint, and nothing where no way to do so is known.
#[inline]
pub fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every such processor has SSE, and a prefetch of any address is harmless.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// The table of `isa`, which the caller took from [`Isa::choose`]: the machine has it.
pub(crate) fn kernels(isa: Isa) -> &'static dyn Kernels {
    match isa {
        Isa::Scalar => &scalar::Scalar,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::AvxVnni => avx2::table(isa).unwrap_or(&scalar::Scalar),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => avx512::table().unwrap_or(&scalar::Scalar),
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 => &scalar::Scalar,
    }
}
