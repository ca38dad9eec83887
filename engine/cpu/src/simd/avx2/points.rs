//! Signed codes in registers, 32 at a time, for types with few values or with points of a code
//! book.

use std::arch::x86_64::*;

use super::{
    codes::{mask_of, nibbles},
    load64, load128, load256,
};
use crate::simd::part;
use thermocline_formats::quant::{code_books, iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs, mxfp4, tq1_0};

/// Negates the codes whose bit of `signs` is set.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn negate(codes: __m256i, signs: u32) -> __m256i {
    let mask = mask_of(signs);
    _mm256_sub_epi8(_mm256_xor_si256(codes, mask), mask)
}

/// Looks up four points of eight coordinates.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn points8<const N: usize>(points: &[[i8; 8]; N], at: [usize; 4]) -> __m256i {
    let two = |i: usize| _mm_unpacklo_epi64(load64(&points[at[i]]), load64(&points[at[i + 1]]));
    _mm256_set_m128i(two(2), two(0))
}

/// Looks up eight points of four coordinates.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn points4<const N: usize>(points: &[[i8; 4]; N], at: [usize; 8]) -> __m256i {
    let one = |i: usize| i32::from_le_bytes(points[at[i]].map(|value| value as u8));
    _mm256_set_epi32(one(7), one(6), one(5), one(4), one(3), one(2), one(1), one(0))
}

/// Sub-block `i` of an IQ2_XXS block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn iq2_xxs(block: &[u8; 66], i: usize) -> __m256i {
    let at = part::<u8, 4>(block, 2 + 8 * i).map(usize::from);
    negate(points8(&code_books::IQ2_XXS, at), code_books::signs_of(iq2_xxs::sign_word(block, i)))
}

/// Elements `32 i..` of an IQ2_XS block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn iq2_xs(block: &[u8; 74], i: usize) -> __m256i {
    let four = [0, 1, 2, 3].map(|j| iq2_xs::point_and_signs(block, 4 * i + j));
    negate(points8(&code_books::IQ2_XS, four.map(|(at, _)| at)), u32::from_le_bytes(four.map(|(_, signs)| signs)))
}

/// Elements `32 i..` of an IQ2_S block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn iq2_s(block: &[u8; 82], i: usize) -> __m256i {
    let four = [0, 1, 2, 3].map(|j| iq2_s::point_and_signs(block, 4 * i + j));
    negate(points8(&code_books::IQ2_S, four.map(|(at, _)| at)), u32::from_le_bytes(four.map(|(_, signs)| signs)))
}

/// Sub-block `i` of an IQ3_XXS block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn iq3_xxs(block: &[u8; 98], i: usize) -> __m256i {
    let at = part::<u8, 8>(block, 2 + 8 * i).map(usize::from);
    negate(points4(&code_books::IQ3_XXS, at), code_books::signs_of(iq3_xxs::sign_word(block, i)))
}

/// Sub-block `i` of an IQ3_S block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn iq3_s(block: &[u8; 110], i: usize) -> __m256i {
    let at = [0, 1, 2, 3, 4, 5, 6, 7].map(|j| iq3_s::point(block, 8 * i + j));
    negate(points4(&code_books::IQ3_S, at), u32::from_le_bytes(*part(block, 74 + 4 * i)))
}

/// Sub-block `i` of an IQ1_S block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn iq1_s(block: &[u8; 50], i: usize) -> __m256i {
    let at = [0, 1, 2, 3].map(|j| iq1_s::point(block, 4 * i + j));
    _mm256_add_epi8(points8(&code_books::IQ1, at), _mm256_set1_epi8(iq1_s::shift(block, i)))
}

/// Elements `32 i..` of an IQ1_M block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn iq1_m(block: &[u8; 56], i: usize) -> __m256i {
    let four = [0, 1, 2, 3].map(|j| iq1_m::point_and_shift(block, 4 * i + j));
    let [a, b, c, d] = four.map(|(_, shift)| i64::from_le_bytes([shift as u8; 8]));
    _mm256_add_epi8(points8(&code_books::IQ1, four.map(|(at, _)| at)), _mm256_set_epi64x(d, c, b, a))
}

