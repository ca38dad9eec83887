//! Q6_K: 256 elements in 210 bytes, sixteen sub-blocks of 16. `x = d * scale * (q - 32)`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..128 | bits 0..4 of `q`: each half of 128 elements has 64 bytes; nibble `n` of byte `l` belongs to element `64 n + l` |
//! | 128..192 | bits 4..6 of `q`: each half has 32 bytes; bits `2s..2s+2` of byte `l` belong to element `32 s + l` |
//! | 192..208 | scales, i8 |
//! | 208..210 | `d`, F16 |

use thermocline_shaders::WeightType;

use super::{
    BlockFormat, DeviceFormat, Grouping, TensorType,
    bits::{bytes, f16_at},
    block_format::{quantise_blocks, unpack_256},
    device, fit,
};
use crate::error::Result;

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::Q6_K,
    len: 256,
    bytes: 210,
    grouping: Grouping { len: 16, minima: false, wide: false },
    unpack: |src, to| unpack_256(src, to, unpack),
    quantise: Some(|src, dst| quantise_blocks(src, dst, quantise)),
    device: DeviceFormat { ty: WeightType::Q6_K, exact: true, repack },
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
pub(crate) fn unpack_scales(block: &[u8; 210], scales: &mut [f32; 16]) {
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

fn repack(row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    store_blocks::<210>(row, main, aux, |block, codes| {
        unpack_codes(block, codes);
        (*bytes(block, 192), [block[208], block[209]])
    });
    Ok(())
}

/// Writes a row of super-blocks as the GPU's Q6_K: chunk by chunk, low nibbles apart from high bit pairs. `block(bytes, codes)` fills in
/// 256 codes of `-32..32` and returns sixteen scales (i8) and `d` (F16).
pub(super) fn store_blocks<const BYTES: usize>(
    row: &[u8],
    main: &mut [u8],
    aux: &mut [u8],
    block: impl Fn(&[u8; BYTES], &mut [i8; 256]) -> ([u8; 16], [u8; 2]),
) {
    let mut codes = [0i8; 256];
    let out = main.as_chunks_mut::<128>().0.iter_mut().zip(aux.as_chunks_mut::<84>().0);
    for (bytes, (main, aux)) in row.as_chunks::<BYTES>().0.iter().zip(out) {
        let (scales, d) = block(bytes, &mut codes);
        let codes = codes.map(|code| (code + 32) as u8);
        let chunks = codes.as_chunks::<32>().0.iter().zip(main.as_chunks_mut().0);
        for ((codes, main), pairs) in chunks.zip(aux[..64].as_chunks_mut::<8>().0.iter_mut()) {
            *main = device::nibbles(codes);
            let pair = |half: usize| (0..16).fold(0, |word, j| word | u32::from(codes[16 * half + j] >> 4) << (2 * j));
            pairs[..4].copy_from_slice(&pair(0).to_le_bytes());
            pairs[4..].copy_from_slice(&pair(1).to_le_bytes());
        }
        aux[64..80].copy_from_slice(&scales);
        aux[80..].copy_from_slice(&[d[0], d[1], 0, 0]);
    }
}
