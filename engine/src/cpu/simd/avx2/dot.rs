//! Rows of weights against one activation vector.
//!
//! Unsigned weight codes times signed activation codes (`vpmaddubsw`, which the codes are too small to saturate); what
//! the offset of a type's codes adds is taken off with the block sums of the activations.

use std::arch::x86_64::*;

use super::{codes, heads, load_ps, load64, load128, load256, powers, prefetch, reduce, store_ps};
use crate::{
    cpu::simd::{
        Apart, QuantisedRow, part,
        portable::rows,
        unpack::{FP4, IQ4, e8m0_half, half, iq4_xs_scales, k_scales, q3_scales},
    },
    format::TensorType,
};

/// Dispatch over the quantised types.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::simd) fn quantised(
    ty: TensorType,
    weights: &[u8],
    x: QuantisedRow<'_>,
    ahead: isize,
    out: &mut [f32],
) {
    let rows = rows(ty, weights, x.codes.len(), out);
    match ty {
        TensorType::Q4_0 => rows.for_each(|(row, out)| [*out] = q4_0([Apart { row, ahead }], x)),
        TensorType::Q4_1 => rows.for_each(|(row, out)| *out = q4_1(row, x, ahead)),
        TensorType::Q5_0 => rows.for_each(|(row, out)| *out = q5_0(row, x, ahead)),
        TensorType::Q5_1 => rows.for_each(|(row, out)| *out = q5_1(row, x, ahead)),
        TensorType::Q8_0 => rows.for_each(|(row, out)| *out = q8_0(row, x, ahead)),
        TensorType::IQ4_NL => rows.for_each(|(row, out)| *out = iq4_nl(row, x, ahead)),
        TensorType::Q4_K => rows.for_each(|(row, out)| *out = q4_k(row, x, ahead)),
        TensorType::Q5_K => rows.for_each(|(row, out)| *out = q5_k(row, x, ahead)),
        TensorType::Q6_K => rows.for_each(|(row, out)| *out = q6_k(row, x, ahead)),
        TensorType::Q2_K => rows.for_each(|(row, out)| *out = q2_k(row, x, ahead)),
        TensorType::Q3_K => rows.for_each(|(row, out)| *out = q3_k(row, x, ahead)),
        TensorType::IQ4_XS => rows.for_each(|(row, out)| *out = iq4_xs(row, x, ahead)),
        TensorType::MXFP4 => rows.for_each(|(row, out)| *out = mxfp4(row, x, ahead)),
        _ => unreachable!("{ty} has no codes"),
    }
}

/// Dispatch over the float types.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn floats(ty: TensorType, weights: &[u8], x: &[f32], ahead: isize, out: &mut [f32]) {
    let rows = rows(ty, weights, x.len(), out);
    match ty {
        TensorType::F32 => {
            rows.for_each(|(row, out)| *out = float_row::<32>(row, x, ahead, |w| _mm256_castsi256_ps(load256(w))));
        }
        TensorType::F16 => {
            rows.for_each(|(row, out)| *out = float_row::<16>(row, x, ahead, |w| _mm256_cvtph_ps(load128(w))));
        }
        TensorType::BF16 => rows.for_each(|(row, out)| {
            *out = float_row::<16>(row, x, ahead, |w| {
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load128(w))))
            });
        }),
        _ => unreachable!("{ty} is not a float type"),
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

/// The same, `w` signed. |w| is at most 128 and an activation's code at most 127, so a pair stays below 2^15.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn signed4(w: __m256i, x: __m256i) -> __m256i {
    dot4(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
}

/// Bytes of an MXFP4 block, whose scale is a power of two in one byte.
const MXFP4: usize = 17;

/// In place of an offset: blocks have minima of their own.
const MINIMA: i8 = -1;

