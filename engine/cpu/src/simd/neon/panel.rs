//! Products of eight rows with the tokens of a tile: see [`panel`](crate::simd::panel). A register
//! has four codes of four rows. Codes are signed, because a panel's codes have no offset on Arm.

use super::{
    products::{DotProducts, MatrixProducts},
    registers::*,
};
use crate::simd::{
    PANEL_ROWS, PanelSums, RowPanel, TokenChunk, TokenTile,
    panel::{CHUNK, DecodedRow},
    part, part_mut,
    sum_order::LANES,
};

/// Codes of a chunk by quads: for each quad, the codes of the first four rows, then those of the
/// other four.
type HalvedQuads = [[int8x16_t; 2]; CHUNK / 4];

/// A chunk's products with one token, in registers of four rows. One group is the whole chunk, two
/// groups are its halves.
type Dots<const GROUPS: usize> = [[int32x4_t; 2]; GROUPS];

/// Multiplies the codes of a chunk with the codes of one or two tokens.
pub(super) trait ChunkProducts: Copy {
    /// Rearranges a chunk's codes for [`ChunkProducts::dots`].
    #[inline(always)]
    fn prepare(self, w: HalvedQuads) -> HalvedQuads {
        w
    }

    /// The products of a prepared chunk with two tokens, in `GROUPS` groups.
    fn dots<const GROUPS: usize>(self, w: &HalvedQuads, x: [&[i8; CHUNK]; 2], narrow: bool) -> [Dots<GROUPS>; 2];
}

/// NEON alone: 16-bit products.
#[derive(Debug, Clone, Copy)]
pub(super) struct WideningChunks;

impl ChunkProducts for WideningChunks {
    #[inline(always)]
    fn dots<const GROUPS: usize>(self, w: &HalvedQuads, x: [&[i8; CHUNK]; 2], narrow: bool) -> [Dots<GROUPS>; 2] {
        // Quads whose products fit a 16-bit sum, one product of each: eight with narrow codes (8 *
        // 32 * 127 < 2^15), two with wide codes.
        let together = if narrow { 8 } else { 2 };
        let mut dots = [[[vdupq_n_s32(0); 2]; GROUPS]; 2];
        for (token, x) in x.into_iter().enumerate() {
            for group in 0..GROUPS {
                let quads = group * 8 / GROUPS..(group + 1) * 8 / GROUPS;
                let mut sums = [vdupq_n_s32(0); 4];
                for first in quads.clone().step_by(together) {
                    let mut short = [vdupq_n_s16(0); 4];
                    for quad in first..quads.end.min(first + together) {
                        let x = quad_of(x, quad);
                        for half in 0..2 {
                            let w = w[quad][half];
                            short[2 * half] = vmlal_s8(short[2 * half], vget_low_s8(w), vget_low_s8(x));
                            short[2 * half + 1] = vmlal_high_s8(short[2 * half + 1], w, x);
                        }
                    }
                    for i in 0..4 {
                        sums[i] = vpadalq_s16(sums[i], short[i]);
                    }
                }
                dots[token][group] = [vpaddq_s32(sums[0], sums[1]), vpaddq_s32(sums[2], sums[3])];
            }
        }
        dots
    }
}

impl ChunkProducts for DotProducts {
    #[inline(always)]
    fn dots<const GROUPS: usize>(self, w: &HalvedQuads, x: [&[i8; CHUNK]; 2], _: bool) -> [Dots<GROUPS>; 2] {
        let mut dots = [[[vdupq_n_s32(0); 2]; GROUPS]; 2];
        for (token, x) in x.into_iter().enumerate() {
            for side in 0..2 {
                let (x, dots) = (load_codes(part(x, 16 * side)), &mut dots[token][side * GROUPS / 2]);
                for half in 0..2 {
                    dots[half] = self.dot_lane::<0>(dots[half], w[4 * side][half], x);
                    dots[half] = self.dot_lane::<1>(dots[half], w[4 * side + 1][half], x);
                    dots[half] = self.dot_lane::<2>(dots[half], w[4 * side + 2][half], x);
                    dots[half] = self.dot_lane::<3>(dots[half], w[4 * side + 3][half], x);
                }
            }
        }
        dots
    }
}

impl ChunkProducts for MatrixProducts {
    /// Each register has two quads of two rows. For each pair of quads the order of rows is 0 and
    /// 1, 2 and 3, then 4 and 5, 6 and 7.
    #[inline(always)]
    fn prepare(self, w: HalvedQuads) -> HalvedQuads {
        let mut pairs = w;
        for pair in 0..CHUNK / 8 {
            for half in 0..2 {
                pairs[2 * pair + half] = zip_words(w[2 * pair][half], w[2 * pair + 1][half]);
            }
        }
        pairs
    }

