//! Encoded blocks to 8-bit codes, 32 at a time.

use std::arch::x86_64::*;

use super::{load128, load256, store256};
use crate::{
    cpu::simd::{
        part, part_mut,
        unpack::{
            FP4, IQ4, blocks32, blocks256, e8m0_half, iq4_xs_groups, k_groups, q2_k_groups, q3_k_groups, q6_k_groups,
        },
    },
    format::TensorType,
};

/// See [`Kernels::unpack`](crate::cpu::simd::Kernels::unpack).
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::cpu::simd) fn unpack(ty: TensorType, src: &[u8], codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
    use TensorType::*;
    match ty {
        Q4_0 => blocks32::<18>(src, codes, scales, mins, |b, codes| {
            store256(codes, _mm256_sub_epi8(nibbles(part(b, 2)), _mm256_set1_epi8(8)));
            (head(part(b, 0)), 0.0)
        }),
        Q4_1 => blocks32::<20>(src, codes, scales, mins, |b, codes| {
            store256(codes, nibbles(part(b, 4)));
            (head(part(b, 0)), head(part(b, 2)))
        }),
        Q5_0 => blocks32::<22>(src, codes, scales, mins, |b, codes| {
            store256(codes, _mm256_sub_epi8(five_bits(part(b, 6), part(b, 2)), _mm256_set1_epi8(16)));
            (head(part(b, 0)), 0.0)
        }),
        Q5_1 => blocks32::<24>(src, codes, scales, mins, |b, codes| {
            store256(codes, five_bits(part(b, 8), part(b, 4)));
            (head(part(b, 0)), head(part(b, 2)))
        }),
        Q8_0 => blocks32::<34>(src, codes, scales, mins, |b, codes| {
            store256(codes, load256::<u8, 32>(part(b, 2)));
            (head(part(b, 0)), 0.0)
        }),
        IQ4_NL => blocks32::<18>(src, codes, scales, mins, |b, codes| {
            store256(codes, look_up(&IQ4, nibbles(part(b, 2))));
            (head(part(b, 0)), 0.0)
        }),
        MXFP4 => blocks32::<17>(src, codes, scales, mins, |b, codes| {
            store256(codes, look_up(&FP4, nibbles(part(b, 1))));
            (e8m0_half(b[0]), 0.0)
        }),
        IQ4_XS => blocks256::<136, 8>(src, codes, scales, mins, |b, codes, scales, _| {
            iq4_xs_groups(b, scales);
            for (i, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                store256(codes, look_up(&IQ4, nibbles(part(b, 8 + 16 * i))));
            }
        }),
        Q4_K => blocks256::<144, 8>(src, codes, scales, mins, |b, codes, scales, mins| {
            k_groups(part(b, 0), scales, mins);
            for (i, codes) in codes.as_chunks_mut::<64>().0.iter_mut().enumerate() {
                let [a, b] = q4_k(b, i);
                store256::<i8, 32>(part_mut(codes, 0), a);
                store256::<i8, 32>(part_mut(codes, 32), b);
            }
        }),
        Q5_K => blocks256::<176, 8>(src, codes, scales, mins, |b, codes, scales, mins| {
            k_groups(part(b, 0), scales, mins);
            for (i, codes) in codes.as_chunks_mut::<64>().0.iter_mut().enumerate() {
                let [a, b] = q5_k(b, i);
                store256::<i8, 32>(part_mut(codes, 0), a);
                store256::<i8, 32>(part_mut(codes, 32), b);
            }
        }),
        Q6_K => blocks256::<210, 16>(src, codes, scales, mins, |b, codes, scales, _| {
            q6_k_groups(b, scales);
            for (at, codes) in codes.as_chunks_mut::<128>().0.iter_mut().enumerate() {
                for (codes, whole) in codes.as_chunks_mut::<32>().0.iter_mut().zip(q6_k(b, at)) {
                    store256(codes, _mm256_sub_epi8(whole, _mm256_set1_epi8(32)));
                }
            }
        }),
        Q2_K => blocks256::<84, 16>(src, codes, scales, mins, |b, codes, scales, mins| {
            q2_k_groups(b, scales, mins);
            for (at, codes) in codes.as_chunks_mut::<128>().0.iter_mut().enumerate() {
                for (codes, two) in codes.as_chunks_mut::<32>().0.iter_mut().zip(two_bits(part(b, 16 + 32 * at))) {
                    store256(codes, two);
                }
            }
        }),
        Q3_K => blocks256::<110, 16>(src, codes, scales, mins, |b, codes, scales, _| {
            q3_k_groups(b, scales);
            for (at, codes) in codes.as_chunks_mut::<128>().0.iter_mut().enumerate() {
                for (codes, whole) in codes.as_chunks_mut::<32>().0.iter_mut().zip(q3_k(b, at)) {
                    store256(codes, _mm256_sub_epi8(whole, _mm256_set1_epi8(4)));
                }
            }
        }),
        F32 | F16 | BF16 | I8 | I16 | I32 | I64 | F64 => unreachable!("{ty} has no codes"),
    }
}

