//! Block types on AVX-512. One arm per type says how its codes are decoded in registers. Products
//! ([`dot`](super::dot)) and unpacking use the same arms. Types without 512-bit kernels use AVX2's.

use std::arch::x86_64::*;

use super::{codes, dot, store256, store512};
use crate::simd::{BlockWork, E8M0, F16, GatheredRow, avx2, part, portable::dot_each};
use thermocline_formats::quant::{BlockType, UnpackedMut, iq4_nl, mxfp4};

/// Does `work` with blocks of `ty`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn run(ty: BlockType, work: BlockWork<'_>) {
    match ty {
        BlockType::Q4_0 => blocks32::<18, F16, 8>(ty, work, |a, b| codes::q4_0(a, b)),
        BlockType::Q8_0 => {
            let flip = _mm512_set1_epi8(-128);
            blocks32::<34, F16, 128>(ty, work, |a, b| _mm512_xor_si512(codes::q8_0(a, b), flip));
        }
        BlockType::IQ4_NL => {
            blocks32::<18, F16, 128>(ty, work, |a, b| codes::look_up(&iq4_nl::VALUES, 128, codes::q4_0(a, b)))
        }
        BlockType::MXFP4 => blocks32::<17, E8M0, 12>(ty, work, |a, b| {
            codes::look_up(&mxfp4::VALUES, 12, codes::nibbles(part(a, 1), part(b, 1)))
        }),
        BlockType::Q4_K => blocks_k::<144>(ty, work, |block, i| codes::q4_k(block, i)),
        BlockType::Q5_K => blocks_k::<176>(ty, work, |block, i| codes::q5_k(block, i)),
        BlockType::Q6_K => blocks_q6_k(ty, work),
        BlockType::Q4_1
        | BlockType::Q5_0
        | BlockType::Q5_1
        | BlockType::Q2_K
        | BlockType::Q3_K
        | BlockType::IQ4_XS
        | BlockType::NVFP4
        | BlockType::IQ1_S
        | BlockType::IQ1_M
        | BlockType::IQ2_XXS
        | BlockType::IQ2_XS
        | BlockType::IQ2_S
        | BlockType::IQ3_XXS
        | BlockType::IQ3_S
        | BlockType::TQ1_0
        | BlockType::TQ2_0
        | BlockType::I2_S
        | BlockType::Q1_0
        | BlockType::Q2_0 => avx2::blocks::run(ty, work),
    }
}

/// Blocks of 32 that begin with a scale, two at a time: see [`dot::rows32`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn blocks32<const BYTES: usize, const SCALE: u8, const OFFSET: u8>(
    ty: BlockType,
    work: BlockWork<'_>,
    pair: impl Fn(&[u8; BYTES], &[u8; BYTES]) -> __m512i,
) {
    match work {
        BlockWork::Dot { weights, x, ahead, out } => dot_each(ty, weights, x, out, |row| {
            let [sum] = dot::rows32::<BYTES, SCALE, OFFSET, 1>([GatheredRow { row, ahead }], x, &pair);
            sum
        }),
        BlockWork::Unpack { src, to: UnpackedMut { codes, scales, .. } } => {
            let offset = _mm512_set1_epi8(OFFSET as i8);
            let (blocks, _) = src.as_chunks::<BYTES>();
            let (pairs, last) = blocks.as_chunks::<2>();
            let to = codes.as_chunks_mut::<64>().0.iter_mut().zip(scales.as_chunks_mut::<2>().0);
            for ([a, b], (codes, scales)) in pairs.iter().zip(to) {
                store512(codes, _mm512_sub_epi8(pair(a, b), offset));
                *scales = [dot::scale_of::<SCALE>(a), dot::scale_of::<SCALE>(b)];
            }
            if !last.is_empty() {
                let at = 2 * pairs.len();
                let to = UnpackedMut { codes: &mut codes[32 * at..], scales: &mut scales[at..], mins: &mut [] };
                (ty.format().unpack)(last.as_flattened(), to);
            }
        }
    }
}

/// Q4_K and Q5_K: see [`dot::row_k`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn blocks_k<const BYTES: usize>(ty: BlockType, work: BlockWork<'_>, pair: impl Fn(&[u8; BYTES], usize) -> __m512i) {
    match work {
        BlockWork::Dot { weights, x, ahead, out } => {
            dot_each(ty, weights, x, out, |row| dot::row_k(row, x, ahead, &pair))
        }
        BlockWork::Unpack { src, to: UnpackedMut { codes, scales, mins } } => {
            let blocks = src.as_chunks::<BYTES>().0.iter().zip(codes.as_chunks_mut::<256>().0);
            let groups = scales.as_chunks_mut::<8>().0.iter_mut().zip(mins.as_chunks_mut::<8>().0);
            for ((block, codes), (scales, mins)) in blocks.zip(groups) {
                let factors = codes::k_factors(part(block, 0));
                store256(scales, _mm256_castps_si256(_mm512_castps512_ps256(factors)));
                let minima = _mm512_extractf32x8_ps::<1>(factors);
                store256(mins, _mm256_castps_si256(_mm256_xor_ps(minima, _mm256_set1_ps(-0.0))));
                for (i, codes) in codes.as_chunks_mut::<64>().0.iter_mut().enumerate() {
                    store512(codes, pair(block, i));
                }
            }
        }
    }
}

/// Q6_K: see [`dot::row_q6_k`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn blocks_q6_k(ty: BlockType, work: BlockWork<'_>) {
    match work {
        BlockWork::Dot { weights, x, ahead, out } => dot_each(ty, weights, x, out, |row| dot::row_q6_k(row, x, ahead)),
        BlockWork::Unpack { src, to: UnpackedMut { codes, scales, .. } } => {
            let offset = _mm512_set1_epi8(32);
            let blocks = src.as_chunks::<210>().0.iter().zip(codes.as_chunks_mut::<256>().0);
            for ((block, codes), scales) in blocks.zip(scales.as_chunks_mut::<16>().0) {
                store512(scales, _mm512_castps_si512(codes::q6_k_scales(block)));
                for (i, codes) in codes.as_chunks_mut::<64>().0.iter_mut().enumerate() {
                    store512(codes, _mm512_sub_epi8(codes::q6_k(block, i), offset));
                }
            }
        }
    }
}
