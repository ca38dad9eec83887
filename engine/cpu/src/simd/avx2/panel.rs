//! Products of eight rows with the tokens of a tile: see [`panel`](crate::simd::panel). A register
//! has four codes of each row.

use std::arch::x86_64::*;

use super::{load_ps, load256, store_ps};
use crate::simd::{
    PANEL_ROWS, PanelSums, RowPanel, TokenTile,
    panel::{CHUNK, CodeWidth},
    part,
    sum_order::LANES,
};

/// Four codes of each row.
type CodeQuad = __m256i;

/// Adds a panel's products with a tile to `sums`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn products(panel: &RowPanel, x: TokenTile<'_>, sums: &mut [PanelSums]) {
    match CodeWidth::of(&panel.grouping) {
        CodeWidth::Quads(8) => tile(panel, x, sums, |w, x| unsigned::<8, 8>(w, x), |w, x| unsigned::<8, 4>(w, x)),
        CodeWidth::Quads(4) => tile(panel, x, sums, |w, x| unsigned::<4, 8>(w, x), |w, x| unsigned::<4, 4>(w, x)),
        CodeWidth::Quads(2) => tile(panel, x, sums, |w, x| unsigned::<2, 8>(w, x), |w, x| unsigned::<2, 4>(w, x)),
        CodeWidth::Quads(_) => tile(panel, x, sums, |w, x| unsigned::<1, 8>(w, x), |w, x| unsigned::<1, 4>(w, x)),
        CodeWidth::Signed => tile(panel, x, sums, |w, x| signed(w, x), |w, x| signed(w, x)),
    }
}

/// [`products`] with AVX-VNNI, which sums in 32 bits.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(super) fn products_vnni(panel: &RowPanel, x: TokenTile<'_>, sums: &mut [PanelSums]) {
    match CodeWidth::of(&panel.grouping) {
        CodeWidth::Quads(_) => tile(panel, x, sums, |w, x| unsigned_vnni(w, x), |w, x| unsigned_vnni(w, x)),
        CodeWidth::Signed => tile(panel, x, sums, |w, x| signed_vnni(w, x), |w, x| signed_vnni(w, x)),
    }
}

/// [`products`] with the VNNI instructions of AVX-512, which sum in 32 bits.
#[target_feature(enable = "avx2,fma,f16c,avx512vl,avx512vnni")]
pub(in crate::simd) fn products_avx512(panel: &RowPanel, x: TokenTile<'_>, sums: &mut [PanelSums]) {
    match CodeWidth::of(&panel.grouping) {
        CodeWidth::Quads(_) => tile(panel, x, sums, |w, x| unsigned_avx512(w, x), |w, x| unsigned_avx512(w, x)),
        CodeWidth::Signed => tile(panel, x, sums, |w, x| signed_avx512(w, x), |w, x| signed_avx512(w, x)),
    }
}

/// Copies four codes of a token to every lane.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn broadcast(quad: &[i8; 4]) -> CodeQuad {
    _mm256_set1_epi32(i32::from_le_bytes(quad.map(i8::cast_unsigned)))
}

/// Products of quads with unsigned codes. The products of `DEPTH` quads fit 16 bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn unsigned<const DEPTH: usize, const QUADS: usize>(w: &[CodeQuad; QUADS], x: &[[i8; 4]; QUADS]) -> __m256i {
    let mut dots = _mm256_setzero_si256();
    let mut first = 0;
    while first < QUADS {
        let mut pairs = _mm256_maddubs_epi16(w[first], broadcast(&x[first]));
        let end = if first + DEPTH < QUADS { first + DEPTH } else { QUADS };
        for quad in first + 1..end {
            pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[quad], broadcast(&x[quad])));
        }
        dots = _mm256_add_epi32(dots, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        first = end;
    }
    dots
}

/// Products of quads with signed codes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn signed<const QUADS: usize>(w: &[CodeQuad; QUADS], x: &[[i8; 4]; QUADS]) -> __m256i {
    let mut dots = _mm256_setzero_si256();
    for quad in 0..QUADS {
        let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w[quad]), _mm256_sign_epi8(broadcast(&x[quad]), w[quad]));
        dots = _mm256_add_epi32(dots, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    dots
}

/// Products of quads with unsigned codes, with AVX-VNNI.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn unsigned_vnni<const QUADS: usize>(w: &[CodeQuad; QUADS], x: &[[i8; 4]; QUADS]) -> __m256i {
    // Two sums, which do not wait for each other.
    let mut dots = [_mm256_setzero_si256(); 2];
    for quad in 0..QUADS {
        dots[quad % 2] = _mm256_dpbusd_avx_epi32(dots[quad % 2], w[quad], broadcast(&x[quad]));
    }
    _mm256_add_epi32(dots[0], dots[1])
}

/// Products of quads with unsigned codes, with AVX-512.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512vl,avx512vnni")]
fn unsigned_avx512<const QUADS: usize>(w: &[CodeQuad; QUADS], x: &[[i8; 4]; QUADS]) -> __m256i {
    let mut dots = [_mm256_setzero_si256(); 2];
    for quad in 0..QUADS {
        dots[quad % 2] = _mm256_dpbusd_epi32(dots[quad % 2], w[quad], broadcast(&x[quad]));
    }
    _mm256_add_epi32(dots[0], dots[1])
}

