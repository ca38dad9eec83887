//! Weights of input-major matrices, two inputs at a time.

use std::arch::x86_64::*;

use super::{load_ps, load128, load256, store_ps};
use crate::simd::{INPUTS, InputBlock, InputMinima, OUTPUTS, part, part_mut};

/// Two inputs: the offsets of their rows of codes, and their factors.
type InputPair = ([usize; 2], __m256i);

/// Pairs whose products fit a 16-bit sum: 16 inputs * 15 * 127 < 2^15.
const PAIRS: usize = 8;

/// [`Kernels::add_inputs`](crate::simd::Kernels::add_inputs).
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add(inputs: &InputBlock<'_>, next: Option<&InputBlock<'_>>, acc: &mut [f32]) {
    let (scale, offset) = (_mm256_set1_ps(inputs.scale), _mm256_set1_ps(-8.0 * inputs.sum));
    add_nibbles(inputs, next, acc, |sums, output, acc| {
        let value = _mm256_fmadd_ps(sums, scale, offset);
        store_ps(acc, _mm256_fmadd_ps(value, eight_halves(inputs.scales, output), load_ps(acc)));
    });
}

/// [`Kernels::add_inputs_with_minima`](crate::simd::Kernels::add_inputs_with_minima).
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add_with_minima(
    inputs: &InputBlock<'_>,
    of: &InputMinima<'_>,
    next: Option<&InputBlock<'_>>,
    acc: &mut [f32],
) {
    assert!(of.factors.len() == acc.len() && of.minima.len() == acc.len() && of.scales.len() == 2 * acc.len());
    let (scale, sum) = (_mm256_set1_ps(inputs.scale), _mm256_set1_ps(inputs.sum));
    add_nibbles(inputs, next, acc, |sums, output, acc| {
        let value = _mm256_mul_ps(sums, scale);
        let weight = _mm256_mul_ps(eight_halves(inputs.scales, output), eight_bytes(of.factors, output));
        let min = _mm256_mul_ps(eight_halves(of.scales, output), eight_bytes(of.minima, output));
        let less = _mm256_fnmadd_ps(min, sum, load_ps(acc));
        store_ps(acc, _mm256_fmadd_ps(value, weight, less));
    });
}

/// Processes the outputs of a block of nibbles, eight at a time. `add` receives their sums over the
/// active inputs, the index of the first output, and the results to add to.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add_nibbles(
    inputs: &InputBlock<'_>,
    next: Option<&InputBlock<'_>>,
    acc: &mut [f32],
    add: impl Fn(__m256, usize, &mut [f32; 8]),
) {
    let InputBlock { scales, codes, .. } = *inputs;
    let row = acc.len() / 2;
    assert!(codes.len() == INPUTS * row && scales.len() == 2 * acc.len() && acc.len().is_multiple_of(OUTPUTS));
    let (pairs, n) =
        pairs(inputs, row, |factors| _mm256_set1_epi16(i16::from_le_bytes(factors.map(|factor| factor as u8))));
    let pairs = &pairs[..n];
    let chunks = acc.len() / OUTPUTS;
    for (at, acc) in acc.as_chunks_mut::<OUTPUTS>().0.iter_mut().enumerate() {
        if let Some(next) = next {
            next.prefetch_part(at, chunks);
        }
        for half in 0..2 {
            let sums = half_line(codes, at * (OUTPUTS / 2) + 32 * half, pairs);
            for (i, sums) in sums.into_iter().enumerate() {
                let first = 64 * (i / 4) + 16 * (i % 4) + 8 * half;
                add(_mm256_cvtepi32_ps(sums), at * OUTPUTS + first, part_mut(acc, first));
            }
        }
    }
}

