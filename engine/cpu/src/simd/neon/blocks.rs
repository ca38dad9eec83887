//! Block types on NEON. One arm per type says how its codes are decoded in registers and how they
//! are scaled. Products ([`dot`](super::dot)) and unpacking use the same arms.

use super::{
    codes::{Codes, bytes32, five_bits, less, look_up, nibbles, q3_k, q4_k, q5_k, q6_k, signed, two_bits},
    dot::{row_k, row_k16, row_signed, rows32, six_bits},
    head, points,
    products::CodeProducts,
    registers::*,
};
use crate::simd::{BlockWork, E8M0, F16, GatheredRow, MINIMA, SIGNED, part, part_mut, portable::dot_each};
use thermocline_formats::quant::{
    BlockType, iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs, iq4_nl, iq4_xs, k_scales, mxfp4, nvfp4,
    q2_k as q2_k_format, q3_k as q3_k_format, q6_k as q6_k_format, unpack_32, unpack_256,
};

/// Does `work` with blocks of `ty`.
#[inline(always)]
pub(super) fn run<P: CodeProducts>(p: P, ty: BlockType, work: BlockWork<'_>) {
    match ty {
        BlockType::Q4_0 => blocks32::<P, 18, F16, 8>(p, ty, work, |b| signed(nibbles(part(b, 2)))),
        BlockType::Q4_1 => blocks32::<P, 20, F16, MINIMA>(p, ty, work, |b| signed(nibbles(part(b, 4)))),
        BlockType::Q5_0 => blocks32::<P, 22, F16, 16>(p, ty, work, |b| five_bits(part(b, 6), part(b, 2))),
        BlockType::Q5_1 => blocks32::<P, 24, F16, MINIMA>(p, ty, work, |b| five_bits(part(b, 8), part(b, 4))),
        BlockType::Q8_0 => blocks32::<P, 34, F16, SIGNED>(p, ty, work, |b| signed(bytes32(part(b, 2)))),
        BlockType::IQ4_NL => {
            blocks32::<P, 18, F16, SIGNED>(p, ty, work, |b| look_up(&iq4_nl::VALUES, nibbles(part(b, 2))));
        }
        BlockType::MXFP4 => {
            blocks32::<P, 17, E8M0, SIGNED>(p, ty, work, |b| look_up(&mxfp4::VALUES, nibbles(part(b, 1))))
        }
        BlockType::IQ4_XS => blocks_signed::<P, 136, 8, 8>(p, ty, work, iq4_xs::unpack_scales, |b, i| {
            look_up(&iq4_nl::VALUES, nibbles(part(b, 8 + 16 * i)))
        }),
        BlockType::IQ1_S => blocks_signed::<P, 50, 8, 8>(p, ty, work, iq1_s::unpack_scales, points::iq1_s),
        BlockType::IQ1_M => blocks_signed::<P, 56, 8, 16>(p, ty, work, iq1_m::unpack_scales, points::iq1_m),
        BlockType::IQ2_XXS => blocks_signed::<P, 66, 8, 8>(p, ty, work, iq2_xxs::unpack_scales, points::iq2_xxs),
        BlockType::IQ2_XS => blocks_signed::<P, 74, 8, 16>(p, ty, work, iq2_xs::unpack_scales, points::iq2_xs),
        BlockType::IQ2_S => blocks_signed::<P, 82, 8, 16>(p, ty, work, iq2_s::unpack_scales, points::iq2_s),
        BlockType::IQ3_XXS => blocks_signed::<P, 98, 8, 8>(p, ty, work, iq3_xxs::unpack_scales, points::iq3_xxs),
        BlockType::IQ3_S => blocks_signed::<P, 110, 8, 8>(p, ty, work, iq3_s::unpack_scales, points::iq3_s),
        BlockType::TQ1_0 => blocks_signed::<P, 54, 8, 8>(p, ty, work, |b| [head(part(b, 52)); 8], points::tq1_0),
        BlockType::TQ2_0 => blocks_signed::<P, 66, 8, 8>(p, ty, work, |b| [head(part(b, 64)); 8], points::tq2_0),
        BlockType::Q1_0 => blocks_signed::<P, 18, 4, 4>(p, ty, work, |b| [head(part(b, 0)); 4], points::q1_0),
        BlockType::Q2_0 => {
            blocks_signed::<P, 18, 2, 2>(p, ty, work, |b| [head(part(b, 0)); 2], points::consecutive_pairs)
        }
        BlockType::I2_S => blocks_signed::<P, 32, 4, 4>(p, ty, work, |_| [1.0; 4], points::i2_s),
        BlockType::NVFP4 => blocks_signed::<P, 36, 2, 4>(p, ty, work, nvfp4::unpack_scales, points::nvfp4),
        BlockType::Q4_K => blocks_k::<P, 144>(p, ty, work, q4_k),
        BlockType::Q5_K => blocks_k::<P, 176>(p, ty, work, q5_k),
        BlockType::Q2_K => blocks_k16::<P, 84, MINIMA>(
            p,
            ty,
            work,
            |b, at| {
                let both = part::<u8, 8>(b, 8 * at);
                let (d, dmin) = (head(part(b, 80)), head(part(b, 82)));
                let s = bytes_to_floats(both.map(|both| both & 15)).map(|s| vmulq_n_f32(s, d));
                (s, bytes_to_floats(both.map(|both| both >> 4)).map(|m| vmulq_n_f32(m, -dmin)))
            },
            |b, at| two_bits(part(b, 16 + 32 * at)),
            q2_k_format::unpack_scales,
        ),
        BlockType::Q3_K => blocks_k16::<P, 110, 4>(
            p,
            ty,
            work,
            |b, at| scales_alone(six_bits(q3_k_format::scale_codes(b)[at]), head(part(b, 108))),
            q3_k,
            |b, scales, _| q3_k_format::unpack_scales(b, scales),
        ),
        BlockType::Q6_K => blocks_k16::<P, 210, 32>(
            p,
            ty,
            work,
            |b, at| {
                let s = part::<u8, 8>(b, 192 + 8 * at).map(|scale| scale as i8);
                scales_alone(codes_to_floats(s), head(part(b, 208)))
            },
            q6_k,
            |b, scales, _| q6_k_format::unpack_scales(b, scales),
        ),
    }
}

