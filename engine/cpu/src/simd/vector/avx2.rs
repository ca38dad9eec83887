//! Vectors of eight: AVX2 with FMA and F16C.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use half::f16;

use super::{Vector, VectorKernel};

/// Proof that the machine has AVX2, FMA and F16C. Only [`run`] creates it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2Vectors(());

/// Runs `kernel` with AVX2. [`super::dispatch`] has checked that the machine has it.
pub(super) fn run<Output, K: VectorKernel<Output>>(kernel: K) -> Output {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn with_features<Output, K: VectorKernel<Output>>(kernel: K) -> Output {
        kernel.run(Avx2Vectors(()))
    }
    // SAFETY: `dispatch`, the only caller, has checked that the machine reports this instruction
    // set.
    unsafe { with_features(kernel) }
}

impl Vector for Avx2Vectors {
    type F = __m256;
    const LANES: usize = 8;
    const TILE_ROWS: usize = 2;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        // SAFETY: the token proves AVX.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, src: &[f32]) -> Self::F {
        let src = &src[..8];
        // SAFETY: the token proves AVX; eight elements are readable.
        unsafe { _mm256_loadu_ps(src.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn load_ptr(self, src: *const f32) -> Self::F {
        // SAFETY: the token proves AVX; the caller vouches for the elements.
        unsafe { _mm256_loadu_ps(src) }
    }

    #[inline(always)]
    fn load_f16(self, src: &[f16]) -> Self::F {
        let src = &src[..8];
        // SAFETY: the token proves F16C; eight halves, 16 bytes, are readable.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(src.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_i8(self, src: &[i8]) -> Self::F {
        let src = &src[..8];
        // SAFETY: the token proves AVX2; eight bytes are readable.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(src.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn store(self, dst: &mut [f32], x: Self::F) {
        let dst = &mut dst[..8];
        // SAFETY: the token proves AVX; eight elements are writable.
        unsafe { _mm256_storeu_ps(dst.as_mut_ptr(), x) }
    }

    instructions! {
        add(a, b) = _mm256_add_ps;
        sub(a, b) = _mm256_sub_ps;
        mul(a, b) = _mm256_mul_ps;
        div(a, b) = _mm256_div_ps;
        mul_add(a, b, c) = _mm256_fmadd_ps;
        max(a, b) = _mm256_max_ps;
        min(a, b) = _mm256_min_ps;
    }

    #[inline(always)]
    fn round(self, x: Self::F) -> Self::F {
        // SAFETY: the token proves AVX.
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x) }
    }

    #[inline(always)]
    fn scale(self, x: Self::F, n: Self::F) -> Self::F {
        // SAFETY: the token proves AVX2.
        unsafe {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
        }
    }

    #[inline(always)]
    fn zero_below(self, x: Self::F, threshold: Self::F, y: Self::F) -> Self::F {
        // SAFETY: the token proves AVX.
        unsafe { _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x, threshold), y) }
    }

    #[inline(always)]
    fn swap_pairs(self, x: Self::F) -> Self::F {
        // SAFETY: the token proves AVX.
        unsafe { _mm256_permute_ps::<0b10_11_00_01>(x) }
    }

    #[inline(always)]
    fn sum(self, x: Self::F) -> f32 {
        self.sum4([x; 4])[0]
    }

    #[inline(always)]
    fn sum4(self, x: [Self::F; 4]) -> [f32; 4] {
        let mut out = [0.0; 4];
        // SAFETY: the token proves AVX; `out` has room for four.
        unsafe {
            let pairs = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
            let sums = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps::<1>(pairs));
            _mm_storeu_ps(out.as_mut_ptr(), sums);
        }
        out
    }

    #[inline(always)]
    fn max_lane(self, x: Self::F) -> f32 {
        // SAFETY: the token proves AVX.
        unsafe {
            let m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let m = _mm_max_ps(m, _mm_movehl_ps(m, m));
            _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps::<1>(m, m)))
        }
    }
}
