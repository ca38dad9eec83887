//! Every quantised type as one: signed 8-bit codes, a scale per group of 16 or 32, and where the type has them minima:
//! `w = scale * code + min`. Kernels without a hand-written path for a type, and the packing of panels, go through this.
//!
//! All of it is `#[inline(always)]` so that it compiles for the instruction set of the kernel that calls it.

use crate::format::TensorType;

/// How a type's elements share their scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grouping {
    /// Elements per scale: 16 or 32.
    pub len: usize,
    /// Whether groups have a minimum.
    pub minima: bool,
    /// Whether codes leave `-32..=32`.
    pub wide: bool,
}

impl Grouping {
    /// The grouping of a quantised type; `None` for types that are floats.
    pub fn of(ty: TensorType) -> Option<Self> {
        use TensorType::*;
        let (len, minima, wide) = match ty {
            Q4_0 | Q5_0 | MXFP4 => (32, false, false),
            Q8_0 | IQ4_NL | IQ4_XS => (32, false, true),
            Q4_1 | Q5_1 | Q4_K | Q5_K => (32, true, false),
            Q2_K => (16, true, false),
            Q3_K | Q6_K => (16, false, false),
            _ => return None,
        };
        Some(Grouping { len, minima, wide })
    }
}

pub(super) const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Twice the values of E2M1, so that they are whole.
pub(super) const FP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// `f16` to `f32` by arithmetic on the bits, which every instruction set vectorises.
#[inline(always)]
pub(crate) fn half(bits: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_le_bytes(bits));
    let magnitude = (bits & 0x7fff) << 13;
    // Subnormals, which the scales of real models often are, stay clear of those of f32: arithmetic on them is slow.
    let subnormal = f32::from_bits(magnitude + 0x3880_0000) - f32::from_bits(0x3880_0000);
    let value = match magnitude {
        0x0f80_0000.. => magnitude | 0x7f80_0000,
        // From bias 15 to bias 127.
        0x0080_0000.. => magnitude + 0x3800_0000,
        _ => subnormal.to_bits(),
    };
    f32::from_bits(value | (bits & 0x8000) << 16)
}

/// Scale of an MXFP4 block for codes that are twice the value: `2^(e - 128)`.
#[inline(always)]
pub(super) fn e8m0_half(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}

/// The eight 6-bit scales and minima of Q4_K and Q5_K, one byte each.
#[inline(always)]
pub(crate) fn k_scales(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let word = |at: usize| u32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], packed[at + 3]]);
    let (a, b, c) = (word(0), word(4), word(8));
    let low = |w: u32| u64::from(w & 0x3f3f_3f3f);
    let high = |nibbles: u32, w: u32| u64::from(nibbles & 0x0f0f_0f0f | (w >> 6 & 0x0303_0303) << 4) << 32;
    ((low(a) | high(c, a)).to_le_bytes(), (low(b) | high(c >> 4, b)).to_le_bytes())
}

/// The sixteen 6-bit scales of Q3_K, one byte each, 32 too large.
#[inline(always)]
pub(super) fn q3_scales(packed: &[u8; 12]) -> [[u8; 8]; 2] {
    let (low, high) = (u64::from_le_bytes(*part(packed, 0)), u32::from_le_bytes(*part(packed, 8)));
    let upper = |shift: u32| u64::from(high >> shift & 0x0303_0303);
    let scales = |low: u64, shift| low & 0x0f0f_0f0f_0f0f_0f0f | (upper(shift) | upper(shift + 2) << 32) << 4;
    [scales(low, 0).to_le_bytes(), scales(low >> 4, 4).to_le_bytes()]
}

/// The eight 6-bit scales of IQ4_XS, one byte each, 32 too large.
#[inline(always)]
pub(super) fn iq4_xs_scales(block: &[u8; 136]) -> [u8; 8] {
    // Nibbles, and pairs of bits, are moved apart to bytes: halves first.
    let mut low = u64::from(u32::from_le_bytes(*part(block, 4)));
    low = (low | low << 16) & 0x0000_ffff_0000_ffff;
    low = (low | low << 8) & 0x00ff_00ff_00ff_00ff;
    low = (low | low << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let mut high = u64::from(u16::from_le_bytes(*part(block, 2)));
    high = (high | high << 24) & 0x0000_00ff_0000_00ff;
    high = (high | high << 12) & 0x000f_000f_000f_000f;
    high = (high | high << 6) & 0x0303_0303_0303_0303;
    (low | high << 4).to_le_bytes()
}

/// Splits sixteen bytes into low nibbles, then high ones.
#[inline(always)]
fn nibbles(bytes: &[u8; 16], codes: &mut [i8; 32], code: impl Fn(u8) -> i8) {
    for (i, byte) in bytes.iter().enumerate() {
        codes[i] = code(byte & 15);
        codes[i + 16] = code(byte >> 4);
    }
}

/// An array out of a block; the offsets are the format's, so the compiler drops the check.
#[inline(always)]
fn part<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    match block[at..].first_chunk() {
        Some(part) => part,
        None => &[0; N],
    }
}

