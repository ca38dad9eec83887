//! A packed panel of 16 rows against a tile of tokens.

use std::arch::x86_64::*;

use super::{FLOAT_TOKENS, ROWS, load_ps, load256, store_ps};
use crate::cpu::simd::{CodePanel, CodeTile, TILE_TOKENS, portable::check_tile};

/// Codes; see [`Kernels::tile_codes`](crate::cpu::simd::Kernels::tile_codes).
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn codes(panel: CodePanel<'_>, x: CodeTile<'_>, acc: &mut [f32]) {
    check_tile(ROWS, &panel, &x, acc);
    // Two quads of narrow codes fit a 16-bit sum: 4 * 32 * 255 < 2^15.
    if panel.grouping.wide {
        rows8(panel, x, acc, |x, w| {
            let low = _mm256_set1_epi16(255);
            let mut sum = _mm256_setzero_si256();
            for i in 0..2 {
                let even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(w[i]));
                let odd = _mm256_srai_epi16::<8>(w[i]);
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, _mm256_and_si256(x[i], low)));
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(odd, _mm256_srli_epi16::<8>(x[i])));
            }
            sum
        });
    } else {
        rows8(panel, x, acc, |x, w| {
            let pairs = _mm256_add_epi16(_mm256_maddubs_epi16(x[0], w[0]), _mm256_maddubs_epi16(x[1], w[1]));
            _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
        });
    }
}

/// Eight rows at a time; `dot(x, w)` sums the products of two quads.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn rows8(panel: CodePanel<'_>, x: CodeTile<'_>, acc: &mut [f32], dot: impl Fn([__m256i; 2], [__m256i; 2]) -> __m256i) {
    let len = panel.grouping.len;
    let weights = panel.codes.as_chunks::<32>().0.as_chunks::<2>().0;
    let (scales, biases) = (panel.scales.as_chunks::<8>().0, panel.bias.as_chunks::<8>().0);
    let mins = panel.mins.as_chunks::<8>().0;
    let xs = x.codes.as_chunks::<TILE_TOKENS>().0;
    let sums = if len == 32 { x.sums } else { x.half_sums };
    let (sums, x_scales) = (sums.as_chunks::<TILE_TOKENS>().0, x.scales.as_chunks::<TILE_TOKENS>().0);
    let (acc, _) = acc.as_chunks_mut::<8>();
    for side in 0..2 {
        let mut total: [__m256; TILE_TOKENS] = std::array::from_fn(|t| load_ps(&acc[2 * t + side]));
        let groups = weights.chunks_exact(len / 4).zip(xs.chunks_exact(len / 4)).enumerate();
        for (group, (weights, xs)) in groups {
            let mut dots = [load256(&biases[2 * group + side]); TILE_TOKENS];
            for (w, xs) in weights.as_chunks::<2>().0.iter().zip(xs.as_chunks::<2>().0) {
                let w = [load256(&w[0][side]), load256(&w[1][side])];
                for t in 0..TILE_TOKENS {
                    let x = [_mm256_set1_epi32(xs[0][t] as i32), _mm256_set1_epi32(xs[1][t] as i32)];
                    dots[t] = _mm256_add_epi32(dots[t], dot(x, w));
                }
            }
            let scale = load_ps(&scales[2 * group + side]);
            let x_scales = &x_scales[group * len / 32];
            for t in 0..TILE_TOKENS {
                let scale = _mm256_mul_ps(scale, _mm256_set1_ps(x_scales[t]));
                total[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[t]), scale, total[t]);
            }
            if let Some(min) = mins.get(2 * group + side) {
                let min = load_ps(min);
                for t in 0..TILE_TOKENS {
                    total[t] = _mm256_fmadd_ps(min, _mm256_set1_ps(sums[group][t]), total[t]);
                }
            }
        }
        for t in 0..TILE_TOKENS {
            store_ps(&mut acc[2 * t + side], total[t]);
        }
    }
}

/// Floats; see [`Kernels::tile_floats`](crate::cpu::simd::Kernels::tile_floats).
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn floats(panel: &[f32], x: &[f32], acc: &mut [f32]) {
    let ((panel, a), (x, b)) = (panel.as_chunks::<8>().0.as_chunks::<2>(), x.as_chunks::<FLOAT_TOKENS>());
    assert!(a.is_empty() && b.is_empty() && panel.len() == x.len() && acc.len() == ROWS * FLOAT_TOKENS);
    let (acc, _) = acc.as_chunks_mut::<8>();
    let (acc, _) = acc.as_chunks_mut::<2>();
    let mut total: [[__m256; 2]; FLOAT_TOKENS] = std::array::from_fn(|t| [load_ps(&acc[t][0]), load_ps(&acc[t][1])]);
    for (w, x) in panel.iter().zip(x) {
        let (w0, w1) = (load_ps(&w[0]), load_ps(&w[1]));
        for t in 0..FLOAT_TOKENS {
            let x = _mm256_set1_ps(x[t]);
            total[t][0] = _mm256_fmadd_ps(w0, x, total[t][0]);
            total[t][1] = _mm256_fmadd_ps(w1, x, total[t][1]);
        }
    }
    for t in 0..FLOAT_TOKENS {
        store_ps(&mut acc[t][0], total[t][0]);
        store_ps(&mut acc[t][1], total[t][1]);
    }
}