/// An f16.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn head(bytes: &[u8; 2]) -> f32 {
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16::from_le_bytes(*bytes)))))
}

/// Sixteen low nibbles, then the high ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn nibbles(bytes: &[u8; 16]) -> __m256i {
    let both = _mm256_broadcastsi128_si256(load128(bytes));
    _mm256_and_si256(_mm256_srlv_epi64(both, _mm256_set_epi64x(4, 4, 0, 0)), _mm256_set1_epi8(15))
}

/// [`nibbles`] with a fifth bit from 32 more.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn five_bits(low: &[u8; 16], high: &[u8; 4]) -> __m256i {
    let bytes = _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
    let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(i32::from_le_bytes(*high)), bytes);
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
    _mm256_or_si256(nibbles(low), _mm256_and_si256(set, _mm256_set1_epi8(16)))
}

/// The values of nibbles.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn look_up(values: &[i8; 16], nibbles: __m256i) -> __m256i {
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load128(values)), nibbles)
}

/// The four two-bit codes of each byte.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn two_bits(bytes: &[u8; 32]) -> [__m256i; 4] {
    let (bytes, mask) = (load256(bytes), _mm256_set1_epi8(3));
    [
        _mm256_and_si256(bytes, mask),
        _mm256_and_si256(_mm256_srli_epi16::<2>(bytes), mask),
        _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask),
        _mm256_and_si256(_mm256_srli_epi16::<6>(bytes), mask),
    ]
}

/// Sub-blocks `2i` and `2i + 1` of a Q4_K block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_k(block: &[u8; 144], i: usize) -> [__m256i; 2] {
    let (quants, mask) = (load256::<u8, 32>(part(block, 16 + 32 * i)), _mm256_set1_epi8(15));
    [_mm256_and_si256(quants, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(quants), mask)]
}

/// Sub-blocks `2i` and `2i + 1` of a Q5_K block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q5_k(block: &[u8; 176], i: usize) -> [__m256i; 2] {
    let (mask, fifth) = (_mm256_set1_epi8(15), _mm256_set1_epi8(16));
    let quants = load256::<u8, 32>(part(block, 48 + 32 * i));
    // The fifth bits of these two sub-blocks are the lowest two of each byte.
    let bits = _mm256_srl_epi16(load256::<u8, 32>(part(block, 16)), _mm_cvtsi32_si128(2 * i as i32));
    let (low, high) = (_mm256_and_si256(quants, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(quants), mask));
    [
        _mm256_or_si256(low, _mm256_and_si256(_mm256_slli_epi16::<4>(bits), fifth)),
        _mm256_or_si256(high, _mm256_and_si256(_mm256_slli_epi16::<3>(bits), fifth)),
    ]
}

/// Four times 32 codes of a Q6_K block's half `at`, 32 too large.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q6_k(block: &[u8; 210], at: usize) -> [__m256i; 4] {
    let (mask, upper) = (_mm256_set1_epi8(15), _mm256_set1_epi8(48));
    // Two runs of 32 bytes hold four bits of codes, 32 more bytes the upper two.
    let a = load256::<u8, 32>(part(block, 64 * at));
    let b = load256::<u8, 32>(part(block, 64 * at + 32));
    let bits = load256::<u8, 32>(part(block, 128 + 32 * at));
    let (high_a, high_b) = (_mm256_srli_epi16::<4>(a), _mm256_srli_epi16::<4>(b));
    [
        _mm256_or_si256(_mm256_and_si256(a, mask), _mm256_and_si256(_mm256_slli_epi16::<4>(bits), upper)),
        _mm256_or_si256(_mm256_and_si256(b, mask), _mm256_and_si256(_mm256_slli_epi16::<2>(bits), upper)),
        _mm256_or_si256(_mm256_and_si256(high_a, mask), _mm256_and_si256(bits, upper)),
        _mm256_or_si256(_mm256_and_si256(high_b, mask), _mm256_and_si256(_mm256_srli_epi16::<2>(bits), upper)),
    ]
}

/// Four times 32 codes of a Q3_K block's half `at`, 4 too large.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q3_k(block: &[u8; 110], at: usize) -> [__m256i; 4] {
    let mut codes = two_bits(part(block, 32 + 32 * at));
    // The third bit of each is a bit of these bytes.
    let bits = _mm256_srl_epi16(load256::<u8, 32>(part(block, 0)), _mm_cvtsi32_si128(4 * at as i32));
    let third = _mm256_set1_epi8(4);
    codes[0] = _mm256_or_si256(codes[0], _mm256_and_si256(_mm256_slli_epi16::<2>(bits), third));
    codes[1] = _mm256_or_si256(codes[1], _mm256_and_si256(_mm256_slli_epi16::<1>(bits), third));
    codes[2] = _mm256_or_si256(codes[2], _mm256_and_si256(bits, third));
    codes[3] = _mm256_or_si256(codes[3], _mm256_and_si256(_mm256_srli_epi16::<1>(bits), third));
    codes
}
