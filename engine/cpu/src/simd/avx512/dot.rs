//! Products of rows of weights with activation vectors.
//!
//! Unsigned weight codes are multiplied by signed activation codes (`vpdpbusd`), with 256 columns
//! in the order of [`LaneChunk`]. The offset of a type's codes is corrected with the sums of the
//! activations' codes. Each lane sums its products of 256 columns as an integer, which is then
//! scaled and added to the lane's float. A token's result does not depend on the other tokens.

use std::arch::x86_64::*;

use super::{
    lanes::{self, LaneWeights},
    load_ps, load_some, load256, load512, prefetch,
};
use smallvec::SmallVec;

use crate::simd::{
    CODE_TOKENS, DOT_TOKENS, GatheredRow, LANE_ROWS, LANE_TOKENS, LaneChunk, LaneTile, QuantisedInput,
    block_inputs::padded, part, portable::rows,
};
use thermocline_formats::quant::{BlockType, FloatType, WeightType};

/// Used instead of an offset of codes if blocks have minima.
const MINIMA: i16 = -1;

/// See [`Kernels::dot_floats_tokens`](crate::simd::Kernels::dot_floats_tokens), for two or three
/// tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn floats_tokens(ty: FloatType, weights: &[u8], x: &[&[f32]], ahead: isize, out: &mut [[f32; DOT_TOKENS]]) {
    match *x {
        [a, b] => floats(ty, weights, [a, b], ahead, out),
        [a, b, c] => floats(ty, weights, [a, b, c], ahead, out),
        _ => panic!("a product of {} tokens", x.len()),
    }
}

/// `out[r][t] = W[r] . x[t]` for rows of floats.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn floats<const N: usize, const OUT: usize>(
    ty: FloatType,
    weights: &[u8],
    x: [&[f32]; N],
    ahead: isize,
    out: &mut [[f32; OUT]],
) {
    let rows = rows(WeightType::Float(ty), weights, x[0].len(), out);
    match ty {
        FloatType::F32 => each_float_row::<64, N, OUT>(rows, x, ahead, |w| _mm512_castsi512_ps(load512(w))),
        FloatType::F16 => each_float_row::<32, N, OUT>(rows, x, ahead, |w| _mm512_cvtph_ps(load256(w))),
        FloatType::BF16 => each_float_row::<32, N, OUT>(rows, x, ahead, |w| {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load256(w))))
        }),
    }
}

/// Multiplies rows of floats, in pairs if they are in a cache. The rows of a pair share the loads
/// of the activations, which exceed a first-level cache. Memory delivers single rows faster.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn each_float_row<'a, const BYTES: usize, const N: usize, const OUT: usize>(
    mut rows: impl Iterator<Item = (&'a [u8], &'a mut [f32; OUT])>,
    x: [&[f32]; N],
    ahead: isize,
    widen: impl Fn(&[u8; BYTES]) -> __m512,
) {
    while let Some((row, out)) = rows.next() {
        let second = if N > 1 && ahead == 0 { rows.next() } else { None };
        let Some((next, next_out)) = second else {
            let [sums] = float_rows::<BYTES, 1, N>([row], x, ahead, &widen);
            out[..N].copy_from_slice(&sums);
            continue;
        };
        let [a, b] = float_rows::<BYTES, 2, N>([row, next], x, ahead, &widen);
        out[..N].copy_from_slice(&a);
        next_out[..N].copy_from_slice(&b);
    }
}

