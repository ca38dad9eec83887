//! Products of rows of weights with one activation vector.
//!
//! Unsigned weight codes are multiplied by signed activation codes (`vpdpbusd`). The offset of a
//! type's codes is corrected with the block sums of the activations.

use std::arch::x86_64::*;

use super::{
    codes::{self, heads},
    load_ps, load_some, load256, load512, prefetch, prefetch_part,
};
use crate::simd::{E8M0, F16, GatheredRow, QuantisedInput, avx2, part, portable::rows};
use thermocline_formats::quant::{FloatType, WeightType, f16_at, mxfp4};

/// `out[r] = W[r] . x` for rows of floats.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn float_rows(ty: FloatType, weights: &[u8], x: &[f32], ahead: isize, out: &mut [f32]) {
    let rows = rows(WeightType::Float(ty), weights, x.len(), out);
    rows.for_each(|(row, out)| {
        *out = match ty {
            FloatType::F32 => float_row::<64>(row, x, ahead, |w| _mm512_castsi512_ps(load512(w))),
            FloatType::F16 => float_row::<32>(row, x, ahead, |w| _mm512_cvtph_ps(load256(w))),
            FloatType::BF16 => float_row::<32>(row, x, ahead, |w| {
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load256(w))))
            }),
        }
    });
}

/// Multiplies one row of floats. Sixteen floats are `BYTES` long.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn float_row<const BYTES: usize>(row: &[u8], x: &[f32], ahead: isize, widen: impl Fn(&[u8; BYTES]) -> __m512) -> f32 {
    let ((ws, w_rest), (xs, x_rest)) = (row.as_chunks::<BYTES>(), x.as_chunks::<16>());
    let ((w4, w1), (x4, x1)) = (ws.as_chunks::<4>(), xs.as_chunks::<4>());
    let mut acc = [_mm512_setzero_ps(); 4];
    for (w, x) in w4.iter().zip(x4) {
        prefetch(w, ahead);
        for i in 0..4 {
            acc[i] = _mm512_fmadd_ps(widen(&w[i]), load_ps(&x[i]), acc[i]);
        }
    }
    for (w, x) in w1.iter().zip(x1) {
        acc[0] = _mm512_fmadd_ps(widen(w), load_ps(x), acc[0]);
    }
    if !x_rest.is_empty() {
        let mut padded = [0; BYTES];
        padded[..w_rest.len()].copy_from_slice(w_rest);
        acc[1] = _mm512_fmadd_ps(widen(&padded), load_some(x_rest), acc[1]);
    }
    _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(acc[0], acc[1]), _mm512_add_ps(acc[2], acc[3])))
}

/// Multiplies rows of blocks of 32 that begin with a scale ([`F16`] or [`E8M0`]). `pair` widens two
/// blocks to 64 unsigned codes, with `OFFSET` added. Each row has its prefetch distance. Gathered
/// rows are read side by side, so that more memory reads are in flight.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn rows32<const BYTES: usize, const SCALE: u8, const OFFSET: u8, const ROWS: usize>(
    rows: [GatheredRow<'_>; ROWS],
    x: QuantisedInput<'_>,
    pair: impl Fn(&[u8; BYTES], &[u8; BYTES]) -> __m512i,
) -> [f32; ROWS] {
    let lines = rows.map(|of| of.row.as_chunks::<BYTES>().0.as_chunks::<16>());
    let (codes, code_rest) = x.codes.as_chunks::<512>();
    let ((scales, scale_rest), (sums, sum_rest)) = (x.scales.as_chunks::<16>(), x.sums.as_chunks::<16>());
    let spread = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    let two = _mm512_set1_epi32(2);
    let mut acc = [[_mm512_setzero_ps(); 2]; ROWS];
    let mut offset = [_mm512_setzero_ps(); ROWS];
    for (line, (codes, (scales, sums))) in codes.iter().zip(scales.iter().zip(sums)).enumerate() {
        let mut scale = [_mm512_setzero_ps(); ROWS];
        for row in 0..ROWS {
            let blocks = &lines[row].0[line];
            // The processor's own prefetcher helps with rows in order, so all lines are prefetched
            // at once here. Gathered rows are prefetched in steps below.
            if ROWS == 1 {
                prefetch(blocks, rows[row].ahead);
            }
            let d = heads::<BYTES, SCALE>(blocks);
            offset[row] = _mm512_fmadd_ps(d, load_ps(sums), offset[row]);
            scale[row] = _mm512_mul_ps(d, load_ps(scales));
        }
        let mut at = spread;
        for (i, codes) in codes.as_chunks::<64>().0.iter().enumerate() {
            let codes = load512(codes);
            for row in 0..ROWS {
                let blocks = &lines[row].0[line];
                if ROWS > 1 {
                    prefetch_part(blocks, i, 8, rows[row].ahead);
                }
                let dot = _mm512_dpbusd_epi32(_mm512_setzero_si512(), pair(&blocks[2 * i], &blocks[2 * i + 1]), codes);
                let sum = &mut acc[row][i % 2];
                *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_permutexvar_ps(at, scale[row]), *sum);
            }
            at = _mm512_add_epi32(at, two);
        }
    }
    let mut out = [0.0; ROWS];
    for row in 0..ROWS {
        let mut total = _mm512_reduce_add_ps(_mm512_add_ps(acc[row][0], acc[row][1]));
        let mut offset = _mm512_reduce_add_ps(offset[row]);
        for (i, (block, codes)) in lines[row].1.iter().zip(code_rest.as_chunks::<32>().0).enumerate() {
            let d = scale_of::<SCALE>(block);
            let codes = _mm512_zextsi256_si512(load256(codes));
            let dot = _mm512_dpbusd_epi32(_mm512_setzero_si512(), pair(block, block), codes);
            total += d * scale_rest[i] * _mm512_reduce_add_epi32(dot) as f32;
            offset += d * sum_rest[i];
        }
        out[row] = total - f32::from(OFFSET) * offset;
    }
    out
}

