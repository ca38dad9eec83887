//! Rows of weights against one activation vector.
//!
//! Codes of weights and activations are both signed for NEON; an offset of a type's codes is left in, and what it adds is taken off
//! with the block sums of the activations. The sums of four blocks come from three pairwise additions, and are scaled together.

use super::{
    codes::{Codes, codes32, nibbles, signed},
    head, heads, powers, prefetch,
    products::Products,
    registers::*,
};
use crate::{
    cpu::simd::{GatheredRow, QuantisedInput, part, portable::rows},
    quant::{Encoding, FloatType, k_scales, mxfp4},
};

/// Dispatch over the float types.
pub(super) fn floats(ty: FloatType, weights: &[u8], x: &[f32], ahead: isize, out: &mut [f32]) {
    let rows = rows(Encoding::Float(ty), weights, x.len(), out);
    match ty {
        FloatType::F32 => rows.for_each(|(row, out)| *out = float_row::<16>(row, x, ahead, f32s)),
        FloatType::F16 => rows.for_each(|(row, out)| *out = float_row::<8>(row, x, ahead, f16s)),
        FloatType::BF16 => rows.for_each(|(row, out)| *out = float_row::<8>(row, x, ahead, bf16s)),
    }
}

/// One row of floats, four of which are `BYTES` long.
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

/// Sums of the products of 32 codes: only the sum of all lanes counts.
#[inline(always)]
fn dot32<P: Products>(p: P, w: Codes, x: &[i8; 32]) -> int32x4_t {
    let x = codes32(x);
    p.dot(p.dot(vdupq_n_s32(0), w[0], x[0]), w[1], x[1])
}

/// The sums of the lanes of four registers, as floats.
#[inline(always)]
fn sums4(v: [int32x4_t; 4]) -> float32x4_t {
    vcvtq_f32_s32(vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3])))
}

/// In place of an offset: blocks have minima of their own.
pub(super) const MINIMA: i8 = -1;
/// In place of an offset: codes are signed.
pub(super) const SIGNED: i8 = 0;

/// Scale of a block of 32: F16 in its first two bytes.
pub(super) const F16: u8 = 0;
/// Scale of a block of 32: a power of two in its first byte, as MXFP4 has it.
pub(super) const E8M0: u8 = 1;

