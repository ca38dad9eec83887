//! Vectors of sixteen: AVX-512 F and DQ.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use half::f16;

use super::{Vector, VectorKernel};

/// Proof that the machine has AVX-512 (F, BW, VL, DQ). Only [`run`] creates it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512Vectors(());

/// Runs `kernel` with AVX-512. [`super::dispatch`] has checked that the machine has it.
pub(super) fn run<Output, K: VectorKernel<Output>>(kernel: K) -> Output {
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    fn with_features<Output, K: VectorKernel<Output>>(kernel: K) -> Output {
        kernel.run(Avx512Vectors(()))
    }
    // SAFETY: `dispatch`, the only caller, has checked that the machine reports this instruction
    // set.
    unsafe { with_features(kernel) }
}

impl Vector for Avx512Vectors {
    type F = __m512;
    const LANES: usize = 16;
    const TILE_ROWS: usize = 4;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, src: &[f32]) -> Self::F {
        let src = &src[..16];
        // SAFETY: the token proves AVX-512F; sixteen elements are readable.
        unsafe { _mm512_loadu_ps(src.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn load_ptr(self, src: *const f32) -> Self::F {
        // SAFETY: the token proves AVX-512F; the caller vouches for the elements.
        unsafe { _mm512_loadu_ps(src) }
    }

    #[inline(always)]
    fn load_f16(self, src: &[f16]) -> Self::F {
        let src = &src[..16];
        // SAFETY: the token proves AVX-512F; sixteen halves, 32 bytes, are readable.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(src.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_i8(self, src: &[i8]) -> Self::F {
        let src = &src[..16];
        // SAFETY: the token proves AVX-512F; sixteen bytes are readable.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(src.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn store(self, dst: &mut [f32], x: Self::F) {
        let dst = &mut dst[..16];
        // SAFETY: the token proves AVX-512F; sixteen elements are writable.
        unsafe { _mm512_storeu_ps(dst.as_mut_ptr(), x) }
    }

    instructions! {
        add(a, b) = _mm512_add_ps;
        sub(a, b) = _mm512_sub_ps;
        mul(a, b) = _mm512_mul_ps;
        div(a, b) = _mm512_div_ps;
        mul_add(a, b, c) = _mm512_fmadd_ps;
        max(a, b) = _mm512_max_ps;
        min(a, b) = _mm512_min_ps;
    }

    #[inline(always)]
    fn round(self, x: Self::F) -> Self::F {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x) }
    }

    #[inline(always)]
    fn scale(self, x: Self::F, n: Self::F) -> Self::F {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_scalef_ps(x, n) }
    }

    #[inline(always)]
    fn zero_below(self, x: Self::F, threshold: Self::F, y: Self::F) -> Self::F {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_maskz_mov_ps(!_mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, threshold), y) }
    }

    #[inline(always)]
    fn swap_pairs(self, x: Self::F) -> Self::F {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_permute_ps::<0b10_11_00_01>(x) }
    }

    #[inline(always)]
    fn sum(self, x: Self::F) -> f32 {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_reduce_add_ps(x) }
    }

    #[inline(always)]
    fn sum4(self, x: [Self::F; 4]) -> [f32; 4] {
        let mut out = [0.0; 4];
        // SAFETY: the token proves AVX-512F and DQ, hence AVX; `out` has room for four.
        unsafe {
            // Halves are added first, so that one register has the sums of two vectors.
            let ab = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b01_00_01_00>(x[0], x[1]),
                _mm512_shuffle_f32x4::<0b11_10_11_10>(x[0], x[1]),
            );
            let cd = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b01_00_01_00>(x[2], x[3]),
                _mm512_shuffle_f32x4::<0b11_10_11_10>(x[2], x[3]),
            );
            let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
            let high = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd);
            // 128-bit lane i now holds four partial sums of vector i.
            let lanes = _mm512_add_ps(low, high);
            let lanes = _mm512_add_ps(lanes, _mm512_permute_ps::<0b01_00_11_10>(lanes));
            let lanes = _mm512_add_ps(lanes, _mm512_permute_ps::<0b10_11_00_01>(lanes));
            let index = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
            _mm_storeu_ps(out.as_mut_ptr(), _mm512_castps512_ps128(_mm512_permutexvar_ps(index, lanes)));
        }
        out
    }

    #[inline(always)]
    fn max_lane(self, x: Self::F) -> f32 {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_reduce_max_ps(x) }
    }
}