/// Returns `s d` as scales, and no minima.
#[inline(always)]
fn scales_alone(s: [float32x4_t; 2], d: f32) -> ([float32x4_t; 2], [float32x4_t; 2]) {
    (s.map(|s| vmulq_n_f32(s, d)), [vdupq_n_f32(0.0); 2])
}

/// Writes 32 codes.
#[inline(always)]
fn store32(to: &mut [i8; 32], codes: Codes) {
    store_codes(part_mut(to, 0), codes[0]);
    store_codes(part_mut(to, 16), codes[1]);
}

/// Blocks of 32: see [`rows32`].
#[inline(always)]
fn blocks32<P: CodeProducts, const BYTES: usize, const SCALE: u8, const OFFSET: i8>(
    p: P,
    ty: BlockType,
    work: BlockWork<'_>,
    codes: impl Fn(&[u8; BYTES]) -> Codes,
) {
    match work {
        BlockWork::Dot { weights, x, ahead, out } => dot_each(ty, weights, x, out, |row| {
            let [sum] = rows32::<P, BYTES, SCALE, OFFSET, 1>(p, [GatheredRow { row, ahead }], x, &codes);
            sum
        }),
        BlockWork::Unpack { src, to } => unpack_32::<BYTES>(src, to, |block, to| {
            let codes = codes(block);
            store32(to, if OFFSET > 0 { less(codes, OFFSET) } else { codes });
            let scale = if SCALE == E8M0 { mxfp4::scale(block[0]) } else { head(part(block, 0)) };
            (scale, if OFFSET == MINIMA { head(part(block, 2)) } else { 0.0 })
        }),
    }
}

