//! NEON: pairs of 128-bit vectors.
#![allow(unsafe_code)]

use std::arch::aarch64::*;

use half::f16;

use super::{Vector, VectorKernel};

/// Token of NEON's vectors. Every 64-bit Arm processor has them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NeonVectors;

/// Runs `kernel` with NEON.
pub(super) fn run<Output, K: VectorKernel<Output>>(kernel: K) -> Output {
    kernel.run(NeonVectors)
}

/// Applies a function to both halves.
#[inline(always)]
fn map(x: float32x4x2_t, op: impl Fn(float32x4_t) -> float32x4_t) -> float32x4x2_t {
    float32x4x2_t(op(x.0), op(x.1))
}

/// Applies a function to both halves of two vectors.
#[inline(always)]
fn zip(a: float32x4x2_t, b: float32x4x2_t, op: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> float32x4x2_t {
    float32x4x2_t(op(a.0, b.0), op(a.1, b.1))
}

impl Vector for NeonVectors {
    type F = float32x4x2_t;
    const LANES: usize = 8;
    const TILE_ROWS: usize = 2;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        // SAFETY: every 64-bit Arm processor has NEON.
        let x = unsafe { vdupq_n_f32(x) };
        float32x4x2_t(x, x)
    }

    #[inline(always)]
    fn load(self, src: &[f32]) -> Self::F {
        let src = &src[..8];
        // SAFETY: every 64-bit Arm processor has NEON; eight elements are readable.
        unsafe { self.load_ptr(src.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn load_ptr(self, src: *const f32) -> Self::F {
        // SAFETY: every 64-bit Arm processor has NEON; the caller vouches for the elements.
        unsafe { float32x4x2_t(vld1q_f32(src), vld1q_f32(src.add(4))) }
    }

    #[inline(always)]
    fn load_f16(self, src: &[f16]) -> Self::F {
        let src = &src[..8];
        // SAFETY: every 64-bit Arm processor has NEON, which widens f16; eight halves, 16 bytes,
        // are readable.
        unsafe {
            let halves = vreinterpretq_f16_u16(vld1q_u16(src.as_ptr().cast()));
            float32x4x2_t(vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves))
        }
    }

    #[inline(always)]
    fn load_i8(self, src: &[i8]) -> Self::F {
        let src = &src[..8];
        // SAFETY: every 64-bit Arm processor has NEON; eight bytes are readable.
        unsafe {
            let wide = vmovl_s8(vld1_s8(src.as_ptr()));
            float32x4x2_t(vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide)))
        }
    }

    #[inline(always)]
    fn store(self, dst: &mut [f32], x: Self::F) {
        let dst = &mut dst[..8];
        // SAFETY: every 64-bit Arm processor has NEON; eight elements are writable.
        unsafe {
            vst1q_f32(dst.as_mut_ptr(), x.0);
            vst1q_f32(dst.as_mut_ptr().add(4), x.1);
        }
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: every 64-bit Arm processor has NEON.
        zip(a, b, |a, b| unsafe { vaddq_f32(a, b) })
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: every 64-bit Arm processor has NEON.
        zip(a, b, |a, b| unsafe { vsubq_f32(a, b) })
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: every 64-bit Arm processor has NEON.
        zip(a, b, |a, b| unsafe { vmulq_f32(a, b) })
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: every 64-bit Arm processor has NEON.
        zip(a, b, |a, b| unsafe { vdivq_f32(a, b) })
    }

    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: every 64-bit Arm processor has NEON.
        unsafe { float32x4x2_t(vfmaq_f32(c.0, a.0, b.0), vfmaq_f32(c.1, a.1, b.1)) }
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: every 64-bit Arm processor has NEON.
        zip(a, b, |a, b| unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) })
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: every 64-bit Arm processor has NEON.
        zip(a, b, |a, b| unsafe { vbslq_f32(vcltq_f32(a, b), a, b) })
    }

    #[inline(always)]
    fn round(self, x: Self::F) -> Self::F {
        // SAFETY: every 64-bit Arm processor has NEON.
        map(x, |x| unsafe { vrndnq_f32(x) })
    }

    #[inline(always)]
    fn scale(self, x: Self::F, n: Self::F) -> Self::F {
        // SAFETY: every 64-bit Arm processor has NEON.
        zip(x, n, |x, n| unsafe {
            let exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
            vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent)))
        })
    }

    #[inline(always)]
    fn zero_below(self, x: Self::F, threshold: Self::F, y: Self::F) -> Self::F {
        // SAFETY: every 64-bit Arm processor has NEON.
        let keep = |x, threshold, y| unsafe {
            vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), vcltq_f32(x, threshold)))
        };
        float32x4x2_t(keep(x.0, threshold.0, y.0), keep(x.1, threshold.1, y.1))
    }

    #[inline(always)]
    fn swap_pairs(self, x: Self::F) -> Self::F {
        // SAFETY: every 64-bit Arm processor has NEON.
        map(x, |x| unsafe { vrev64q_f32(x) })
    }

    #[inline(always)]
    fn sum(self, x: Self::F) -> f32 {
        // SAFETY: every 64-bit Arm processor has NEON.
        unsafe { vaddvq_f32(vaddq_f32(x.0, x.1)) }
    }

    #[inline(always)]
    fn sum4(self, x: [Self::F; 4]) -> [f32; 4] {
        let mut out = [0.0; 4];
        // SAFETY: every 64-bit Arm processor has NEON; `out` has room for four.
        unsafe {
            let four = x.map(|x| vaddq_f32(x.0, x.1));
            let sums = vpaddq_f32(vpaddq_f32(four[0], four[1]), vpaddq_f32(four[2], four[3]));
            vst1q_f32(out.as_mut_ptr(), sums);
        }
        out
    }

    #[inline(always)]
    fn max_lane(self, x: Self::F) -> f32 {
        // SAFETY: every 64-bit Arm processor has NEON.
        unsafe { vmaxnmvq_f32(vmaxnmq_f32(x.0, x.1)) }
    }
}
