//! Rows of weights against one activation vector.
//!
//! Unsigned weight codes times signed activation codes (`vpmaddubsw`, which the codes are too small to saturate); what
//! the offset of a type's codes adds is taken off with the block sums of the activations.

use std::arch::x86_64::*;

use super::{codes, heads, load_ps, load64, load128, load256, powers, prefetch, reduce, store_ps};
use crate::{
    cpu::simd::{GatheredRow, QuantisedInput, part, portable::rows},
    quant::{Encoding, FloatType, f16_at, k_scales, mxfp4},
};

/// Dispatch over the float types.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn floats(ty: FloatType, weights: &[u8], x: &[f32], ahead: isize, out: &mut [f32]) {
    let rows = rows(Encoding::Float(ty), weights, x.len(), out);
    match ty {
        FloatType::F32 => {
            rows.for_each(|(row, out)| *out = float_row::<32>(row, x, ahead, |w| _mm256_castsi256_ps(load256(w))));
        }
        FloatType::F16 => {
            rows.for_each(|(row, out)| *out = float_row::<16>(row, x, ahead, |w| _mm256_cvtph_ps(load128(w))));
        }
        FloatType::BF16 => rows.for_each(|(row, out)| {
            *out = float_row::<16>(row, x, ahead, |w| {
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load128(w))))
            });
        }),
    }
}

/// One row of floats, eight of which are `BYTES` long.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn float_row<const BYTES: usize>(row: &[u8], x: &[f32], ahead: isize, widen: impl Fn(&[u8; BYTES]) -> __m256) -> f32 {
    let ((ws, w_rest), (xs, x_rest)) = (row.as_chunks::<BYTES>(), x.as_chunks::<8>());
    let ((w4, w1), (x4, x1)) = (ws.as_chunks::<4>(), xs.as_chunks::<4>());
    let mut acc = [_mm256_setzero_ps(); 4];
    for (w, x) in w4.iter().zip(x4) {
        prefetch(w.as_flattened(), ahead);
        for i in 0..4 {
            acc[i] = _mm256_fmadd_ps(widen(&w[i]), load_ps(&x[i]), acc[i]);
        }
    }
    for (w, x) in w1.iter().zip(x1) {
        acc[0] = _mm256_fmadd_ps(widen(w), load_ps(x), acc[0]);
    }
    if !x_rest.is_empty() {
        let (mut w, mut x) = ([0; BYTES], [0.0; 8]);
        w[..w_rest.len()].copy_from_slice(w_rest);
        x[..x_rest.len()].copy_from_slice(x_rest);
        acc[1] = _mm256_fmadd_ps(widen(&w), load_ps(&x), acc[1]);
    }
    reduce(_mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), _mm256_add_ps(acc[2], acc[3])))
}

/// Sums of four products, exact: `a` unsigned, `b` signed.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot4(a: __m256i, b: __m256i) -> __m256i {
    _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1))
}

