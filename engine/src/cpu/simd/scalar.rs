//! The kernels in plain Rust: what every other table is tested against.

use super::{
    CodePanel, CodeTile, Grouping, Kernels, Multiple, QuantisedRow, QuantisedRowMut, decoded, portable, unpack,
};
use crate::{cpu::Isa, format::TensorType};

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

    fn quantise(&self, x: &[f32], row: QuantisedRowMut<'_>) {
        portable::quantise(x, row);
    }

    fn dot_codes(&self, ty: TensorType, weights: &[u8], x: QuantisedRow<'_>, _: isize, out: &mut [f32]) {
        portable::dot_codes(ty, weights, x, out);
    }

    fn dot_floats(&self, ty: TensorType, weights: &[u8], x: &[f32], ahead: isize, out: &mut [f32]) {
        match Grouping::of(ty) {
            Some(_) => decoded::dot(Isa::Scalar, self, ty, weights, x, ahead, out),
            None => portable::dot_floats(ty, weights, x, out),
        }
    }

    fn unpack(&self, ty: TensorType, src: &[u8], codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
        unpack::unpack(ty, src, codes, scales, mins);
    }

    fn interleave(&self, codes: &[i8], out: &mut [i8]) {
        portable::interleave::<i8, 4, ROWS>(codes, out);
    }

    fn interleave_floats(&self, rows: &[f32], out: &mut [f32]) {
        portable::interleave::<f32, 1, ROWS>(rows, out);
    }

    fn bias(&self, codes: &[i8], len: usize, bias: &mut [i32]) {
        portable::bias::<ROWS>(codes, len, bias);
    }

    fn widen(&self, ty: TensorType, src: &[u8], dst: &mut [f32]) {
        match Grouping::of(ty) {
            Some(_) => decoded::widen(Isa::Scalar, self, ty, src, dst),
            None => portable::widen(ty, src, dst),
        }
    }

    fn tile_codes(&self, panel: CodePanel<'_>, x: CodeTile<'_>, acc: &mut [f32]) {
        portable::tile_codes::<ROWS>(panel, x, acc);
    }

    fn tile_floats(&self, panel: &[f32], x: &[f32], acc: &mut [f32]) {
        portable::tile_floats::<ROWS, TOKENS>(panel, x, acc);
    }

    fn axpy(&self, ty: TensorType, rows: &[Multiple<'_>], acc: &mut [f32]) {
        rows.iter().for_each(|of| portable::axpy(ty, of.row, of.a, acc));
    }
}