/// Rows of blocks of 32 behind an f16 scale: `dot` multiplies a block's codes, `OFFSET` too large; if that is [`MINIMA`], a minimum
/// follows the scale. Each row says how far ahead of it memory is asked for. Rows that lie apart are read side by side: more of them
/// are then on their way.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn rows32<const BYTES: usize, const OFFSET: i8, const ROWS: usize>(
    rows: [Apart<'_>; ROWS],
    x: QuantisedRow<'_>,
    dot: impl Fn(&[u8; BYTES], &[i8; 32]) -> __m256i,
) -> [f32; ROWS] {
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
            let d = if BYTES == MXFP4 { powers(blocks) } else { heads::<BYTES, 0>(blocks) };
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
            let d = if BYTES == MXFP4 { e8m0_half(block[0]) } else { half([block[0], block[1]]) };
            acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot(block, codes)), _mm256_set1_ps(d * scale_rest[i]), acc);
            let min = if OFFSET == MINIMA { half([block[2], block[3]]) } else { d };
            offset += min * sum_rest[i];
        }
        let offset = if OFFSET == MINIMA { offset } else { -f32::from(OFFSET) * offset };
        out[row] = reduce(_mm256_add_ps(acc, odd)) + offset;
    }
    out
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_0<const ROWS: usize>(rows: [Apart<'_>; ROWS], x: QuantisedRow<'_>) -> [f32; ROWS] {
    rows32::<18, 8, ROWS>(rows, x, |block, codes| dot4(codes::nibbles(part(block, 2)), load256(codes)))
}

#[target_feature(enable = "avx2,fma,f16c")]
fn q4_1(row: &[u8], x: QuantisedRow<'_>, ahead: isize) -> f32 {
    let [out] = rows32::<20, MINIMA, 1>([Apart { row, ahead }], x, |block, codes| {
        dot4(codes::nibbles(part(block, 4)), load256(codes))
    });
    out
}

#[target_feature(enable = "avx2,fma,f16c")]
fn q5_0(row: &[u8], x: QuantisedRow<'_>, ahead: isize) -> f32 {
    let [out] = rows32::<22, 16, 1>([Apart { row, ahead }], x, |block, codes| {
        dot4(codes::five_bits(part(block, 6), part(block, 2)), load256(codes))
    });
    out
}

#[target_feature(enable = "avx2,fma,f16c")]
fn q5_1(row: &[u8], x: QuantisedRow<'_>, ahead: isize) -> f32 {
    let [out] = rows32::<24, MINIMA, 1>([Apart { row, ahead }], x, |block, codes| {
        dot4(codes::five_bits(part(block, 8), part(block, 4)), load256(codes))
    });
    out
}

#[target_feature(enable = "avx2,fma,f16c")]
fn q8_0(row: &[u8], x: QuantisedRow<'_>, ahead: isize) -> f32 {
    let [out] = rows32::<34, 0, 1>([Apart { row, ahead }], x, |block, codes| {
        signed4(load256::<u8, 32>(part(block, 2)), load256(codes))
    });
    out
}

#[target_feature(enable = "avx2,fma,f16c")]
fn iq4_nl(row: &[u8], x: QuantisedRow<'_>, ahead: isize) -> f32 {
    let [out] = rows32::<18, 0, 1>([Apart { row, ahead }], x, |block, codes| {
        signed4(codes::look_up(&IQ4, codes::nibbles(part(block, 2))), load256(codes))
    });
    out
}

#[target_feature(enable = "avx2,fma,f16c")]
fn mxfp4(row: &[u8], x: QuantisedRow<'_>, ahead: isize) -> f32 {
    let [out] = rows32::<MXFP4, 0, 1>([Apart { row, ahead }], x, |block, codes| {
        signed4(codes::look_up(&FP4, codes::nibbles(part(block, 1))), load256(codes))
    });
    out
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
fn row_k<const BYTES: usize>(
    row: &[u8],
    x: QuantisedRow<'_>,
    ahead: isize,
    pair: impl Fn(&[u8; BYTES], usize) -> [__m256i; 2],
) -> f32 {
    let blocks = row.as_chunks::<BYTES>().0.iter().zip(x.codes.as_chunks::<256>().0);
    let factors = x.scales.as_chunks::<8>().0.iter().zip(x.sums.as_chunks::<8>().0);
    let (mut acc, mut minima) = ([_mm256_setzero_ps(); 2], _mm256_setzero_ps());
    for ((block, codes), (scales, sums)) in blocks.zip(factors) {
        prefetch(block, ahead);
        let (d, dmin) = (half([block[0], block[1]]), half([block[2], block[3]]));
        let (s, m) = k_scales(part(block, 4));
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

#[target_feature(enable = "avx2,fma,f16c")]
fn q4_k(row: &[u8], x: QuantisedRow<'_>, ahead: isize) -> f32 {
    row_k::<144>(row, x, ahead, |block, i| codes::q4_k(block, i))
}

#[target_feature(enable = "avx2,fma,f16c")]
fn q5_k(row: &[u8], x: QuantisedRow<'_>, ahead: isize) -> f32 {
    row_k::<176>(row, x, ahead, |block, i| codes::q5_k(block, i))
}

#[target_feature(enable = "avx2,fma,f16c")]
fn iq4_xs(row: &[u8], x: QuantisedRow<'_>, ahead: isize) -> f32 {
    let blocks = row.as_chunks::<136>().0.iter().zip(x.codes.as_chunks::<256>().0).zip(x.scales.as_chunks::<8>().0);
    let mut acc = [_mm256_setzero_ps(); 2];
    for ((block, codes), scales) in blocks {
        prefetch(block, ahead);
        let d = _mm256_mul_ps(_mm256_set1_ps(half([block[0], block[1]])), load_ps(scales));
        let mut s8 = [0.0; 8];
        store_ps(&mut s8, _mm256_mul_ps(six_bits(iq4_xs_scales(block)), d));
        for (i, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
            let weights = codes::look_up(&IQ4, codes::nibbles(part(block, 8 + 16 * i)));
            let dot = _mm256_cvtepi32_ps(signed4(weights, load256(codes)));
            acc[i % 2] = _mm256_fmadd_ps(dot, _mm256_set1_ps(s8[i]), acc[i % 2]);
        }
    }
    reduce(_mm256_add_ps(acc[0], acc[1]))
}

/// Eight 6-bit scales, 32 too large, as floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn six_bits(scales: [u8; 8]) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_cvtepu8_epi32(load64(&scales)), _mm256_set1_epi32(32)))
}

/// Row of blocks of 256 whose scales are of 16: `factors(block, half)` gives the scales of a half and what is added for each of its
/// codes, `weights(block, half)` its codes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn row_k16<const BYTES: usize>(
    row: &[u8],
    x: QuantisedRow<'_>,
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

#[target_feature(enable = "avx2,fma,f16c")]
fn q6_k(row: &[u8], x: QuantisedRow<'_>, ahead: isize) -> f32 {
    let factors = |block: &[u8; 210], at| {
        let s = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load64::<u8, 8>(part(block, 192 + 8 * at))));
        let s = _mm256_mul_ps(s, _mm256_set1_ps(half([block[208], block[209]])));
        (s, _mm256_mul_ps(s, _mm256_set1_ps(-32.0)))
    };
    row_k16::<210>(row, x, ahead, factors, |block, at| codes::q6_k(block, at))
}

#[target_feature(enable = "avx2,fma,f16c")]
fn q3_k(row: &[u8], x: QuantisedRow<'_>, ahead: isize) -> f32 {
    let factors = |block: &[u8; 110], at: usize| {
        let s = six_bits(q3_scales(part(block, 96))[at]);
        let s = _mm256_mul_ps(s, _mm256_set1_ps(half([block[108], block[109]])));
        (s, _mm256_mul_ps(s, _mm256_set1_ps(-4.0)))
    };
    row_k16::<110>(row, x, ahead, factors, |block, at| codes::q3_k(block, at))
}

#[target_feature(enable = "avx2,fma,f16c")]
fn q2_k(row: &[u8], x: QuantisedRow<'_>, ahead: isize) -> f32 {
    let factors = |block: &[u8; 84], at| {
        let both = _mm256_cvtepu8_epi32(load64::<u8, 8>(part(block, 8 * at)));
        let s = _mm256_cvtepi32_ps(_mm256_and_si256(both, _mm256_set1_epi32(15)));
        let m = _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(both));
        let (d, dmin) = (half([block[80], block[81]]), half([block[82], block[83]]));
        (_mm256_mul_ps(s, _mm256_set1_ps(d)), _mm256_mul_ps(m, _mm256_set1_ps(-dmin)))
    };
    row_k16::<84>(row, x, ahead, factors, |block, at| codes::two_bits(part(block, 16 + 32 * at)))
}
