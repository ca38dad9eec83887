//! Weights that are stored input by input.

use super::registers::*;
use crate::cpu::simd::{INPUTS, InputBlock, OUTPUTS, part, part_mut};

/// Inputs whose products a 16-bit sum holds: 16 * 15 * 127 < 2^15.
const SHORT: usize = 16;

/// [`Kernels::add_inputs`](crate::cpu::simd::Kernels::add_inputs).
pub(super) fn add(inputs: &InputBlock<'_>, next: Option<&InputBlock<'_>>, acc: &mut [f32]) {
    let InputBlock { scales, codes, active, x, scale, sum } = *inputs;
    let row = acc.len() / 2;
    assert!(codes.len() == INPUTS * row && scales.len() == 2 * acc.len() && acc.len().is_multiple_of(OUTPUTS));
    // Where the row of codes of each input begins, and what it is multiplied by.
    let mut rows = [(0, 0); INPUTS];
    for (to, input) in rows.iter_mut().zip(active) {
        *to = (*input as usize * row, x[*input as usize]);
    }
    let rows = &rows[..active.len().min(INPUTS)];
    let chunks = acc.len() / OUTPUTS;
    for (at, acc) in acc.as_chunks_mut::<OUTPUTS>().0.iter_mut().enumerate() {
        if let Some(next) = next {
            next.prefetch_part(at, chunks);
        }
        for quarter in 0..4 {
            let sums = quarter_line(codes, at * (OUTPUTS / 2) + 16 * quarter, rows);
            for (i, sums) in sums.into_iter().enumerate() {
                let first = 64 * (i / 4) + 16 * (i % 4) + 4 * quarter;
                let value = vfmaq_n_f32(vdupq_n_f32(-8.0 * sum), vcvtq_f32_s32(sums), scale);
                let heads = f16s(part(scales, 2 * (at * OUTPUTS + first)));
                let acc: &mut [f32; 4] = part_mut(acc, first);
                let sum = vfmaq_f32(load_floats(acc), value, heads);
                store_floats(acc, sum);
            }
        }
    }
}

/// Sums over inputs of 16 bytes of codes, from byte `at` of a row on: four outputs each, 16 from one to the next.
#[inline(always)]
fn quarter_line(codes: &[u8], at: usize, rows: &[(usize, i8)]) -> [int32x4_t; 8] {
    let mut sums = [vdupq_n_s32(0); 8];
    for rows in rows.chunks(SHORT) {
        let mut short = [vdupq_n_s16(0); 4];
        for (row, factor) in rows {
            let bytes = load_bytes(part(codes, row + at));
            let factor = vdupq_n_s8(*factor);
            for (half, codes) in [vandq_u8(bytes, vdupq_n_u8(15)), shift_right::<4>(bytes)].into_iter().enumerate() {
                let codes = vreinterpretq_s8_u8(codes);
                short[2 * half] = vmlal_s8(short[2 * half], vget_low_s8(codes), vget_low_s8(factor));
                short[2 * half + 1] = vmlal_high_s8(short[2 * half + 1], codes, factor);
            }
        }
        for (i, short) in short.into_iter().enumerate() {
            let [low, high] = widen_sums(short);
            sums[2 * i] = vaddq_s32(sums[2 * i], low);
            sums[2 * i + 1] = vaddq_s32(sums[2 * i + 1], high);
        }
    }
    sums
}
