//! Weights of 256 columns in the order of [`LaneChunk`](crate::simd::LaneChunk): the codes of
//! blocks in four registers, and a factor for each lane.

use std::arch::x86_64::*;

use super::{
    codes::{eight_heads, k_factors, look_up, q6_k_scales},
    load128, load256, load512,
};
use crate::simd::{avx2, part};
use thermocline_formats::quant::{iq4_nl, mxfp4};

/// 256 weights: `w = scale * (code - offset) - minimum`, with the offset of the type.
#[derive(Clone, Copy)]
pub(super) struct LaneWeights {
    /// Unsigned codes.
    pub codes: [__m512i; 4],
    pub scales: __m512,
    /// Zeros if the type has no minima.
    pub minima: __m512,
}

impl LaneWeights {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    pub(super) fn zero() -> Self {
        LaneWeights { codes: [_mm512_setzero_si512(); 4], scales: _mm512_setzero_ps(), minima: _mm512_setzero_ps() }
    }
}

/// Eight blocks of 32.
type EightBlocks<const BYTES: usize> = [[u8; BYTES]; 8];

/// Eight blocks of Q4_0. Their codes have 8 added.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn q4_0(blocks: &EightBlocks<18>) -> LaneWeights {
    blocks32(eight_heads(blocks), nibbles::<18, 2>(blocks))
}

/// Eight blocks of IQ4_NL. Their codes have 128 added.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn iq4_nl(blocks: &EightBlocks<18>) -> LaneWeights {
    blocks32(eight_heads(blocks), values(&iq4_nl::VALUES, 128, nibbles::<18, 2>(blocks)))
}

/// Eight blocks of MXFP4. Their codes have 12 added.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn mxfp4(blocks: &EightBlocks<17>) -> LaneWeights {
    blocks32(avx2::powers(blocks), values(&mxfp4::VALUES, 12, nibbles::<17, 1>(blocks)))
}

/// Looks up the values of nibbles, with `offset` added.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn values(values: &[i8; 16], offset: u8, mut nibbles: [__m512i; 4]) -> [__m512i; 4] {
    for codes in &mut nibbles {
        *codes = look_up(values, offset, *codes);
    }
    nibbles
}

/// Codes of blocks of 32 with the blocks' scales.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn blocks32(scales: __m256, codes: [__m512i; 4]) -> LaneWeights {
    let scales = _mm512_castps256_ps512(scales);
    // Each block's scale is that of both halves.
    let scales = _mm512_shuffle_f32x4::<0b01_01_00_00>(scales, scales);
    LaneWeights { codes, scales, minima: _mm512_setzero_ps() }
}

/// Nibbles of blocks whose codes begin at byte `AT`. The low nibbles are the first half of a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn nibbles<const BYTES: usize, const AT: usize>(blocks: &EightBlocks<BYTES>) -> [__m512i; 4] {
    let mut fours = [_mm512_setzero_si512(); 2];
    for (four, blocks) in fours.iter_mut().zip(blocks.as_chunks::<4>().0) {
        let block = |at: usize| load128::<u8, 16>(part(&blocks[at], AT));
        *four = _mm512_castsi128_si512(block(0));
        *four = _mm512_inserti32x4::<1>(*four, block(1));
        *four = _mm512_inserti32x4::<2>(*four, block(2));
        *four = _mm512_inserti32x4::<3>(*four, block(3));
    }
    let words = _mm512_set_epi32(28, 24, 20, 16, 28, 24, 20, 16, 12, 8, 4, 0, 12, 8, 4, 0);
    let shifts = _mm512_set_epi32(4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0);
    low_bits(fours, words, shifts)
}

/// The four bits from `shifts` on of some words of two registers. `words` are the words of the
/// first register of codes. Those of the next registers follow them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn low_bits([a, b]: [__m512i; 2], words: __m512i, shifts: __m512i) -> [__m512i; 4] {
    let mut codes = [_mm512_setzero_si512(); 4];
    for (i, codes) in codes.iter_mut().enumerate() {
        let words = _mm512_permutex2var_epi32(a, _mm512_add_epi32(words, _mm512_set1_epi32(i as i32)), b);
        *codes = _mm512_and_si512(_mm512_srlv_epi32(words, shifts), _mm512_set1_epi8(15));
    }
    codes
}

