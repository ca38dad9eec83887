//! Block types on AVX2. One arm per type says how its codes are decoded in registers and how they
//! are scaled. Products ([`dot`](super::dot)) and unpacking use the same arms.

use std::arch::x86_64::*;

use super::{
    codes::{five_bits, head, look_up, nibbles, q3_k, q4_k, q5_k, q6_k, two_bits},
    dot::{row_k, row_k16, row_signed, rows32, six_bits},
    load64, load256, points, store256,
};
use crate::simd::{BlockWork, E8M0, F16, GatheredRow, MINIMA, SIGNED, part, part_mut, portable::dot_each};
use thermocline_formats::quant::{
    BlockType, iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs, iq4_nl, iq4_xs, k_scales, mxfp4, nvfp4,
    q2_k as q2_k_format, q3_k as q3_k_format, q6_k as q6_k_format, unpack_32, unpack_256,
};

/// Does `work` with blocks of `ty`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::simd) fn run(ty: BlockType, work: BlockWork<'_>) {
    match ty {
        BlockType::Q4_0 => blocks32::<18, F16, 8>(ty, work, |b| nibbles(part(b, 2))),
        BlockType::Q4_1 => blocks32::<20, F16, MINIMA>(ty, work, |b| nibbles(part(b, 4))),
        BlockType::Q5_0 => blocks32::<22, F16, 16>(ty, work, |b| five_bits(part(b, 6), part(b, 2))),
        BlockType::Q5_1 => blocks32::<24, F16, MINIMA>(ty, work, |b| five_bits(part(b, 8), part(b, 4))),
        BlockType::Q8_0 => blocks32::<34, F16, SIGNED>(ty, work, |b| load256::<u8, 32>(part(b, 2))),
        BlockType::IQ4_NL => {
            blocks32::<18, F16, SIGNED>(ty, work, |b| look_up(&iq4_nl::VALUES, nibbles(part(b, 2))));
        }
        BlockType::MXFP4 => blocks32::<17, E8M0, SIGNED>(ty, work, |b| look_up(&mxfp4::VALUES, nibbles(part(b, 1)))),
        BlockType::IQ4_XS => blocks_signed::<136, 8, 8>(ty, work, iq4_xs::unpack_scales, |b, i| {
            look_up(&iq4_nl::VALUES, nibbles(part(b, 8 + 16 * i)))
        }),
        BlockType::IQ1_S => blocks_signed::<50, 8, 8>(ty, work, iq1_s::unpack_scales, |b, i| points::iq1_s(b, i)),
        BlockType::IQ1_M => blocks_signed::<56, 8, 16>(ty, work, iq1_m::unpack_scales, |b, i| points::iq1_m(b, i)),
        BlockType::IQ2_XXS => blocks_signed::<66, 8, 8>(ty, work, iq2_xxs::unpack_scales, |b, i| points::iq2_xxs(b, i)),
        BlockType::IQ2_XS => blocks_signed::<74, 8, 16>(ty, work, iq2_xs::unpack_scales, |b, i| points::iq2_xs(b, i)),
        BlockType::IQ2_S => blocks_signed::<82, 8, 16>(ty, work, iq2_s::unpack_scales, |b, i| points::iq2_s(b, i)),
        BlockType::IQ3_XXS => blocks_signed::<98, 8, 8>(ty, work, iq3_xxs::unpack_scales, |b, i| points::iq3_xxs(b, i)),
        BlockType::IQ3_S => blocks_signed::<110, 8, 8>(ty, work, iq3_s::unpack_scales, |b, i| points::iq3_s(b, i)),
        BlockType::TQ1_0 => blocks_signed::<54, 8, 8>(ty, work, |b| [head(part(b, 52)); 8], |b, i| points::tq1_0(b, i)),
        BlockType::TQ2_0 => blocks_signed::<66, 8, 8>(ty, work, |b| [head(part(b, 64)); 8], |b, i| points::tq2_0(b, i)),
        BlockType::Q1_0 => blocks_signed::<18, 4, 4>(ty, work, |b| [head(part(b, 0)); 4], |b, i| points::q1_0(b, i)),
        BlockType::Q2_0 => {
            blocks_signed::<18, 2, 2>(ty, work, |b| [head(part(b, 0)); 2], |b, i| points::consecutive_pairs(b, i))
        }
        BlockType::I2_S => blocks_signed::<32, 4, 4>(ty, work, |_| [1.0; 4], |b, i| points::i2_s(b, i)),
        BlockType::NVFP4 => blocks_signed::<36, 2, 4>(ty, work, nvfp4::unpack_scales, |b, i| points::nvfp4(b, i)),
        BlockType::Q4_K => blocks_k::<144>(ty, work, |b, i| q4_k(b, i)),
        BlockType::Q5_K => blocks_k::<176>(ty, work, |b, i| q5_k(b, i)),
        BlockType::Q2_K => blocks_k16::<84, MINIMA>(
            ty,
            work,
            |b, at| {
                let both = _mm256_cvtepu8_epi32(load64::<u8, 8>(part(b, 8 * at)));
                let s = _mm256_cvtepi32_ps(_mm256_and_si256(both, _mm256_set1_epi32(15)));
                let m = _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(both));
                let (d, dmin) = (head(part(b, 80)), head(part(b, 82)));
                (_mm256_mul_ps(s, _mm256_set1_ps(d)), _mm256_mul_ps(m, _mm256_set1_ps(-dmin)))
            },
            |b, at| two_bits(part(b, 16 + 32 * at)),
            q2_k_format::unpack_scales,
        ),
        BlockType::Q3_K => blocks_k16::<110, 4>(
            ty,
            work,
            |b, at| scales_alone(six_bits(q3_k_format::scale_codes(b)[at]), head(part(b, 108))),
            |b, at| q3_k(b, at),
            |b, scales, _| q3_k_format::unpack_scales(b, scales),
        ),
        BlockType::Q6_K => blocks_k16::<210, 32>(
            ty,
            work,
            |b, at| {
                let s = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load64::<u8, 8>(part(b, 192 + 8 * at))));
                scales_alone(s, head(part(b, 208)))
            },
            |b, at| q6_k(b, at),
            |b, scales, _| q6_k_format::unpack_scales(b, scales),
        ),
    }
}