/// Q4_K and Q5_K: see [`row_k`].
#[inline(always)]
fn blocks_k<P: CodeProducts, const BYTES: usize>(
    p: P,
    ty: BlockType,
    work: BlockWork<'_>,
    pair: impl Fn(&[u8; BYTES], usize) -> [Codes; 2],
) {
    match work {
        BlockWork::Dot { weights, x, ahead, out } => {
            dot_each(ty, weights, x, out, |row| row_k(p, row, x, ahead, &pair))
        }
        BlockWork::Unpack { src, to } => unpack_256::<BYTES, 8>(src, to, |block, codes, scales, mins| {
            k_scales::unpack_scales(part(block, 0), scales, mins);
            for (i, codes) in codes.as_chunks_mut::<64>().0.iter_mut().enumerate() {
                let [a, b] = pair(block, i);
                store32(part_mut(codes, 0), a);
                store32(part_mut(codes, 32), b);
            }
        }),
    }
}

/// Blocks of 256 with one scale per 16 elements: see [`row_k16`]. Codes have `OFFSET` added, or
/// blocks have [`MINIMA`]. `scales` decodes scales and minima.
#[inline(always)]
fn blocks_k16<P: CodeProducts, const BYTES: usize, const OFFSET: i8>(
    p: P,
    ty: BlockType,
    work: BlockWork<'_>,
    factors: impl Fn(&[u8; BYTES], usize) -> ([float32x4_t; 2], [float32x4_t; 2]),
    weights: impl Fn(&[u8; BYTES], usize) -> [Codes; 4],
    unpack_scales: impl Fn(&[u8; BYTES], &mut [f32; 16], &mut [f32; 16]),
) {
    match work {
        BlockWork::Dot { weights: all, x, ahead, out } => {
            dot_each(ty, all, x, out, |row| row_k16::<P, BYTES, OFFSET>(p, row, x, ahead, &factors, &weights))
        }
        BlockWork::Unpack { src, to } => unpack_256::<BYTES, 16>(src, to, |block, codes, scales, mins| {
            unpack_scales(block, scales, mins);
            for (at, codes) in codes.as_chunks_mut::<128>().0.iter_mut().enumerate() {
                for (codes, whole) in codes.as_chunks_mut::<32>().0.iter_mut().zip(weights(block, at)) {
                    store32(codes, if OFFSET > 0 { less(whole, OFFSET) } else { whole });
                }
            }
        }),
    }
}

/// Blocks of chunks of 32 signed codes: see [`row_signed`].
#[inline(always)]
fn blocks_signed<P: CodeProducts, const BYTES: usize, const CHUNKS: usize, const GROUPS: usize>(
    p: P,
    ty: BlockType,
    work: BlockWork<'_>,
    scales: impl Fn(&[u8; BYTES]) -> [f32; GROUPS],
    codes: impl Fn(&[u8; BYTES], usize) -> Codes,
) {
    match work {
        BlockWork::Dot { weights, x, ahead, out } => dot_each(ty, weights, x, out, |row| {
            row_signed::<P, BYTES, CHUNKS, GROUPS>(p, row, x, ahead, &scales, &codes)
        }),
        BlockWork::Unpack { src, to } => {
            let chunks = to.codes.as_chunks_mut::<32>().0.as_chunks_mut::<CHUNKS>().0;
            let blocks = src.as_chunks::<BYTES>().0.iter().zip(chunks);
            for ((block, chunks), to) in blocks.zip(to.scales.as_chunks_mut::<GROUPS>().0) {
                *to = scales(block);
                chunks.iter_mut().enumerate().for_each(|(i, chunk)| store32(chunk, codes(block, i)));
            }
        }
    }
}