/// Multiplies rows of floats with tokens. Sixteen floats are `BYTES` long.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn float_rows<const BYTES: usize, const ROWS: usize, const N: usize>(
    rows: [&[u8]; ROWS],
    x: [&[f32]; N],
    ahead: isize,
    widen: impl Fn(&[u8; BYTES]) -> __m512,
) -> [[f32; N]; ROWS] {
    let (ws, w_rest) = (rows.map(|row| row.as_chunks::<BYTES>().0), rows.map(|row| row.as_chunks::<BYTES>().1));
    let (xs, x_rest) = (x.map(|x| x.as_chunks::<16>().0), x.map(|x| x.as_chunks::<16>().1));
    let vectors = ws[0].len();
    let (ws, xs) = (ws.map(|ws| &ws[..vectors]), xs.map(|xs| &xs[..vectors]));
    let whole = vectors / 4 * 4;
    let mut acc = [[[_mm512_setzero_ps(); 4]; N]; ROWS];
    for at in (0..whole).step_by(4) {
        ws.iter().for_each(|ws| prefetch::<[[u8; BYTES]; 4]>(part(ws, at), ahead));
        for i in 0..4 {
            let x: [_; N] = std::array::from_fn(|token| load_ps(&xs[token][at + i]));
            for row in 0..ROWS {
                let w = widen(&ws[row][at + i]);
                for token in 0..N {
                    acc[row][token][i] = _mm512_fmadd_ps(w, x[token], acc[row][token][i]);
                }
            }
        }
    }
    for row in 0..ROWS {
        for token in 0..N {
            let acc = &mut acc[row][token];
            for at in whole..vectors {
                acc[0] = _mm512_fmadd_ps(widen(&ws[row][at]), load_ps(&xs[token][at]), acc[0]);
            }
            if !w_rest[row].is_empty() {
                let mut padded = [0; BYTES];
                padded[..w_rest[row].len()].copy_from_slice(w_rest[row]);
                acc[1] = _mm512_fmadd_ps(widen(&padded), load_some(x_rest[token]), acc[1]);
            }
        }
    }
    acc.map(|acc| {
        acc.map(|acc| _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(acc[0], acc[1]), _mm512_add_ps(acc[2], acc[3]))))
    })
}

/// True if this module has kernels for products with codes of `ty`. Other types use the kernels of
/// AVX2.
pub(super) const fn has_kernels(ty: BlockType) -> bool {
    matches!(
        ty,
        BlockType::Q4_0
            | BlockType::Q8_0
            | BlockType::IQ4_NL
            | BlockType::MXFP4
            | BlockType::Q4_K
            | BlockType::Q5_K
            | BlockType::Q6_K
    )
}

/// See [`LaneKernels::dot_tokens`](crate::simd::LaneKernels::dot_tokens).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn code_rows_tokens(
    ty: BlockType,
    weights: &[u8],
    x: &[QuantisedInput<'_>],
    ahead: isize,
    out: &mut [[f32; CODE_TOKENS]],
) {
    match *x {
        [a] => code_rows(ty, weights, [a], ahead, out),
        [a, b] => code_rows(ty, weights, [a, b], ahead, out),
        [a, b, c] => code_rows(ty, weights, [a, b, c], ahead, out),
        [a, b, c, d] => code_rows(ty, weights, [a, b, c, d], ahead, out),
        [a, b, c, d, e] => code_rows(ty, weights, [a, b, c, d, e], ahead, out),
        [a, b, c, d, e, f] => code_rows(ty, weights, [a, b, c, d, e, f], ahead, out),
        [a, b, c, d, e, f, g] => code_rows(ty, weights, [a, b, c, d, e, f, g], ahead, out),
        [a, b, c, d, e, f, g, h] => code_rows(ty, weights, [a, b, c, d, e, f, g, h], ahead, out),
        _ => panic!("a product of {} tokens", x.len()),
    }
}

/// `out[r][t] = W[r] . x[t]` for rows of a type that [has kernels](has_kernels).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn code_rows<const TOKENS: usize, const OUT: usize>(
    ty: BlockType,
    weights: &[u8],
    x: [QuantisedInput<'_>; TOKENS],
    ahead: isize,
    out: &mut [[f32; OUT]],
) {
    let rows = rows(WeightType::Blocks(ty), weights, x[0].codes.len(), out);
    let rows = rows.map(|(row, out)| (GatheredRow { row, ahead }, &mut out[..TOKENS]));
    let x = x.map(|x| x.lanes);
    match ty {
        BlockType::Q4_0 => each_row::<18, 8, 8, TOKENS>(rows, x, |blocks| lanes::q4_0(blocks)),
        BlockType::Q8_0 => each_row::<34, 8, 128, TOKENS>(rows, x, |blocks| lanes::q8_0(blocks)),
        BlockType::IQ4_NL => each_row::<18, 8, 128, TOKENS>(rows, x, |blocks| lanes::iq4_nl(blocks)),
        BlockType::MXFP4 => each_row::<17, 8, 12, TOKENS>(rows, x, |blocks| lanes::mxfp4(blocks)),
        BlockType::Q4_K => each_row::<144, 1, MINIMA, TOKENS>(rows, x, |[block]| lanes::q4_k(block)),
        BlockType::Q5_K => each_row::<176, 1, MINIMA, TOKENS>(rows, x, |[block]| lanes::q5_k(block)),
        BlockType::Q6_K => each_row::<210, 1, 32, TOKENS>(rows, x, |[block]| lanes::q6_k(block)),
        _ => panic!("no AVX-512 kernel for rows of {ty:?}"),
    }
}

