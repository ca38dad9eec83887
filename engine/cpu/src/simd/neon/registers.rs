//! NEON's instructions as safe functions, because every 64-bit Arm processor has them. They are
//! `#[inline(always)]` without features of their own. Kernels that are compiled with more features
//! ([`CodeProducts`](super::products::CodeProducts)) can therefore inline them.

use std::arch::aarch64;
pub(super) use std::arch::aarch64::{
    float32x4_t, int8x8_t, int8x16_t, int16x8_t, int32x4_t, uint8x8_t, uint8x16_t, uint16x8_t, uint32x4_t,
};

macro_rules! safe {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {$(
        #[inline(always)]
        pub(super) fn $name($($arg: $ty),*) -> $out {
            // SAFETY: every 64-bit Arm processor has NEON, and the instruction touches registers
            // only.
            unsafe { aarch64::$name($($arg),*) }
        }
    )*};
}

safe! {
    vaddq_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vaddq_s8(a: int8x16_t, b: int8x16_t) -> int8x16_t;
    vaddq_s32(a: int32x4_t, b: int32x4_t) -> int32x4_t;
    vaddvq_f32(a: float32x4_t) -> f32;
    vandq_u8(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t;
    vbslq_f32(mask: uint32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vbslq_s8(mask: uint8x16_t, a: int8x16_t, b: int8x16_t) -> int8x16_t;
    vcgtq_u32(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t;
    vcombine_s8(a: int8x8_t, b: int8x8_t) -> int8x16_t;
    vcombine_u8(a: uint8x8_t, b: uint8x8_t) -> uint8x16_t;
    vcvtq_f32_s32(a: int32x4_t) -> float32x4_t;
    vdup_n_s8(a: i8) -> int8x8_t;
    vdupq_n_f32(a: f32) -> float32x4_t;
    vdupq_n_s8(a: i8) -> int8x16_t;
    vdupq_n_s16(a: i16) -> int16x8_t;
    vdupq_n_s32(a: i32) -> int32x4_t;
    vdupq_n_u8(a: u8) -> uint8x16_t;
    vdupq_n_u32(a: u32) -> uint32x4_t;
    veorq_s8(a: int8x16_t, b: int8x16_t) -> int8x16_t;
    vfmaq_f32(sum: float32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vfmaq_n_f32(sum: float32x4_t, a: float32x4_t, b: f32) -> float32x4_t;
    vfmsq_f32(sum: float32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vget_high_s8(a: int8x16_t) -> int8x8_t;
    vget_low_s8(a: int8x16_t) -> int8x8_t;
    vget_low_u8(a: uint8x16_t) -> uint8x8_t;
    vmlal_s8(sum: int16x8_t, a: int8x8_t, b: int8x8_t) -> int16x8_t;
    vmlal_high_s8(sum: int16x8_t, a: int8x16_t, b: int8x16_t) -> int16x8_t;
    vmlsq_s32(sum: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t;
    vmull_high_u8(a: uint8x16_t, b: uint8x16_t) -> uint16x8_t;
    vmull_s8(a: int8x8_t, b: int8x8_t) -> int16x8_t;
    vmull_u8(a: uint8x8_t, b: uint8x8_t) -> uint16x8_t;
    vmulq_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vmulq_n_f32(a: float32x4_t, b: f32) -> float32x4_t;
    vmulq_u8(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t;
    vorrq_u8(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t;
    vpadalq_s16(sum: int32x4_t, a: int16x8_t) -> int32x4_t;
    vpaddq_s32(a: int32x4_t, b: int32x4_t) -> int32x4_t;
    vqtbl1q_s8(table: int8x16_t, at: uint8x16_t) -> int8x16_t;
    vqtbl1q_u8(table: uint8x16_t, at: uint8x16_t) -> uint8x16_t;
    vreinterpretq_f32_u32(a: uint32x4_t) -> float32x4_t;
    vreinterpretq_s32_u32(a: uint32x4_t) -> int32x4_t;
    vreinterpretq_s8_u8(a: uint8x16_t) -> int8x16_t;
    vreinterpretq_u8_u16(a: uint16x8_t) -> uint8x16_t;
    vreinterpretq_u8_u32(a: uint32x4_t) -> uint8x16_t;
    vshlq_u8(a: uint8x16_t, by: int8x16_t) -> uint8x16_t;
    vshlq_u32(a: uint32x4_t, by: int32x4_t) -> uint32x4_t;
    vsubq_s8(a: int8x16_t, b: int8x16_t) -> int8x16_t;
    vsubq_u32(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t;
    vtstq_u8(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t;
    vuzp2q_u8(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t;
    vzip1q_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
    vzip2q_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t;
}

/// Defines loads and stores of registers.
macro_rules! memory {
    ($($(#[$doc:meta])* $name:ident($at:ty) $(-> $register:ty)? $(, $value:ident: $stored:ty)? = $intrinsic:ident, $pointer:ident;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub(super) fn $name(at: $at $(, $value: $stored)?) $(-> $register)? {
            // SAFETY: every 64-bit Arm processor has NEON. The array has the register's size, and
            // no alignment is needed.
            unsafe { aarch64::$intrinsic(at.$pointer() $(, $value)?) }
        }
    )*};
}

memory! {
    /// Loads four floats.
    load_floats(&[f32; 4]) -> float32x4_t = vld1q_f32, as_ptr;
    /// Loads four integers.
    load_ints(&[i32; 4]) -> int32x4_t = vld1q_s32, as_ptr;
    /// Loads sixteen codes.
    load_codes(&[i8; 16]) -> int8x16_t = vld1q_s8, as_ptr;
    /// Loads eight codes.
    load_codes8(&[i8; 8]) -> int8x8_t = vld1_s8, as_ptr;
    /// Loads sixteen bytes.
    load_bytes(&[u8; 16]) -> uint8x16_t = vld1q_u8, as_ptr;
    /// Loads eight bytes.
    load_bytes8(&[u8; 8]) -> uint8x8_t = vld1_u8, as_ptr;
    /// Writes four floats.
    store_floats(&mut [f32; 4]), v: float32x4_t = vst1q_f32, as_mut_ptr;
    /// Writes sixteen codes.
    store_codes(&mut [i8; 16]), v: int8x16_t = vst1q_s8, as_mut_ptr;
}

/// Shifts bytes right.
#[inline(always)]
pub(super) fn shift_right<const BY: i32>(bytes: uint8x16_t) -> uint8x16_t {
    // SAFETY: every 64-bit Arm processor has NEON.
    unsafe { aarch64::vshrq_n_u8::<BY>(bytes) }
}

/// Shifts bytes left.
#[inline(always)]
pub(super) fn shift_left<const BY: i32>(bytes: uint8x16_t) -> uint8x16_t {
    // SAFETY: every 64-bit Arm processor has NEON.
    unsafe { aarch64::vshlq_n_u8::<BY>(bytes) }
}

/// The first halves of two registers, then the second halves.
#[inline(always)]
pub(super) fn zip_halves(a: int32x4_t, b: int32x4_t) -> [int32x4_t; 2] {
    // SAFETY: every 64-bit Arm processor has NEON.
    unsafe {
        let (a, b) = (aarch64::vreinterpretq_s64_s32(a), aarch64::vreinterpretq_s64_s32(b));
        [aarch64::vzip1q_s64(a, b), aarch64::vzip2q_s64(a, b)].map(|v| aarch64::vreinterpretq_s32_s64(v))
    }
}

/// Interleaves the words of two registers: first their first halves, then their second halves.
#[inline(always)]
pub(super) fn zip_words(a: int8x16_t, b: int8x16_t) -> [int8x16_t; 2] {
    // SAFETY: every 64-bit Arm processor has NEON.
    unsafe {
        let (a, b) = (aarch64::vreinterpretq_u32_s8(a), aarch64::vreinterpretq_u32_s8(b));
        [aarch64::vzip1q_u32(a, b), aarch64::vzip2q_u32(a, b)].map(|v| aarch64::vreinterpretq_s8_u32(v))
    }
}

/// Transposes the words of four registers.
#[inline(always)]
pub(super) fn transpose([a, b, c, d]: [int8x16_t; 4]) -> [int8x16_t; 4] {
    let mut words = [a; 4];
    for (half, (ab, cd)) in zip_words(a, b).into_iter().zip(zip_words(c, d)).enumerate() {
        // SAFETY: every 64-bit Arm processor has NEON.
        let two = unsafe { zip_halves(aarch64::vreinterpretq_s32_s8(ab), aarch64::vreinterpretq_s32_s8(cd)) };
        for at in 0..2 {
            // SAFETY: as above.
            words[2 * half + at] = unsafe { aarch64::vreinterpretq_s8_s32(two[at]) };
        }
    }
    words
}

/// Widens 16-bit sums to 32 bits.
#[inline(always)]
pub(super) fn widen_sums(a: int16x8_t) -> [int32x4_t; 2] {
    // SAFETY: every 64-bit Arm processor has NEON.
    unsafe { [aarch64::vmovl_s16(aarch64::vget_low_s16(a)), aarch64::vmovl_high_s16(a)] }
}

/// Four little-endian floats.
#[inline(always)]
pub(super) fn f32s(bytes: &[u8; 16]) -> float32x4_t {
    // SAFETY: every 64-bit Arm processor has NEON.
    unsafe { aarch64::vreinterpretq_f32_u8(load_bytes(bytes)) }
}

/// Four little-endian f16, as floats.
#[inline(always)]
pub(super) fn f16s(bytes: &[u8; 8]) -> float32x4_t {
    // SAFETY: every 64-bit Arm processor has NEON, which widens f16.
    unsafe { aarch64::vcvt_f32_f16(aarch64::vreinterpret_f16_u8(load_bytes8(bytes))) }
}

/// Four little-endian bf16, as floats.
#[inline(always)]
pub(super) fn bf16s(bytes: &[u8; 8]) -> float32x4_t {
    // SAFETY: every 64-bit Arm processor has NEON.
    unsafe {
        let wide = aarch64::vmovl_u16(aarch64::vreinterpret_u16_u8(load_bytes8(bytes)));
        aarch64::vreinterpretq_f32_u32(aarch64::vshlq_n_u32::<16>(wide))
    }
}

/// Four f16, as floats.
#[inline(always)]
pub(super) fn halves(bits: [u16; 4]) -> float32x4_t {
    // SAFETY: every 64-bit Arm processor has NEON, which widens f16; four halves are readable.
    unsafe { aarch64::vcvt_f32_f16(aarch64::vreinterpret_f16_u16(aarch64::vld1_u16(bits.as_ptr()))) }
}

/// The first lane.
#[inline(always)]
pub(super) fn first(v: float32x4_t) -> f32 {
    // SAFETY: every 64-bit Arm processor has NEON.
    unsafe { aarch64::vgetq_lane_f32::<0>(v) }
}

/// Copies two factors to two lanes each.
#[inline(always)]
pub(super) fn twice(factors: &[f32; 2]) -> float32x4_t {
    // SAFETY: every 64-bit Arm processor has NEON.
    unsafe { aarch64::vcombine_f32(aarch64::vdup_n_f32(factors[0]), aarch64::vdup_n_f32(factors[1])) }
}

/// A register of four words. Each argument has two, the first in its lowest bits.
#[inline(always)]
pub(super) fn words(low: u64, high: u64) -> uint32x4_t {
    // SAFETY: every 64-bit Arm processor has NEON.
    unsafe { aarch64::vcombine_u32(aarch64::vcreate_u32(low), aarch64::vcreate_u32(high)) }
}

/// Converts four signed bytes of sixteen, from byte `4 * QUARTER` on, to floats. Each becomes the
/// highest byte of 32 bits, which are converted as multiples of `2^-24`.
#[inline(always)]
pub(super) fn signed_floats<const QUARTER: u8>(codes: int8x16_t) -> float32x4_t {
    let at = highest_bytes(4 * QUARTER);
    // SAFETY: every 64-bit Arm processor has NEON.
    unsafe { aarch64::vcvtq_n_f32_s32::<24>(aarch64::vreinterpretq_s32_s8(vqtbl1q_s8(codes, at))) }
}

/// [`signed_floats`] for unsigned codes in the upper four bits of bytes.
#[inline(always)]
pub(super) fn upper_floats<const QUARTER: u8>(codes: uint8x16_t) -> float32x4_t {
    let at = highest_bytes(4 * QUARTER);
    // SAFETY: every 64-bit Arm processor has NEON.
    unsafe { aarch64::vcvtq_n_f32_u32::<28>(aarch64::vreinterpretq_u32_u8(vqtbl1q_u8(codes, at))) }
}

/// Table indices that move four bytes, from `first` on, to the highest bytes of four words. Other
/// bytes become zero.
#[inline(always)]
fn highest_bytes(first: u8) -> uint8x16_t {
    let mut at = [255; 16];
    for i in 0..4 {
        at[4 * i + 3] = first + i as u8;
    }
    load_bytes(&at)
}

/// Four unsigned bytes as floats.
#[inline(always)]
pub(super) fn four_bytes(bytes: &[u8; 4]) -> float32x4_t {
    // SAFETY: every 64-bit Arm processor has NEON.
    unsafe {
        let wide = aarch64::vmovl_u8(aarch64::vcreate_u8(u64::from(u32::from_le_bytes(*bytes))));
        aarch64::vcvtq_f32_u32(aarch64::vmovl_u16(aarch64::vget_low_u16(wide)))
    }
}

/// Eight unsigned bytes as floats.
#[inline(always)]
pub(super) fn bytes_to_floats(bytes: [u8; 8]) -> [float32x4_t; 2] {
    // SAFETY: every 64-bit Arm processor has NEON.
    unsafe {
        let wide = aarch64::vmovl_u8(load_bytes8(&bytes));
        let (low, high) = (aarch64::vmovl_u16(aarch64::vget_low_u16(wide)), aarch64::vmovl_high_u16(wide));
        [aarch64::vcvtq_f32_u32(low), aarch64::vcvtq_f32_u32(high)]
    }
}

/// Eight signed bytes as floats.
#[inline(always)]
pub(super) fn codes_to_floats(codes: [i8; 8]) -> [float32x4_t; 2] {
    // SAFETY: every 64-bit Arm processor has NEON.
    unsafe {
        let wide = aarch64::vmovl_s8(load_codes8(&codes));
        let (low, high) = (aarch64::vmovl_s16(aarch64::vget_low_s16(wide)), aarch64::vmovl_high_s16(wide));
        [vcvtq_f32_s32(low), vcvtq_f32_s32(high)]
    }
}
