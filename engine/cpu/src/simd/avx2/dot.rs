//! Products of rows of weights with one activation vector.
//!
//! Unsigned weight codes are multiplied by signed activation codes. Codes are too small to saturate
//! `vpmaddubsw`. The offset of a type's codes is corrected with the sums of the activations' codes.
//! Products of four groups are summed as integers, then scaled together, in
//! [`sum_order`](crate::simd::sum_order).

use std::arch::x86_64::*;

use super::{
    codes, heads, load_ps, load64, load128, load256, powers, prefetch, reduce,
    sums::{RowTotal, add4, half_sums4, half_sums8, halves, less, load4, sums4},
};
use crate::simd::{
    DOT_TOKENS, E8M0, F16, GatheredRow, MINIMA, QuantisedInput, SIGNED,
    block_inputs::{BlockInputs, PaddedInputs, padded},
    part,
    portable::rows,
    sum_order::LINE,
};
use thermocline_formats::quant::{FloatType, WeightType, k_scales};

/// See [`Kernels::dot_floats_tokens`](crate::simd::Kernels::dot_floats_tokens), for two or three
/// tokens.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn floats_tokens(ty: FloatType, weights: &[u8], x: &[&[f32]], ahead: isize, out: &mut [[f32; DOT_TOKENS]]) {
    match *x {
        [a, b] => floats(ty, weights, [a, b], ahead, out),
        [a, b, c] => floats(ty, weights, [a, b, c], ahead, out),
        _ => panic!("a product of {} tokens", x.len()),
    }
}

/// `out[r][t] = W[r] . x[t]` for rows of floats.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn floats<const N: usize, const OUT: usize>(
    ty: FloatType,
    weights: &[u8],
    x: [&[f32]; N],
    ahead: isize,
    out: &mut [[f32; OUT]],
) {
    let rows = rows(WeightType::Float(ty), weights, x[0].len(), out);
    rows.for_each(|(row, out)| {
        let sums = match ty {
            FloatType::F32 => float_row::<32, N>(row, x, ahead, |w| _mm256_castsi256_ps(load256(w))),
            FloatType::F16 => float_row::<16, N>(row, x, ahead, |w| _mm256_cvtph_ps(load128(w))),
            FloatType::BF16 => float_row::<16, N>(row, x, ahead, |w| {
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load128(w))))
            }),
        };
        out[..N].copy_from_slice(&sums);
    });
}

/// Multiplies one row of floats, of which eight are `BYTES` long. The row is widened once for all
/// tokens. Each token has separate sums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn float_row<const BYTES: usize, const N: usize>(
    row: &[u8],
    x: [&[f32]; N],
    ahead: isize,
    widen: impl Fn(&[u8; BYTES]) -> __m256,
) -> [f32; N] {
    let (ws, w_rest) = row.as_chunks::<BYTES>();
    let (w4, w1) = ws.as_chunks::<4>();
    let (xs, x_rest) = (x.map(|x| x.as_chunks::<8>().0.as_chunks::<4>()), x.map(|x| x.as_chunks::<8>().1));
    let (x4, x1) = (xs.map(|(x4, _)| &x4[..w4.len()]), xs.map(|(_, x1)| &x1[..w1.len()]));
    let mut acc = [[_mm256_setzero_ps(); 4]; N];
    for (at, w) in w4.iter().enumerate() {
        prefetch(w.as_flattened(), ahead);
        for i in 0..4 {
            let w = widen(&w[i]);
            for token in 0..N {
                acc[token][i] = _mm256_fmadd_ps(w, load_ps(&x4[token][at][i]), acc[token][i]);
            }
        }
    }
    for (at, w) in w1.iter().enumerate() {
        let w = widen(w);
        for token in 0..N {
            acc[token][0] = _mm256_fmadd_ps(w, load_ps(&x1[token][at]), acc[token][0]);
        }
    }
    if !w_rest.is_empty() {
        let mut w = [0; BYTES];
        w[..w_rest.len()].copy_from_slice(w_rest);
        let w = widen(&w);
        for token in 0..N {
            let mut x = [0.0; 8];
            x[..x_rest[token].len()].copy_from_slice(x_rest[token]);
            acc[token][1] = _mm256_fmadd_ps(w, load_ps(&x), acc[token][1]);
        }
    }
    let mut out = [0.0; N];
    for (out, acc) in out.iter_mut().zip(acc) {
        *out = reduce(_mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), _mm256_add_ps(acc[2], acc[3])));
    }
    out
}

/// Exact sums of four products. `a` is unsigned, `b` is signed.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot4(a: __m256i, b: __m256i) -> __m256i {
    _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1))
}

/// [`dot4`] with signed `w`. |w| is at most 128 and an activation's code at most 127, so a pair
/// stays below 2^15.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn signed4(w: __m256i, x: __m256i) -> __m256i {
    dot4(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
}

