//! A packed panel of eight rows against a tile of tokens. Activations are made signed as they are read, so that what undoes their
//! bias on other processors ([`CodePanel::bias`]) is not needed.

use super::{
    FLOAT_TOKENS, ROWS,
    products::{DotProducts, MatrixProducts},
    registers::*,
};
use crate::cpu::simd::{CodePanel, CodeTile, TILE_TOKENS, part, portable::check_tile, sum_order::LANES};

/// Tokens whose sums the plain form keeps in registers at once.
const TOKENS: usize = 3;

/// Sums of a group: `[tokens, rows / 4]`, four rows each.
type Dots = [[int32x4_t; 2]; TILE_TOKENS];

/// Codes with NEON alone; see [`Kernels::tile_codes`](crate::cpu::simd::Kernels::tile_codes).
pub(super) fn codes(panel: CodePanel<'_>, x: CodeTile<'_>, acc: &mut [f32]) {
    let len = panel.grouping.len;
    // Products that a 16-bit sum holds: two of wide codes, eight of narrow ones (8 * 32 * 127 < 2^15), one of each quad.
    let together = if panel.grouping.is_wide() { 2 } else { 8 };
    groups(panel, x, acc, len / 4, |weights, xs| {
        let mut dots = [[vdupq_n_s32(0); 2]; TILE_TOKENS];
        for first in (0..TILE_TOKENS).step_by(TOKENS) {
            // Two of the four sums of a row each.
            let mut sums = [[vdupq_n_s32(0); 4]; TOKENS];
            for (weights, xs) in weights.chunks(together).zip(xs.chunks(together)) {
                let mut short = [[vdupq_n_s16(0); 4]; TOKENS];
                for (weights, xs) in weights.iter().zip(xs) {
                    let (w0, w1) = (load_codes(part(weights, 0)), load_codes(part(weights, 16)));
                    for t in 0..TOKENS {
                        let x = vreinterpretq_s8_u8(vreinterpretq_u8_u32(vdupq_n_u32(xs[first + t] ^ 0x8080_8080)));
                        short[t][0] = vmlal_s8(short[t][0], vget_low_s8(w0), vget_low_s8(x));
                        short[t][1] = vmlal_high_s8(short[t][1], w0, x);
                        short[t][2] = vmlal_s8(short[t][2], vget_low_s8(w1), vget_low_s8(x));
                        short[t][3] = vmlal_high_s8(short[t][3], w1, x);
                    }
                }
                for t in 0..TOKENS {
                    for i in 0..4 {
                        sums[t][i] = vpadalq_s16(sums[t][i], short[t][i]);
                    }
                }
            }
            for t in 0..TOKENS {
                dots[first + t] = [vpaddq_s32(sums[t][0], sums[t][1]), vpaddq_s32(sums[t][2], sums[t][3])];
            }
        }
        dots
    });
}

/// [`codes`] with dot products: four products of four rows in one instruction.
#[inline(always)]
pub(super) fn codes_dot(p: DotProducts, panel: CodePanel<'_>, x: CodeTile<'_>, acc: &mut [f32]) {
    groups(panel, x, acc, panel.grouping.len / 4, |weights, xs| {
        let mut dots = [[vdupq_n_s32(0); 2]; TILE_TOKENS];
        for (weights, xs) in weights.iter().zip(xs) {
            let (a, b) = (signed(load_words(part(xs, 0))), signed(load_words(part(xs, 2))));
            for half in 0..2 {
                let w = load_codes(part(weights, 16 * half));
                dots[0][half] = p.dot_lane::<0>(dots[0][half], w, a);
                dots[1][half] = p.dot_lane::<1>(dots[1][half], w, a);
                dots[2][half] = p.dot_lane::<2>(dots[2][half], w, a);
                dots[3][half] = p.dot_lane::<3>(dots[3][half], w, a);
                dots[4][half] = p.dot_lane::<2>(dots[4][half], w, b);
                dots[5][half] = p.dot_lane::<3>(dots[5][half], w, b);
            }
        }
        dots
    });
}

/// [`codes`] with products of matrices: eight products of two rows and two tokens in one instruction. Codes are interleaved by
/// eights: `[n / 8, ROWS, 8]`.
#[inline(always)]
pub(super) fn codes_matrix(p: MatrixProducts, panel: CodePanel<'_>, x: CodeTile<'_>, acc: &mut [f32]) {
    groups(panel, x, acc, panel.grouping.len / 4, |weights, xs| {
        let mut sums = [[vdupq_n_s32(0); 4]; TILE_TOKENS / 2];
        for (weights, xs) in weights.as_chunks::<2>().0.iter().zip(xs.as_chunks::<2>().0) {
            // Two quads of each token side by side.
            let (a, b) = (load_words(part(&xs[0], 0)), load_words(part(&xs[1], 0)));
            let (c, d) = (load_words(part(&xs[0], 2)), load_words(part(&xs[1], 2)));
            let pairs = [signed(vzip1q_u32(a, b)), signed(vzip2q_u32(a, b)), signed(vzip2q_u32(c, d))];
            let weights = weights.as_flattened();
            for rows in 0..4 {
                let w = load_codes(part(weights, 16 * rows));
                for (sums, x) in sums.iter_mut().zip(pairs) {
                    sums[rows] = p.two_by_two(sums[rows], x, w);
                }
            }
        }
        let mut dots = [[vdupq_n_s32(0); 2]; TILE_TOKENS];
        for pair in 0..TILE_TOKENS / 2 {
            for half in 0..2 {
                let [even, odd] = zip_halves(sums[pair][2 * half], sums[pair][2 * half + 1]);
                dots[2 * pair][half] = even;
                dots[2 * pair + 1][half] = odd;
            }
        }
        dots
    });
}