/// Returns `s d` as scales, and no minima.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales_alone(s: __m256, d: f32) -> (__m256, __m256) {
    (_mm256_mul_ps(s, _mm256_set1_ps(d)), _mm256_setzero_ps())
}

/// Blocks of 32: see [`rows32`].
#[target_feature(enable = "avx2,fma,f16c")]
fn blocks32<const BYTES: usize, const SCALE: u8, const OFFSET: i8>(
    ty: BlockType,
    work: BlockWork<'_>,
    codes: impl Fn(&[u8; BYTES]) -> __m256i,
) {
    match work {
        BlockWork::Dot { weights, x, ahead, out } => dot_each(ty, weights, x, out, |row| {
            let [sum] = rows32::<BYTES, SCALE, OFFSET, 1>([GatheredRow { row, ahead }], x, &codes);
            sum
        }),
        BlockWork::Unpack { src, to } => unpack_32::<BYTES>(src, to, |block, to| {
            let codes = codes(block);
            store256(to, if OFFSET > 0 { _mm256_sub_epi8(codes, _mm256_set1_epi8(OFFSET)) } else { codes });
            let scale = if SCALE == E8M0 { mxfp4::scale(block[0]) } else { head(part(block, 0)) };
            (scale, if OFFSET == MINIMA { head(part(block, 2)) } else { 0.0 })
        }),
    }
}

/// Q4_K and Q5_K: see [`row_k`].
#[target_feature(enable = "avx2,fma,f16c")]
fn blocks_k<const BYTES: usize>(
    ty: BlockType,
    work: BlockWork<'_>,
    pair: impl Fn(&[u8; BYTES], usize) -> [__m256i; 2],
) {
    match work {
        BlockWork::Dot { weights, x, ahead, out } => dot_each(ty, weights, x, out, |row| row_k(row, x, ahead, &pair)),
        BlockWork::Unpack { src, to } => unpack_256::<BYTES, 8>(src, to, |block, codes, scales, mins| {
            k_scales::unpack_scales(part(block, 0), scales, mins);
            for (i, codes) in codes.as_chunks_mut::<64>().0.iter_mut().enumerate() {
                let [a, b] = pair(block, i);
                store256::<i8, 32>(part_mut(codes, 0), a);
                store256::<i8, 32>(part_mut(codes, 32), b);
            }
        }),
    }
}

/// Blocks of 256 with one scale per 16 elements: see [`row_k16`]. Codes have `OFFSET` added, or
/// blocks have [`MINIMA`]. `scales` decodes scales and minima.
#[target_feature(enable = "avx2,fma,f16c")]
fn blocks_k16<const BYTES: usize, const OFFSET: i8>(
    ty: BlockType,
    work: BlockWork<'_>,
    factors: impl Fn(&[u8; BYTES], usize) -> (__m256, __m256),
    weights: impl Fn(&[u8; BYTES], usize) -> [__m256i; 4],
    unpack_scales: impl Fn(&[u8; BYTES], &mut [f32; 16], &mut [f32; 16]),
) {
    match work {
        BlockWork::Dot { weights: all, x, ahead, out } => {
            dot_each(ty, all, x, out, |row| row_k16::<BYTES, OFFSET>(row, x, ahead, &factors, &weights))
        }
        BlockWork::Unpack { src, to } => unpack_256::<BYTES, 16>(src, to, |block, codes, scales, mins| {
            unpack_scales(block, scales, mins);
            for (at, codes) in codes.as_chunks_mut::<128>().0.iter_mut().enumerate() {
                for (codes, whole) in codes.as_chunks_mut::<32>().0.iter_mut().zip(weights(block, at)) {
                    let offset = _mm256_set1_epi8(OFFSET);
                    store256(codes, if OFFSET > 0 { _mm256_sub_epi8(whole, offset) } else { whole });
                }
            }
        }),
    }
}

/// Blocks of chunks of 32 signed codes: see [`row_signed`].
#[target_feature(enable = "avx2,fma,f16c")]
fn blocks_signed<const BYTES: usize, const CHUNKS: usize, const GROUPS: usize>(
    ty: BlockType,
    work: BlockWork<'_>,
    scales: impl Fn(&[u8; BYTES]) -> [f32; GROUPS],
    codes: impl Fn(&[u8; BYTES], usize) -> __m256i,
) {
    match work {
        BlockWork::Dot { weights, x, ahead, out } => {
            dot_each(ty, weights, x, out, |row| row_signed::<BYTES, CHUNKS, GROUPS>(row, x, ahead, &scales, &codes))
        }
        BlockWork::Unpack { src, to } => {
            let chunks = to.codes.as_chunks_mut::<32>().0.as_chunks_mut::<CHUNKS>().0;
            let blocks = src.as_chunks::<BYTES>().0.iter().zip(chunks);
            for ((block, chunks), to) in blocks.zip(to.scales.as_chunks_mut::<GROUPS>().0) {
                *to = scales(block);
                chunks.iter_mut().enumerate().for_each(|(i, chunk)| store256(chunk, codes(block, i)));
            }
        }
    }
}
