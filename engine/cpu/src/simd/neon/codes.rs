//! Codes of blocks in registers, 32 at a time.

use super::registers::*;
use crate::simd::part;

/// 32 codes.
pub(super) type Codes = [int8x16_t; 2];

/// Converts codes that are not negative to signed codes.
#[inline(always)]
pub(super) fn signed(codes: [uint8x16_t; 2]) -> Codes {
    codes.map(vreinterpretq_s8_u8)
}

/// Loads 32 bytes.
#[inline(always)]
pub(super) fn bytes32(bytes: &[u8; 32]) -> [uint8x16_t; 2] {
    [load_bytes(part(bytes, 0)), load_bytes(part(bytes, 16))]
}

/// Loads 32 codes.
#[inline(always)]
pub(super) fn codes32(codes: &[i8; 32]) -> Codes {
    [load_codes(part(codes, 0)), load_codes(part(codes, 16))]
}

/// `codes - offset`
#[inline(always)]
pub(super) fn less(codes: Codes, offset: i8) -> Codes {
    codes.map(|codes| vsubq_s8(codes, vdupq_n_s8(offset)))
}

/// Sixteen low nibbles, then the sixteen high ones.
#[inline(always)]
pub(super) fn nibbles(bytes: &[u8; 16]) -> [uint8x16_t; 2] {
    let both = load_bytes(bytes);
    [vandq_u8(both, vdupq_n_u8(15)), shift_right::<4>(both)]
}

/// Sets all bits of the bytes whose bit in `bits` is set.
#[inline(always)]
pub(super) fn mask_of(bits: u32) -> [uint8x16_t; 2] {
    let bit = load_bytes(&[1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128]);
    let bits = vreinterpretq_u8_u32(vdupq_n_u32(bits));
    let at = load_bytes(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
    let next = load_bytes(&[2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3]);
    [vtstq_u8(vqtbl1q_u8(bits, at), bit), vtstq_u8(vqtbl1q_u8(bits, next), bit)]
}

/// [`nibbles`] with a fifth bit from 32 separate bits.
#[inline(always)]
pub(super) fn five_bits(low: &[u8; 16], high: &[u8; 4]) -> Codes {
    let fifth = vdupq_n_u8(16);
    let [a, b] = nibbles(low);
    let [set_a, set_b] = mask_of(u32::from_le_bytes(*high));
    signed([vorrq_u8(a, vandq_u8(set_a, fifth)), vorrq_u8(b, vandq_u8(set_b, fifth))])
}

/// Looks up the value of each nibble.
#[inline(always)]
pub(super) fn look_up(values: &[i8; 16], nibbles: [uint8x16_t; 2]) -> Codes {
    let values = load_codes(values);
    nibbles.map(|at| vqtbl1q_s8(values, at))
}

/// The four two-bit codes of each byte.
#[inline(always)]
fn two_bits_unsigned(bytes: &[u8; 32]) -> [[uint8x16_t; 2]; 4] {
    let (bytes, mask) = (bytes32(bytes), vdupq_n_u8(3));
    [
        bytes.map(|bytes| vandq_u8(bytes, mask)),
        bytes.map(|bytes| vandq_u8(shift_right::<2>(bytes), mask)),
        bytes.map(|bytes| vandq_u8(shift_right::<4>(bytes), mask)),
        bytes.map(shift_right::<6>),
    ]
}

/// The four two-bit codes of each byte.
#[inline(always)]
pub(super) fn two_bits(bytes: &[u8; 32]) -> [Codes; 4] {
    two_bits_unsigned(bytes).map(signed)
}

/// Sub-blocks `2i` and `2i + 1` of a Q4_K block.
#[inline(always)]
pub(super) fn q4_k(block: &[u8; 144], i: usize) -> [Codes; 2] {
    let quants = bytes32(part(block, 16 + 32 * i));
    [signed(quants.map(|quants| vandq_u8(quants, vdupq_n_u8(15)))), signed(quants.map(shift_right::<4>))]
}

/// Sub-blocks `2i` and `2i + 1` of a Q5_K block.
#[inline(always)]
pub(super) fn q5_k(block: &[u8; 176], i: usize) -> [Codes; 2] {
    let quants = bytes32(part(block, 48 + 32 * i));
    // The fifth bits of these two sub-blocks become the lowest two bits of each byte.
    let down = vdupq_n_s8(-(2 * i as i8));
    let bits = bytes32(part(block, 16)).map(|bits| vshlq_u8(bits, down));
    let (mask, fifth) = (vdupq_n_u8(15), vdupq_n_u8(16));
    let low = |i: usize| vorrq_u8(vandq_u8(quants[i], mask), vandq_u8(shift_left::<4>(bits[i]), fifth));
    let high = |i: usize| vorrq_u8(shift_right::<4>(quants[i]), vandq_u8(shift_left::<3>(bits[i]), fifth));
    [signed([low(0), low(1)]), signed([high(0), high(1)])]
}

/// Computes the codes of both registers.
#[inline(always)]
fn each(one: impl Fn(usize) -> uint8x16_t) -> Codes {
    signed([one(0), one(1)])
}

/// Four times 32 codes of half `at` of a Q6_K block, with 32 added.
#[inline(always)]
pub(super) fn q6_k(block: &[u8; 210], at: usize) -> [Codes; 4] {
    let (mask, upper) = (vdupq_n_u8(15), vdupq_n_u8(48));
    // Two runs of 32 bytes contain the lower four bits of codes, 32 more bytes the upper two bits.
    let (a, b) = (bytes32(part(block, 64 * at)), bytes32(part(block, 64 * at + 32)));
    let bits = bytes32(part(block, 128 + 32 * at));
    [
        each(|i| vorrq_u8(vandq_u8(a[i], mask), vandq_u8(shift_left::<4>(bits[i]), upper))),
        each(|i| vorrq_u8(vandq_u8(b[i], mask), vandq_u8(shift_left::<2>(bits[i]), upper))),
        each(|i| vorrq_u8(shift_right::<4>(a[i]), vandq_u8(bits[i], upper))),
        each(|i| vorrq_u8(shift_right::<4>(b[i]), vandq_u8(shift_right::<2>(bits[i]), upper))),
    ]
}

/// Four times 32 codes of half `at` of a Q3_K block, with 4 added.
#[inline(always)]
pub(super) fn q3_k(block: &[u8; 110], at: usize) -> [Codes; 4] {
    let low = two_bits_unsigned(part(block, 32 + 32 * at));
    // The third bit of each code is a bit of these bytes.
    let down = vdupq_n_s8(-(4 * at as i8));
    let bits = bytes32(part(block, 0)).map(|bits| vshlq_u8(bits, down));
    let third = vdupq_n_u8(4);
    let with = |low: [uint8x16_t; 2], bits: [uint8x16_t; 2]| {
        signed([vorrq_u8(low[0], vandq_u8(bits[0], third)), vorrq_u8(low[1], vandq_u8(bits[1], third))])
    };
    [
        with(low[0], bits.map(shift_left::<2>)),
        with(low[1], bits.map(shift_left::<1>)),
        with(low[2], bits),
        with(low[3], bits.map(shift_right::<1>)),
    ]
}