/// Codes that are 128 too large, signed.
#[inline(always)]
fn signed(codes: uint32x4_t) -> int8x16_t {
    vreinterpretq_s8_u8(veorq_u8(vreinterpretq_u8_u32(codes), vdupq_n_u8(0x80)))
}

/// Scales and adds up the sums of each group of `quads` quads; `dots(weights, x)` multiplies one, `[quads, ROWS, 4]` codes with
/// `[quads, TILE_TOKENS]` quads of activations.
#[inline(always)]
fn groups(
    panel: CodePanel<'_>,
    x: CodeTile<'_>,
    acc: &mut [f32],
    quads: usize,
    dots: impl Fn(&[[i8; 4 * ROWS]], &[[u32; TILE_TOKENS]]) -> Dots,
) {
    check_tile(ROWS, &panel, &x, acc);
    let len = panel.grouping.len;
    let weights = panel.codes.as_chunks::<{ 4 * ROWS }>().0;
    let (scales, mins) = (panel.scales.as_chunks::<ROWS>().0, panel.mins.as_chunks::<ROWS>().0);
    let xs = x.codes.as_chunks::<TILE_TOKENS>().0;
    let sums = if len == 32 { x.sums } else { x.half_sums };
    let (sums, x_scales) = (sums.as_chunks::<TILE_TOKENS>().0, x.scales.as_chunks::<TILE_TOKENS>().0);
    let acc = acc.as_chunks_mut::<4>().0.as_chunks_mut::<2>().0;
    let groups = xs.len() / quads;
    // Of each of a line's sums: lines are summed as `sum_order` says.
    let mut lanes = [[[vdupq_n_f32(0.0); 2]; TILE_TOKENS]; LANES];
    for lane in 0..LANES {
        let mut total = lanes[lane];
        for group in (lane..groups).step_by(LANES) {
            let dots = dots(&weights[group * quads..][..quads], &xs[group * quads..][..quads]);
            let x_scales = &x_scales[group * len / 32];
            for half in 0..2 {
                let scale = load_floats(part(&scales[group], 4 * half));
                for t in 0..TILE_TOKENS {
                    let scale = vmulq_n_f32(scale, x_scales[t]);
                    total[t][half] = vfmaq_f32(total[t][half], vcvtq_f32_s32(dots[t][half]), scale);
                }
                if let Some(min) = mins.get(group) {
                    let min = load_floats(part(min, 4 * half));
                    for t in 0..TILE_TOKENS {
                        total[t][half] = vfmaq_n_f32(total[t][half], min, sums[group][t]);
                    }
                }
            }
        }
        lanes[lane] = total;
    }
    for t in 0..TILE_TOKENS {
        for half in 0..2 {
            let [a, b, c, d] = lanes.each_ref().map(|lane| lane[t][half]);
            let (acc, line) = (&mut acc[t][half], vaddq_f32(vaddq_f32(a, b), vaddq_f32(c, d)));
            let sum = vaddq_f32(load_floats(acc), line);
            store_floats(acc, sum);
        }
    }
}

/// Floats; see [`Kernels::tile_floats`](crate::cpu::simd::Kernels::tile_floats).
pub(super) fn floats(panel: &[f32], x: &[f32], acc: &mut [f32]) {
    let ((panel, a), (x, b)) = (panel.as_chunks::<ROWS>(), x.as_chunks::<FLOAT_TOKENS>());
    assert!(a.is_empty() && b.is_empty() && panel.len() == x.len() && acc.len() == ROWS * FLOAT_TOKENS);
    let acc = acc.as_chunks_mut::<4>().0.as_chunks_mut::<2>().0;
    let mut total = [[vdupq_n_f32(0.0); 2]; FLOAT_TOKENS];
    for t in 0..FLOAT_TOKENS {
        total[t] = [load_floats(&acc[t][0]), load_floats(&acc[t][1])];
    }
    for (w, x) in panel.iter().zip(x) {
        let (w0, w1) = (load_floats(part(w, 0)), load_floats(part(w, 4)));
        for t in 0..FLOAT_TOKENS {
            total[t][0] = vfmaq_n_f32(total[t][0], w0, x[t]);
            total[t][1] = vfmaq_n_f32(total[t][1], w1, x[t]);
        }
    }
    for t in 0..FLOAT_TOKENS {
        store_floats(&mut acc[t][0], total[t][0]);
        store_floats(&mut acc[t][1], total[t][1]);
    }
}