/// Decodes one block of 32: `code(block, codes)` gives `(scale, min)`.
#[inline(always)]
pub(super) fn blocks32<const BYTES: usize>(
    src: &[u8],
    codes: &mut [i8],
    scales: &mut [f32],
    mins: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [i8; 32]) -> (f32, f32),
) {
    let blocks = src.as_chunks::<BYTES>().0.iter().zip(codes.as_chunks_mut::<32>().0);
    for (i, (block, codes)) in blocks.enumerate() {
        let (scale, min) = decode(block, codes);
        scales[i] = scale;
        if let Some(slot) = mins.get_mut(i) {
            *slot = min;
        }
    }
}

/// Decodes one block of 256 with `256 / G` groups.
#[inline(always)]
pub(super) fn blocks256<const BYTES: usize, const GROUPS: usize>(
    src: &[u8],
    codes: &mut [i8],
    scales: &mut [f32],
    mins: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [i8; 256], &mut [f32; GROUPS], &mut [f32; GROUPS]),
) {
    let mut none = [0.0; GROUPS];
    let blocks = src.as_chunks::<BYTES>().0.iter().zip(codes.as_chunks_mut::<256>().0);
    let groups = scales.as_chunks_mut::<GROUPS>().0;
    let minima = mins.as_chunks_mut::<GROUPS>().0;
    for (i, (block, codes)) in blocks.enumerate() {
        decode(block, codes, &mut groups[i], minima.get_mut(i).unwrap_or(&mut none));
    }
}

/// Unpacks whole blocks. `codes` has one element per weight, `scales` one per group; `mins` as many, or none if the
/// type has no minima.
#[inline(always)]
pub(crate) fn unpack(ty: TensorType, src: &[u8], codes: &mut [i8], scales: &mut [f32], mins: &mut [f32]) {
    use TensorType::*;
    match ty {
        Q4_0 => blocks32::<18>(src, codes, scales, mins, |b, codes| {
            nibbles(part(b, 2), codes, |q| q as i8 - 8);
            (half(*part(b, 0)), 0.0)
        }),
        Q4_1 => blocks32::<20>(src, codes, scales, mins, |b, codes| {
            nibbles(part(b, 4), codes, |q| q as i8);
            (half(*part(b, 0)), half(*part(b, 2)))
        }),
        Q5_0 => blocks32::<22>(src, codes, scales, mins, |b, codes| {
            nibbles(part(b, 6), codes, |q| q as i8 - 16);
            let high = u32::from_le_bytes(*part(b, 2));
            for (i, code) in codes.iter_mut().enumerate() {
                *code += ((high >> i & 1) << 4) as i8;
            }
            (half(*part(b, 0)), 0.0)
        }),
        Q5_1 => blocks32::<24>(src, codes, scales, mins, |b, codes| {
            nibbles(part(b, 8), codes, |q| q as i8);
            let high = u32::from_le_bytes(*part(b, 4));
            for (i, code) in codes.iter_mut().enumerate() {
                *code += ((high >> i & 1) << 4) as i8;
            }
            (half(*part(b, 0)), half(*part(b, 2)))
        }),
        Q8_0 => blocks32::<34>(src, codes, scales, mins, |b, codes| {
            *codes = part::<32>(b, 2).map(|q| q as i8);
            (half(*part(b, 0)), 0.0)
        }),
        IQ4_NL => blocks32::<18>(src, codes, scales, mins, |b, codes| {
            nibbles(part(b, 2), codes, |q| IQ4[usize::from(q)]);
            (half(*part(b, 0)), 0.0)
        }),
        MXFP4 => blocks32::<17>(src, codes, scales, mins, |b, codes| {
            nibbles(part(b, 1), codes, |q| FP4[usize::from(q)]);
            (e8m0_half(b[0]), 0.0)
        }),
        IQ4_XS => blocks256::<136, 8>(src, codes, scales, mins, |b, codes, scales, _| {
            iq4_xs_groups(b, scales);
            for (i, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                nibbles(part(b, 8 + 16 * i), codes, |q| IQ4[usize::from(q)]);
            }
        }),
        Q4_K => blocks256::<144, 8>(src, codes, scales, mins, |b, codes, scales, mins| {
            k_groups(part(b, 0), scales, mins);
            let quants: &[u8; 128] = part(b, 16);
            for (pair, bytes) in codes.as_chunks_mut::<64>().0.iter_mut().zip(quants.as_chunks::<32>().0) {
                for (i, byte) in bytes.iter().enumerate() {
                    pair[i] = (byte & 15) as i8;
                    pair[i + 32] = (byte >> 4) as i8;
                }
            }
        }),
        Q5_K => blocks256::<176, 8>(src, codes, scales, mins, |b, codes, scales, mins| {
            k_groups(part(b, 0), scales, mins);
            let high: &[u8; 32] = part(b, 16);
            let quants: &[u8; 128] = part(b, 48);
            for (at, (pair, bytes)) in
                codes.as_chunks_mut::<64>().0.iter_mut().zip(quants.as_chunks::<32>().0).enumerate()
            {
                for (i, byte) in bytes.iter().enumerate() {
                    let bits = high[i] >> (2 * at);
                    pair[i] = (byte & 15 | (bits & 1) << 4) as i8;
                    pair[i + 32] = (byte >> 4 | (bits >> 1 & 1) << 4) as i8;
                }
            }
        }),
        Q6_K => blocks256::<210, 16>(src, codes, scales, mins, |b, codes, scales, _| {
            q6_k_groups(b, scales);
            for (at, codes) in codes.as_chunks_mut::<128>().0.iter_mut().enumerate() {
                let low: &[u8; 64] = part(b, 64 * at);
                let high: &[u8; 32] = part(b, 128 + 32 * at);
                for i in 0..32 {
                    codes[i] = (low[i] & 15 | (high[i] & 3) << 4) as i8 - 32;
                    codes[i + 32] = (low[i + 32] & 15 | (high[i] >> 2 & 3) << 4) as i8 - 32;
                    codes[i + 64] = (low[i] >> 4 | (high[i] >> 4 & 3) << 4) as i8 - 32;
                    codes[i + 96] = (low[i + 32] >> 4 | high[i] >> 6 << 4) as i8 - 32;
                }
            }
        }),
        Q2_K => blocks256::<84, 16>(src, codes, scales, mins, |b, codes, scales, mins| {
            q2_k_groups(b, scales, mins);
            for (at, codes) in codes.as_chunks_mut::<128>().0.iter_mut().enumerate() {
                let quants: &[u8; 32] = part(b, 16 + 32 * at);
                for (shift, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                    for (code, byte) in codes.iter_mut().zip(quants) {
                        *code = (byte >> (2 * shift) & 3) as i8;
                    }
                }
            }
        }),
        Q3_K => blocks256::<110, 16>(src, codes, scales, mins, |b, codes, scales, _| {
            q3_k_groups(b, scales);
            let high: &[u8; 32] = part(b, 0);
            for (at, codes) in codes.as_chunks_mut::<128>().0.iter_mut().enumerate() {
                let quants: &[u8; 32] = part(b, 32 + 32 * at);
                for (shift, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                    for (i, code) in codes.iter_mut().enumerate() {
                        let bit = high[i] >> (4 * at + shift) & 1;
                        *code = (quants[i] >> (2 * shift) & 3) as i8 - 4 * (1 - bit as i8);
                    }
                }
            }
        }),
        F32 | F16 | BF16 | I8 | I16 | I32 | I64 | F64 => unreachable!("{ty} has no codes"),
    }
}

