//! Rows of weights against one activation vector.
//!
//! Unsigned weight codes times signed activation codes (`vpmaddubsw`, which the codes are too small to saturate); what
//! the offset of a type's codes adds is taken off with the block sums of the activations.

use std::arch::x86_64::*;

use super::{load_ps, load128, load256, prefetch, reduce, store_ps};
use crate::{
    cpu::simd::{
        QuantisedRow,
        portable::{self, rows},
        unpack::{half, k_scales},
    },
    format::TensorType,
};

/// Dispatch over the quantised types.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn codes(ty: TensorType, weights: &[u8], x: QuantisedRow<'_>, ahead: isize, out: &mut [f32]) {
    let rows = rows(ty, weights, x.codes.len(), out).inspect(|(row, _)| prefetch(row, ahead));
    match ty {
        TensorType::Q4_0 => rows.for_each(|(row, out)| *out = q4_0(row, x)),
        TensorType::Q8_0 => rows.for_each(|(row, out)| *out = q8_0(row, x)),
        TensorType::Q4_K => rows.for_each(|(row, out)| *out = q4_k(row, x)),
        TensorType::Q5_K => rows.for_each(|(row, out)| *out = q5_k(row, x)),
        TensorType::Q6_K => rows.for_each(|(row, out)| *out = q6_k(row, x)),
        _ => {
            drop(rows);
            portable::dot_codes(ty, weights, x, out);
        }
    }
}

/// Dispatch over the float types.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn floats(ty: TensorType, weights: &[u8], x: &[f32], ahead: isize, out: &mut [f32]) {
    let rows = rows(ty, weights, x.len(), out).inspect(|(row, _)| prefetch(row, ahead));
    match ty {
        TensorType::F32 => {
            rows.for_each(|(row, out)| *out = float_row::<32>(row, x, |w| _mm256_castsi256_ps(load256(w))));
        }
        TensorType::F16 => rows.for_each(|(row, out)| *out = float_row::<16>(row, x, |w| _mm256_cvtph_ps(load128(w)))),
        TensorType::BF16 => rows.for_each(|(row, out)| {
            *out = float_row::<16>(row, x, |w| {
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load128(w))))
            });
        }),
        _ => unreachable!("{ty} is not a float type"),
    }
}

/// One row of floats, eight of which are `BYTES` long.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn float_row<const BYTES: usize>(row: &[u8], x: &[f32], widen: impl Fn(&[u8; BYTES]) -> __m256) -> f32 {
    let ((ws, w_rest), (xs, x_rest)) = (row.as_chunks::<BYTES>(), x.as_chunks::<8>());
    let ((w4, w1), (x4, x1)) = (ws.as_chunks::<4>(), xs.as_chunks::<4>());
    let mut acc = [_mm256_setzero_ps(); 4];
    for (w, x) in w4.iter().zip(x4) {
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

/// Row of blocks of 32 with one f16 scale each: `dot` multiplies a block's codes, `OFFSET` too large.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn row32<const BYTES: usize, const OFFSET: u8>(
    row: &[u8],
    x: QuantisedRow<'_>,
    dot: impl Fn(&[u8; BYTES], &[i8; 32]) -> __m256i,
) -> f32 {
    let blocks = row.as_chunks::<BYTES>().0.iter().zip(x.codes.as_chunks::<32>().0);
    let (mut acc, mut offset) = (_mm256_setzero_ps(), 0.0);
    for ((block, codes), (scale, sum)) in blocks.zip(x.scales.iter().zip(x.sums)) {
        let d = half([block[0], block[1]]);
        acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot(block, codes)), _mm256_set1_ps(d * scale), acc);
        offset += d * sum;
    }
    reduce(acc) - f32::from(OFFSET) * offset
}

