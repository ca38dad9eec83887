//! Rows of weights against one activation vector.
//!
//! Unsigned weight codes times signed activation codes (`vpmaddubsw`, which the codes are too small to saturate); what
//! the offset of a type's codes adds is taken off with the block sums of the activations.

use std::arch::x86_64::*;

use super::{heads, load_ps, load64, load128, load256, prefetch, reduce, store_ps};
use crate::{
    cpu::simd::{
        Apart, DOT_ROWS, QuantisedRow, part,
        portable::{self, rows},
        unpack::{half, k_scales},
    },
    format::TensorType,
};

/// Dispatch over the quantised types.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn codes(ty: TensorType, weights: &[u8], x: QuantisedRow<'_>, ahead: isize, out: &mut [f32]) {
    let rows = rows(ty, weights, x.codes.len(), out);
    match ty {
        TensorType::Q4_0 => rows.for_each(|(row, out)| [*out] = q4_0([Apart { row, ahead }], x)),
        TensorType::Q8_0 => rows.for_each(|(row, out)| *out = q8_0(row, x, ahead)),
        TensorType::Q4_K => rows.for_each(|(row, out)| *out = q4_k(row, x, ahead)),
        TensorType::Q5_K => rows.for_each(|(row, out)| *out = q5_k(row, x, ahead)),
        TensorType::Q6_K => rows.for_each(|(row, out)| *out = q6_k(row, x, ahead)),
        _ => {
            drop(rows);
            portable::dot_codes(ty, weights, x, out);
        }
    }
}

/// Rows that lie apart; `false` if they are better taken one by one.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn apart(
    ty: TensorType,
    rows: &[Apart<'_>; DOT_ROWS],
    x: QuantisedRow<'_>,
    out: &mut [f32; DOT_ROWS],
) -> bool {
    if ty != TensorType::Q4_0 {
        return false;
    }
    for of in rows {
        assert_eq!(Some(of.row.len()), ty.row_bytes(x.codes.len()), "{ty} row of {}", x.codes.len());
    }
    *out = q4_0(*rows, x);
    true
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

/// Rows of blocks of 32 with one f16 scale each: `dot` multiplies a block's codes, `OFFSET` too large. Each row says how far ahead
/// of it memory is asked for. Rows that lie apart are read side by side: more of them are then on their way.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn rows32<const BYTES: usize, const OFFSET: u8, const ROWS: usize>(
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
            let d = heads(blocks);
            offset[row] = _mm256_fmadd_ps(d, load_ps(sums), offset[row]);
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
            let d = half([block[0], block[1]]);
            acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot(block, codes)), _mm256_set1_ps(d * scale_rest[i]), acc);
            offset += d * sum_rest[i];
        }
        out[row] = reduce(_mm256_add_ps(acc, odd)) - f32::from(OFFSET) * offset;
    }
    out
}

