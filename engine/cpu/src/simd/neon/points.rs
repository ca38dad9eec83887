//! Signed codes in registers, 32 at a time, for types with few values or with points of a code
//! book.

use super::{
    codes::{Codes, bytes32, less, look_up, mask_of, nibbles, signed},
    registers::*,
};
use crate::simd::part;
use thermocline_formats::quant::{code_books, iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_xxs, mxfp4, tq1_0};

/// Negates the codes whose bit of `signs` is set.
#[inline(always)]
fn negate(codes: Codes, signs: u32) -> Codes {
    let [a, b] = mask_of(signs).map(vreinterpretq_s8_u8);
    [vsubq_s8(veorq_s8(codes[0], a), a), vsubq_s8(veorq_s8(codes[1], b), b)]
}

/// Looks up four points of eight coordinates.
#[inline(always)]
fn points8<const N: usize>(points: &[[i8; 8]; N], at: [usize; 4]) -> Codes {
    let two = |i: usize| vcombine_s8(load_codes8(&points[at[i]]), load_codes8(&points[at[i + 1]]));
    [two(0), two(2)]
}

/// Looks up eight points of four coordinates.
#[inline(always)]
fn points4<const N: usize>(points: &[[i8; 4]; N], at: [usize; 8]) -> Codes {
    let one = |i: usize| u64::from(u32::from_le_bytes(points[at[i]].map(|value| value as u8)));
    let two = |i: usize| one(i) | one(i + 1) << 32;
    let four = |i: usize| vreinterpretq_s8_u8(vreinterpretq_u8_u32(words(two(i), two(i + 2))));
    [four(0), four(4)]
}

/// Sub-block `i` of an IQ2_XXS block.
#[inline(always)]
pub(super) fn iq2_xxs(block: &[u8; 66], i: usize) -> Codes {
    let at = part::<u8, 4>(block, 2 + 8 * i).map(usize::from);
    negate(points8(&code_books::IQ2_XXS, at), code_books::signs_of(iq2_xxs::sign_word(block, i)))
}

/// Elements `32 i..` of an IQ2_XS block.
#[inline(always)]
pub(super) fn iq2_xs(block: &[u8; 74], i: usize) -> Codes {
    let four = [0, 1, 2, 3].map(|j| iq2_xs::point_and_signs(block, 4 * i + j));
    negate(points8(&code_books::IQ2_XS, four.map(|(at, _)| at)), u32::from_le_bytes(four.map(|(_, signs)| signs)))
}

/// Elements `32 i..` of an IQ2_S block.
#[inline(always)]
pub(super) fn iq2_s(block: &[u8; 82], i: usize) -> Codes {
    let four = [0, 1, 2, 3].map(|j| iq2_s::point_and_signs(block, 4 * i + j));
    negate(points8(&code_books::IQ2_S, four.map(|(at, _)| at)), u32::from_le_bytes(four.map(|(_, signs)| signs)))
}

/// Sub-block `i` of an IQ3_XXS block.
#[inline(always)]
pub(super) fn iq3_xxs(block: &[u8; 98], i: usize) -> Codes {
    let at = part::<u8, 8>(block, 2 + 8 * i).map(usize::from);
    negate(points4(&code_books::IQ3_XXS, at), code_books::signs_of(iq3_xxs::sign_word(block, i)))
}

/// Sub-block `i` of an IQ3_S block.
#[inline(always)]
pub(super) fn iq3_s(block: &[u8; 110], i: usize) -> Codes {
    // As in `iq3_s::point`, but for eight bytes read at once.
    let (low, high) = (u64::from_le_bytes(*part(block, 2 + 8 * i)), usize::from(block[66 + i]));
    let at = [0, 1, 2, 3, 4, 5, 6, 7].map(|j| (low >> (8 * j)) as usize & 255 | (high >> j & 1) << 8);
    negate(points4(&code_books::IQ3_S, at), u32::from_le_bytes(*part(block, 74 + 4 * i)))
}

/// Sub-block `i` of an IQ1_S block.
#[inline(always)]
pub(super) fn iq1_s(block: &[u8; 50], i: usize) -> Codes {
    let at = [0, 1, 2, 3].map(|j| iq1_s::point(block, 4 * i + j));
    let shift = vdupq_n_s8(iq1_s::shift(block, i));
    points8(&code_books::IQ1, at).map(|codes| vaddq_s8(codes, shift))
}

