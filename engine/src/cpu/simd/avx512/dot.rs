//! Rows of weights against one activation vector.
//!
//! Unsigned weight codes times signed activation codes (`vpdpbusd`); what the offset of a type's codes adds is taken
//! off with the sums of the activations' codes. Products of groups are summed as integers, then scaled together:
//! [`sum_order`](crate::cpu::simd::sum_order) says in which order.

use std::arch::x86_64::*;

use super::{
    codes::{self, E8M0, F16, heads},
    load_ps, load_some, load256, load512, prefetch, prefetch_part,
};
use crate::{
    cpu::simd::{
        GatheredRow, QuantisedInput,
        avx2::sums::{end_line, halves, load4, total},
        block_inputs::{BlockInputs, PaddedInputs, padded},
        part,
        portable::rows,
        sum_order::LINE,
    },
    quant::{Encoding, FloatType, f16_at, mxfp4},
};

/// Dispatch over the float types.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn floats(ty: FloatType, weights: &[u8], x: &[f32], ahead: isize, out: &mut [f32]) {
    let rows = rows(Encoding::Float(ty), weights, x.len(), out);
    match ty {
        FloatType::F32 => {
            rows.for_each(|(row, out)| *out = float_row::<64>(row, x, ahead, |w| _mm512_castsi512_ps(load512(w))))
        }
        FloatType::F16 => {
            rows.for_each(|(row, out)| *out = float_row::<32>(row, x, ahead, |w| _mm512_cvtph_ps(load256(w))))
        }
        FloatType::BF16 => rows.for_each(|(row, out)| {
            *out = float_row::<32>(row, x, ahead, |w| {
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load256(w))))
            });
        }),
    }
}

/// One row of floats, sixteen of which are `BYTES` long.
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

/// Rows of blocks of 32 behind a scale ([`F16`] or [`E8M0`]): `pair` widens two blocks to 64 unsigned codes, `OFFSET` too large. Each row has
/// its prefetch distance. Gathered rows are read side by side: more of them are then on their way.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn rows32<const BYTES: usize, const SCALE: u8, const OFFSET: u8, const ROWS: usize>(
    rows: [GatheredRow<'_>; ROWS],
    x: QuantisedInput<'_>,
    pair: impl Fn(&[u8; BYTES], &[u8; BYTES]) -> __m512i,
) -> [f32; ROWS] {
    let lines = rows.map(|of| of.row.as_chunks::<BYTES>().0.as_chunks::<16>());
    let mut sums = [_mm_setzero_ps(); ROWS];
    for (at, inputs) in BlockInputs::whole(x).enumerate() {
        for row in 0..ROWS {
            let blocks = &lines[row].0[at];
            let before = if at > 0 { end_line(sums[row]) } else { sums[row] };
            sums[row] = line32::<BYTES, SCALE, OFFSET>(before, blocks, rows[row].ahead, inputs, &pair);
        }
    }
    if let Some(inputs) = PaddedInputs::rest(x) {
        for row in 0..ROWS {
            let (whole, rest) = lines[row];
            let blocks = padded(rest).unwrap_or([[0; BYTES]; 16]);
            let before = if whole.is_empty() { sums[row] } else { end_line(sums[row]) };
            sums[row] = line32::<BYTES, SCALE, OFFSET>(before, &blocks, 0, inputs.get(), &pair);
        }
    }
    let mut out = [0.0; ROWS];
    for row in 0..ROWS {
        out[row] = total(sums[row]);
    }
    out
}

/// Adds the products of a line's blocks of [`rows32`] to its sums.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn line32<const BYTES: usize, const SCALE: u8, const OFFSET: u8>(
    sums: __m128,
    blocks: &[[u8; BYTES]; 16],
    ahead: isize,
    x: BlockInputs<'_, 16>,
    pair: impl Fn(&[u8; BYTES], &[u8; BYTES]) -> __m512i,
) -> __m128 {
    const { assert!(LINE == 16 * 32) };
    let scales = _mm512_mul_ps(heads::<BYTES, SCALE>(blocks), load_ps(x.scales));
    let mut dots = [_mm512_setzero_si512(); 8];
    for i in 0..8 {
        prefetch_part(blocks, i, 8, ahead);
        let codes = load512(part::<[i8; 32], 2>(x.codes, 2 * i));
        dots[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), pair(&blocks[2 * i], &blocks[2 * i + 1]), codes);
    }
    let [a, b, c, d, e, f, g, h] = dots;
    let (low, high) = (quarter_sums([a, b, c, d]), quarter_sums([e, f, g, h]));
    let (first, second) = (_mm512_shuffle_i32x4::<0x88>(low, high), _mm512_shuffle_i32x4::<0xdd>(low, high));
    let in_order = _mm512_set_epi32(15, 11, 14, 10, 13, 9, 12, 8, 7, 3, 6, 2, 5, 1, 4, 0);
    let dots = _mm512_permutexvar_epi32(in_order, _mm512_add_epi32(first, second));
    add16(sums, less(dots, OFFSET, x.code_sums), scales)
}