#[target_feature(enable = "avx2,fma,f16c")]
fn q4_0<const ROWS: usize>(rows: [Apart<'_>; ROWS], x: QuantisedRow<'_>) -> [f32; ROWS] {
    let shifts = _mm256_set_epi64x(4, 4, 0, 0);
    let mask = _mm256_set1_epi8(15);
    rows32::<18, 8, ROWS>(rows, x, |block, codes| {
        let [_, _, quants @ ..] = block;
        let both = _mm256_broadcastsi128_si256(load128::<u8, 16>(quants));
        dot4(_mm256_and_si256(_mm256_srlv_epi64(both, shifts), mask), load256(codes))
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
fn q8_0(row: &[u8], x: QuantisedRow<'_>, ahead: isize) -> f32 {
    let [out] = rows32::<34, 0, 1>([Apart { row, ahead }], x, |block, codes| {
        let [_, _, quants @ ..] = block;
        let w = load256::<u8, 32>(quants);
        // |w| is at most 128 and an activation's code at most 127, so a pair stays below 2^15.
        dot4(_mm256_abs_epi8(w), _mm256_sign_epi8(load256(codes), w))
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
    let mask = _mm256_set1_epi8(15);
    row_k::<144>(row, x, ahead, |block, i| {
        let quants = load256::<u8, 32>(part(block, 16 + 32 * i));
        [quants, _mm256_srli_epi16::<4>(quants)].map(|quants| _mm256_and_si256(quants, mask))
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
fn q5_k(row: &[u8], x: QuantisedRow<'_>, ahead: isize) -> f32 {
    let (mask, fifth) = (_mm256_set1_epi8(15), _mm256_set1_epi8(16));
    row_k::<176>(row, x, ahead, |block, i| {
        let quants = load256::<u8, 32>(part(block, 48 + 32 * i));
        // The fifth bits of these two sub-blocks are the lowest two of each byte.
        let bits = _mm256_srl_epi16(load256::<u8, 32>(part(block, 16)), _mm_cvtsi32_si128(2 * i as i32));
        [(quants, _mm256_slli_epi16::<4>(bits)), (_mm256_srli_epi16::<4>(quants), _mm256_slli_epi16::<3>(bits))]
            .map(|(low, bit)| _mm256_or_si256(_mm256_and_si256(low, mask), _mm256_and_si256(bit, fifth)))
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
fn q6_k(row: &[u8], x: QuantisedRow<'_>, ahead: isize) -> f32 {
    let blocks = row.as_chunks::<210>().0.iter().zip(x.codes.as_chunks::<256>().0);
    let factors = x.scales.as_chunks::<8>().0.iter().zip(x.half_sums.as_chunks::<16>().0);
    let (mask, upper) = (_mm256_set1_epi8(15), _mm256_set1_epi8(48));
    let (mut acc, mut offset) = ([_mm256_setzero_ps(); 2], _mm256_setzero_ps());
    for ((block, codes), (scales, half_sums)) in blocks.zip(factors) {
        prefetch(block, ahead);
        let d = _mm256_set1_ps(half([block[208], block[209]]));
        // Two scales for each of the activations'.
        let twice = [_mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0), _mm256_set_epi32(7, 7, 6, 6, 5, 5, 4, 4)];
        for (at, codes) in codes.as_chunks::<128>().0.iter().enumerate() {
            let s = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load64(part(block, 192 + 8 * at))));
            let s = _mm256_mul_ps(s, d);
            offset = _mm256_fmadd_ps(s, load_ps(part(half_sums, 8 * at)), offset);
            let s = _mm256_mul_ps(s, _mm256_permutevar8x32_ps(load_ps(scales), twice[at]));
            // Sub-blocks 0 and 1 are the low nibbles of two runs of 32 bytes, 2 and 3 the high ones; 32 bytes have all upper bits.
            let a = load256::<u8, 32>(part(block, 64 * at));
            let b = load256::<u8, 32>(part(block, 64 * at + 32));
            let bits = load256::<u8, 32>(part(block, 128 + 32 * at));
            let parts = [
                (a, _mm256_slli_epi16::<4>(bits)),
                (b, _mm256_slli_epi16::<2>(bits)),
                (_mm256_srli_epi16::<4>(a), bits),
                (_mm256_srli_epi16::<4>(b), _mm256_srli_epi16::<2>(bits)),
            ];
            for (i, (low, bits)) in parts.into_iter().enumerate() {
                let weights = _mm256_or_si256(_mm256_and_si256(low, mask), _mm256_and_si256(bits, upper));
                let dot = dot4(weights, load256::<i8, 32>(part(codes, 32 * i)));
                let (first, second) = (2 * i as i32, 2 * i as i32 + 1);
                let two = _mm256_set_epi32(second, second, second, second, first, first, first, first);
                let scale = _mm256_permutevar8x32_ps(s, two);
                acc[i % 2] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, acc[i % 2]);
            }
        }
    }
    reduce(_mm256_add_ps(acc[0], acc[1])) - 32.0 * reduce(offset)
}
