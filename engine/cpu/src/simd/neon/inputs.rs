//! Weights of input-major matrices.

use super::registers::*;
use crate::simd::{INPUTS, InputBlock, InputMinima, OUTPUTS, part, part_mut};

/// Inputs whose products fit a 16-bit sum: 16 * 15 * 127 < 2^15.
const SHORT: usize = 16;

/// Inputs whose products fit a 16-bit sum if codes are bytes: 2 * 128 * 127 < 2^15.
const SHORT_OF_BYTES: usize = 2;

/// An active input: the offset of its row of codes, and its factor.
#[derive(Debug, Clone, Copy, Default)]
struct ActiveInput {
    first: usize,
    factor: i8,
}

/// The active inputs of a block whose rows of codes are `row` bytes long, and their number.
#[inline(always)]
fn active_inputs(inputs: &InputBlock<'_>, row: usize) -> ([ActiveInput; INPUTS], usize) {
    let mut found = [ActiveInput::default(); INPUTS];
    for (to, input) in found.iter_mut().zip(inputs.active) {
        *to = ActiveInput { first: *input as usize * row, factor: inputs.x[*input as usize] };
    }
    (found, inputs.active.len().min(INPUTS))
}

/// [`Kernels::add_inputs`](crate::simd::Kernels::add_inputs).
pub(super) fn add(inputs: &InputBlock<'_>, next: Option<&InputBlock<'_>>, acc: &mut [f32]) {
    add_nibbles(inputs, next, acc, |sums, output, acc| {
        let value = vfmaq_n_f32(vdupq_n_f32(-8.0 * inputs.sum), sums, inputs.scale);
        let sum = vfmaq_f32(load_floats(acc), value, four_halves(inputs.scales, output));
        store_floats(acc, sum);
    });
}

/// [`Kernels::add_inputs_with_minima`](crate::simd::Kernels::add_inputs_with_minima).
pub(super) fn add_with_minima(
    inputs: &InputBlock<'_>,
    of: &InputMinima<'_>,
    next: Option<&InputBlock<'_>>,
    acc: &mut [f32],
) {
    assert!(of.factors.len() == acc.len() && of.minima.len() == acc.len() && of.scales.len() == 2 * acc.len());
    add_nibbles(inputs, next, acc, |sums, output, acc| {
        let value = vmulq_n_f32(sums, inputs.scale);
        let weight = vmulq_f32(four_halves(inputs.scales, output), four_bytes(part(of.factors, output)));
        let min = vmulq_f32(four_halves(of.scales, output), four_bytes(part(of.minima, output)));
        let less = vfmsq_f32(load_floats(acc), min, vdupq_n_f32(inputs.sum));
        store_floats(acc, vfmaq_f32(less, value, weight));
    });
}

/// Processes the outputs of a block of nibbles, four at a time. `add` receives their sums over the
/// active inputs, the index of the first output, and the results to add to.
#[inline(always)]
fn add_nibbles(
    inputs: &InputBlock<'_>,
    next: Option<&InputBlock<'_>>,
    acc: &mut [f32],
    add: impl Fn(float32x4_t, usize, &mut [f32; 4]),
) {
    let InputBlock { scales, codes, .. } = *inputs;
    let row = acc.len() / 2;
    assert!(codes.len() == INPUTS * row && scales.len() == 2 * acc.len() && acc.len().is_multiple_of(OUTPUTS));
    let (active, n) = active_inputs(inputs, row);
    let chunks = acc.len() / OUTPUTS;
    for (at, acc) in acc.as_chunks_mut::<OUTPUTS>().0.iter_mut().enumerate() {
        if let Some(next) = next {
            next.prefetch_part(at, chunks);
        }
        for quarter in 0..4 {
            let sums = quarter_line(codes, at * (OUTPUTS / 2) + 16 * quarter, &active[..n]);
            for (i, sums) in sums.into_iter().enumerate() {
                let first = 64 * (i / 4) + 16 * (i % 4) + 4 * quarter;
                add(vcvtq_f32_s32(sums), at * OUTPUTS + first, part_mut(acc, first));
            }
        }
    }
}

