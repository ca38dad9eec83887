//! Weights of input-major matrices, four inputs at a time.

use std::arch::x86_64::*;

use super::{load_ps, load256, load512, store_ps};
use crate::simd::{INPUTS, InputBlock, OUTPUTS, part};

/// Four inputs: the offsets of their rows of codes, and their factors.
type InputQuad = ([usize; 4], __m512i);

/// [`Kernels::add_inputs`](crate::simd::Kernels::add_inputs).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn add(inputs: &InputBlock<'_>, next: Option<&InputBlock<'_>>, acc: &mut [f32]) {
    let InputBlock { scales, codes, active, x, scale, sum } = *inputs;
    let row = acc.len() / 2;
    assert!(codes.len() == INPUTS * row && scales.len() == 2 * acc.len() && acc.len().is_multiple_of(OUTPUTS));
    let mut quads: [InputQuad; INPUTS / 4] = [([0; 4], _mm512_setzero_si512()); INPUTS / 4];
    let n = active.len().div_ceil(4);
    for (quad, four) in quads.iter_mut().zip(active.chunks(4)) {
        // If the last four are incomplete, the missing factors are zero.
        let mut factors = [0i8; 4];
        for (at, input) in four.iter().enumerate() {
            quad.0[at] = *input as usize * row;
            factors[at] = x[*input as usize];
        }
        quad.1 = _mm512_set1_epi32(i32::from_le_bytes(factors.map(|factor| factor as u8)));
    }
    let quads = &quads[..n.min(INPUTS / 4)];
    let (scale, offset) = (_mm512_set1_ps(scale), _mm512_set1_ps(-8.0 * sum));
    let chunks = acc.len() / OUTPUTS;
    for (at, acc) in acc.as_chunks_mut::<OUTPUTS>().0.iter_mut().enumerate() {
        if let Some(next) = next {
            next.prefetch_part(at, chunks);
        }
        let mut sums = [_mm512_setzero_si512(); 8];
        let mask = _mm512_set1_epi8(15);
        for (rows, factors) in quads {
            let mut lines = [mask; 4];
            for (line, row) in lines.iter_mut().zip(rows) {
                *line = load512::<u8, 64>(part(codes, row + at * (OUTPUTS / 2)));
            }
            let low = lines.map(|line| _mm512_and_si512(line, mask));
            let high = lines.map(|line| _mm512_and_si512(_mm512_srli_epi16::<4>(line), mask));
            for (half, [a, b, c, d]) in [low, high].into_iter().enumerate() {
                let (low_ab, high_ab) = (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b));
                let (low_cd, high_cd) = (_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d));
                let fours = [
                    _mm512_unpacklo_epi16(low_ab, low_cd),
                    _mm512_unpackhi_epi16(low_ab, low_cd),
                    _mm512_unpacklo_epi16(high_ab, high_cd),
                    _mm512_unpackhi_epi16(high_ab, high_cd),
                ];
                for (i, four) in fours.into_iter().enumerate() {
                    sums[4 * half + i] = _mm512_dpbusd_epi32(sums[4 * half + i], four, *factors);
                }
            }
        }
        let heads = &scales[2 * at * OUTPUTS..];
        for (i, (sums, acc)) in sums.into_iter().zip(acc.as_chunks_mut::<16>().0).enumerate() {
            let value = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), scale, offset);
            let heads = _mm512_cvtph_ps(load256::<u8, 32>(part(heads, 32 * i)));
            store_ps(acc, _mm512_fmadd_ps(value, heads, load_ps(acc)));
        }
    }
}