/// [`dot4`] with `w` signed. |w| is at most 128 and an activation's code at most 127, so a pair stays below 2^15.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn signed4(w: __m256i, x: __m256i) -> __m256i {
    dot4(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
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
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn rows32<const BYTES: usize, const SCALE: u8, const OFFSET: i8, const ROWS: usize>(
    rows: [GatheredRow<'_>; ROWS],
    x: QuantisedInput<'_>,
    codes_of: impl Fn(&[u8; BYTES]) -> __m256i,
) -> [f32; ROWS] {
    let dot = |block: &[u8; BYTES], x: &[i8; 32]| {
        if OFFSET == SIGNED { signed4(codes_of(block), load256(x)) } else { dot4(codes_of(block), load256(x)) }
    };
    let lines = rows.map(|of| of.row.as_chunks::<BYTES>().0.as_chunks::<8>());
    let (codes, code_rest) = x.codes.as_chunks::<32>().0.as_chunks::<8>();
    let ((scales, scale_rest), (sums, sum_rest)) = (x.scales.as_chunks::<8>(), x.sums.as_chunks::<8>());
    // Sums of their own for even and odd blocks: a single one would be waited for.
    let mut acc = [[_mm256_setzero_ps(); 2]; ROWS];
    let mut offset = [_mm256_setzero_ps(); ROWS];
    for (line, (codes, (scales, sums))) in codes.iter().zip(scales.iter().zip(sums)).enumerate() {
        let mut factors = [[0.0; 8]; ROWS];
        for row in 0..ROWS {
            let blocks = &lines[row].0[line];
            prefetch(blocks.as_flattened(), rows[row].ahead);
            let d = if SCALE == E8M0 { powers(blocks) } else { heads::<BYTES, 0>(blocks) };
            let min = if OFFSET == MINIMA { heads::<BYTES, 2>(blocks) } else { d };
            offset[row] = _mm256_fmadd_ps(min, load_ps(sums), offset[row]);
            store_ps(&mut factors[row], _mm256_mul_ps(d, load_ps(scales)));
        }
        for (i, codes) in codes.iter().enumerate() {
            for row in 0..ROWS {
                let sum = &mut acc[row][i % 2];
                let dot = _mm256_cvtepi32_ps(dot(&lines[row].0[line][i], codes));
                *sum = _mm256_fmadd_ps(dot, _mm256_set1_ps(factors[row][i]), *sum);
            }
        }
    }
    let mut out = [0.0; ROWS];
    for row in 0..ROWS {
        let [mut acc, odd] = acc[row];
        let mut offset = reduce(offset[row]);
        for (i, (block, codes)) in lines[row].1.iter().zip(code_rest).enumerate() {
            let d = if SCALE == E8M0 { mxfp4::scale(block[0]) } else { f16_at(block, 0) };
            acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot(block, codes)), _mm256_set1_ps(d * scale_rest[i]), acc);
            let min = if OFFSET == MINIMA { f16_at(block, 2) } else { d };
            offset += min * sum_rest[i];
        }
        let offset = if OFFSET == MINIMA { offset } else { -f32::from(OFFSET) * offset };
        out[row] = reduce(_mm256_add_ps(acc, odd)) + offset;
    }
    out
}

/// Dot products of gathered Q4_0 rows.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_0<const ROWS: usize>(rows: [GatheredRow<'_>; ROWS], x: QuantisedInput<'_>) -> [f32; ROWS] {
    rows32::<18, F16, 8, ROWS>(rows, x, |block| codes::nibbles(part(block, 2)))
}

/// Eight bytes as floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn bytes8(bytes: [u8; 8]) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load64(&bytes)))
}

/// Row of Q4_K or Q5_K blocks: `pair(block, i)` widens sub-blocks `2i` and `2i + 1`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn row_k<const BYTES: usize>(
    row: &[u8],
    x: QuantisedInput<'_>,
    ahead: isize,
    pair: impl Fn(&[u8; BYTES], usize) -> [__m256i; 2],
) -> f32 {
    let blocks = row.as_chunks::<BYTES>().0.iter().zip(x.codes.as_chunks::<256>().0);
    let factors = x.scales.as_chunks::<8>().0.iter().zip(x.sums.as_chunks::<8>().0);
    let (mut acc, mut minima) = ([_mm256_setzero_ps(); 2], _mm256_setzero_ps());
    for ((block, codes), (scales, sums)) in blocks.zip(factors) {
        prefetch(block, ahead);
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        let (s, m) = k_scales::unpack(part(block, 4));
        minima = _mm256_fmadd_ps(_mm256_mul_ps(bytes8(m), _mm256_set1_ps(dmin)), load_ps(sums), minima);
        let mut s8 = [0.0; 8];
        store_ps(&mut s8, _mm256_mul_ps(_mm256_mul_ps(bytes8(s), _mm256_set1_ps(d)), load_ps(scales)));
        for (i, codes) in codes.as_chunks::<64>().0.iter().enumerate() {
            for (at, weights) in pair(block, i).into_iter().enumerate() {
                let dot = _mm256_cvtepi32_ps(dot4(weights, load256::<i8, 32>(part(codes, 32 * at))));
                acc[at] = _mm256_fmadd_ps(dot, _mm256_set1_ps(s8[2 * i + at]), acc[at]);
            }
        }
    }
    reduce(_mm256_sub_ps(_mm256_add_ps(acc[0], acc[1]), minima))
}

