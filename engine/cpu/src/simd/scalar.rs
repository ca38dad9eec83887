//! The kernels in plain Rust: what every other table is tested against.

use super::{Kernels, QuantisedInput, QuantisedInputMut, ScaledRow, decoded, portable};
use crate::Isa;
use thermocline_formats::quant::{BlockType, Encoding, UnpackedMut};

const ROWS: usize = 8;
const TOKENS: usize = 6;

/// Plain Rust.
#[derive(Debug)]
pub(super) struct Scalar;

impl Kernels for Scalar {
    fn panel_rows(&self) -> usize {
        ROWS
    }

    fn float_tokens(&self) -> usize {
        TOKENS
    }

    fn quantise(&self, x: &[f32], row: QuantisedInputMut<'_>) {
        portable::quantise(x, row);
    }

    fn dot_codes(&self, ty: BlockType, weights: &[u8], x: QuantisedInput<'_>, _: isize, out: &mut [f32]) {
        portable::dot_codes(ty, weights, x, out);
    }

    fn dot_floats(&self, ty: Encoding, weights: &[u8], x: &[f32], ahead: isize, out: &mut [f32]) {
        match ty {
            Encoding::Blocks(ty) => decoded::dot(Isa::Scalar, self, ty, weights, x, ahead, out),
            Encoding::Float(ty) => portable::dot_floats(ty, weights, x, out),
        }
    }

    fn unpack(&self, ty: BlockType, src: &[u8], to: UnpackedMut<'_>) {
        (ty.format().unpack)(src, to);
    }

    fn interleave_floats(&self, rows: &[f32], out: &mut [f32]) {
        portable::interleave::<f32, 1, ROWS>(rows, out);
    }

    fn widen(&self, ty: Encoding, src: &[u8], dst: &mut [f32]) {
        match ty {
            Encoding::Blocks(ty) => decoded::widen(Isa::Scalar, self, ty, src, dst),
            Encoding::Float(ty) => portable::widen(ty, src, dst),
        }
    }

    fn tile_floats(&self, panel: &[f32], x: &[f32], acc: &mut [f32]) {
        portable::tile_floats::<ROWS, TOKENS>(panel, x, acc);
    }

    fn axpy(&self, ty: Encoding, rows: &[ScaledRow<'_>], acc: &mut [f32]) {
        for of in rows {
            match ty {
                Encoding::Blocks(ty) => portable::axpy_blocks(ty, of.row, of.a, acc),
                Encoding::Float(ty) => portable::axpy_floats(ty, of.row, of.a, acc),
            }
        }
    }
}
