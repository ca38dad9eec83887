//! Products of rows of weights with one activation vector.
//!
//! On NEON the codes of weights and activations are both signed. An offset of a type's codes stays
//! in the products, and is corrected with the sums of the activations' codes. Three pairwise
//! additions give the sums of four groups. These are scaled together, in
//! [`sum_order`](crate::simd::sum_order).

use super::{
    codes::{Codes, codes32, nibbles, signed},
    head, heads, powers, prefetch,
    products::CodeProducts,
    registers::*,
};
use crate::simd::{
    E8M0, F16, GatheredRow, MINIMA, QuantisedInput,
    block_inputs::{BlockInputs, PaddedInputs, padded},
    part,
    portable::rows,
    sum_order::LINE,
};
use thermocline_formats::quant::{FloatType, WeightType, k_scales};

/// `out[r] = W[r] . x` for rows of floats.
pub(super) fn float_rows(ty: FloatType, weights: &[u8], x: &[f32], ahead: isize, out: &mut [f32]) {
    let rows = rows(WeightType::Float(ty), weights, x.len(), out);
    rows.for_each(|(row, out)| {
        *out = match ty {
            FloatType::F32 => float_row::<16>(row, x, ahead, f32s),
            FloatType::F16 => float_row::<8>(row, x, ahead, f16s),
            FloatType::BF16 => float_row::<8>(row, x, ahead, bf16s),
        }
    });
}

/// Multiplies one row of floats. Four floats are `BYTES` long.
#[inline(always)]
fn float_row<const BYTES: usize>(
    row: &[u8],
    x: &[f32],
    ahead: isize,
    widen: impl Fn(&[u8; BYTES]) -> float32x4_t,
) -> f32 {
    let ((ws, w_rest), (xs, x_rest)) = (row.as_chunks::<BYTES>(), x.as_chunks::<4>());
    let ((w8, w1), (x8, x1)) = (ws.as_chunks::<8>(), xs.as_chunks::<8>());
    let mut acc = [vdupq_n_f32(0.0); 8];
    for (w, x) in w8.iter().zip(x8) {
        prefetch(w.as_flattened(), ahead);
        for i in 0..8 {
            acc[i] = vfmaq_f32(acc[i], widen(&w[i]), load_floats(&x[i]));
        }
    }
    for (i, (w, x)) in w1.iter().zip(x1).enumerate() {
        acc[i] = vfmaq_f32(acc[i], widen(w), load_floats(x));
    }
    if !x_rest.is_empty() {
        let (mut w, mut x) = ([0; BYTES], [0.0; 4]);
        w[..w_rest.len()].copy_from_slice(w_rest);
        x[..x_rest.len()].copy_from_slice(x_rest);
        acc[7] = vfmaq_f32(acc[7], widen(&w), load_floats(&x));
    }
    for distance in [4, 2, 1] {
        for i in 0..distance {
            acc[i] = vaddq_f32(acc[i], acc[i + distance]);
        }
    }
    vaddvq_f32(acc[0])
}

/// Sums of the products of 32 codes. Only the sum of all lanes is meaningful.
#[inline(always)]
fn dot32<P: CodeProducts>(p: P, w: Codes, x: &[i8; 32]) -> int32x4_t {
    let x = codes32(x);
    p.dot(p.dot(vdupq_n_s32(0), w[0], x[0]), w[1], x[1])
}

/// Sums the lanes of each of four registers.
#[inline(always)]
fn sums4(v: [int32x4_t; 4]) -> int32x4_t {
    vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]))
}

/// Corrects products of codes that have `offset` added: `dots - offset * code_sums`. `code_sums`
/// are the sums of the activations' codes.
#[inline(always)]
fn less(dots: int32x4_t, offset: i8, code_sums: &[i32; 4]) -> int32x4_t {
    vmlsq_s32(dots, load_ints(code_sums), vdupq_n_s32(i32::from(offset)))
}

/// Adds the products of four groups to a line's sums.
#[inline(always)]
fn add4(sums: float32x4_t, dots: int32x4_t, scales: float32x4_t) -> float32x4_t {
    vfmaq_f32(sums, vcvtq_f32_s32(dots), scales)
}

/// A row's sum. The current line has four sums, in four lanes.
#[derive(Clone, Copy)]
struct NeonRowTotal {
    /// Sum of the previous lines.
    total: f32,
    line: float32x4_t,
}