/// [`Kernels::add_byte_inputs`](crate::simd::Kernels::add_byte_inputs).
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add_bytes(inputs: &InputBlock<'_>, next: Option<&InputBlock<'_>>, acc: &mut [f32]) {
    let InputBlock { scales, codes, scale, .. } = *inputs;
    let row = acc.len();
    assert!(codes.len() == INPUTS * row && scales.len() == 2 * row && row.is_multiple_of(OUTPUTS));
    let (pairs, n) = pairs(inputs, row, |factors| {
        let [a, b] = factors.map(i16::from);
        _mm256_set1_epi32(i32::from(a) & 0xffff | i32::from(b) << 16)
    });
    let pairs = &pairs[..n];
    let scale = _mm256_set1_ps(scale);
    let chunks = row / OUTPUTS;
    for (at, acc) in acc.as_chunks_mut::<OUTPUTS>().0.iter_mut().enumerate() {
        if let Some(next) = next {
            next.prefetch_part(at, chunks);
        }
        for quarter in 0..OUTPUTS / 32 {
            let first = 32 * quarter;
            let mut sums = [_mm256_setzero_si256(); 4];
            for (rows, factors) in pairs {
                let a = load256::<u8, 32>(part(codes, rows[0] + at * OUTPUTS + first));
                let b = load256::<u8, 32>(part(codes, rows[1] + at * OUTPUTS + first));
                // The lower half has the pairs of eight outputs, the upper half those of the eight
                // outputs 16 further on.
                for (i, both) in [_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)].into_iter().enumerate() {
                    let low = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(both));
                    let high = _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(both));
                    sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(low, *factors));
                    sums[2 + i] = _mm256_add_epi32(sums[2 + i], _mm256_madd_epi16(high, *factors));
                }
            }
            for (i, sums) in sums.into_iter().enumerate() {
                let first = first + 8 * i;
                let value = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), scale);
                let acc: &mut [f32; 8] = part_mut(acc, first);
                store_ps(acc, _mm256_fmadd_ps(value, eight_halves(scales, at * OUTPUTS + first), load_ps(acc)));
            }
        }
    }
}

/// The active inputs two by two, and the number of pairs. `broadcast` prepares the factors of each
/// pair.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn pairs(
    inputs: &InputBlock<'_>,
    row: usize,
    broadcast: impl Fn([i8; 2]) -> __m256i,
) -> ([InputPair; INPUTS / 2], usize) {
    let mut pairs: [InputPair; INPUTS / 2] = [([0; 2], _mm256_setzero_si256()); INPUTS / 2];
    for (pair, two) in pairs.iter_mut().zip(inputs.active.chunks(2)) {
        // If the last pair has only one input, its second factor is zero.
        let mut factors = [0i8; 2];
        for (at, input) in two.iter().enumerate() {
            pair.0[at] = *input as usize * row;
            factors[at] = inputs.x[*input as usize];
        }
        pair.1 = broadcast(factors);
    }
    (pairs, inputs.active.len().div_ceil(2).min(INPUTS / 2))
}

/// Eight f16, from index `at` on, as floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn eight_halves(from: &[u8], at: usize) -> __m256 {
    _mm256_cvtph_ps(load128::<u8, 16>(part(from, 2 * at)))
}

/// Eight bytes, from index `at` on, as floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn eight_bytes(from: &[u8], at: usize) -> __m256 {
    let bytes: &[u8; 8] = part(from, at);
    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_set_epi64x(0, i64::from_le_bytes(*bytes))))
}

/// Sums over inputs for 32 bytes of codes, from byte `at` of a row on. Each register has eight
/// outputs, and consecutive registers are 16 outputs apart.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn half_line(codes: &[u8], at: usize, pairs: &[InputPair]) -> [__m256i; 8] {
    let mask = _mm256_set1_epi8(15);
    let mut sums = [_mm256_setzero_si256(); 8];
    for pairs in pairs.chunks(PAIRS) {
        let mut short = [_mm256_setzero_si256(); 4];
        for (rows, factors) in pairs {
            let a = load256::<u8, 32>(part(codes, rows[0] + at));
            let b = load256::<u8, 32>(part(codes, rows[1] + at));
            for (i, both) in [_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)].into_iter().enumerate() {
                let (low, high) = (_mm256_and_si256(both, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(both), mask));
                short[i] = _mm256_add_epi16(short[i], _mm256_maddubs_epi16(low, *factors));
                short[2 + i] = _mm256_add_epi16(short[2 + i], _mm256_maddubs_epi16(high, *factors));
            }
        }
        let zero = _mm256_setzero_si256();
        for (i, short) in short.into_iter().enumerate() {
            // Moved to the upper half of 32 bits, then shifted down with the sign.
            let (low, high) = (_mm256_unpacklo_epi16(zero, short), _mm256_unpackhi_epi16(zero, short));
            sums[2 * i] = _mm256_add_epi32(sums[2 * i], _mm256_srai_epi32::<16>(low));
            sums[2 * i + 1] = _mm256_add_epi32(sums[2 * i + 1], _mm256_srai_epi32::<16>(high));
        }
    }
    sums
}