/// Products of quads with signed codes, with AVX-512.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512vl,avx512vnni")]
fn signed_avx512<const QUADS: usize>(w: &[CodeQuad; QUADS], x: &[[i8; 4]; QUADS]) -> __m256i {
    let mut dots = [_mm256_setzero_si256(); 2];
    for quad in 0..QUADS {
        let x = _mm256_sign_epi8(broadcast(&x[quad]), w[quad]);
        dots[quad % 2] = _mm256_dpbusd_epi32(dots[quad % 2], _mm256_abs_epi8(w[quad]), x);
    }
    _mm256_add_epi32(dots[0], dots[1])
}

/// Products of quads with signed codes, with AVX-VNNI.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn signed_vnni<const QUADS: usize>(w: &[CodeQuad; QUADS], x: &[[i8; 4]; QUADS]) -> __m256i {
    let mut dots = [_mm256_setzero_si256(); 2];
    for quad in 0..QUADS {
        let x = _mm256_sign_epi8(broadcast(&x[quad]), w[quad]);
        dots[quad % 2] = _mm256_dpbusd_avx_epi32(dots[quad % 2], _mm256_abs_epi8(w[quad]), x);
    }
    _mm256_add_epi32(dots[0], dots[1])
}

/// Multiplies chunk by chunk. A chunk's codes stay in registers while they are multiplied with all
/// tokens. `whole` multiplies a chunk, `half` multiplies half a chunk.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tile(
    panel: &RowPanel,
    x: TokenTile<'_>,
    sums: &mut [PanelSums],
    whole: impl Fn(&[CodeQuad; 8], &[[i8; 4]; 8]) -> __m256i,
    half: impl Fn(&[CodeQuad; 4], &[[i8; 4]; 4]) -> __m256i,
) {
    x.check(panel, sums);
    let grouping = panel.grouping;
    let offset = _mm256_set1_epi32(i32::from(CodeWidth::offset(&grouping)));
    sums.iter_mut().for_each(|sums| sums.lanes = [[0.0; PANEL_ROWS]; LANES]);
    for (chunk, tokens) in x.chunks.chunks_exact(x.tokens).enumerate() {
        let mut w = [_mm256_setzero_si256(); CHUNK / 4];
        for quad in 0..CHUNK / 4 {
            w[quad] = load256(&panel.codes[chunk][quad]);
        }
        let tokens = tokens.iter().zip(&mut *sums);
        if grouping.len == CHUNK {
            let (scale, min) = (load_ps(&panel.scales[chunk]), load_ps(&panel.mins[chunk]));
            for (x, sums) in tokens {
                let dots = less(whole(&w, part8(&x.codes)), offset, x.code_sum);
                let lane = &mut sums.lanes[chunk % LANES];
                let mut to = add(load_ps(lane), dots, scale, x.scale);
                if grouping.minima {
                    to = _mm256_fmadd_ps(min, _mm256_set1_ps(x.sum), to);
                }
                store_ps(lane, to);
            }
        } else {
            let scales = [load_ps(&panel.scales[2 * chunk]), load_ps(&panel.scales[2 * chunk + 1])];
            let mins = [load_ps(&panel.mins[2 * chunk]), load_ps(&panel.mins[2 * chunk + 1])];
            for (x, sums) in tokens {
                for side in 0..2 {
                    let dots = half(part::<_, 4>(&w, 4 * side), part::<_, 4>(part8(&x.codes), 4 * side));
                    let dots = less(dots, offset, x.half_code_sums[side]);
                    let lane = &mut sums.lanes[(2 * chunk + side) % LANES];
                    let mut to = add(load_ps(lane), dots, scales[side], x.scale);
                    if grouping.minima {
                        to = _mm256_fmadd_ps(mins[side], _mm256_set1_ps(x.half_sums[side]), to);
                    }
                    store_ps(lane, to);
                }
            }
        }
    }
    for sums in sums {
        let [a, b, c, d] = &sums.lanes;
        let [a, b, c, d] = [load_ps(a), load_ps(b), load_ps(c), load_ps(d)];
        let line = _mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d));
        let total = _mm256_add_ps(load_ps(&sums.total), line);
        store_ps(&mut sums.total, total);
    }
}

/// Splits a chunk's codes into quads.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn part8(codes: &[i8; CHUNK]) -> &[[i8; 4]; 8] {
    part(codes.as_chunks::<4>().0, 0)
}

/// Corrects products of codes that have `offset` added. `code_sum` is the sum of the token's codes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn less(dots: __m256i, offset: __m256i, code_sum: i32) -> __m256i {
    // The sum fits 16 bits.
    _mm256_sub_epi32(dots, _mm256_madd_epi16(_mm256_set1_epi32(code_sum), offset))
}

/// `sum + dots * (scale * x_scale)`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add(sum: __m256, dots: __m256i, scale: __m256, x_scale: f32) -> __m256 {
    _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), _mm256_mul_ps(scale, _mm256_set1_ps(x_scale)), sum)
}
