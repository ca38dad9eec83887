//! The kernels in plain Rust. All other tables are tested against them.

use super::{Kernels, panel, portable};
use crate::Isa;
use thermocline_formats::quant::WeightType;

const ROWS: usize = 8;
const TOKENS: usize = 6;

/// The table of plain Rust.
pub(super) const TABLE: Kernels = Kernels {
    isa: Isa::Scalar,
    panel_rows: ROWS,
    float_tokens: TOKENS,
    quantise: portable::quantise,
    dot_codes: |ty, weights, x, _, out| portable::dot_codes(ty, weights, x, out),
    gathered_q4_0: None,
    dot_float_rows: |ty, weights, x, _, out| {
        let rows = portable::rows(WeightType::Float(ty), weights, x.len(), out);
        rows.for_each(|(row, out)| *out = portable::dot_floats(ty, row, x));
    },
    dot_float_tokens: None,
    unpack: |ty, src, to| (ty.format().unpack)(src, to),
    lanes: None,
    code_tiles: None,
    decode_panel: |ty, rows, ahead, panel| {
        panel.decode(|src, to| (ty.format().unpack)(src, to), ty, rows, ahead, panel::interleave);
    },
    panel_products: panel::products,
    interleave_floats: portable::interleave::<f32, 1, ROWS>,
    widen_floats: portable::widen,
    tile_floats: portable::tile_floats::<ROWS, TOKENS>,
    axpy_rows: |ty, rows, acc| {
        for of in rows {
            match ty {
                WeightType::Blocks(ty) => portable::axpy_blocks(ty, of.row, of.a, acc),
                WeightType::Float(ty) => portable::axpy_floats(ty, of.row, of.a, acc),
            }
        }
    },
    add_inputs: |inputs, _, acc| portable::add_inputs(inputs, acc),
    add_byte_inputs: |inputs, _, acc| portable::add_byte_inputs(inputs, acc),
    add_inputs_with_minima: |inputs, minima, _, acc| portable::add_inputs_with_minima(inputs, minima, acc),
};