/// Scale of a block of 32.
#[inline(always)]
pub(super) fn scale_of<const SCALE: u8>(block: &[u8]) -> f32 {
    if SCALE == E8M0 { mxfp4::scale(block[0]) } else { f16_at(block, 0) }
}

/// Dot products of gathered Q4_0 rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn q4_0<const ROWS: usize>(rows: [GatheredRow<'_>; ROWS], x: QuantisedInput<'_>) -> [f32; ROWS] {
    rows32::<18, F16, 8, ROWS>(rows, x, |a, b| codes::q4_0(a, b))
}

/// Multiplies a row of Q4_K or Q5_K blocks. `pair(block, i)` widens sub-blocks `2i` and `2i + 1` to
/// 64 codes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn row_k<const BYTES: usize>(
    row: &[u8],
    x: QuantisedInput<'_>,
    ahead: isize,
    pair: impl Fn(&[u8; BYTES], usize) -> __m512i,
) -> f32 {
    let blocks = row.as_chunks::<BYTES>().0.iter().zip(x.codes.as_chunks::<256>().0);
    let factors = x.scales.as_chunks::<8>().0.iter().zip(x.sums.as_chunks::<8>().0);
    let spread = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    let mut acc = [_mm512_setzero_ps(); 2];
    let mut minima = _mm512_setzero_ps();
    for ((block, codes), (scales, sums)) in blocks.zip(factors) {
        prefetch(block, ahead);
        let x = _mm512_insertf32x8::<1>(_mm512_castps256_ps512(avx2::load_ps(scales)), avx2::load_ps(sums));
        let s = _mm512_mul_ps(codes::k_factors(part(block, 0)), x);
        // Only the upper eight lanes contain minima.
        minima = _mm512_add_ps(minima, s);
        for (i, codes) in codes.as_chunks::<64>().0.iter().enumerate() {
            let dot = _mm512_dpbusd_epi32(_mm512_setzero_si512(), pair(block, i), load512(codes));
            let at = _mm512_add_epi32(spread, _mm512_set1_epi32(2 * i as i32));
            acc[i % 2] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_permutexvar_ps(at, s), acc[i % 2]);
        }
    }
    let minima = _mm512_maskz_mov_ps(0xff00, minima);
    _mm512_reduce_add_ps(_mm512_sub_ps(_mm512_add_ps(acc[0], acc[1]), minima))
}

/// Multiplies a row of Q6_K blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn row_q6_k(row: &[u8], x: QuantisedInput<'_>, ahead: isize) -> f32 {
    let blocks = row.as_chunks::<210>().0.iter().zip(x.codes.as_chunks::<256>().0);
    let factors = x.scales.as_chunks::<8>().0.iter().zip(x.half_sums.as_chunks::<16>().0);
    let twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    let spread = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    let mut acc = [_mm512_setzero_ps(); 2];
    let mut offset = _mm512_setzero_ps();
    for ((block, codes), (scales, half_sums)) in blocks.zip(factors) {
        prefetch(block, ahead);
        let s = codes::q6_k_scales(block);
        offset = _mm512_fmadd_ps(s, load_ps(half_sums), offset);
        let s = _mm512_mul_ps(s, _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(avx2::load_ps(scales))));
        for (i, codes) in codes.as_chunks::<64>().0.iter().enumerate() {
            let dot = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes::q6_k(block, i), load512(codes));
            let at = _mm512_add_epi32(spread, _mm512_set1_epi32(4 * i as i32));
            acc[i % 2] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_permutexvar_ps(at, s), acc[i % 2]);
        }
    }
    _mm512_reduce_add_ps(_mm512_add_ps(acc[0], acc[1])) - 32.0 * _mm512_reduce_add_ps(offset)
}