/// Scales and minima of a Q2_K block.
#[inline(always)]
pub(super) fn q2_k_groups(block: &[u8; 84], scales: &mut [f32; 16], mins: &mut [f32; 16]) {
    let (d, dmin) = (half(*part(block, 80)), half(*part(block, 82)));
    for (i, byte) in part::<16>(block, 0).iter().enumerate() {
        scales[i] = d * f32::from(byte & 15);
        mins[i] = -dmin * f32::from(byte >> 4);
    }
}

/// Scales of a Q3_K block.
#[inline(always)]
pub(super) fn q3_k_groups(block: &[u8; 110], scales: &mut [f32; 16]) {
    let d = half(*part(block, 108));
    for (scale, q) in scales.iter_mut().zip(q3_scales(part(block, 96)).as_flattened()) {
        *scale = d * (f32::from(*q) - 32.0);
    }
}

/// Scales of a Q6_K block.
#[inline(always)]
pub(super) fn q6_k_groups(block: &[u8; 210], scales: &mut [f32; 16]) {
    let d = half(*part(block, 208));
    for (scale, byte) in scales.iter_mut().zip(part::<16>(block, 192)) {
        *scale = d * f32::from(*byte as i8);
    }
}

/// Scales of an IQ4_XS block.
#[inline(always)]
pub(super) fn iq4_xs_groups(block: &[u8; 136], scales: &mut [f32; 8]) {
    let d = half(*part(block, 0));
    for (scale, q) in scales.iter_mut().zip(iq4_xs_scales(block)) {
        *scale = d * (f32::from(q) - 32.0);
    }
}

/// Scales and minima of a Q4_K or Q5_K block, which start with `d`, `dmin` and the packed 6-bit factors.
#[inline(always)]
pub(super) fn k_groups(head: &[u8; 16], scales: &mut [f32; 8], mins: &mut [f32; 8]) {
    let (d, dmin) = (half(*part(head, 0)), half(*part(head, 2)));
    let (s, m) = k_scales(part(head, 4));
    for i in 0..8 {
        scales[i] = d * f32::from(s[i]);
        mins[i] = -dmin * f32::from(m[i]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_agrees_with_the_library() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (half(bits.to_le_bytes()), ::half::f16::from_bits(bits).to_f32());
            assert!(ours == theirs || ours.is_nan() && theirs.is_nan(), "{bits:#x}: {ours} {theirs}");
        }
    }
}