/// [`Kernels::add_byte_inputs`](crate::simd::Kernels::add_byte_inputs).
pub(super) fn add_bytes(inputs: &InputBlock<'_>, next: Option<&InputBlock<'_>>, acc: &mut [f32]) {
    let InputBlock { scales, codes, scale, .. } = *inputs;
    let row = acc.len();
    assert!(codes.len() == INPUTS * row && scales.len() == 2 * row && row.is_multiple_of(OUTPUTS));
    let (active, n) = active_inputs(inputs, row);
    let chunks = row / OUTPUTS;
    for (at, acc) in acc.as_chunks_mut::<OUTPUTS>().0.iter_mut().enumerate() {
        if let Some(next) = next {
            next.prefetch_part(at, chunks);
        }
        for (eighth, acc) in acc.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let output = at * OUTPUTS + 16 * eighth;
            for (i, sums) in sixteen_bytes(codes, output, &active[..n]).into_iter().enumerate() {
                let value = vmulq_n_f32(vcvtq_f32_s32(sums), scale);
                let acc: &mut [f32; 4] = part_mut(acc, 4 * i);
                let sum = vfmaq_f32(load_floats(acc), value, four_halves(scales, output + 4 * i));
                store_floats(acc, sum);
            }
        }
    }
}

/// Four f16, from index `at` on, as floats.
#[inline(always)]
fn four_halves(from: &[u8], at: usize) -> float32x4_t {
    f16s(part(from, 2 * at))
}

/// Sums over inputs for 16 bytes of codes, from byte `at` of a row on. Each register has four
/// outputs, and consecutive registers are 16 outputs apart.
#[inline(always)]
fn quarter_line(codes: &[u8], at: usize, inputs: &[ActiveInput]) -> [int32x4_t; 8] {
    let mut sums = [vdupq_n_s32(0); 8];
    for inputs in inputs.chunks(SHORT) {
        let mut short = [vdupq_n_s16(0); 4];
        for input in inputs {
            let bytes = load_bytes(part(codes, input.first + at));
            let factor = vdupq_n_s8(input.factor);
            for (half, codes) in [vandq_u8(bytes, vdupq_n_u8(15)), shift_right::<4>(bytes)].into_iter().enumerate() {
                let codes = vreinterpretq_s8_u8(codes);
                short[2 * half] = vmlal_s8(short[2 * half], vget_low_s8(codes), vget_low_s8(factor));
                short[2 * half + 1] = vmlal_high_s8(short[2 * half + 1], codes, factor);
            }
        }
        add_widened(&mut sums, short);
    }
    sums
}

/// Sums over inputs for 16 byte codes, from byte `at` of a row on. Each register has four outputs,
/// in order.
#[inline(always)]
fn sixteen_bytes(codes: &[u8], at: usize, inputs: &[ActiveInput]) -> [int32x4_t; 4] {
    let mut sums = [vdupq_n_s32(0); 4];
    for inputs in inputs.chunks(SHORT_OF_BYTES) {
        let mut short = [vdupq_n_s16(0); 2];
        for input in inputs {
            let codes = vreinterpretq_s8_u8(load_bytes(part(codes, input.first + at)));
            let factor = vdupq_n_s8(input.factor);
            short[0] = vmlal_s8(short[0], vget_low_s8(codes), vget_low_s8(factor));
            short[1] = vmlal_high_s8(short[1], codes, factor);
        }
        add_widened(&mut sums, short);
    }
    sums
}

/// Adds 16-bit sums of eight outputs to 32-bit sums of four outputs.
#[inline(always)]
fn add_widened<const SUMS: usize, const SHORTS: usize>(sums: &mut [int32x4_t; SUMS], short: [int16x8_t; SHORTS]) {
    for (sums, short) in sums.as_chunks_mut::<2>().0.iter_mut().zip(short) {
        let [low, high] = widen_sums(short);
        sums[0] = vaddq_s32(sums[0], low);
        sums[1] = vaddq_s32(sums[1], high);
    }
}
