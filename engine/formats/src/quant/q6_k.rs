//! Q6_K: 256 elements in 210 bytes, sixteen sub-blocks of 16. `x = d * scale * (q - 32)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..128 | bits 0..4 of `q`: each half of 128 elements has 64 bytes; nibble `n` of byte `l` belongs to element `64 n + l` |
//! | 128..192 | bits 4..6 of `q`: each half has 32 bytes; bits `2s..2s+2` of byte `l` belong to element `32 s + l` |
//! | 192..208 | scales, i8 |
//! | 208..210 | `d`, F16 |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk low nibbles.
//! `aux` has per block 21 words: 16 of high bit pairs, two per chunk, 4 of i8 scales, d.

use super::{
    BlockFormat, DeviceFormat, Grouping, Result, TensorType,
    bits::put_f16,
    bits::{bytes, f16_at},
    block_format::{quantise_blocks, unpack_256},
    device, fit,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::Q6_K,
    len: 256,
    bytes: 210,
    grouping: Grouping { len: 16, minima: false, lowest: -32, highest: 31 },
    unpack: |src, to| unpack_256(src, to, unpack),
    quantise: Some(|src, dst| quantise_blocks(src, dst, quantise)),
    device: DeviceFormat {
        main_words: 4,
        aux_bytes: 84,
        wgsl: include_str!("q6_k.wgsl"),
        repack,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| put_f16(block, 208, random(-0.001, 0.001)),
};

#[inline(always)]
fn unpack(block: &[u8; 210], codes: &mut [i8; 256], scales: &mut [f32; 16], _: &mut [f32; 16]) {
    unpack_scales(block, scales);
    unpack_codes(block, codes);
}

/// `q - 32` of all elements.
#[inline(always)]
fn unpack_codes(block: &[u8; 210], codes: &mut [i8; 256]) {
    for (half, codes) in codes.as_chunks_mut::<128>().0.iter_mut().enumerate() {
        let low: &[u8; 64] = bytes(block, 64 * half);
        let high: &[u8; 32] = bytes(block, 128 + 32 * half);
        for i in 0..32 {
            codes[i] = (low[i] & 15 | (high[i] & 3) << 4) as i8 - 32;
            codes[i + 32] = (low[i + 32] & 15 | (high[i] >> 2 & 3) << 4) as i8 - 32;
            codes[i + 64] = (low[i] >> 4 | (high[i] >> 4 & 3) << 4) as i8 - 32;
            codes[i + 96] = (low[i + 32] >> 4 | high[i] >> 6 << 4) as i8 - 32;
        }
    }
}

/// `d * scale` of the sixteen sub-blocks.
#[inline(always)]
pub fn unpack_scales(block: &[u8; 210], scales: &mut [f32; 16]) {
    let d = f16_at(block, 208);
    for (scale, byte) in scales.iter_mut().zip(bytes::<16>(block, 192)) {
        *scale = d * f32::from(*byte as i8);
    }
}

fn quantise(x: &[f32; 256]) -> [u8; 210] {
    let (d, scales, codes) = fit::symmetric_block(x);
    let mut block = [0; 210];
    for half in 0..2 {
        let codes = &codes[128 * half..][..128];
        for l in 0..64 {
            block[64 * half + l] = codes[l] & 15 | (codes[l + 64] & 15) << 4;
        }
        for l in 0..32 {
            block[128 + 32 * half + l] = (0..4).fold(0, |bits, s| bits | (codes[32 * s + l] >> 4) << (2 * s));
        }
    }
    block[192..208].copy_from_slice(&scales.map(|scale| scale as u8));
    block[208..].copy_from_slice(&d);
    block
}

/// Repacks chunk by chunk, with low nibbles and high bit pairs in separate streams.
fn repack(row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    device::map_blocks::<210, 128, 84>(row, main, aux, |block, main, aux| {
        let mut codes = [0i8; 256];
        unpack_codes(block, &mut codes);
        let codes = codes.map(|code| (code + 32) as u8);
        for (main, codes) in main.as_chunks_mut::<16>().0.iter_mut().zip(codes.as_chunks::<32>().0) {
            *main = device::nibbles(codes);
        }
        aux[..64].copy_from_slice(&device::pairs::<256, 64>(&codes.map(|code| code >> 4)));
        aux[64..80].copy_from_slice(&block[192..208]);
        aux[80..].copy_from_slice(&[block[208], block[209], 0, 0]);
    })
}