/// Multiplies rows of blocks of 32 that begin with a scale ([`F16`] or [`E8M0`]). `codes_of` widens
/// a block's codes. They have `OFFSET` added, or are [`SIGNED`], or have a minimum after the scale
/// instead ([`MINIMA`]). Each row has its prefetch distance. Gathered rows are read side by side,
/// so that more memory reads are in flight.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn rows32<const BYTES: usize, const SCALE: u8, const OFFSET: i8, const ROWS: usize>(
    rows: [GatheredRow<'_>; ROWS],
    x: QuantisedInput<'_>,
    codes_of: impl Fn(&[u8; BYTES]) -> __m256i,
) -> [f32; ROWS] {
    const STEPS: usize = LINE / 256;
    let lines = rows.map(|of| of.row.as_chunks::<BYTES>().0.as_chunks::<8>());
    let mut sums = [RowTotal::zero(); ROWS];
    for (at, inputs) in BlockInputs::whole(x).enumerate() {
        for row in 0..ROWS {
            let blocks = &lines[row].0[at];
            prefetch(blocks.as_flattened(), rows[row].ahead);
            sums[row].before_block(at, STEPS);
            sums[row].line = eight::<BYTES, SCALE, OFFSET>(sums[row].line, blocks, inputs, &codes_of);
        }
    }
    if let Some(inputs) = PaddedInputs::rest(x) {
        for row in 0..ROWS {
            let (whole, rest) = lines[row];
            let blocks = padded(rest, [0; BYTES]);
            sums[row].before_block(whole.len(), STEPS);
            sums[row].line = eight::<BYTES, SCALE, OFFSET>(sums[row].line, &blocks, inputs.get(), &codes_of);
        }
    }
    let mut out = [0.0; ROWS];
    for row in 0..ROWS {
        out[row] = sums[row].get();
    }
    out
}

/// Adds the products of eight blocks of [`rows32`] to a line's sums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn eight<const BYTES: usize, const SCALE: u8, const OFFSET: i8>(
    mut sums: __m128,
    blocks: &[[u8; BYTES]; 8],
    x: BlockInputs<'_, 8>,
    codes_of: impl Fn(&[u8; BYTES]) -> __m256i,
) -> __m128 {
    let d = if SCALE == E8M0 { powers(blocks) } else { heads::<BYTES, 0>(blocks) };
    let scales = halves(_mm256_mul_ps(d, load_ps(x.scales)));
    let minima = if OFFSET == MINIMA { halves(heads::<BYTES, 2>(blocks)) } else { [_mm_setzero_ps(); 2] };
    for half in 0..2 {
        let mut dots = [_mm256_setzero_si256(); 4];
        for i in 0..4 {
            let (codes, x) = (codes_of(&blocks[4 * half + i]), load256(&x.codes[4 * half + i]));
            dots[i] = if OFFSET == SIGNED { signed4(codes, x) } else { dot4(codes, x) };
        }
        let mut dots = sums4(dots);
        if OFFSET > 0 {
            dots = less(dots, OFFSET, part(x.code_sums, 4 * half));
        }
        sums = add4(sums, dots, scales[half]);
        if OFFSET == MINIMA {
            sums = _mm_fmadd_ps(minima[half], load4(part(x.sums, 4 * half)), sums);
        }
    }
    sums
}

/// Dot products of gathered Q4_0 rows.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_0<const ROWS: usize>(rows: [GatheredRow<'_>; ROWS], x: QuantisedInput<'_>) -> [f32; ROWS] {
    rows32::<18, F16, 8, ROWS>(rows, x, |block| codes::nibbles(part(block, 2)))
}

/// The scales and the minima of a block of Q4_K or Q5_K, as in [`k_scales::unpack_scales`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn scales_k(header: &[u8; 16]) -> (__m256, __m256) {
    let (s, m) = k_scales::unpack(part(header, 4));
    let both = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from_le_bytes(*part(header, 0))));
    let (d, dmin) = (_mm256_broadcastss_ps(both), _mm256_broadcastss_ps(_mm_movehdup_ps(both)));
    let minima = _mm256_mul_ps(bytes8(m), _mm256_xor_ps(dmin, _mm256_set1_ps(-0.0)));
    (_mm256_mul_ps(bytes8(s), d), minima)
}

/// Eight bytes as floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn bytes8(bytes: [u8; 8]) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load64(&bytes)))
}

/// Multiplies a row of Q4_K or Q5_K blocks. `pair(block, i)` widens sub-blocks `2i` and `2i + 1`.
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
    let mut sums = RowTotal::zero();
    for (at, ((block, codes), (scales, x_sums))) in blocks.zip(factors).enumerate() {
        prefetch(block, ahead);
        sums.before_block(at, LINE / 256);
        let (of_codes, minima) = scales_k(part(block, 0));
        let (scales, minima) = (halves(_mm256_mul_ps(of_codes, load_ps(scales))), halves(minima));
        for half in 0..2 {
            let [a, b] = pair(block, 2 * half);
            let [c, d] = pair(block, 2 * half + 1);
            let mut dots = [a, b, c, d];
            for (i, dot) in dots.iter_mut().enumerate() {
                *dot = dot4(*dot, load256::<i8, 32>(part(codes, 128 * half + 32 * i)));
            }
            sums.line = add4(sums.line, sums4(dots), scales[half]);
            sums.line = _mm_fmadd_ps(minima[half], load4(part(x_sums, 4 * half)), sums.line);
        }
    }
    sums.get()
}