#[target_feature(enable = "avx2,fma,f16c")]
fn q4_0(row: &[u8], x: QuantisedRow<'_>) -> f32 {
    let shifts = _mm256_set_epi64x(4, 4, 0, 0);
    let mask = _mm256_set1_epi8(15);
    row32::<18, 8>(row, x, |block, codes| {
        let [_, _, quants @ ..] = block;
        let both = _mm256_broadcastsi128_si256(load128::<u8, 16>(quants));
        dot4(_mm256_and_si256(_mm256_srlv_epi64(both, shifts), mask), load256(codes))
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
fn q8_0(row: &[u8], x: QuantisedRow<'_>) -> f32 {
    row32::<34, 0>(row, x, |block, codes| {
        let [_, _, quants @ ..] = block;
        let w = load256::<u8, 32>(quants);
        // |w| is at most 128 and an activation's code at most 127, so a pair stays below 2^15.
        dot4(_mm256_abs_epi8(w), _mm256_sign_epi8(load256(codes), w))
    })
}

/// Eight bytes as floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn bytes8(bytes: [u8; 8]) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(bytes))))
}

/// Row of Q4_K or Q5_K blocks: `codes(block, i)` widens sub-block `i`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn row_k<const BYTES: usize>(row: &[u8], x: QuantisedRow<'_>, widen: impl Fn(&[u8; BYTES], usize) -> __m256i) -> f32 {
    let blocks = row.as_chunks::<BYTES>().0.iter().zip(x.codes.as_chunks::<256>().0);
    let factors = x.scales.as_chunks::<8>().0.iter().zip(x.sums.as_chunks::<8>().0);
    let (mut acc, mut minima) = (_mm256_setzero_ps(), _mm256_setzero_ps());
    for ((block, codes), (scales, sums)) in blocks.zip(factors) {
        let (d, dmin) = (half([block[0], block[1]]), half([block[2], block[3]]));
        let packed = std::array::from_fn(|i| block[4 + i]);
        let (s, m) = k_scales(&packed);
        minima = _mm256_fmadd_ps(_mm256_mul_ps(bytes8(m), _mm256_set1_ps(dmin)), load_ps(sums), minima);
        let mut s8 = [0.0; 8];
        store_ps(&mut s8, _mm256_mul_ps(_mm256_mul_ps(bytes8(s), _mm256_set1_ps(d)), load_ps(scales)));
        for (i, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
            let dot = dot4(widen(block, i), load256(codes));
            acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_set1_ps(s8[i]), acc);
        }
    }
    reduce(_mm256_sub_ps(acc, minima))
}

/// 32 bytes of a block.
#[inline(always)]
fn bytes32(block: &[u8], at: usize) -> &[u8; 32] {
    match block[at..].first_chunk() {
        Some(bytes) => bytes,
        None => &[0; 32],
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn q4_k(row: &[u8], x: QuantisedRow<'_>) -> f32 {
    let mask = _mm256_set1_epi8(15);
    row_k::<144>(row, x, |block, i| {
        let quants = load256(bytes32(block, 16 + 32 * (i / 2)));
        _mm256_and_si256(if i % 2 == 0 { quants } else { _mm256_srli_epi16::<4>(quants) }, mask)
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
fn q5_k(row: &[u8], x: QuantisedRow<'_>) -> f32 {
    let mask = _mm256_set1_epi8(15);
    row_k::<176>(row, x, |block, i| {
        let quants = load256(bytes32(block, 48 + 32 * (i / 2)));
        let low = _mm256_and_si256(if i % 2 == 0 { quants } else { _mm256_srli_epi16::<4>(quants) }, mask);
        let bit = _mm256_set1_epi8((1u8 << i) as i8);
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(load256(bytes32(block, 16)), bit), bit);
        _mm256_or_si256(low, _mm256_and_si256(set, _mm256_set1_epi8(16)))
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
fn q6_k(row: &[u8], x: QuantisedRow<'_>) -> f32 {
    let blocks = row.as_chunks::<210>().0.iter().zip(x.codes.as_chunks::<256>().0);
    let factors = x.scales.as_chunks::<8>().0.iter().zip(x.half_sums.as_chunks::<16>().0);
    let (mask, pair) = (_mm256_set1_epi8(15), _mm256_set1_epi8(3));
    let (mut acc, mut offset) = (_mm256_setzero_ps(), 0.0);
    for ((block, codes), (scales, half_sums)) in blocks.zip(factors) {
        let d = half([block[208], block[209]]);
        let s: [f32; 16] = std::array::from_fn(|i| d * f32::from(block[192 + i] as i8));
        offset += s.iter().zip(half_sums).map(|(s, sum)| s * sum).sum::<f32>();
        for (i, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
            // Sub-blocks 0 and 1 of a half are the low nibbles of its two 32-byte runs, 2 and 3 the high ones.
            let (at, part) = (i / 4, i % 4);
            let low = load256(bytes32(block, 64 * at + 32 * (part % 2)));
            let low = _mm256_and_si256(if part < 2 { low } else { _mm256_srli_epi16::<4>(low) }, mask);
            let high = load256(bytes32(block, 128 + 32 * at));
            let high = _mm256_srl_epi16(high, _mm_cvtsi32_si128(2 * part as i32));
            let high = _mm256_slli_epi16::<4>(_mm256_and_si256(high, pair));
            let dot = dot4(_mm256_or_si256(low, high), load256(codes));
            let scale = _mm256_set_m128(_mm_set1_ps(s[2 * i + 1] * scales[i]), _mm_set1_ps(s[2 * i] * scales[i]));
            acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, acc);
        }
    }
    reduce(acc) - 32.0 * offset
}
