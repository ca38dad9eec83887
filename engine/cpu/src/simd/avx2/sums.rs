//! Sums of groups and of lines: see [`sum_order`](crate::simd::sum_order).

use std::arch::x86_64::*;

use super::load128;

/// Adds up the integers in each of four registers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn sums4(v: [__m256i; 4]) -> __m128i {
    let four = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    _mm_add_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256::<1>(four))
}

/// Adds up the integers in each half of four registers. Returns four sums per register.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn half_sums8(v: [__m256i; 4]) -> [__m128i; 2] {
    // All first halves, then all second halves.
    let eight = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    let (first, second) = (_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
    [_mm_unpacklo_epi32(first, second), _mm_unpackhi_epi32(first, second)]
}

/// Adds up the integers in each half of two registers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn half_sums4(v: [__m256i; 2]) -> __m128i {
    let pairs = _mm256_hadd_epi32(v[0], v[1]);
    // Both first halves, then both second halves.
    let four = _mm_hadd_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
    _mm_shuffle_epi32::<0b11_01_10_00>(four)
}

/// Corrects products of codes that have `offset` added: `dots - offset * code_sums`. `code_sums`
/// are the sums of the activations' codes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn less(dots: __m128i, offset: i8, code_sums: &[i32; 4]) -> __m128i {
    // Sums fit 16 bits.
    let offset = _mm_set1_epi32(i32::from(offset));
    _mm_sub_epi32(dots, _mm_madd_epi16(load128(code_sums), offset))
}

/// Adds the products of four groups to a line's sums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add4(sums: __m128, dots: __m128i, scales: __m128) -> __m128 {
    _mm_fmadd_ps(_mm_cvtepi32_ps(dots), scales, sums)
}

/// A row's sum. The current line has four sums, in four lanes.
#[derive(Clone, Copy)]
pub(super) struct RowTotal {
    /// Sum of the previous lines, in the first lane.
    total: __m128,
    /// Sums of this line.
    pub(super) line: __m128,
}

impl RowTotal {
    /// Returns an empty sum.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn zero() -> Self {
        RowTotal { total: _mm_setzero_ps(), line: _mm_setzero_ps() }
    }

    /// Adds the line to the total, and begins a new line.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn end_line(&mut self) {
        let pairs = _mm_add_ps(self.line, _mm_movehdup_ps(self.line));
        self.total = _mm_add_ss(self.total, _mm_add_ss(pairs, _mm_movehl_ps(pairs, pairs)));
        self.line = _mm_setzero_ps();
    }

    /// The sum of all lines.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn get(mut self) -> f32 {
        self.end_line();
        _mm_cvtss_f32(self.total)
    }

    /// Begins a new line if block `at` is the first of a line, except for the row's first line. A
    /// line has `of_line` blocks.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn before_block(&mut self, at: usize, of_line: usize) {
        if at > 0 && at.is_multiple_of(of_line) {
            self.end_line();
        }
    }
}

/// Splits a register into its halves.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn halves(v: __m256) -> [__m128; 2] {
    [_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v)]
}

/// Loads four floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn load4(from: &[f32; 4]) -> __m128 {
    // SAFETY: 16 bytes are readable there, and the load needs no alignment.
    unsafe { _mm_loadu_ps(from.as_ptr()) }
}
