//! IQ4_XS: 256 elements in 136 bytes, eight sub-blocks of 32. `x = d * (scale - 32) * VALUES[q]`
//! with the table of IQ4_NL.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..4 | bits 4..6 of the scales: bits `2s..2s+2` of a little-endian u16 |
//! | 4..8 | bits 0..4 of the scales, two per byte, low nibble first |
//! | 8..136 | `q`: 16 bytes per sub-block, ordered as in IQ4_NL |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk nibbles. `aux`
//! has per block 2 words: d, scales' high bit pairs in upper half; their low nibbles.

use super::{
    BlockFormat, DeviceFormat, Grouping, Result, TensorType,
    bits::put_f16,
    bits::{bytes, f16_at, nibbles},
    block_format::unpack_256,
    device,
    iq4_nl::VALUES,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::IQ4_XS,
    len: 256,
    bytes: 136,
    grouping: Grouping { len: 32, minima: false, lowest: -127, highest: 113 },
    unpack: |src, to| unpack_256(src, to, unpack),
    quantise: None,
    device: DeviceFormat {
        main_words: 4,
        aux_bytes: 8,
        wgsl: include_str!("iq4_xs.wgsl"),
        repack,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| put_f16(block, 0, random(-0.001, 0.001)),
};

#[inline(always)]
fn unpack(block: &[u8; 136], codes: &mut [i8; 256], scales: &mut [f32; 8], _: &mut [f32; 8]) {
    *scales = unpack_scales(block);
    for (sub, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        nibbles(bytes(block, 8 + 16 * sub), codes, |q| VALUES[usize::from(q)]);
    }
}

/// `d * (scale - 32)` of the eight sub-blocks.
#[inline(always)]
pub fn unpack_scales(block: &[u8; 136]) -> [f32; 8] {
    let d = f16_at(block, 0);
    scale_codes(block).map(|q| d * (f32::from(q) - 32.0))
}

/// The eight 6-bit scales, one byte each, with 32 added.
#[inline(always)]
fn scale_codes(block: &[u8; 136]) -> [u8; 8] {
    // Spreads nibbles and pairs of bits to bytes, halving the distance at each step.
    let mut low = u64::from(u32::from_le_bytes(*bytes(block, 4)));
    low = (low | low << 16) & 0x0000_ffff_0000_ffff;
    low = (low | low << 8) & 0x00ff_00ff_00ff_00ff;
    low = (low | low << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let mut high = u64::from(u16::from_le_bytes(*bytes(block, 2)));
    high = (high | high << 24) & 0x0000_00ff_0000_00ff;
    high = (high | high << 12) & 0x000f_000f_000f_000f;
    high = (high | high << 6) & 0x0303_0303_0303_0303;
    (low | high << 4).to_le_bytes()
}

fn repack(row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    device::map_blocks::<136, 128, 8>(row, main, aux, |block, main, aux| {
        *aux = *bytes(block, 0);
        *main = *bytes(block, 8);
    })
}