impl NeonRowTotal {
    /// Returns an empty sum.
    #[inline(always)]
    fn zero() -> Self {
        NeonRowTotal { total: 0.0, line: vdupq_n_f32(0.0) }
    }

    /// The sum of all lines.
    #[inline(always)]
    fn get(self) -> f32 {
        self.total + vaddvq_f32(self.line)
    }

    /// Begins a new line if block `at` is the first of a line, except for the row's first line. A
    /// line has `of_line` blocks.
    #[inline(always)]
    fn before_block(&mut self, at: usize, of_line: usize) {
        if at > 0 && at.is_multiple_of(of_line) {
            *self = NeonRowTotal { total: self.get(), ..Self::zero() };
        }
    }
}

/// Multiplies rows of blocks of 32 that begin with a scale ([`F16`] or [`E8M0`]). `codes_of` widens
/// a block's codes. They have `OFFSET` added, or are [`SIGNED`], or have a minimum after the scale
/// instead ([`MINIMA`]). Each row has its prefetch distance. Gathered rows are read side by side,
/// so that more memory reads are in flight.
#[inline(always)]
pub(super) fn rows32<P: CodeProducts, const BYTES: usize, const SCALE: u8, const OFFSET: i8, const ROWS: usize>(
    p: P,
    rows: [GatheredRow<'_>; ROWS],
    x: QuantisedInput<'_>,
    codes_of: impl Fn(&[u8; BYTES]) -> Codes,
) -> [f32; ROWS] {
    const STEPS: usize = LINE / 256;
    let lines = rows.map(|of| of.row.as_chunks::<BYTES>().0.as_chunks::<8>());
    let mut sums = [NeonRowTotal::zero(); ROWS];
    for (at, inputs) in BlockInputs::whole(x).enumerate() {
        for row in 0..ROWS {
            let blocks = &lines[row].0[at];
            prefetch(blocks.as_flattened(), rows[row].ahead);
            sums[row].before_block(at, STEPS);
            sums[row].line = eight::<P, BYTES, SCALE, OFFSET>(p, sums[row].line, blocks, inputs, &codes_of);
        }
    }
    if let Some(inputs) = PaddedInputs::rest(x) {
        for row in 0..ROWS {
            let (whole, rest) = lines[row];
            let blocks = padded(rest, [0; BYTES]);
            sums[row].before_block(whole.len(), STEPS);
            sums[row].line = eight::<P, BYTES, SCALE, OFFSET>(p, sums[row].line, &blocks, inputs.get(), &codes_of);
        }
    }
    sums.map(NeonRowTotal::get)
}

/// Adds the products of eight blocks of [`rows32`] to a line's sums.
#[inline(always)]
fn eight<P: CodeProducts, const BYTES: usize, const SCALE: u8, const OFFSET: i8>(
    p: P,
    mut sums: float32x4_t,
    blocks: &[[u8; BYTES]; 8],
    x: BlockInputs<'_, 8>,
    codes_of: impl Fn(&[u8; BYTES]) -> Codes,
) -> float32x4_t {
    for half in 0..2 {
        let blocks: &[[u8; BYTES]; 4] = part(blocks, 4 * half);
        let d = if SCALE == E8M0 { powers(blocks) } else { heads::<BYTES, 0>(blocks) };
        let mut dots = [vdupq_n_s32(0); 4];
        for i in 0..4 {
            dots[i] = dot32(p, codes_of(&blocks[i]), &x.codes[4 * half + i]);
        }
        let mut dots = sums4(dots);
        if OFFSET > 0 {
            dots = less(dots, OFFSET, part(x.code_sums, 4 * half));
        }
        sums = add4(sums, dots, vmulq_f32(d, load_floats(part(x.scales, 4 * half))));
        if OFFSET == MINIMA {
            sums = vfmaq_f32(sums, heads::<BYTES, 2>(blocks), load_floats(part(x.sums, 4 * half)));
        }
    }
    sums
}

/// Dot products of gathered Q4_0 rows.
#[inline(always)]
pub(super) fn q4_0<P: CodeProducts, const ROWS: usize>(
    p: P,
    rows: [GatheredRow<'_>; ROWS],
    x: QuantisedInput<'_>,
) -> [f32; ROWS] {
    rows32::<P, 18, F16, 8, ROWS>(p, rows, x, |block| signed(nibbles(part(block, 2))))
}

/// Multiplies a row of Q4_K or Q5_K blocks. `pair(block, i)` widens sub-blocks `2i` and `2i + 1`.
#[inline(always)]
pub(super) fn row_k<P: CodeProducts, const BYTES: usize>(
    p: P,
    row: &[u8],
    x: QuantisedInput<'_>,
    ahead: isize,
    pair: impl Fn(&[u8; BYTES], usize) -> [Codes; 2],
) -> f32 {
    let blocks = row.as_chunks::<BYTES>().0.iter().zip(x.codes.as_chunks::<256>().0);
    let factors = x.scales.as_chunks::<8>().0.iter().zip(x.sums.as_chunks::<8>().0);
    let mut sums = NeonRowTotal::zero();
    for (at, ((block, codes), (scales, x_sums))) in blocks.zip(factors).enumerate() {
        prefetch(block, ahead);
        sums.before_block(at, LINE / 256);
        let (d, dmin) = (head(part(block, 0)), head(part(block, 2)));
        let (s, m) = k_scales::unpack(part(block, 4));
        let (s, m) = (bytes_to_floats(s), bytes_to_floats(m));
        for half in 0..2 {
            let s = vmulq_f32(vmulq_n_f32(s[half], d), load_floats(part(scales, 4 * half)));
            let mut dots = [vdupq_n_s32(0); 4];
            for i in 0..2 {
                let [a, b] = pair(block, 2 * half + i);
                dots[2 * i] = dot32(p, a, part(codes, 128 * half + 64 * i));
                dots[2 * i + 1] = dot32(p, b, part(codes, 128 * half + 64 * i + 32));
            }
            sums.line = add4(sums.line, sums4(dots), s);
            sums.line = vfmaq_f32(sums.line, vmulq_n_f32(m[half], -dmin), load_floats(part(x_sums, 4 * half)));
        }
    }
    sums.get()
}

/// Eight 6-bit scales, stored with 32 added, as floats.
#[inline(always)]
pub(super) fn six_bits(scales: [u8; 8]) -> [float32x4_t; 2] {
    codes_to_floats(scales.map(|scale| scale as i8 - 32))
}

/// Multiplies a row of blocks of 256 with one scale per 16 elements. `factors(block, half)` returns
/// the scales and, with [`MINIMA`], the minima of a half. `weights(block, half)` returns its codes,
/// with `OFFSET` added.
#[inline(always)]
pub(super) fn row_k16<P: CodeProducts, const BYTES: usize, const OFFSET: i8>(
    p: P,
    row: &[u8],
    x: QuantisedInput<'_>,
    ahead: isize,
    factors: impl Fn(&[u8; BYTES], usize) -> ([float32x4_t; 2], [float32x4_t; 2]),
    weights: impl Fn(&[u8; BYTES], usize) -> [Codes; 4],
) -> f32 {
    let blocks = row.as_chunks::<BYTES>().0.iter().zip(x.codes.as_chunks::<256>().0);
    let of_x = x.half_sums.as_chunks::<16>().0.iter().zip(x.half_code_sums.as_chunks::<16>().0);
    let of_x = x.scales.as_chunks::<8>().0.iter().zip(of_x);
    let mut sums = NeonRowTotal::zero();
    for (at, ((block, codes), (scales, (x_sums, code_sums)))) in blocks.zip(of_x).enumerate() {
        prefetch(block, ahead);
        sums.before_block(at, LINE / 256);
        for (at, codes) in codes.as_chunks::<128>().0.iter().enumerate() {
            let (s, minima) = factors(block, at);
            let weights = weights(block, at);
            // Two weight scales share one activation scale.
            let scales = load_floats(part(scales, 4 * at));
            let twice = [vzip1q_f32(scales, scales), vzip2q_f32(scales, scales)];
            for half in 0..2 {
                let first = 8 * at + 4 * half;
                let mut dots = [vdupq_n_s32(0); 4];
                for i in 0..2 {
                    let (w, x) = (weights[2 * half + i], codes32(part(codes, 64 * half + 32 * i)));
                    dots[2 * i] = p.dot(vdupq_n_s32(0), w[0], x[0]);
                    dots[2 * i + 1] = p.dot(vdupq_n_s32(0), w[1], x[1]);
                }
                let mut dots = sums4(dots);
                if OFFSET > 0 {
                    dots = less(dots, OFFSET, part(code_sums, first));
                }
                sums.line = add4(sums.line, dots, vmulq_f32(s[half], twice[half]));
                if OFFSET == MINIMA {
                    sums.line = vfmaq_f32(sums.line, minima[half], load_floats(part(x_sums, first)));
                }
            }
        }
    }
    sums.get()
}

/// Multiplies a row of blocks of `CHUNKS` chunks of 32 signed codes. `GROUPS` says whether each
/// chunk has one scale or two. `codes(block, i)` widens chunk `i`.
#[inline(always)]
pub(super) fn row_signed<P: CodeProducts, const BYTES: usize, const CHUNKS: usize, const GROUPS: usize>(
    p: P,
    row: &[u8],
    x: QuantisedInput<'_>,
    ahead: isize,
    scales: impl Fn(&[u8; BYTES]) -> [f32; GROUPS],
    codes: impl Fn(&[u8; BYTES], usize) -> Codes,
) -> f32 {
    const { assert!((GROUPS == CHUNKS || GROUPS == 2 * CHUNKS) && matches!(GROUPS, 2 | 4 | 8 | 16)) };
    let inputs = x.codes.as_chunks::<32>().0.as_chunks::<CHUNKS>().0.iter().zip(x.scales.as_chunks::<CHUNKS>().0);
    let mut sums = NeonRowTotal::zero();
    for (at, (block, (inputs, x_scales))) in row.as_chunks::<BYTES>().0.iter().zip(inputs).enumerate() {
        prefetch(block, ahead);
        sums.before_block(at, LINE / (32 * CHUNKS));
        let scales = scales(block);
        if GROUPS == 2 {
            // Odd blocks contribute to the line's other two sums.
            let (mut dots, mut factors) = ([vdupq_n_s32(0); 4], [0.0; 4]);
            let side = at % 2 * 2;
            for i in 0..2 {
                dots[side + i] = dot32(p, codes(block, i), &inputs[i]);
                factors[side + i] = scales[i] * x_scales[i];
            }
            sums.line = add4(sums.line, sums4(dots), load_floats(&factors));
        }
        // Unrolled, so that the positions of codes in a block are constants.
        if GROUPS >= 4 {
            sums.line =
                four_groups::<P, BYTES, CHUNKS, GROUPS, 0>(p, sums.line, block, inputs, &scales, x_scales, &codes);
        }
        if GROUPS >= 8 {
            sums.line =
                four_groups::<P, BYTES, CHUNKS, GROUPS, 1>(p, sums.line, block, inputs, &scales, x_scales, &codes);
        }
        if GROUPS == 16 {
            sums.line =
                four_groups::<P, BYTES, CHUNKS, GROUPS, 2>(p, sums.line, block, inputs, &scales, x_scales, &codes);
            sums.line =
                four_groups::<P, BYTES, CHUNKS, GROUPS, 3>(p, sums.line, block, inputs, &scales, x_scales, &codes);
        }
    }
    sums.get()
}

/// Multiplies groups `4 FOUR..` of a block of [`row_signed`], and adds the scaled products to a
/// line's sums.
#[inline(always)]
fn four_groups<P: CodeProducts, const BYTES: usize, const CHUNKS: usize, const GROUPS: usize, const FOUR: usize>(
    p: P,
    sums: float32x4_t,
    block: &[u8; BYTES],
    inputs: &[[i8; 32]; CHUNKS],
    scales: &[f32; GROUPS],
    x_scales: &[f32; CHUNKS],
    codes: impl Fn(&[u8; BYTES], usize) -> Codes,
) -> float32x4_t {
    let mut dots = [vdupq_n_s32(0); 4];
    let x_scales = if GROUPS == CHUNKS {
        for i in 0..4 {
            dots[i] = dot32(p, codes(block, 4 * FOUR + i), &inputs[4 * FOUR + i]);
        }
        load_floats(part(x_scales, 4 * FOUR))
    } else {
        for i in 0..2 {
            let (w, x) = (codes(block, 2 * FOUR + i), codes32(&inputs[2 * FOUR + i]));
            dots[2 * i] = p.dot(vdupq_n_s32(0), w[0], x[0]);
            dots[2 * i + 1] = p.dot(vdupq_n_s32(0), w[1], x[1]);
        }
        twice(part(x_scales, 2 * FOUR))
    };
    add4(sums, sums4(dots), vmulq_f32(load_floats(part(scales, 4 * FOUR)), x_scales))
}
