//! Products of a packed panel of 32 rows with a tile of tokens. Two vectors of sixteen rows, with
//! accumulators in registers.

use std::arch::x86_64::*;

use super::{FLOAT_TOKENS, ROWS, load_ps, load512, store_ps};
use crate::simd::{CodePanel, CodeTile, TILE_TOKENS, portable::check_tile};

/// See [`CodeTileKernels::tile_codes`](crate::simd::CodeTileKernels::tile_codes).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn codes(panel: CodePanel<'_>, x: CodeTile<'_>, acc: &mut [f32]) {
    check_tile(ROWS, &panel, &x, acc);
    match (panel.grouping.len, panel.grouping.minima) {
        (32, false) => groups::<8, 48, false>(panel, x, x.sums, acc),
        (32, true) => groups::<8, 48, true>(panel, x, x.sums, acc),
        (_, false) => groups::<4, 24, false>(panel, x, x.half_sums, acc),
        (_, true) => groups::<4, 24, true>(panel, x, x.half_sums, acc),
    }
}

/// Multiplies groups of `QUADS` times four elements. `XS = QUADS * TILE_TOKENS`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn groups<const QUADS: usize, const XS: usize, const MINIMA: bool>(
    panel: CodePanel<'_>,
    x: CodeTile<'_>,
    sums: &[f32],
    acc: &mut [f32],
) {
    const { assert!(XS == QUADS * TILE_TOKENS) };
    let weights = panel.codes.as_chunks::<64>().0.as_chunks::<2>().0.as_chunks::<QUADS>().0;
    let (scales, biases) = (panel.scales.as_chunks::<16>().0, panel.bias.as_chunks::<16>().0);
    let (scales, biases) = (scales.as_chunks::<2>().0, biases.as_chunks::<2>().0);
    let mins = panel.mins.as_chunks::<16>().0.as_chunks::<2>().0;
    let (xs, x_sums) = (x.codes.as_chunks::<XS>().0, sums.as_chunks::<TILE_TOKENS>().0);
    let x_scales = x.scales.as_chunks::<TILE_TOKENS>().0;
    let (acc, _) = acc.as_chunks_mut::<16>();
    let (acc, _) = acc.as_chunks_mut::<2>();
    let mut total: [[__m512; 2]; TILE_TOKENS] = std::array::from_fn(|t| [load_ps(&acc[t][0]), load_ps(&acc[t][1])]);
    let factors = scales.iter().zip(biases);
    for (group, ((weights, xs), (scales, bias))) in weights.iter().zip(xs).zip(factors).enumerate() {
        let mut dots = [[load512(&bias[0]), load512(&bias[1])]; TILE_TOKENS];
        for (w, xs) in weights.iter().zip(xs.as_chunks::<TILE_TOKENS>().0) {
            let (w0, w1) = (load512(&w[0]), load512(&w[1]));
            for t in 0..TILE_TOKENS {
                let x = _mm512_set1_epi32(xs[t] as i32);
                dots[t][0] = _mm512_dpbusd_epi32(dots[t][0], x, w0);
                dots[t][1] = _mm512_dpbusd_epi32(dots[t][1], x, w1);
            }
        }
        let (s0, s1) = (load_ps(&scales[0]), load_ps(&scales[1]));
        let x_scales = &x_scales[group * QUADS / 8];
        for t in 0..TILE_TOKENS {
            let x = _mm512_set1_ps(x_scales[t]);
            total[t][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[t][0]), _mm512_mul_ps(s0, x), total[t][0]);
            total[t][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[t][1]), _mm512_mul_ps(s1, x), total[t][1]);
        }
        if MINIMA {
            let (m0, m1) = (load_ps(&mins[group][0]), load_ps(&mins[group][1]));
            for t in 0..TILE_TOKENS {
                let x = _mm512_set1_ps(x_sums[group][t]);
                total[t][0] = _mm512_fmadd_ps(m0, x, total[t][0]);
                total[t][1] = _mm512_fmadd_ps(m1, x, total[t][1]);
            }
        }
    }
    for t in 0..TILE_TOKENS {
        store_ps(&mut acc[t][0], total[t][0]);
        store_ps(&mut acc[t][1], total[t][1]);
    }
}

/// See [`Kernels::tile_floats`](crate::simd::Kernels::tile_floats).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) fn floats(panel: &[f32], x: &[f32], acc: &mut [f32]) {
    let ((panel, a), (x, b)) = (panel.as_chunks::<16>().0.as_chunks::<2>(), x.as_chunks::<FLOAT_TOKENS>());
    assert!(a.is_empty() && b.is_empty() && panel.len() == x.len() && acc.len() == ROWS * FLOAT_TOKENS);
    let (acc, _) = acc.as_chunks_mut::<16>();
    let (acc, _) = acc.as_chunks_mut::<2>();
    let mut total: [[__m512; 2]; FLOAT_TOKENS] = std::array::from_fn(|t| [load_ps(&acc[t][0]), load_ps(&acc[t][1])]);
    for (w, x) in panel.iter().zip(x) {
        let (w0, w1) = (load_ps(&w[0]), load_ps(&w[1]));
        for t in 0..FLOAT_TOKENS {
            let x = _mm512_set1_ps(x[t]);
            total[t][0] = _mm512_fmadd_ps(w0, x, total[t][0]);
            total[t][1] = _mm512_fmadd_ps(w1, x, total[t][1]);
        }
    }
    for t in 0..FLOAT_TOKENS {
        store_ps(&mut acc[t][0], total[t][0]);
        store_ps(&mut acc[t][1], total[t][1]);
    }
}
