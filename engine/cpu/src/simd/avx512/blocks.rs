//! Decoding of blocks to codes in order. Types without 512-bit code use AVX2's.

use std::arch::x86_64::*;

use super::{codes, store256, store512};
use crate::simd::{BlockWork, E8M0, F16, avx2, part};
use thermocline_formats::quant::{BlockType, UnpackedMut, f16_at, iq4_nl, mxfp4};

/// See [`Kernels::unpack`](crate::simd::Kernels::unpack).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn unpack(ty: BlockType, src: &[u8], to: UnpackedMut<'_>) {
    match ty {
        BlockType::Q4_0 => blocks32::<18, F16>(ty, src, to, 8, |a, b| codes::q4_0(a, b)),
        BlockType::Q8_0 => blocks32::<34, F16>(ty, src, to, 0, |a, b| codes::q8_0(a, b)),
        BlockType::IQ4_NL => {
            blocks32::<18, F16>(ty, src, to, 0, |a, b| codes::look_up(&iq4_nl::VALUES, 0, codes::q4_0(a, b)))
        }
        BlockType::MXFP4 => blocks32::<17, E8M0>(ty, src, to, 0, |a, b| {
            codes::look_up(&mxfp4::VALUES, 0, codes::nibbles(part(a, 1), part(b, 1)))
        }),
        BlockType::Q4_K => blocks_k::<144>(src, to, |block, i| codes::q4_k(block, i)),
        BlockType::Q5_K => blocks_k::<176>(src, to, |block, i| codes::q5_k(block, i)),
        BlockType::Q6_K => blocks_q6_k(src, to),
        _ => avx2::blocks::run(ty, BlockWork::Unpack { src, to }),
    }
}

/// Blocks of 32 that begin with a scale, two at a time. `pair` widens two blocks to 64 codes, with
/// `offset` added.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn blocks32<const BYTES: usize, const SCALE: u8>(
    ty: BlockType,
    src: &[u8],
    UnpackedMut { codes, scales, .. }: UnpackedMut<'_>,
    offset: i8,
    pair: impl Fn(&[u8; BYTES], &[u8; BYTES]) -> __m512i,
) {
    let offset = _mm512_set1_epi8(offset);
    let scale = |block: &[u8]| if SCALE == E8M0 { mxfp4::scale(block[0]) } else { f16_at(block, 0) };
    let (pairs, last) = src.as_chunks::<BYTES>().0.as_chunks::<2>();
    let to = codes.as_chunks_mut::<64>().0.iter_mut().zip(scales.as_chunks_mut::<2>().0);
    for ([a, b], (codes, scales)) in pairs.iter().zip(to) {
        store512(codes, _mm512_sub_epi8(pair(a, b), offset));
        *scales = [scale(a), scale(b)];
    }
    if !last.is_empty() {
        let at = 2 * pairs.len();
        let to = UnpackedMut { codes: &mut codes[32 * at..], scales: &mut scales[at..], mins: &mut [] };
        (ty.format().unpack)(last.as_flattened(), to);
    }
}

/// Q4_K and Q5_K. `pair(block, i)` widens sub-blocks `2i` and `2i + 1` to 64 codes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn blocks_k<const BYTES: usize>(
    src: &[u8],
    UnpackedMut { codes, scales, mins }: UnpackedMut<'_>,
    pair: impl Fn(&[u8; BYTES], usize) -> __m512i,
) {
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

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn blocks_q6_k(src: &[u8], UnpackedMut { codes, scales, .. }: UnpackedMut<'_>) {
    let offset = _mm512_set1_epi8(32);
    let blocks = src.as_chunks::<210>().0.iter().zip(codes.as_chunks_mut::<256>().0);
    for ((block, codes), scales) in blocks.zip(scales.as_chunks_mut::<16>().0) {
        store512(scales, _mm512_castps_si512(codes::q6_k_scales(block)));
        for (i, codes) in codes.as_chunks_mut::<64>().0.iter_mut().enumerate() {
            store512(codes, _mm512_sub_epi8(codes::q6_k(block, i), offset));
        }
    }
}