/// Multiplies rows one by one for one token, and in pairs for several tokens. The rows of a pair
/// share the loads of the activations.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn each_row<'a, const BYTES: usize, const BLOCKS: usize, const OFFSET: i16, const TOKENS: usize>(
    mut rows: impl Iterator<Item = (GatheredRow<'a>, &'a mut [f32])>,
    x: [&[LaneChunk]; TOKENS],
    weights: impl Fn(&[[u8; BYTES]; BLOCKS]) -> LaneWeights,
) {
    while let Some((row, out)) = rows.next() {
        let second = if TOKENS > 1 { rows.next() } else { None };
        let Some((next, next_out)) = second else {
            let [sums] = products::<BYTES, BLOCKS, OFFSET, 1, TOKENS>([row], x, &weights);
            out.copy_from_slice(&sums);
            continue;
        };
        let [a, b] = products::<BYTES, BLOCKS, OFFSET, 2, TOKENS>([row, next], x, &weights);
        out.copy_from_slice(&a);
        next_out.copy_from_slice(&b);
    }
}

/// Dot products of gathered Q4_0 rows. They are read side by side, so that more memory reads are in
/// flight.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn q4_0<const ROWS: usize>(rows: [GatheredRow<'_>; ROWS], x: QuantisedInput<'_>) -> [f32; ROWS] {
    products::<18, 8, 8, ROWS, 1>(rows, [x.lanes], |blocks| lanes::q4_0(blocks)).map(|[sum]| sum)
}

/// Multiplies rows with tokens. `BLOCKS` blocks of `BYTES` bytes are 256 columns, which `weights`
/// decodes. Codes have `OFFSET` added, or blocks have [`MINIMA`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn products<const BYTES: usize, const BLOCKS: usize, const OFFSET: i16, const ROWS: usize, const TOKENS: usize>(
    rows: [GatheredRow<'_>; ROWS],
    x: [&[LaneChunk]; TOKENS],
    weights: impl Fn(&[[u8; BYTES]; BLOCKS]) -> LaneWeights,
) -> [[f32; TOKENS]; ROWS] {
    let chunks = x[0].len();
    let x = x.map(|x| &x[..chunks]);
    let whole = rows.map(|of| of.row.as_chunks::<BYTES>().0.as_chunks::<BLOCKS>().0);
    let rest = rows.map(|of| padded::<_, BLOCKS>(of.row.as_chunks::<BYTES>().0.as_chunks::<BLOCKS>().1, [0; BYTES]));
    let mut sums = [[_mm512_setzero_ps(); TOKENS]; ROWS];
    for at in 0..chunks {
        let mut decoded = [LaneWeights::zero(); ROWS];
        for row in 0..ROWS {
            let blocks = whole[row].get(at).unwrap_or(&rest[row]);
            prefetch(blocks, rows[row].ahead);
            decoded[row] = weights(blocks);
        }
        for token in 0..TOKENS {
            let mut of_token = [_mm512_setzero_ps(); ROWS];
            for row in 0..ROWS {
                of_token[row] = sums[row][token];
            }
            of_token = add_token::<OFFSET, ROWS>(&decoded, &x[token][at], of_token);
            for row in 0..ROWS {
                sums[row][token] = of_token[row];
            }
        }
    }
    let mut out = [[0.0; TOKENS]; ROWS];
    for (out, sums) in out.iter_mut().zip(sums) {
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = _mm512_reduce_add_ps(sum);
        }
    }
    out
}

