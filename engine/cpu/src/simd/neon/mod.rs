//! NEON: 128-bit kernels for 64-bit Arm. If the machine has them, the kernels use dot products
//! (`dotprod`, most processors since 2018) and products of small matrices (`i8mm`, Apple's since
//! M2, Snapdragon X).
//!
//! Every 64-bit Arm processor has NEON, so its instructions are safe functions here
//! ([`registers`]). Instructions that only some processors have need a proof ([`products`]).
//! Half-precision numbers are widened in registers. They are never summed in half precision, even
//! if the processor could. Eleven bits for a sum of thousands of products are less precise than the
//! activations.

mod axpy;
mod blocks;
mod codes;
mod dot;
mod inputs;
mod panel;
mod points;
mod products;
mod registers;
mod tile;

use panel::WideningChunks;
use products::{DotProducts, MatrixProducts, Widening};
use registers::*;

use super::{BlockWork, DOT_ROWS, GatheredRow, Kernels, PanelSums, QuantisedInput, RowPanel, TokenTile, portable};
use crate::Isa;
use thermocline_formats::quant::{BlockType, FloatType, UnpackedMut};

const ROWS: usize = 8;
const FLOAT_TOKENS: usize = 8;

/// Reads an f16.
#[inline(always)]
fn head(bytes: &[u8; 2]) -> f32 {
    first(halves([u16::from_le_bytes(*bytes), 0, 0, 0]))
}

/// The f16 at byte `AT` of each of four blocks.
#[inline(always)]
fn heads<const BYTES: usize, const AT: usize>(blocks: &[[u8; BYTES]; 4]) -> float32x4_t {
    let one = |i: usize| u16::from_le_bytes([blocks[i][AT], blocks[i][AT + 1]]);
    halves([one(0), one(1), one(2), one(3)])
}

/// The scales of four MXFP4 blocks: the powers of two `2^(e - 128)`, for codes that are twice the
/// value.
#[inline(always)]
fn powers<const BYTES: usize>(blocks: &[[u8; BYTES]; 4]) -> float32x4_t {
    let two = |i: usize| u64::from(blocks[i][0]) | u64::from(blocks[i + 1][0]) << 32;
    let e = words(two(0), two(2));
    let normal = vshlq_u32(vsubq_u32(e, vdupq_n_u32(1)), vdupq_n_s32(23));
    // 2^21 or 2^22 in the mantissa, for e = 0 or 1.
    let subnormal = vshlq_u32(vdupq_n_u32(0x0020_0000), vreinterpretq_s32_u32(e));
    vbslq_f32(vcgtq_u32(e, vdupq_n_u32(1)), vreinterpretq_f32_u32(normal), vreinterpretq_f32_u32(subnormal))
}

/// Prefetches the lines `ahead` bytes after those of `row`.
#[inline(always)]
fn prefetch(row: &[u8], ahead: isize) {
    if ahead != 0 {
        row.chunks(64).for_each(|line| super::prefetch(line.as_ptr().wrapping_offset(ahead)));
    }
}

#[target_feature(enable = "neon,dotprod")]
fn run_dot(ty: BlockType, work: BlockWork<'_>) {
    // SAFETY: the function's features include `dotprod`.
    blocks::run(unsafe { DotProducts::new() }, ty, work);
}

#[target_feature(enable = "neon,dotprod")]
fn gathered_dot(rows: [GatheredRow<'_>; DOT_ROWS], x: QuantisedInput<'_>) -> [f32; DOT_ROWS] {
    // SAFETY: the function's features include `dotprod`.
    dot::q4_0(unsafe { DotProducts::new() }, rows, x)
}

#[target_feature(enable = "neon,dotprod")]
fn panel_dot(panel: &RowPanel, x: TokenTile<'_>, sums: &mut [PanelSums]) {
    // SAFETY: the function's features include `dotprod`.
    panel::products(unsafe { DotProducts::new() }, panel, x, sums);
}

#[target_feature(enable = "neon,i8mm")]
fn panel_matrix(panel: &RowPanel, x: TokenTile<'_>, sums: &mut [PanelSums]) {
    // SAFETY: the function's features include `i8mm`.
    panel::products(unsafe { MatrixProducts::new() }, panel, x, sums);
}

/// The table of NEON alone.
pub(super) const TABLE: Kernels = Kernels {
    isa: Isa::Neon,
    panel_rows: ROWS,
    float_tokens: FLOAT_TOKENS,
    quantise: portable::quantise,
    dot_codes: |ty, weights, x, ahead, out| {
        blocks::run(Widening, ty, BlockWork::Dot { weights, x, ahead, out });
    },
    gathered_q4_0: Some(|rows, x| dot::q4_0(Widening, *rows, x)),
    dot_float_rows: dot::float_rows,
    dot_float_tokens: None,
    unpack: |ty, src, to| blocks::run(Widening, ty, BlockWork::Unpack { src, to }),
    lanes: None,
    code_tiles: None,
    decode_panel: |ty, rows, ahead, panel| {
        let interleave = |rows: &_, at, _, codes: &mut _| panel::interleave(rows, at, codes);
        let unpack = |src: &_, to: UnpackedMut<'_>| blocks::run(Widening, ty, BlockWork::Unpack { src, to });
        panel.decode(unpack, ty, rows, ahead, interleave);
    },
    panel_products: |panel, x, sums| panel::products(WideningChunks, panel, x, sums),
    interleave_floats: portable::interleave::<f32, 1, ROWS>,
    widen_floats: widen,
    tile_floats: tile::floats,
    axpy_rows: axpy::rows,
    add_inputs: inputs::add,
    add_byte_inputs: inputs::add_bytes,
    add_inputs_with_minima: inputs::add_with_minima,
};

/// The table of NEON with dot products.
pub(super) const DOT_TABLE: Kernels = Kernels {
    isa: Isa::NeonDot,
    dot_codes: |ty, weights, x, ahead, out| {
        // SAFETY: the table is only reachable through `kernels`, which checked that this machine
        // has `dotprod`.
        unsafe { run_dot(ty, BlockWork::Dot { weights, x, ahead, out }) }
    },
    // SAFETY: as above.
    gathered_q4_0: Some(|rows, x| unsafe { gathered_dot(*rows, x) }),
    // SAFETY: as above.
    panel_products: |panel, x, sums| unsafe { panel_dot(panel, x, sums) },
    ..TABLE
};

/// The table of NEON with products of small matrices. Machines with these also have dot products.
pub(super) const MATRIX_TABLE: Kernels = Kernels {
    isa: Isa::NeonI8mm,
    // SAFETY: the table is only reachable through `kernels`, which checked that this machine has
    // `i8mm`.
    panel_products: |panel, x, sums| unsafe { panel_matrix(panel, x, sums) },
    ..DOT_TABLE
};

/// Widens a float type to f32.
fn widen(ty: FloatType, src: &[u8], dst: &mut [f32]) {
    let (four, rest) = dst.as_chunks_mut::<4>();
    if ty == FloatType::F16 {
        let (halves, tail) = src.as_chunks::<8>();
        four.iter_mut().zip(halves).for_each(|(dst, halves)| store_floats(dst, f16s(halves)));
        portable::widen(ty, tail, rest);
    } else {
        portable::widen(ty, src, dst);
    }
}
