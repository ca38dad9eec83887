//! NEON: 128-bit kernels for 64-bit Arm, with dot products (`dotprod`, most processors since 2018) and products of small matrices
//! (`i8mm`, Apple's since M2, Snapdragon X) where the machine has them.
//!
//! Every 64-bit Arm processor has NEON, so its instructions are safe functions here ([`registers`]); those that only some have
//! want a proof ([`products`]). Numbers in half precision are widened in registers, but not added up in it even where the processor
//! could: eleven bits of a sum over thousands of products are fewer than the activations' own.

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

use super::{
    BlockWork, DOT_ROWS, GatheredRow, InputBlock, InputMinima, Kernels, PANEL_ROWS, PanelSums, QuantisedInput,
    QuantisedInputMut, RowPanel, ScaledRow, TokenTile, decoded, one_by_one, portable, takes_gathered_rows,
};
use crate::Isa;
use thermocline_formats::quant::{BlockType, Encoding, FloatType, UnpackedMut};

const ROWS: usize = 8;
const FLOAT_TOKENS: usize = 8;

/// Instructions that this machine has beside NEON's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extension {
    None,
    Dot,
    Matrix,
}

/// Proof that this machine has the extension.
#[derive(Debug)]
pub(super) struct Neon(Extension);

/// The table of `isa`, if this machine can run it.
pub(super) fn table(isa: Isa) -> Option<&'static dyn Kernels> {
    static TABLES: [Neon; 3] = [Neon(Extension::None), Neon(Extension::Dot), Neon(Extension::Matrix)];
    let table: &dyn Kernels = match isa {
        Isa::Neon => &TABLES[0],
        Isa::NeonDot => &TABLES[1],
        Isa::NeonI8mm => &TABLES[2],
        _ => return None,
    };
    Isa::available().contains(&isa).then_some(table)
}

/// An f16.
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

/// The powers of two that are scales of four MXFP4 blocks whose codes are twice the value: `2^(e - 128)`.
#[inline(always)]
fn powers<const BYTES: usize>(blocks: &[[u8; BYTES]; 4]) -> float32x4_t {
    let two = |i: usize| u64::from(blocks[i][0]) | u64::from(blocks[i + 1][0]) << 32;
    let e = words(two(0), two(2));
    let normal = vshlq_u32(vsubq_u32(e, vdupq_n_u32(1)), vdupq_n_s32(23));
    // 2^21 or 2^22 in the mantissa, where e is 0 or 1.
    let subnormal = vshlq_u32(vdupq_n_u32(0x0020_0000), vreinterpretq_s32_u32(e));
    vbslq_f32(vcgtq_u32(e, vdupq_n_u32(1)), vreinterpretq_f32_u32(normal), vreinterpretq_f32_u32(subnormal))
}

/// Prefetches the lines `ahead` bytes behind those of `row`.
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

impl Kernels for Neon {
    fn panel_rows(&self) -> usize {
        ROWS
    }

    fn float_tokens(&self) -> usize {
        FLOAT_TOKENS
    }

    fn quantise(&self, x: &[f32], row: QuantisedInputMut<'_>) {
        portable::quantise(x, row);
    }

    fn dot_codes(&self, ty: BlockType, weights: &[u8], x: QuantisedInput<'_>, ahead: isize, out: &mut [f32]) {
        let work = BlockWork::Dot { weights, x, ahead, out };
        match self.0 {
            Extension::None => blocks::run(Widening, ty, work),
            // SAFETY: `table` has checked that this machine has `dotprod`, which those with `i8mm` are asked for as well.
            Extension::Dot | Extension::Matrix => unsafe { run_dot(ty, work) },
        }
    }

    fn dot_gathered(
        &self,
        ty: BlockType,
        rows: &[GatheredRow<'_>; DOT_ROWS],
        x: QuantisedInput<'_>,
        out: &mut [f32; DOT_ROWS],
    ) {
        match (takes_gathered_rows(ty, rows, x), self.0) {
            (false, _) => one_by_one(self, ty, rows, x, out),
            (true, Extension::None) => *out = dot::q4_0(Widening, *rows, x),
            // SAFETY: as in `dot_codes`.
            (true, Extension::Dot | Extension::Matrix) => *out = unsafe { gathered_dot(*rows, x) },
        }
    }

    fn dot_floats(&self, ty: Encoding, weights: &[u8], x: &[f32], ahead: isize, out: &mut [f32]) {
        match ty {
            Encoding::Blocks(ty) => decoded::dot(Isa::Neon, self, ty, weights, x, ahead, out),
            Encoding::Float(ty) => dot::floats(ty, weights, x, ahead, out),
        }
    }

    fn unpack(&self, ty: BlockType, src: &[u8], to: UnpackedMut<'_>) {
        blocks::run(Widening, ty, BlockWork::Unpack { src, to });
    }

    fn decode_panel(&self, ty: BlockType, rows: &[&[u8]; PANEL_ROWS], ahead: usize, panel: &mut RowPanel) {
        panel.decode(self, ty, rows, ahead, |rows, at, _, codes| panel::interleave(rows, at, codes));
    }

    fn panel_products(&self, panel: &RowPanel, x: TokenTile<'_>, sums: &mut [PanelSums]) {
        match self.0 {
            Extension::None => panel::products(WideningChunks, panel, x, sums),
            // SAFETY: `table` has checked that this machine has `dotprod`.
            Extension::Dot => unsafe { panel_dot(panel, x, sums) },
            // SAFETY: `table` has checked that this machine has `i8mm`.
            Extension::Matrix => unsafe { panel_matrix(panel, x, sums) },
        }
    }

    fn interleave_floats(&self, rows: &[f32], out: &mut [f32]) {
        portable::interleave::<f32, 1, ROWS>(rows, out);
    }

    fn widen(&self, ty: Encoding, src: &[u8], dst: &mut [f32]) {
        match ty {
            Encoding::Blocks(ty) => decoded::widen(Isa::Neon, self, ty, src, dst),
            Encoding::Float(ty) => widen(ty, src, dst),
        }
    }

    fn tile_floats(&self, panel: &[f32], x: &[f32], acc: &mut [f32]) {
        tile::floats(panel, x, acc);
    }

    fn add_inputs(&self, inputs: &InputBlock<'_>, next: Option<&InputBlock<'_>>, acc: &mut [f32]) {
        inputs::add(inputs, next, acc);
    }

    fn add_byte_inputs(&self, inputs: &InputBlock<'_>, next: Option<&InputBlock<'_>>, acc: &mut [f32]) {
        inputs::add_bytes(inputs, next, acc);
    }

    fn add_inputs_with_minima(
        &self,
        inputs: &InputBlock<'_>,
        minima: &InputMinima<'_>,
        next: Option<&InputBlock<'_>>,
        acc: &mut [f32],
    ) {
        inputs::add_with_minima(inputs, minima, next, acc);
    }

    fn axpy(&self, ty: Encoding, rows: &[ScaledRow<'_>], acc: &mut [f32]) {
        axpy::rows(ty, rows, acc);
    }
}

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