/// Adds the products of 256 columns of some rows with a token to the rows' sums.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn add_token<const OFFSET: i16, const ROWS: usize>(
    weights: &[LaneWeights; ROWS],
    x: &LaneChunk,
    mut sums: [__m512; ROWS],
) -> [__m512; ROWS] {
    let mut dots = [_mm512_setzero_si512(); ROWS];
    if OFFSET != MINIMA {
        // Sums of codes fit 16 bits.
        let offset = _mm512_set1_epi32(i32::from(OFFSET));
        dots = [_mm512_madd_epi16(load512(&x.negated_code_sums), offset); ROWS];
    }
    for (i, x) in x.codes.iter().enumerate() {
        let x = load512(x);
        for row in 0..ROWS {
            dots[row] = _mm512_dpbusd_epi32(dots[row], weights[row].codes[i], x);
        }
    }
    let (scales, of_minima) = (load_ps(&x.scales), load_ps(&x.sums));
    for row in 0..ROWS {
        let scales = _mm512_mul_ps(weights[row].scales, scales);
        sums[row] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[row]), scales, sums[row]);
        if OFFSET == MINIMA {
            sums[row] = _mm512_fnmadd_ps(weights[row].minima, of_minima, sums[row]);
        }
    }
    sums
}

/// See [`LaneKernels::dot_tile`](crate::simd::LaneKernels::dot_tile).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn code_tile(ty: BlockType, weights: &[u8], x: LaneTile<'_>, out: &mut [[f32; LANE_TOKENS]]) {
    let rows = rows(WeightType::Blocks(ty), weights, x.columns, out);
    match ty {
        BlockType::Q4_0 => tile::<18, 8, 8>(rows, x, |blocks| lanes::q4_0(blocks)),
        BlockType::Q8_0 => tile::<34, 8, 128>(rows, x, |blocks| lanes::q8_0(blocks)),
        BlockType::IQ4_NL => tile::<18, 8, 128>(rows, x, |blocks| lanes::iq4_nl(blocks)),
        BlockType::MXFP4 => tile::<17, 8, 12>(rows, x, |blocks| lanes::mxfp4(blocks)),
        BlockType::Q4_K => tile::<144, 1, MINIMA>(rows, x, |[block]| lanes::q4_k(block)),
        BlockType::Q5_K => tile::<176, 1, MINIMA>(rows, x, |[block]| lanes::q5_k(block)),
        BlockType::Q6_K => tile::<210, 1, 32>(rows, x, |[block]| lanes::q6_k(block)),
        _ => panic!("no AVX-512 kernel for rows of {ty:?}"),
    }
}

/// Multiplies rows with all tokens, 256 columns at a time. Weights are decoded once. The sums of
/// [`LANE_ROWS`] rows and the activations of 256 columns stay in the first-level cache.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn tile<'a, const BYTES: usize, const BLOCKS: usize, const OFFSET: i16>(
    rows: impl Iterator<Item = (&'a [u8], &'a mut [f32; LANE_TOKENS])>,
    x: LaneTile<'_>,
    weights: impl Fn(&[[u8; BYTES]; BLOCKS]) -> LaneWeights,
) {
    let mut rows: SmallVec<[_; LANE_ROWS]> = rows
        .map(|(row, out)| {
            let (whole, rest) = row.as_chunks::<BYTES>().0.as_chunks::<BLOCKS>();
            (whole, padded::<_, BLOCKS>(rest, [0; BYTES]), row.len() * LANE_ROWS, out)
        })
        .collect();
    let mut sums = [[_mm512_setzero_ps(); LANE_TOKENS]; LANE_ROWS];
    let sums = &mut sums[..rows.len()];
    for (at, x) in x.chunks.chunks_exact(x.tokens).enumerate() {
        for (rows, sums) in rows.chunks(2).zip(sums.chunks_mut(2)) {
            let decode = |row: usize| {
                let (whole, rest, ahead, _) = &rows[row];
                let blocks = whole.get(at).unwrap_or(rest);
                prefetch(blocks, *ahead as isize);
                weights(blocks)
            };
            if let [first, second] = sums {
                let weights = [decode(0), decode(1)];
                for (x, (first, second)) in x.iter().zip(first.iter_mut().zip(second)) {
                    [*first, *second] = add_token::<OFFSET, 2>(&weights, x, [*first, *second]);
                }
            } else if let [sums] = sums {
                let weights = [decode(0)];
                for (x, sum) in x.iter().zip(sums) {
                    [*sum] = add_token::<OFFSET, 1>(&weights, x, [*sum]);
                }
            }
        }
    }
    for ((.., out), sums) in rows.iter_mut().zip(sums) {
        out.iter_mut().zip(sums).take(x.tokens).for_each(|(out, sum)| *out = _mm512_reduce_add_ps(*sum));
    }
}