    #[inline(always)]
    fn dots<const GROUPS: usize>(self, w: &HalvedQuads, x: [&[i8; CHUNK]; 2], _: bool) -> [Dots<GROUPS>; 2] {
        let mut sums = [[vdupq_n_s32(0); 4]; GROUPS];
        for pair in 0..CHUNK / 8 {
            let x = vcombine_s8(load_codes8(part(x[0], 8 * pair)), load_codes8(part(x[1], 8 * pair)));
            let sums = &mut sums[pair * GROUPS / 4];
            for rows in 0..4 {
                sums[rows] = self.two_by_two(sums[rows], x, w[2 * pair + rows / 2][rows % 2]);
            }
        }
        let mut dots = [[[vdupq_n_s32(0); 2]; GROUPS]; 2];
        for group in 0..GROUPS {
            for half in 0..2 {
                let [first, second] = zip_halves(sums[group][2 * half], sums[group][2 * half + 1]);
                dots[0][group][half] = first;
                dots[1][group][half] = second;
            }
        }
        dots
    }
}

/// Copies quad `quad` of a token to every quad of a register.
#[inline(always)]
fn quad_of(x: &[i8; CHUNK], quad: usize) -> int8x16_t {
    let word = u32::from_le_bytes(x.as_chunks::<4>().0[quad].map(i8::cast_unsigned));
    vreinterpretq_s8_u8(vreinterpretq_u8_u32(vdupq_n_u32(word)))
}

/// Writes chunk `at` of decoded rows by quads.
#[inline(always)]
pub(super) fn interleave(rows: &[DecodedRow; PANEL_ROWS], at: usize, codes: &mut [[i8; CHUNK]; CHUNK / 4]) {
    for side in 0..2 {
        for half in 0..2 {
            let mut four = [vdupq_n_s8(0); 4];
            for row in 0..4 {
                four[row] = load_codes(part(&rows[4 * half + row].codes, at * CHUNK + 16 * side));
            }
            for (quad, by_row) in transpose(four).into_iter().enumerate() {
                store_codes(part_mut(&mut codes[4 * side + quad], 16 * half), by_row);
            }
        }
    }
}

/// Adds a panel's products with a tile to `sums`.
#[inline(always)]
pub(super) fn products<P: ChunkProducts>(p: P, panel: &RowPanel, x: TokenTile<'_>, sums: &mut [PanelSums]) {
    x.check(panel, sums);
    sums.iter_mut().for_each(|sums| sums.lanes = [[0.0; PANEL_ROWS]; LANES]);
    for (chunk, tokens) in x.chunks.chunks_exact(x.tokens).enumerate() {
        let mut w = [[vdupq_n_s8(0); 2]; CHUNK / 4];
        for quad in 0..CHUNK / 4 {
            w[quad] = [load_codes(part(&panel.codes[chunk][quad], 0)), load_codes(part(&panel.codes[chunk][quad], 16))];
        }
        let w = p.prepare(w);
        if panel.grouping.len == CHUNK {
            multiply::<P, 1>(p, panel, chunk, &w, tokens, sums);
        } else {
            multiply::<P, 2>(p, panel, chunk, &w, tokens, sums);
        }
    }
    for sums in sums {
        for half in 0..2 {
            let lane = |at: usize| load_floats(part(&sums.lanes[at], 4 * half));
            let line = vaddq_f32(vaddq_f32(lane(0), lane(1)), vaddq_f32(lane(2), lane(3)));
            let total: &mut [f32; 4] = part_mut(&mut sums.total, 4 * half);
            store_floats(total, vaddq_f32(load_floats(total), line));
        }
    }
}

/// Adds the [`products`] of chunk `chunk` with each of `tokens`. `w` has the chunk's prepared
/// codes.
#[inline(always)]
fn multiply<P: ChunkProducts, const GROUPS: usize>(
    p: P,
    panel: &RowPanel,
    chunk: usize,
    w: &HalvedQuads,
    tokens: &[TokenChunk],
    sums: &mut [PanelSums],
) {
    let narrow = !panel.grouping.is_wide();
    for (tokens, sums) in tokens.chunks(2).zip(sums.chunks_mut(2)) {
        let dots = p.dots::<GROUPS>(w, [&tokens[0].codes, &tokens[tokens.len() - 1].codes], narrow);
        for ((x, sums), dots) in tokens.iter().zip(sums).zip(dots) {
            for group in 0..GROUPS {
                let at = chunk * GROUPS + group;
                for half in 0..2 {
                    let lane: &mut [f32; 4] = part_mut(&mut sums.lanes[at % LANES], 4 * half);
                    let scale = vmulq_n_f32(load_floats(part(&panel.scales[at], 4 * half)), x.scale);
                    let mut to = vfmaq_f32(load_floats(lane), vcvtq_f32_s32(dots[group][half]), scale);
                    if panel.grouping.minima {
                        let of_x = if GROUPS == 1 { x.sum } else { x.half_sums[group] };
                        to = vfmaq_n_f32(to, load_floats(part(&panel.mins[at], 4 * half)), of_x);
                    }
                    store_floats(lane, to);
                }
            }
        }
    }
}
