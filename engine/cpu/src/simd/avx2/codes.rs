//! Codes of blocks in registers, 32 at a time.

use std::arch::x86_64::*;

use super::{load128, load256};
use crate::simd::part;

/// Reads an f16.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn head(bytes: &[u8; 2]) -> f32 {
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16::from_le_bytes(*bytes)))))
}

/// Sixteen low nibbles, then the sixteen high ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn nibbles(bytes: &[u8; 16]) -> __m256i {
    let both = _mm256_broadcastsi128_si256(load128(bytes));
    _mm256_and_si256(_mm256_srlv_epi64(both, _mm256_set_epi64x(4, 4, 0, 0)), _mm256_set1_epi8(15))
}

/// Sets all bits of the bytes whose bit in `bits` is set.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn mask_of(bits: u32) -> __m256i {
    let bytes = _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
    let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), bytes);
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit)
}

/// [`nibbles`] with a fifth bit from 32 separate bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn five_bits(low: &[u8; 16], high: &[u8; 4]) -> __m256i {
    let set = mask_of(u32::from_le_bytes(*high));
    _mm256_or_si256(nibbles(low), _mm256_and_si256(set, _mm256_set1_epi8(16)))
}

/// Looks up the value of each nibble.
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
    // The fifth bits of these two sub-blocks become the lowest two bits of each byte.
    let bits = _mm256_srl_epi16(load256::<u8, 32>(part(block, 16)), _mm_cvtsi32_si128(2 * i as i32));
    let (low, high) = (_mm256_and_si256(quants, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(quants), mask));
    [
        _mm256_or_si256(low, _mm256_and_si256(_mm256_slli_epi16::<4>(bits), fifth)),
        _mm256_or_si256(high, _mm256_and_si256(_mm256_slli_epi16::<3>(bits), fifth)),
    ]
}

/// Four times 32 codes of half `at` of a Q6_K block, with 32 added.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q6_k(block: &[u8; 210], at: usize) -> [__m256i; 4] {
    let (mask, upper) = (_mm256_set1_epi8(15), _mm256_set1_epi8(48));
    // Two runs of 32 bytes contain the lower four bits of codes, 32 more bytes the upper two bits.
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

/// Four times 32 codes of half `at` of a Q3_K block, with 4 added.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q3_k(block: &[u8; 110], at: usize) -> [__m256i; 4] {
    let mut codes = two_bits(part(block, 32 + 32 * at));
    // The third bit of each code is a bit of these bytes.
    let bits = _mm256_srl_epi16(load256::<u8, 32>(part(block, 0)), _mm_cvtsi32_si128(4 * at as i32));
    let third = _mm256_set1_epi8(4);
    codes[0] = _mm256_or_si256(codes[0], _mm256_and_si256(_mm256_slli_epi16::<2>(bits), third));
    codes[1] = _mm256_or_si256(codes[1], _mm256_and_si256(_mm256_slli_epi16::<1>(bits), third));
    codes[2] = _mm256_or_si256(codes[2], _mm256_and_si256(bits, third));
    codes[3] = _mm256_or_si256(codes[3], _mm256_and_si256(_mm256_srli_epi16::<1>(bits), third));
    codes
}