/// Eight 6-bit scales, stored with 32 added, as floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn six_bits(scales: [u8; 8]) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_cvtepu8_epi32(load64(&scales)), _mm256_set1_epi32(32)))
}

/// Multiplies a row of blocks of 256 with one scale per 16 elements. `factors(block, half)` returns
/// the scales and, with [`MINIMA`], the minima of a half. `weights(block, half)` returns its codes,
/// with `OFFSET` added.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn row_k16<const BYTES: usize, const OFFSET: i8>(
    row: &[u8],
    x: QuantisedInput<'_>,
    ahead: isize,
    factors: impl Fn(&[u8; BYTES], usize) -> (__m256, __m256),
    weights: impl Fn(&[u8; BYTES], usize) -> [__m256i; 4],
) -> f32 {
    let blocks = row.as_chunks::<BYTES>().0.iter().zip(x.codes.as_chunks::<256>().0);
    let of_x = x.half_sums.as_chunks::<16>().0.iter().zip(x.half_code_sums.as_chunks::<16>().0);
    let of_x = x.scales.as_chunks::<8>().0.iter().zip(of_x);
    let mut sums = RowTotal::zero();
    for (at, ((block, codes), (scales, (x_sums, code_sums)))) in blocks.zip(of_x).enumerate() {
        prefetch(block, ahead);
        sums.before_block(at, LINE / 256);
        // Two weight scales share one activation scale.
        let twice = [_mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0), _mm256_set_epi32(7, 7, 6, 6, 5, 5, 4, 4)];
        for (at, codes) in codes.as_chunks::<128>().0.iter().enumerate() {
            let (s, minima) = factors(block, at);
            let s = halves(_mm256_mul_ps(s, _mm256_permutevar8x32_ps(load_ps(scales), twice[at])));
            let minima = halves(minima);
            let mut dots = weights(block, at);
            for (i, dot) in dots.iter_mut().enumerate() {
                *dot = dot4(*dot, load256::<i8, 32>(part(codes, 32 * i)));
            }
            for (half, mut four) in half_sums8(dots).into_iter().enumerate() {
                let first = 8 * at + 4 * half;
                if OFFSET > 0 {
                    four = less(four, OFFSET, part(code_sums, first));
                }
                sums.line = add4(sums.line, four, s[half]);
                if OFFSET == MINIMA {
                    sums.line = _mm_fmadd_ps(minima[half], load4(part(x_sums, first)), sums.line);
                }
            }
        }
    }
    sums.get()
}

/// Multiplies a row of blocks of `CHUNKS` chunks of 32 signed codes. `GROUPS` says whether each
/// chunk has one scale or two. `codes(block, i)` widens chunk `i`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn row_signed<const BYTES: usize, const CHUNKS: usize, const GROUPS: usize>(
    row: &[u8],
    x: QuantisedInput<'_>,
    ahead: isize,
    scales: impl Fn(&[u8; BYTES]) -> [f32; GROUPS],
    codes: impl Fn(&[u8; BYTES], usize) -> __m256i,
) -> f32 {
    const { assert!((GROUPS == CHUNKS || GROUPS == 2 * CHUNKS) && matches!(GROUPS, 2 | 4 | 8 | 16)) };
    let inputs = x.codes.as_chunks::<32>().0.as_chunks::<CHUNKS>().0.iter().zip(x.scales.as_chunks::<CHUNKS>().0);
    let mut sums = RowTotal::zero();
    for (at, (block, (inputs, x_scales))) in row.as_chunks::<BYTES>().0.iter().zip(inputs).enumerate() {
        prefetch(block, ahead);
        sums.before_block(at, LINE / (32 * CHUNKS));
        let scales = scales(block);
        let mut dots = [_mm256_setzero_si256(); CHUNKS];
        for i in 0..CHUNKS {
            dots[i] = signed4(codes(block, i), load256(&inputs[i]));
        }
        if GROUPS == 2 {
            // Odd blocks contribute to the line's other two sums.
            let none = _mm256_setzero_si256();
            let [a, b] = [scales[0] * x_scales[0], scales[1] * x_scales[1]];
            sums.line = if at.is_multiple_of(2) {
                add4(sums.line, sums4([dots[0], dots[1], none, none]), _mm_set_ps(0.0, 0.0, b, a))
            } else {
                add4(sums.line, sums4([none, none, dots[0], dots[1]]), _mm_set_ps(b, a, 0.0, 0.0))
            };
        }
        for four in 0..GROUPS / 4 {
            let (dots, x_scales) = if GROUPS == CHUNKS {
                (sums4(*part(&dots, 4 * four)), load4(part(x_scales, 4 * four)))
            } else {
                let [a, b]: [f32; 2] = *part(x_scales, 2 * four);
                (half_sums4(*part(&dots, 2 * four)), _mm_set_ps(b, b, a, a))
            };
            sums.line = add4(sums.line, dots, _mm_mul_ps(load4(part(&scales, 4 * four)), x_scales));
        }
    }
    sums.get()
}