/// Eight 6-bit scales, 32 too large, as floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn six_bits(scales: [u8; 8]) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_cvtepu8_epi32(load64(&scales)), _mm256_set1_epi32(32)))
}

/// Row of blocks of 256 whose scales are of 16: `factors(block, half)` gives the scales of a half and what is added for each of its
/// codes, `weights(block, half)` its codes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn row_k16<const BYTES: usize>(
    row: &[u8],
    x: QuantisedInput<'_>,
    ahead: isize,
    factors: impl Fn(&[u8; BYTES], usize) -> (__m256, __m256),
    weights: impl Fn(&[u8; BYTES], usize) -> [__m256i; 4],
) -> f32 {
    let blocks = row.as_chunks::<BYTES>().0.iter().zip(x.codes.as_chunks::<256>().0);
    let sums = x.scales.as_chunks::<8>().0.iter().zip(x.half_sums.as_chunks::<16>().0);
    let (mut acc, mut offset) = ([_mm256_setzero_ps(); 2], _mm256_setzero_ps());
    for ((block, codes), (scales, half_sums)) in blocks.zip(sums) {
        prefetch(block, ahead);
        // Two scales for each of the activations'.
        let twice = [_mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0), _mm256_set_epi32(7, 7, 6, 6, 5, 5, 4, 4)];
        for (at, codes) in codes.as_chunks::<128>().0.iter().enumerate() {
            let (s, added) = factors(block, at);
            offset = _mm256_fmadd_ps(added, load_ps(part(half_sums, 8 * at)), offset);
            let s = _mm256_mul_ps(s, _mm256_permutevar8x32_ps(load_ps(scales), twice[at]));
            for (i, weights) in weights(block, at).into_iter().enumerate() {
                let dot = dot4(weights, load256::<i8, 32>(part(codes, 32 * i)));
                let (first, second) = (2 * i as i32, 2 * i as i32 + 1);
                let two = _mm256_set_epi32(second, second, second, second, first, first, first, first);
                let scale = _mm256_permutevar8x32_ps(s, two);
                acc[i % 2] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, acc[i % 2]);
            }
        }
    }
    reduce(_mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), offset))
}

/// Row of blocks of `CHUNKS` chunks of 32 signed codes, each with one scale or two, as there are `GROUPS`: `codes(block, i)` widens
/// chunk `i`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn row_signed<const BYTES: usize, const CHUNKS: usize, const GROUPS: usize>(
    row: &[u8],
    x: QuantisedInput<'_>,
    ahead: isize,
    scales: impl Fn(&[u8; BYTES]) -> [f32; GROUPS],
    codes: impl Fn(&[u8; BYTES], usize) -> __m256i,
) -> f32 {
    const { assert!(GROUPS == CHUNKS || GROUPS == 2 * CHUNKS) };
    let inputs = x.codes.as_chunks::<32>().0.as_chunks::<CHUNKS>().0.iter().zip(x.scales.as_chunks::<CHUNKS>().0);
    let mut acc = [_mm256_setzero_ps(); 2];
    for (block, (inputs, x_scales)) in row.as_chunks::<BYTES>().0.iter().zip(inputs) {
        prefetch(block, ahead);
        let scales = scales(block);
        for i in 0..CHUNKS {
            let dot = _mm256_cvtepi32_ps(signed4(codes(block, i), load256(&inputs[i])));
            let factor = if GROUPS == CHUNKS {
                _mm256_set1_ps(scales[i] * x_scales[i])
            } else {
                let (low, high) = (scales[2 * i] * x_scales[i], scales[2 * i + 1] * x_scales[i]);
                _mm256_set_m128(_mm_set1_ps(high), _mm_set1_ps(low))
            };
            acc[i % 2] = _mm256_fmadd_ps(dot, factor, acc[i % 2]);
        }
    }
    reduce(_mm256_add_ps(acc[0], acc[1]))
}
