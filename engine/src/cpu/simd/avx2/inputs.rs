//! Weights that are stored input by input, two inputs at a time.

use std::arch::x86_64::*;

use super::{load_ps, load128, load256, store_ps};
use crate::cpu::simd::{INPUTS, InputBlock, OUTPUTS, part, part_mut};

/// Two inputs: where their rows of codes begin, and what they are multiplied by.
type Pair = ([usize; 2], __m256i);

/// Pairs whose products a 16-bit sum holds: 16 inputs * 15 * 127 < 2^15.
const PAIRS: usize = 8;

/// [`Kernels::add_inputs`](crate::cpu::simd::Kernels::add_inputs).
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add(inputs: &InputBlock<'_>, next: Option<&InputBlock<'_>>, acc: &mut [f32]) {
    let InputBlock { scales, codes, active, x, scale, sum } = *inputs;
    let row = acc.len() / 2;
    assert!(codes.len() == INPUTS * row && scales.len() == 2 * acc.len() && acc.len().is_multiple_of(OUTPUTS));
    let mut pairs: [Pair; INPUTS / 2] = [([0; 2], _mm256_setzero_si256()); INPUTS / 2];
    let n = active.len().div_ceil(2);
    for (pair, two) in pairs.iter_mut().zip(active.chunks(2)) {
        // What is missing of the last two is multiplied by zero.
        let mut factors = [0i8; 2];
        for (at, input) in two.iter().enumerate() {
            pair.0[at] = *input as usize * row;
            factors[at] = x[*input as usize];
        }
        pair.1 = _mm256_set1_epi16(i16::from_le_bytes(factors.map(|factor| factor as u8)));
    }
    let pairs = &pairs[..n.min(INPUTS / 2)];
    let (scale, offset) = (_mm256_set1_ps(scale), _mm256_set1_ps(-8.0 * sum));
    let chunks = acc.len() / OUTPUTS;
    for (at, acc) in acc.as_chunks_mut::<OUTPUTS>().0.iter_mut().enumerate() {
        if let Some(next) = next {
            next.prefetch_part(at, chunks);
        }
        for half in 0..2 {
            let sums = half_line(codes, at * (OUTPUTS / 2) + 32 * half, pairs);
            for (i, sums) in sums.into_iter().enumerate() {
                let first = 64 * (i / 4) + 16 * (i % 4) + 8 * half;
                let value = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), scale, offset);
                let heads = _mm256_cvtph_ps(load128::<u8, 16>(part(scales, 2 * (at * OUTPUTS + first))));
                let acc: &mut [f32; 8] = part_mut(acc, first);
                store_ps(acc, _mm256_fmadd_ps(value, heads, load_ps(acc)));
            }
        }
    }
}

/// Sums over inputs of 32 bytes of codes, from byte `at` of a row on: eight outputs each, 16 from one to the next.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn half_line(codes: &[u8], at: usize, pairs: &[Pair]) -> [__m256i; 8] {
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
            // In the upper half of 32 bits, then moved down with the sign.
            let (low, high) = (_mm256_unpacklo_epi16(zero, short), _mm256_unpackhi_epi16(zero, short));
            sums[2 * i] = _mm256_add_epi32(sums[2 * i], _mm256_srai_epi32::<16>(low));
            sums[2 * i + 1] = _mm256_add_epi32(sums[2 * i + 1], _mm256_srai_epi32::<16>(high));
        }
    }
    sums
}