/// The integers in each quarter of four registers added up: four sums in each quarter.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn quarter_sums([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
}

/// `dots` less `offset` times the sums of the activations' codes: the products of codes that are `offset` too large.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn less(dots: __m512i, offset: u8, code_sums: &[i32; 16]) -> __m512i {
    // Sums fit 16 bits.
    _mm512_sub_epi32(dots, _mm512_madd_epi16(load512(code_sums), _mm512_set1_epi32(i32::from(offset))))
}

/// Adds the products of sixteen groups to a line's sums.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn add16(mut sums: __m128, dots: __m512i, scales: __m512) -> __m128 {
    let dots = _mm512_cvtepi32_ps(dots);
    sums = _mm_fmadd_ps(_mm512_castps512_ps128(dots), _mm512_castps512_ps128(scales), sums);
    sums = _mm_fmadd_ps(_mm512_extractf32x4_ps::<1>(dots), _mm512_extractf32x4_ps::<1>(scales), sums);
    sums = _mm_fmadd_ps(_mm512_extractf32x4_ps::<2>(dots), _mm512_extractf32x4_ps::<2>(scales), sums);
    _mm_fmadd_ps(_mm512_extractf32x4_ps::<3>(dots), _mm512_extractf32x4_ps::<3>(scales), sums)
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

/// Eight floats.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn load8(from: &[f32; 8]) -> __m256 {
    _mm256_castsi256_ps(load256(from))
}

/// Row of Q4_K or Q5_K blocks: `pair(block, i)` widens sub-blocks `2i` and `2i + 1` to 64 codes.
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
    let mut sums = _mm_setzero_ps();
    for (at, ((block, codes), (scales, x_sums))) in blocks.zip(factors).enumerate() {
        prefetch(block, ahead);
        if at > 0 && at % (LINE / 256) == 0 {
            sums = end_line(sums);
        }
        let factors = codes::k_factors(part(block, 0));
        let scales = halves(_mm256_mul_ps(_mm512_castps512_ps256(factors), load8(scales)));
        let minima = halves(_mm512_extractf32x8_ps::<1>(factors));
        let mut dots = [_mm512_setzero_si512(); 4];
        for (i, codes) in codes.as_chunks::<64>().0.iter().enumerate() {
            dots[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), pair(block, i), load512(codes));
        }
        // Even groups have the first two quarters, odd ones the others.
        let four = quarter_sums(dots);
        let (even, odd) = (_mm512_castsi512_si256(four), _mm512_extracti64x4_epi64::<1>(four));
        let first = _mm256_permute2x128_si256::<0x20>(even, odd);
        let eight = _mm256_add_epi32(first, _mm256_permute2x128_si256::<0x31>(even, odd));
        let in_order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
        let dots = halves(_mm256_cvtepi32_ps(_mm256_permutevar8x32_epi32(eight, in_order)));
        for half in 0..2 {
            sums = _mm_fmadd_ps(dots[half], scales[half], sums);
            sums = _mm_fnmadd_ps(minima[half], load4(part(x_sums, 4 * half)), sums);
        }
    }
    total(sums)
}

/// Row of Q6_K blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn row_q6_k(row: &[u8], x: QuantisedInput<'_>, ahead: isize) -> f32 {
    let blocks = row.as_chunks::<210>().0.iter().zip(x.codes.as_chunks::<256>().0);
    let factors = x.scales.as_chunks::<8>().0.iter().zip(x.half_code_sums.as_chunks::<16>().0);
    let twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    let mut sums = _mm_setzero_ps();
    for (at, ((block, codes), (scales, code_sums))) in blocks.zip(factors).enumerate() {
        prefetch(block, ahead);
        if at > 0 && at % (LINE / 256) == 0 {
            sums = end_line(sums);
        }
        let scales = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(load8(scales)));
        let scales = _mm512_mul_ps(codes::q6_k_scales(block), scales);
        let mut dots = [_mm512_setzero_si512(); 4];
        for (i, codes) in codes.as_chunks::<64>().0.iter().enumerate() {
            dots[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes::q6_k(block, i), load512(codes));
        }
        let in_order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
        let dots = _mm512_permutexvar_epi32(in_order, quarter_sums(dots));
        sums = add16(sums, less(dots, 32, code_sums), scales);
    }
    total(sums)
}