/// Adds bits of `high` to `codes`. Every 128 bits of `high` have four words. Register `i` takes the
/// `i`-th of them. It is rotated right by `rotations`, and the bits of `mask` are taken.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn add_high_bits(codes: &mut [__m512i; 4], high: __m512i, rotations: __m512i, mask: i8) {
    let words = [
        _mm512_shuffle_epi32::<0b00_00_00_00>(high),
        _mm512_shuffle_epi32::<0b01_01_01_01>(high),
        _mm512_shuffle_epi32::<0b10_10_10_10>(high),
        _mm512_shuffle_epi32::<0b11_11_11_11>(high),
    ];
    for (codes, words) in codes.iter_mut().zip(words) {
        // codes | (rotated & mask)
        let rotated = _mm512_rorv_epi32(words, rotations);
        *codes = _mm512_ternarylogic_epi32::<0b1111_1000>(*codes, rotated, _mm512_set1_epi8(mask));
    }
}

/// Eight blocks of Q8_0. Their codes have 128 added.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn q8_0(blocks: &EightBlocks<34>) -> LaneWeights {
    let mut rows = [_mm512_setzero_si512(); 4];
    for (at, row) in rows.iter_mut().enumerate() {
        let block = |at: usize| load256::<u8, 32>(part(&blocks[at], 2));
        let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(block(at)), block(at + 4));
        *row = _mm512_xor_si512(both, _mm512_set1_epi8(-128));
    }
    let [a, b, c, d] = rows;
    let [first, second] = [_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d)];
    let [third, fourth] = [_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d)];
    let codes = [
        _mm512_unpacklo_epi64(first, second),
        _mm512_unpackhi_epi64(first, second),
        _mm512_unpacklo_epi64(third, fourth),
        _mm512_unpackhi_epi64(third, fourth),
    ];
    blocks32(eight_heads(blocks), codes)
}

/// A block of Q4_K.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn q4_k(block: &[u8; 144]) -> LaneWeights {
    with_minima(part(block, 0), nibbles_k(part(block, 16)))
}

/// A block of Q5_K.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn q5_k(block: &[u8; 176]) -> LaneWeights {
    let mut codes = nibbles_k(part(block, 48));
    // Bit `b` of every byte is the fifth bit of a code of block `b`.
    let high = _mm512_broadcast_i64x4(load256::<u8, 32>(part(block, 16)));
    let rotations = _mm512_set_epi32(3, 2, 1, 0, 3, 2, 1, 0, 31, 30, 29, 28, 31, 30, 29, 28);
    add_high_bits(&mut codes, high, rotations, 16);
    with_minima(part(block, 0), codes)
}

/// Codes with the factors of a Q4_K or Q5_K block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn with_minima(head: &[u8; 16], codes: [__m512i; 4]) -> LaneWeights {
    let factors = k_factors(head);
    let scales = _mm512_shuffle_f32x4::<0b01_01_00_00>(factors, factors);
    LaneWeights { codes, scales, minima: _mm512_shuffle_f32x4::<0b11_11_10_10>(factors, factors) }
}

/// The nibbles of a Q4_K or Q5_K block. 32 bytes have the nibbles of two blocks of 32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn nibbles_k(bytes: &[u8; 128]) -> [__m512i; 4] {
    let words = _mm512_set_epi32(28, 28, 20, 20, 24, 24, 16, 16, 12, 12, 4, 4, 8, 8, 0, 0);
    let both = [load512::<u8, 64>(part(bytes, 0)), load512::<u8, 64>(part(bytes, 64))];
    low_bits(both, words, _mm512_set1_epi64(4 << 32))
}

/// A block of Q6_K. Its codes have 32 added.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn q6_k(block: &[u8; 210]) -> LaneWeights {
    // 64 bytes have the low bits of four blocks of 32: the low nibbles those of the first two.
    let both = [load512::<u8, 64>(part(block, 0)), load512::<u8, 64>(part(block, 64))];
    let words = _mm512_set_epi32(28, 20, 28, 20, 24, 16, 24, 16, 12, 4, 12, 4, 8, 0, 8, 0);
    let shifts = _mm512_set_epi32(4, 4, 0, 0, 4, 4, 0, 0, 4, 4, 0, 0, 4, 4, 0, 0);
    let mut codes = low_bits(both, words, shifts);
    // Bits `2r` and `2r + 1` of every byte are the high bits of a code of block `r` of four.
    let rotations = _mm512_set_epi32(2, 0, 30, 28, 2, 0, 30, 28, 2, 0, 30, 28, 2, 0, 30, 28);
    add_high_bits(&mut codes, load512::<u8, 64>(part(block, 128)), rotations, 0x30);
    let lanes = _mm512_set_epi32(15, 13, 11, 9, 14, 12, 10, 8, 7, 5, 3, 1, 6, 4, 2, 0);
    let scales = _mm512_permutexvar_ps(lanes, q6_k_scales(block));
    LaneWeights { codes, scales, minima: _mm512_setzero_ps() }
}