/// Elements `32 i..` of a TQ2_0 block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tq2_0(block: &[u8; 66], i: usize) -> __m256i {
    let bytes = load256::<u8, 32>(part(block, i / 4 * 32));
    let codes = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(2 * (i % 4) as i32));
    _mm256_sub_epi8(_mm256_and_si256(codes, _mm256_set1_epi8(3)), _mm256_set1_epi8(1))
}

/// The digits that powers of three move to the front of sixteen bytes, as 16 bits each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn digits(bytes: __m128i, powers: __m256i) -> __m256i {
    let front = _mm256_mullo_epi16(_mm256_cvtepu8_epi16(bytes), powers);
    let front = _mm256_and_si256(front, _mm256_set1_epi16(255));
    _mm256_srli_epi16::<8>(_mm256_add_epi16(front, _mm256_add_epi16(front, front)))
}

/// Elements `32 i..` of a TQ1_0 block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn tq1_0(block: &[u8; 54], i: usize) -> __m256i {
    let power = |digit: usize| _mm256_set1_epi16(i16::from(tq1_0::POWERS[digit]));
    let sixteen = |at: usize| load128::<u8, 16>(part(block, at));
    let (low, high) = match i {
        0..5 => (digits(sixteen(0), power(i)), digits(sixteen(16), power(i))),
        5 | 6 => (digits(sixteen(32), power(2 * i - 10)), digits(sixteen(32), power(2 * i - 9))),
        _ => {
            let last = _mm_set1_epi32(i32::from_le_bytes(*part(block, 48)));
            let powers = _mm256_set_epi16(27, 27, 27, 27, 9, 9, 9, 9, 3, 3, 3, 3, 1, 1, 1, 1);
            (digits(sixteen(32), power(4)), digits(last, powers))
        }
    };
    // Packing works within the halves of a register, so the middle quarters must change places.
    let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi16(low, high));
    _mm256_sub_epi8(packed, _mm256_set1_epi8(1))
}

/// Elements `32 i..` of a Q1_0 block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q1_0(block: &[u8; 18], i: usize) -> __m256i {
    let set = mask_of(u32::from_le_bytes(*part(block, 2 + 4 * i)));
    _mm256_sub_epi8(_mm256_set1_epi8(-1), _mm256_add_epi8(set, set))
}

/// Elements `32 i..` of a block with an f16 scale and consecutive codes of two bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn consecutive_pairs(block: &[u8; 18], i: usize) -> __m256i {
    // Each byte is widened to 32 bits, and each of their bytes gets two of its bits.
    let bytes = _mm256_cvtepu8_epi32(load64::<u8, 8>(part(block, 2 + 8 * i)));
    let spread = _mm256_or_si256(bytes, _mm256_slli_epi32::<6>(bytes));
    let spread = _mm256_or_si256(spread, _mm256_slli_epi32::<12>(spread));
    _mm256_sub_epi8(_mm256_and_si256(spread, _mm256_set1_epi8(3)), _mm256_set1_epi8(1))
}

/// Elements `32 i..` of an I2_S block. Each byte has one of them, and lower `i` are in higher bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn i2_s(block: &[u8; 32], i: usize) -> __m256i {
    let codes = _mm256_srl_epi16(load256::<u8, 32>(block), _mm_cvtsi32_si128(6 - 2 * i as i32));
    _mm256_sub_epi8(_mm256_and_si256(codes, _mm256_set1_epi8(3)), _mm256_set1_epi8(1))
}

/// Sub-blocks `2 i` and `2 i + 1` of an NVFP4 block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn nvfp4(block: &[u8; 36], i: usize) -> __m256i {
    // Low nibbles of both, then high nibbles of both: the middle quarters change places.
    let codes = _mm256_permute4x64_epi64::<0b11_01_10_00>(nibbles(part(block, 4 + 16 * i)));
    super::codes::look_up(&mxfp4::VALUES, codes)
}
