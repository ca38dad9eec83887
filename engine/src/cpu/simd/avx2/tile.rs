//! A packed panel of 16 rows against a tile of tokens.

use std::arch::x86_64::*;

use super::{FLOAT_TOKENS, ROWS, load_ps, load256, store_ps};
use crate::cpu::simd::{CodePanel, CodeTile, TILE_TOKENS, portable::check_tile, sum_order::LANES};

/// Codes; see [`Kernels::tile_codes`](crate::cpu::simd::Kernels::tile_codes).
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn codes(panel: CodePanel<'_>, x: CodeTile<'_>, acc: &mut [f32]) {
    check_tile(ROWS, &panel, &x, acc);
    // Two quads of narrow codes fit a 16-bit sum: 4 * 32 * 255 < 2^15.
    if panel.grouping.wide {
        rows::<1, 2>(panel, x, acc, |mut sum, x, w| {
            let low = _mm256_set1_epi16(255);
            for i in 0..2 {
                let even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(w[i]));
                let odd = _mm256_srai_epi16::<8>(w[i]);
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, _mm256_and_si256(x[i], low)));
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(odd, _mm256_srli_epi16::<8>(x[i])));
            }
            sum
        });
    } else {
        rows::<1, 2>(panel, x, acc, |sum, x, w| {
            let pairs = _mm256_add_epi16(_mm256_maddubs_epi16(x[0], w[0]), _mm256_maddubs_epi16(x[1], w[1]));
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        });
    }
}

/// [`codes`] with AVX-VNNI: one instruction multiplies and adds quads, whatever their codes.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(super) fn codes_vnni(panel: CodePanel<'_>, x: CodeTile<'_>, acc: &mut [f32]) {
    check_tile(ROWS, &panel, &x, acc);
    rows::<2, 1>(panel, x, acc, |sum, [x], [w]| _mm256_dpbusd_avx_epi32(sum, x, w));
}

/// `SIDES` times eight rows at once, which say how many sums there are that do not wait for each other; `dot(sum, x, w)` adds the
/// products of some quads to `sum`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn rows<const SIDES: usize, const QUADS: usize>(
    panel: CodePanel<'_>,
    x: CodeTile<'_>,
    acc: &mut [f32],
    dot: impl Fn(__m256i, [__m256i; QUADS], [__m256i; QUADS]) -> __m256i,
) {
    let groups = Groups {
        quads: panel.grouping.len / 4,
        weights: panel.codes.as_chunks::<32>().0.as_chunks::<2>().0,
        scales: panel.scales.as_chunks::<8>().0.as_chunks::<2>().0,
        biases: panel.bias.as_chunks::<8>().0.as_chunks::<2>().0,
        mins: panel.mins.as_chunks::<8>().0.as_chunks::<2>().0,
        xs: x.codes.as_chunks::<TILE_TOKENS>().0,
        x_scales: x.scales.as_chunks::<TILE_TOKENS>().0,
        x_sums: if panel.grouping.len == 32 { x.sums } else { x.half_sums }.as_chunks::<TILE_TOKENS>().0,
    };
    let (acc, _) = acc.as_chunks_mut::<8>();
    for first in (0..2).step_by(SIDES) {
        // A line's sums, one after the other: see `sum_order`.
        let mut lanes = Lanes([[[[0.0; 8]; TILE_TOKENS]; SIDES]; LANES]);
        for (at, sums) in lanes.0.iter_mut().enumerate() {
            lane(&groups, [at, first], sums, &dot);
        }
        for side in 0..SIDES {
            for t in 0..TILE_TOKENS {
                let [a, b, c, d] = lanes.0.each_ref().map(|lane| load_ps(&lane[side][t]));
                let acc = &mut acc[2 * t + first + side];
                let line = _mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d));
                let sum = _mm256_add_ps(load_ps(acc), line);
                store_ps(acc, sum);
            }
        }
    }
}

/// A line's sums, on whole cache lines.
#[repr(align(64))]
struct Lanes<const SIDES: usize>([[[[f32; 8]; TILE_TOKENS]; SIDES]; LANES]);

/// A panel and a tile by groups.
struct Groups<'a> {
    /// Quads of codes of a group.
    quads: usize,
    weights: &'a [[[i8; 32]; 2]],
    scales: &'a [[[f32; 8]; 2]],
    biases: &'a [[[i32; 8]; 2]],
    mins: &'a [[[f32; 8]; 2]],
    xs: &'a [[u32; TILE_TOKENS]],
    x_scales: &'a [[f32; TILE_TOKENS]],
    x_sums: &'a [[f32; TILE_TOKENS]],
}

/// Sums of every [`LANES`]th group, from `at` on, of `SIDES` times eight rows from `first` on.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn lane<const SIDES: usize, const QUADS: usize>(
    of: &Groups<'_>,
    [at, first]: [usize; 2],
    sums: &mut [[[f32; 8]; TILE_TOKENS]; SIDES],
    dot: impl Fn(__m256i, [__m256i; QUADS], [__m256i; QUADS]) -> __m256i,
) {
    let mut total = [[_mm256_setzero_ps(); TILE_TOKENS]; SIDES];
    let mut group = at;
    while group < of.scales.len() {
        let mut dots = [[_mm256_setzero_si256(); TILE_TOKENS]; SIDES];
        for side in 0..SIDES {
            dots[side] = [load256(&of.biases[group][first + side]); TILE_TOKENS];
        }
        let quads = group * of.quads..(group + 1) * of.quads;
        let quads = of.weights[quads.clone()].as_chunks::<QUADS>().0.iter().zip(of.xs[quads].as_chunks::<QUADS>().0);
        for (weights, xs) in quads {
            let mut w = [[_mm256_setzero_si256(); QUADS]; SIDES];
            for side in 0..SIDES {
                for quad in 0..QUADS {
                    w[side][quad] = load256(&weights[quad][first + side]);
                }
            }
            for t in 0..TILE_TOKENS {
                let mut x = [_mm256_setzero_si256(); QUADS];
                for quad in 0..QUADS {
                    x[quad] = _mm256_set1_epi32(xs[quad][t] as i32);
                }
                for side in 0..SIDES {
                    dots[side][t] = dot(dots[side][t], x, w[side]);
                }
            }
        }
        let x_scales = &of.x_scales[group * of.quads / 8];
        for side in 0..SIDES {
            let scale = load_ps(&of.scales[group][first + side]);
            for t in 0..TILE_TOKENS {
                let scale = _mm256_mul_ps(scale, _mm256_set1_ps(x_scales[t]));
                total[side][t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[side][t]), scale, total[side][t]);
            }
            if let Some(mins) = of.mins.get(group) {
                let min = load_ps(&mins[first + side]);
                for t in 0..TILE_TOKENS {
                    total[side][t] = _mm256_fmadd_ps(min, _mm256_set1_ps(of.x_sums[group][t]), total[side][t]);
                }
            }
        }
        group += LANES;
    }
    for side in 0..SIDES {
        for t in 0..TILE_TOKENS {
            store_ps(&mut sums[side][t], total[side][t]);
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
