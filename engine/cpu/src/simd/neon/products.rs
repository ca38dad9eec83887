//! Sums of products of 8-bit codes, which differ between Arm processors.

use std::{arch::asm, fmt::Debug};

use super::registers::*;

/// The way in which products of codes are summed. A value proves that the machine has the
/// instructions.
pub(super) trait CodeProducts: Copy + Debug {
    /// `sum[i] += w[4 i..] . x[4 i..]`, in any order of the sixteen products. Only the sum of all
    /// lanes is meaningful. |w| is at most 128, |x| at most 127.
    fn dot(self, sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t;
}

/// NEON alone: 16-bit products, summed in pairs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Widening;

impl CodeProducts for Widening {
    #[inline(always)]
    fn dot(self, sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        // Two products fit 16 bits: 2 * 128 * 127 < 2^15.
        vpadalq_s16(sum, vmlal_high_s8(vmull_s8(vget_low_s8(w), vget_low_s8(x)), w, x))
    }
}

/// Proof that the machine has the dot product instructions (`dotprod`).
#[derive(Debug, Clone, Copy)]
pub(super) struct DotProducts(());

impl DotProducts {
    /// Creates the proof.
    ///
    /// # Safety
    /// The machine has `dotprod`.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        DotProducts(())
    }

    /// `sum[i] += w[4 i..] . x[4 LANE..]`
    #[inline(always)]
    pub fn dot_lane<const LANE: u8>(self, sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: the token proves the instruction.
        unsafe { sdot_lane::<LANE>(sum, w, x) }
    }
}

impl CodeProducts for DotProducts {
    #[inline(always)]
    fn dot(self, sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: the token proves the instruction.
        unsafe { sdot(sum, w, x) }
    }
}

/// Proof that the machine has products of small matrices (`i8mm`).
#[derive(Debug, Clone, Copy)]
pub(super) struct MatrixProducts(());

impl MatrixProducts {
    /// Creates the proof.
    ///
    /// # Safety
    /// The machine has `i8mm`.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        MatrixProducts(())
    }

    /// `sum[2 i + j] += a[8 i..][..8] . b[8 j..][..8]` for `i` and `j` below 2.
    #[inline(always)]
    pub fn two_by_two(self, sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        // SAFETY: the token proves the instruction.
        unsafe { smmla(sum, a, b) }
    }
}

// The compiler's functions for these instructions are not stable yet.

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the function's features include the instruction, which touches registers only.
    unsafe {
        asm!("sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b", sum = inout(vreg) sum, a = in(vreg) a, b = in(vreg) b,
             options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot_lane<const LANE: u8>(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the function's features include the instruction, which touches registers only.
    unsafe {
        asm!("sdot {sum:v}.4s, {a:v}.16b, {b:v}.4b[{lane}]", sum = inout(vreg) sum, a = in(vreg) a, b = in(vreg) b,
             lane = const LANE, options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

#[inline]
#[target_feature(enable = "neon,i8mm")]
fn smmla(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the function's features include the instruction, which touches registers only.
    unsafe {
        asm!("smmla {sum:v}.4s, {a:v}.16b, {b:v}.16b", sum = inout(vreg) sum, a = in(vreg) a, b = in(vreg) b,
             options(pure, nomem, nostack, preserves_flags));
    }
    sum
}