/// Rows of blocks of 32 behind a scale ([`F16`] or [`E8M0`]): `codes` widens a block's codes, which are `OFFSET` too large, or
/// [`SIGNED`], or not offset because a minimum follows the scale ([`MINIMA`]). Each row has its prefetch distance.
/// Gathered rows are read side by side: more of them are then on their way.
#[inline(always)]
pub(super) fn rows32<P: Products, const BYTES: usize, const SCALE: u8, const OFFSET: i8, const ROWS: usize>(
    p: P,
    rows: [GatheredRow<'_>; ROWS],
    x: QuantisedInput<'_>,
    codes_of: impl Fn(&[u8; BYTES]) -> Codes,
) -> [f32; ROWS] {
    let lines = rows.map(|of| of.row.as_chunks::<BYTES>().0.as_chunks::<8>());
    let (codes, code_rest) = x.codes.as_chunks::<32>().0.as_chunks::<8>();
    let ((scales, scale_rest), (sums, sum_rest)) = (x.scales.as_chunks::<8>(), x.sums.as_chunks::<8>());
    // Sums of their own for both halves of a line: a single one would be waited for.
    let mut acc = [[vdupq_n_f32(0.0); 2]; ROWS];
    let mut offset = [vdupq_n_f32(0.0); ROWS];
    for (line, (codes, (scales, sums))) in codes.iter().zip(scales.iter().zip(sums)).enumerate() {
        for row in 0..ROWS {
            prefetch(lines[row].0[line].as_flattened(), rows[row].ahead);
        }
        for half in 0..2 {
            let scales = load_floats(part(scales, 4 * half));
            let sums = load_floats(part(sums, 4 * half));
            for row in 0..ROWS {
                let blocks: &[[u8; BYTES]; 4] = part(&lines[row].0[line], 4 * half);
                let d = if SCALE == E8M0 { powers(blocks) } else { heads::<BYTES, 0>(blocks) };
                if OFFSET != SIGNED {
                    let min = if OFFSET == MINIMA { heads::<BYTES, 2>(blocks) } else { d };
                    offset[row] = vfmaq_f32(offset[row], min, sums);
                }
                let mut dots = [vdupq_n_s32(0); 4];
                for i in 0..4 {
                    dots[i] = dot32(p, codes_of(&blocks[i]), &codes[4 * half + i]);
                }
                acc[row][half] = vfmaq_f32(acc[row][half], sums4(dots), vmulq_f32(d, scales));
            }
        }
    }
    let mut out = [0.0; ROWS];
    for row in 0..ROWS {
        let (mut sum, mut offset) = (vaddvq_f32(vaddq_f32(acc[row][0], acc[row][1])), vaddvq_f32(offset[row]));
        for (i, (block, codes)) in lines[row].1.iter().zip(code_rest).enumerate() {
            let d = if SCALE == E8M0 { mxfp4::scale(block[0]) } else { head(part(block, 0)) };
            sum += vaddvq_s32(dot32(p, codes_of(block), codes)) as f32 * (d * scale_rest[i]);
            let min = if OFFSET == MINIMA { head(part(block, 2)) } else { d };
            offset += min * sum_rest[i];
        }
        out[row] = match OFFSET {
            MINIMA => sum + offset,
            SIGNED => sum,
            _ => sum - f32::from(OFFSET) * offset,
        };
    }
    out
}

/// Dot products of gathered Q4_0 rows.
#[inline(always)]
pub(super) fn q4_0<P: Products, const ROWS: usize>(
    p: P,
    rows: [GatheredRow<'_>; ROWS],
    x: QuantisedInput<'_>,
) -> [f32; ROWS] {
    rows32::<P, 18, F16, 8, ROWS>(p, rows, x, |block| signed(nibbles(part(block, 2))))
}

/// Row of Q4_K or Q5_K blocks: `pair(block, i)` widens sub-blocks `2i` and `2i + 1`.
#[inline(always)]
pub(super) fn row_k<P: Products, const BYTES: usize>(
    p: P,
    row: &[u8],
    x: QuantisedInput<'_>,
    ahead: isize,
    pair: impl Fn(&[u8; BYTES], usize) -> [Codes; 2],
) -> f32 {
    let blocks = row.as_chunks::<BYTES>().0.iter().zip(x.codes.as_chunks::<256>().0);
    let factors = x.scales.as_chunks::<8>().0.iter().zip(x.sums.as_chunks::<8>().0);
    let (mut acc, mut minima) = ([vdupq_n_f32(0.0); 2], vdupq_n_f32(0.0));
    for ((block, codes), (scales, sums)) in blocks.zip(factors) {
        prefetch(block, ahead);
        let (d, dmin) = (head(part(block, 0)), head(part(block, 2)));
        let (s, m) = k_scales::unpack(part(block, 4));
        let (s, m) = (bytes_to_floats(s), bytes_to_floats(m));
        for half in 0..2 {
            minima = vfmaq_f32(minima, vmulq_n_f32(m[half], dmin), load_floats(part(sums, 4 * half)));
            let s = vmulq_f32(vmulq_n_f32(s[half], d), load_floats(part(scales, 4 * half)));
            let mut dots = [vdupq_n_s32(0); 4];
            for i in 0..2 {
                let [a, b] = pair(block, 2 * half + i);
                dots[2 * i] = dot32(p, a, part(codes, 128 * half + 64 * i));
                dots[2 * i + 1] = dot32(p, b, part(codes, 128 * half + 64 * i + 32));
            }
            acc[half] = vfmaq_f32(acc[half], sums4(dots), s);
        }
    }
    vaddvq_f32(vsubq_f32(vaddq_f32(acc[0], acc[1]), minima))
}

/// Eight 6-bit scales, 32 too large, as floats.
#[inline(always)]
pub(super) fn six_bits(scales: [u8; 8]) -> [float32x4_t; 2] {
    codes_to_floats(scales.map(|scale| scale as i8 - 32))
}

/// Row of blocks of 256 whose scales are of 16: `factors(block, half)` gives the scales of a half and what is added for each of its
/// codes, `weights(block, half)` its codes.
#[inline(always)]
pub(super) fn row_k16<P: Products, const BYTES: usize>(
    p: P,
    row: &[u8],
    x: QuantisedInput<'_>,
    ahead: isize,
    factors: impl Fn(&[u8; BYTES], usize) -> ([float32x4_t; 2], [float32x4_t; 2]),
    weights: impl Fn(&[u8; BYTES], usize) -> [Codes; 4],
) -> f32 {
    let blocks = row.as_chunks::<BYTES>().0.iter().zip(x.codes.as_chunks::<256>().0);
    let sums = x.scales.as_chunks::<8>().0.iter().zip(x.half_sums.as_chunks::<16>().0);
    let (mut acc, mut offset) = ([vdupq_n_f32(0.0); 2], vdupq_n_f32(0.0));
    for ((block, codes), (scales, half_sums)) in blocks.zip(sums) {
        prefetch(block, ahead);
        for (at, codes) in codes.as_chunks::<128>().0.iter().enumerate() {
            let (s, added) = factors(block, at);
            let weights = weights(block, at);
            // Two scales for each of the activations'.
            let scales = load_floats(part(scales, 4 * at));
            let twice = [vzip1q_f32(scales, scales), vzip2q_f32(scales, scales)];
            for half in 0..2 {
                offset = vfmaq_f32(offset, added[half], load_floats(part(half_sums, 8 * at + 4 * half)));
                let mut dots = [vdupq_n_s32(0); 4];
                for i in 0..2 {
                    let (w, x) = (weights[2 * half + i], codes32(part(codes, 64 * half + 32 * i)));
                    dots[2 * i] = p.dot(vdupq_n_s32(0), w[0], x[0]);
                    dots[2 * i + 1] = p.dot(vdupq_n_s32(0), w[1], x[1]);
                }
                acc[half] = vfmaq_f32(acc[half], sums4(dots), vmulq_f32(s[half], twice[half]));
            }
        }
    }
    vaddvq_f32(vaddq_f32(vaddq_f32(acc[0], acc[1]), offset))
}

/// Row of blocks of `CHUNKS` chunks of 32 signed codes, each with one scale or two, as there are `GROUPS`: `codes(block, i)` widens
/// chunk `i`.
#[inline(always)]
pub(super) fn row_signed<P: Products, const BYTES: usize, const CHUNKS: usize, const GROUPS: usize>(
    p: P,
    row: &[u8],
    x: QuantisedInput<'_>,
    ahead: isize,
    scales: impl Fn(&[u8; BYTES]) -> [f32; GROUPS],
    codes: impl Fn(&[u8; BYTES], usize) -> Codes,
) -> f32 {
    const { assert!((GROUPS == CHUNKS || GROUPS == 2 * CHUNKS) && matches!(GROUPS, 2 | 4 | 8 | 16)) };
    let inputs = x.codes.as_chunks::<32>().0.as_chunks::<CHUNKS>().0.iter().zip(x.scales.as_chunks::<CHUNKS>().0);
    let mut acc = [vdupq_n_f32(0.0); 2];
    for (block, (inputs, x_scales)) in row.as_chunks::<BYTES>().0.iter().zip(inputs) {
        prefetch(block, ahead);
        let scales = scales(block);
        if GROUPS == 2 {
            let mut dots = [vdupq_n_s32(0); 2];
            for i in 0..2 {
                dots[i] = dot32(p, codes(block, i), &inputs[i]);
            }
            let factors = vmulq_f32(twice(part(&scales, 0)), twice(part(x_scales, 0)));
            acc[0] = vfmaq_f32(acc[0], vcvtq_f32_s32(vpaddq_s32(dots[0], dots[1])), factors);
        }
        // Written out, so that the places of codes in a block are constants.
        if GROUPS >= 4 {
            acc[0] = four_groups::<P, BYTES, CHUNKS, GROUPS, 0>(p, acc[0], block, inputs, &scales, x_scales, &codes);
        }
        if GROUPS >= 8 {
            acc[1] = four_groups::<P, BYTES, CHUNKS, GROUPS, 1>(p, acc[1], block, inputs, &scales, x_scales, &codes);
        }
        if GROUPS == 16 {
            acc[0] = four_groups::<P, BYTES, CHUNKS, GROUPS, 2>(p, acc[0], block, inputs, &scales, x_scales, &codes);
            acc[1] = four_groups::<P, BYTES, CHUNKS, GROUPS, 3>(p, acc[1], block, inputs, &scales, x_scales, &codes);
        }
    }
    vaddvq_f32(vaddq_f32(acc[0], acc[1]))
}

/// Groups `4 FOUR..` of a block of [`row_signed`], scaled and added to `sum`.
#[inline(always)]
fn four_groups<P: Products, const BYTES: usize, const CHUNKS: usize, const GROUPS: usize, const FOUR: usize>(
    p: P,
    sum: float32x4_t,
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
    vfmaq_f32(sum, sums4(dots), vmulq_f32(load_floats(part(scales, 4 * FOUR)), x_scales))
}