/// Elements `32 i..` of an IQ1_M block.
#[inline(always)]
pub(super) fn iq1_m(block: &[u8; 56], i: usize) -> Codes {
    let four = [0, 1, 2, 3].map(|j| iq1_m::point_and_shift(block, 4 * i + j));
    let shifts = |i: usize| vcombine_s8(vdup_n_s8(four[i].1), vdup_n_s8(four[i + 1].1));
    let [a, b] = points8(&code_books::IQ1, four.map(|(at, _)| at));
    [vaddq_s8(a, shifts(0)), vaddq_s8(b, shifts(2))]
}

/// Two bits of each byte, from bit `shift` on, minus 1.
#[inline(always)]
fn two_bits_from(bytes: &[u8; 32], shift: usize) -> Codes {
    let down = vdupq_n_s8(-(shift as i8));
    less(signed(bytes32(bytes).map(|bytes| vandq_u8(vshlq_u8(bytes, down), vdupq_n_u8(3)))), 1)
}

/// Elements `32 i..` of a TQ2_0 block.
#[inline(always)]
pub(super) fn tq2_0(block: &[u8; 66], i: usize) -> Codes {
    two_bits_from(part(block, i / 4 * 32), 2 * (i % 4))
}

/// The digits that powers of three move to the front of sixteen bytes.
#[inline(always)]
fn digits(bytes: uint8x16_t, powers: uint8x16_t) -> uint8x16_t {
    let (front, three) = (vmulq_u8(bytes, powers), vdupq_n_u8(3));
    let (low, high) = (vmull_u8(vget_low_u8(front), vget_low_u8(three)), vmull_high_u8(front, three));
    vuzp2q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high))
}

/// Elements `32 i..` of a TQ1_0 block.
#[inline(always)]
pub(super) fn tq1_0(block: &[u8; 54], i: usize) -> Codes {
    let power = |digit: usize| vdupq_n_u8(tq1_0::POWERS[digit]);
    let sixteen = |at: usize| load_bytes(part(block, at));
    let both = match i {
        0..5 => [digits(sixteen(0), power(i)), digits(sixteen(16), power(i))],
        5 | 6 => [digits(sixteen(32), power(2 * i - 10)), digits(sixteen(32), power(2 * i - 9))],
        _ => {
            let last = vreinterpretq_u8_u32(vdupq_n_u32(u32::from_le_bytes(*part(block, 48))));
            let powers = load_bytes(&[1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27]);
            [digits(sixteen(32), power(4)), digits(last, powers)]
        }
    };
    less(signed(both), 1)
}

/// Elements `32 i..` of a Q1_0 block.
#[inline(always)]
pub(super) fn q1_0(block: &[u8; 18], i: usize) -> Codes {
    mask_of(u32::from_le_bytes(*part(block, 2 + 4 * i))).map(|set| vbslq_s8(set, vdupq_n_s8(1), vdupq_n_s8(-1)))
}

/// Elements `32 i..` of a block with an f16 scale and consecutive codes of two bits.
#[inline(always)]
pub(super) fn consecutive_pairs(block: &[u8; 18], i: usize) -> Codes {
    let bytes = load_bytes8(part(block, 2 + 8 * i));
    let bytes = vcombine_u8(bytes, bytes);
    let down = load_codes(&[0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6]);
    let first = load_bytes(&[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);
    let second = load_bytes(&[4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7]);
    let codes = [first, second].map(|at| vandq_u8(vshlq_u8(vqtbl1q_u8(bytes, at), down), vdupq_n_u8(3)));
    less(signed(codes), 1)
}

/// Elements `32 i..` of an I2_S block. Each byte has one of them, and lower `i` are in higher bits.
#[inline(always)]
pub(super) fn i2_s(block: &[u8; 32], i: usize) -> Codes {
    two_bits_from(block, 6 - 2 * i)
}

/// Sub-blocks `2 i` and `2 i + 1` of an NVFP4 block.
#[inline(always)]
pub(super) fn nvfp4(block: &[u8; 36], i: usize) -> Codes {
    // Low nibbles of both sub-blocks, then high nibbles of both.
    let [low, high] = look_up(&mxfp4::VALUES, nibbles(part(block, 4 + 16 * i)));
    [vcombine_s8(vget_low_s8(low), vget_low_s8(high)), vcombine_s8(vget_high_s8(low), vget_high_s8(high))]
}
