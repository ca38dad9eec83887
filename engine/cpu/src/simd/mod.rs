//! Kernels: one table per instruction set, chosen once.
//!
//! Weights are read in their file type. For quantised types activations may be rounded to 8 bits,
//! in blocks of 32. Narrow blocks limit the damage of an outlier to 32 activations instead of 256.
//! Products are then exact integer arithmetic within a group of weights that share a scale, and
//! groups are summed in [`sum_order`]. Otherwise, and for float types, activations are f32. There
//! are two kinds of kernel:
//!
//! - *dot*: rows of weights times one activation vector, for decoding. Limited by memory.
//! - *panel*: a few rows, decoded once, times a tile of tokens. Limited by arithmetic for many
//!   tokens.
//!
//! The operations between products are written over [`vector`].
//!
//! [`scalar`] is plain Rust: the oracle of the tests, and the path of machines without AVX2 or
//! NEON.
#![allow(unsafe_code)]

/// Calls a function that is compiled with the features of a table's instruction set.
#[cfg(target_arch = "x86_64")]
macro_rules! with_features {
    ($($call:tt)*) => {
        // SAFETY: a table is only reachable through `kernels`, which checked that this machine has
        // the features.
        unsafe { $($call)* }
    };
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod block_inputs;
mod decoded;
mod lane_chunks;
#[cfg(target_arch = "aarch64")]
mod neon;
mod panel;
mod portable;
mod scalar;
mod sum_order;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod vector;

pub(crate) use lane_chunks::{LANE_COLUMNS, LANE_ROWS, LANE_TOKENS, LaneChunk, LaneTile};
pub(crate) use panel::{MOST_TILE_TOKENS, PANEL_ROWS, PanelSums, RowPanel, TokenChunk, TokenTile};
pub(crate) use portable::{CodePanel, CodeTile, QuantisedInput, QuantisedInputMut, TILE_TOKENS};
pub(crate) use sum_order::LINE;

use super::Isa;
use thermocline_formats::quant::{BlockType, FloatType, UnpackedMut, WeightType};

/// The kernels of one instruction set, as a table of functions.
///
/// Kernels check the lengths of slices, and panic on a wrong length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernels {
    /// The instruction set.
    isa: Isa,
    /// Rows of a panel, of codes as well as of floats.
    pub panel_rows: usize,
    /// Tokens of a float tile.
    pub float_tokens: usize,
    /// Rounds one activation vector to 8 bits.
    pub quantise: fn(&[f32], QuantisedInputMut<'_>),
    /// `dot_codes(ty, weights, x, ahead, out)`: `out[r] = W[r] . x` for `out.len()` rows of a
    /// quantised type, in the order of [`sum_order`]. For each line of `weights` that is read, the
    /// line `ahead` bytes later is prefetched.
    pub dot_codes: fn(BlockType, &[u8], QuantisedInput<'_>, isize, &mut [f32]),
    /// The kernels that sum in lanes, if this instruction set has them.
    pub lanes: Option<LaneKernels>,
    /// [`Kernels::dot_gathered`] for rows of Q4_0, if several rows at once are faster.
    gathered_q4_0: Option<GatheredDot>,
    /// [`Kernels::dot_floats`] for a float type.
    dot_float_rows: fn(FloatType, &[u8], &[f32], isize, &mut [f32]),
    /// [`Kernels::dot_floats_tokens`] for a float type, if several tokens at once are faster.
    dot_float_tokens: Option<TokensDot>,
    /// Decodes whole blocks to `w = scale * code + min`, exactly.
    pub unpack: fn(BlockType, &[u8], UnpackedMut<'_>),
    /// The kernels for tiles of codes, if products of several tokens with codes use tiles. `None`
    /// if they use [`RowPanel`]s.
    pub code_tiles: Option<CodeTileKernels>,
    /// `decode_panel(ty, rows, ahead, panel)` decodes a line of [`PANEL_ROWS`] rows, or the part of
    /// a line before the end of the rows. For types that benefit, it also prefetches the bytes
    /// `ahead` bytes later.
    pub decode_panel: fn(BlockType, &[&[u8]; PANEL_ROWS], usize, &mut RowPanel),
    /// Adds a panel's products with a tile to `sums`, in [`sum_order`]. The bits equal those of
    /// [`Kernels::dot_codes`].
    pub panel_products: fn(&RowPanel, TokenTile<'_>, &mut [PanelSums]),
    /// Interleaves `panel_rows` rows of floats (`[panel_rows, n]`) into `out` (`[n, panel_rows]`).
    pub interleave_floats: fn(&[f32], &mut [f32]),
    /// [`Kernels::widen`] for a float type.
    widen_floats: fn(FloatType, &[u8], &mut [f32]),
    /// `tile_floats(panel, x, acc)`: `acc[t, r] += sum_k panel[k, r] x[k, t]`. `acc` is
    /// `[float_tokens, panel_rows]`.
    pub tile_floats: fn(&[f32], &[f32], &mut [f32]),
    /// [`Kernels::axpy`] with rows as long as `acc`.
    axpy_rows: fn(WeightType, &[ScaledRow<'_>], &mut [f32]),
    /// `add_inputs(inputs, next, acc)`: `acc += W x` for some inputs of a block. Prefetches `next`
    /// meanwhile. The length of `acc` is a multiple of [`OUTPUTS`].
    pub add_inputs: fn(&InputBlock<'_>, Option<&InputBlock<'_>>, &mut [f32]),
    /// [`Kernels::add_inputs`] for 8-bit codes, `[INPUTS, outputs]` in order: `w = scale * code`.
    pub add_byte_inputs: fn(&InputBlock<'_>, Option<&InputBlock<'_>>, &mut [f32]),
    /// [`Kernels::add_inputs`] for nibbles of Q4_K: `w = scale * factor * code - min_scale * min`.
    pub add_inputs_with_minima: fn(&InputBlock<'_>, &InputMinima<'_>, Option<&InputBlock<'_>>, &mut [f32]),
}

/// Products of gathered rows with one input.
type GatheredDot = fn(&[GatheredRow<'_>; DOT_ROWS], QuantisedInput<'_>) -> [f32; DOT_ROWS];

/// Products of rows of codes with several tokens.
type CodesDot = fn(BlockType, &[u8], &[QuantisedInput<'_>], isize, &mut [[f32; CODE_TOKENS]]);

/// Products of rows of floats with several tokens.
type TokensDot = fn(FloatType, &[u8], &[&[f32]], isize, &mut [[f32; DOT_TOKENS]]);

impl Kernels {
    /// [`Kernels::dot_codes`] for gathered rows.
    pub fn dot_gathered(
        &self,
        ty: BlockType,
        rows: &[GatheredRow<'_>; DOT_ROWS],
        x: QuantisedInput<'_>,
        out: &mut [f32; DOT_ROWS],
    ) {
        if let (BlockType::Q4_0, Some(dot)) = (ty, self.gathered_q4_0) {
            rows.iter().for_each(|of| check_row(WeightType::Blocks(ty), of.row, x.codes.len()));
            *out = dot(rows, x);
            return;
        }
        for (of, out) in rows.iter().zip(out) {
            (self.dot_codes)(ty, of.row, x, of.ahead, std::slice::from_mut(out));
        }
    }

    /// `out[r] = W[r] . x` for `out.len()` rows of any type. `ahead` is as in
    /// [`Kernels::dot_codes`].
    pub fn dot_floats(&self, ty: WeightType, weights: &[u8], x: &[f32], ahead: isize, out: &mut [f32]) {
        let ty = match ty {
            WeightType::Float(ty) => return (self.dot_float_rows)(ty, weights, x, ahead, out),
            WeightType::Blocks(ty) => ty,
        };
        for (row, out) in portable::rows(WeightType::Blocks(ty), weights, x.len(), out) {
            [*out] = decoded::dot(self, ty, row, [x], ahead);
        }
    }

    /// `out[r][t] = W[r] . x[t]` for `out.len()` rows of any type and at most
    /// [`DOT_TOKENS`] tokens. For each token, the bits equal those of
    /// [`Kernels::dot_floats`].
    pub fn dot_floats_tokens(
        &self,
        ty: WeightType,
        weights: &[u8],
        x: &[&[f32]],
        ahead: isize,
        out: &mut [[f32; DOT_TOKENS]],
    ) {
        let cols = x[0].len();
        assert!(x.iter().all(|x| x.len() == cols), "inputs of {ty} rows have one length");
        match (ty, self.dot_float_tokens) {
            (WeightType::Float(ty), Some(dot)) if x.len() > 1 => dot(ty, weights, x, ahead, out),
            (WeightType::Blocks(blocks), Some(_)) => {
                for (row, out) in portable::rows(ty, weights, cols, out) {
                    decoded::dot_tokens(self, blocks, row, x, ahead, out);
                }
            }
            _ => {
                for (row, out) in portable::rows(ty, weights, cols, out) {
                    x.iter()
                        .zip(out)
                        .for_each(|(x, out)| self.dot_floats(ty, row, x, ahead, std::slice::from_mut(out)));
                }
            }
        }
    }

    /// `acc += a * w` for rows of any weight type, one after the other. In groups of [`AXPY_ROWS`]
    /// rows, a type may read and write `acc` once per group.
    pub fn axpy(&self, ty: WeightType, rows: &[ScaledRow<'_>], acc: &mut [f32]) {
        rows.iter().for_each(|of| check_row(ty, of.row, acc.len()));
        (self.axpy_rows)(ty, rows, acc);
    }

    /// Decodes whole blocks of any type to f32.
    pub fn widen(&self, ty: WeightType, src: &[u8], dst: &mut [f32]) {
        match ty {
            WeightType::Blocks(ty) => decoded::widen(self, ty, src, dst),
            WeightType::Float(ty) => (self.widen_floats)(ty, src, dst),
        }
    }
}

/// Products of codes that are summed in the lanes of a [`LaneChunk`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneKernels {
    /// True if [`Kernels::dot_codes`] sums products with this type in lanes.
    pub has: fn(BlockType) -> bool,
    /// `dot_tokens(ty, weights, x, ahead, out)` is [`Kernels::dot_codes`] for several tokens, at
    /// most [`CODE_TOKENS`]: `out[r][t] = W[r] . x[t]`. Weights are decoded once. For each token,
    /// the bits equal those of [`Kernels::dot_codes`].
    pub dot_tokens: CodesDot,
    /// `dot_tile(ty, weights, x, out)` is [`Kernels::dot_codes`] for more tokens and at most
    /// [`LANE_ROWS`] rows: `out[r][t] = W[r] . x[t]`. The following rows are prefetched. For each
    /// token, the bits equal those of [`Kernels::dot_codes`].
    pub dot_tile: fn(BlockType, &[u8], LaneTile<'_>, &mut [[f32; LANE_TOKENS]]),
}

/// Kernels for tiles of codes: packed panels of [`Kernels::panel_rows`] rows times [`TILE_TOKENS`]
/// tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CodeTileKernels {
    /// `interleave(codes, out)` interleaves [`Kernels::panel_rows`] rows of `codes` (`[panel_rows,
    /// n]`) into `out`: `[n / 4, panel_rows, 4]`.
    pub interleave: fn(&[i8], &mut [i8]),
    /// `bias(codes, len, bias)`: `bias[group, row] = -128 * sum(codes)` over groups of `len`
    /// elements of interleaved codes.
    pub bias: fn(&[i8], usize, &mut [i32]),
    /// `acc[t, r] += W[r] . x[t]` for a panel of codes: a line of the rows ([`sum_order`]) or its
    /// last part. `acc` is `[TILE_TOKENS, panel_rows]`.
    pub tile_codes: fn(CodePanel<'_>, CodeTile<'_>, &mut [f32]),
}

/// Parts of the scales of an [`InputBlock`] of Q4_K, one of each per output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InputMinima<'a> {
    /// Factors of the scales, one byte each.
    pub factors: &'a [u8],
    /// Minima, one byte each.
    pub minima: &'a [u8],
    /// f16 scales of the minima.
    pub scales: &'a [u8],
}

/// Inputs of a block. Their weights share scales.
pub(crate) const INPUTS: usize = 32;

/// Outputs whose codes for one input fill a cache line.
pub(crate) const OUTPUTS: usize = 128;

/// [`INPUTS`] inputs of an input-major matrix, and which of them are active.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InputBlock<'a> {
    /// f16, one per output.
    pub scales: &'a [u8],
    /// `[INPUTS, outputs / 2]` nibbles with 8 added, in the order of [`position_in_line`].
    pub codes: &'a [u8],
    /// Ascending indices of the inputs that are not zero.
    pub active: &'a [u32],
    /// All inputs, rounded to 8 bits.
    pub x: &'a [i8; INPUTS],
    /// Value of one step of `x`.
    pub scale: f32,
    /// `scale * sum(x)`
    pub sum: f32,
}

impl InputBlock<'_> {
    /// Prefetches a part of this block while chunk `at` of `chunks` of the previous block is read.
    /// The part is some whole rows, because memory is fastest in order.
    #[inline(always)]
    fn prefetch_part(&self, at: usize, chunks: usize) {
        let row = self.codes.len() / INPUTS;
        if let Some(scales) = self.scales.get(2 * at * OUTPUTS..).and_then(<[u8]>::first_chunk::<{ 2 * OUTPUTS }>) {
            scales.as_chunks::<64>().0.iter().for_each(|line| prefetch(line.as_ptr()));
        }
        let first = |at: usize| at * self.active.len() / chunks;
        for input in &self.active[first(at)..first(at + 1)] {
            let (lines, _) = self.codes[*input as usize * row..][..row].as_chunks::<64>();
            lines.iter().for_each(|line| prefetch(line.as_ptr()));
        }
    }
}

/// Position of an output's code in a line of [`OUTPUTS`] outputs: the byte, and the first bit in
/// the byte. With this order, interleaving four lines byte by byte, 16 bytes at a time, gives the
/// outputs in order.
pub(crate) const fn position_in_line(output: usize) -> (usize, usize) {
    let (half, output) = (output / 64, output % 64);
    (output % 16 / 4 * 16 + output / 16 * 4 + output % 4, 4 * half)
}

/// Rows that [`Kernels::axpy`] adds up at once.
pub(crate) const AXPY_ROWS: usize = 4;

/// One row and its factor: `a * row`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScaledRow<'a> {
    /// A row of weights.
    pub row: &'a [u8],
    /// The factor.
    pub a: f32,
    /// As in [`Kernels::dot_codes`].
    pub ahead: isize,
}

/// Work of a kernel on blocks of one type. One arm per type and instruction set decodes the codes
/// in registers, for both kinds of work.
enum BlockWork<'a> {
    /// `out[r] = W[r] . x`, as [`Kernels::dot_codes`].
    Dot { weights: &'a [u8], x: QuantisedInput<'a>, ahead: isize, out: &'a mut [f32] },
    /// As [`Kernels::unpack`].
    Unpack { src: &'a [u8], to: UnpackedMut<'a> },
}

/// Used instead of an offset of codes if blocks have minima.
const MINIMA: i8 = -1;
/// Used instead of an offset of codes if codes are signed.
const SIGNED: i8 = 0;

/// Scale of a block of 32: F16 in its first two bytes.
const F16: u8 = 0;
/// Scale of a block of 32: a power of two in its first byte, as in MXFP4.
const E8M0: u8 = 1;

/// Gathered rows that are multiplied at once.
pub(crate) const DOT_ROWS: usize = 4;

/// Most tokens that rows of floats are multiplied with at once. The sums of a pair of rows fit in
/// registers.
pub(crate) const DOT_TOKENS: usize = 3;

/// Most tokens that rows of codes are multiplied with at once.
pub(crate) const CODE_TOKENS: usize = 8;

/// Panics unless `row` has as many weights as there are inputs.
fn check_row(ty: WeightType, row: &[u8], inputs: usize) {
    assert_eq!(ty.row_bytes(inputs), Some(row.len()), "{ty} row of {inputs}");
}

/// A row of a selection, with its prefetch distance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GatheredRow<'a> {
    /// The row.
    pub row: &'a [u8],
    /// As in [`Kernels::dot_codes`].
    pub ahead: isize,
}

/// `N` elements from `at` on.
#[inline(always)]
pub(super) fn part<T, const N: usize>(of: &[T], at: usize) -> &[T; N] {
    match of[at..].first_chunk() {
        Some(part) => part,
        None => panic!("{N} elements at {at} of {}", of.len()),
    }
}

/// [`part`] as a mutable reference.
#[inline(always)]
fn part_mut<T, const N: usize>(of: &mut [T], at: usize) -> &mut [T; N] {
    match of[at..].first_chunk_mut() {
        Some(part) => part,
        None => panic!("{N} elements from {at} on"),
    }
}

/// Prefetches the line of an address, which need not exist. A hint that does nothing if the
/// instruction set has no prefetch.
#[inline]
pub fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every such processor has SSE, and a prefetch of any address is harmless.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch of any address is harmless.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Prefetches `bytes`. A hint.
#[inline]
pub(crate) fn prefetch_range(bytes: &[u8]) {
    prefetch_behind([bytes], 0);
}

/// Prefetches the bytes `ahead` bytes after each of `rows`, which are equally long. These bytes
/// need not exist. A hint.
#[inline(always)]
fn prefetch_behind<const ROWS: usize>(rows: [&[u8]; ROWS], ahead: usize) {
    let from = rows.map(|row| row.as_ptr().wrapping_add(ahead));
    let lines = rows.first().map_or(0, |row| row.len().div_ceil(64));
    #[cfg(target_arch = "x86_64")]
    prefetch_weights(from.map(<*const u8>::cast), lines);
    #[cfg(not(target_arch = "x86_64"))]
    from.iter().for_each(|row| (0..lines).for_each(|line| prefetch(row.wrapping_add(64 * line))));
}

/// Prefetches `lines` lines of weights from each address on. The addresses need not exist. A hint.
///
/// The lines go to the second-level cache. The first-level cache of most processors has 32 KiB. The
/// activations of a product with 14,336 columns take most of it, and lines that arrive there early
/// are replaced before they are read: two cores of a Zen 4 then read 22 GB/s instead of 30. Intel's
/// first-level cache also handles at most 16 misses at once, the second-level cache 48: a core of
/// an Emerald Rapids reads 8 GB/s through the first level alone, and 14 GB/s through the second.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn prefetch_weights<const ROWS: usize>(from: [*const i8; ROWS], lines: usize) {
    use std::arch::x86_64::{_MM_HINT_T2, _mm_prefetch};
    for line in 0..lines {
        // SAFETY: every such processor has SSE, and a prefetch of any address is harmless.
        from.iter().for_each(|row| unsafe { _mm_prefetch::<_MM_HINT_T2>(row.wrapping_add(64 * line)) });
    }
}

/// The table of `isa`, which comes from [`Isa::choose`]. Plain Rust's table if the machine lacks
/// `isa`.
pub(crate) fn kernels(isa: Isa) -> &'static Kernels {
    match isa {
        _ if !Isa::available().contains(&isa) => &scalar::TABLE,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx2::TABLE,
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => &avx2::VNNI_TABLE,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &avx512::TABLE,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => &neon::TABLE,
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDot => &neon::DOT_TABLE,
        #[cfg(target_arch = "aarch64")]
        Isa::NeonI8mm => &neon::MATRIX_TABLE,
        _ => &scalar::TABLE,
    }
}
