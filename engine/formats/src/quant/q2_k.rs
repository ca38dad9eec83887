//! Q2_K: 256 elements in 84 bytes, sixteen sub-blocks of 16. `x = d * scale * q - dmin * min`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..16 | per sub-block: scale (low nibble) and min (high nibble) |
//! | 16..80 | `q`, 2 bits: each half of 128 elements has 32 bytes; bits `2s..2s+2` of byte `l` belong to element `32 s + l` |
//! | 80..82 | `d`, F16 |
//! | 82..84 | `dmin`, F16 |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk bit pairs. `aux`
//! has per block 5 words: d, dmin, then per half chunk a byte, scale low and min high.

use super::{
    BlockFormat, DeviceFormat, Grouping, Result, TensorType,
    bits::put_f16,
    bits::{bytes, f16_at},
    block_format::unpack_256,
    device,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::Q2_K,
    len: 256,
    bytes: 84,
    grouping: Grouping { len: 16, minima: true, lowest: 0, highest: 3 },
    unpack: |src, to| unpack_256(src, to, unpack),
    quantise: None,
    device: DeviceFormat {
        main_words: 2,
        aux_bytes: 20,
        wgsl: include_str!("q2_k.wgsl"),
        repack,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| {
        put_f16(block, 80, random(-0.05, 0.05));
        put_f16(block, 82, random(-0.05, 0.05));
    },
};

#[inline(always)]
fn unpack(block: &[u8; 84], codes: &mut [i8; 256], scales: &mut [f32; 16], mins: &mut [f32; 16]) {
    unpack_scales(block, scales, mins);
    unpack_codes(block, codes);
}

#[inline(always)]
fn unpack_codes(block: &[u8; 84], codes: &mut [i8; 256]) {
    for (half, codes) in codes.as_chunks_mut::<128>().0.iter_mut().enumerate() {
        let pairs: &[u8; 32] = bytes(block, 16 + 32 * half);
        for (s, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (code, byte) in codes.iter_mut().zip(pairs) {
                *code = (byte >> (2 * s) & 3) as i8;
            }
        }
    }
}

/// `d * scale` and `-dmin * min` of the sixteen sub-blocks.
#[inline(always)]
pub fn unpack_scales(block: &[u8; 84], scales: &mut [f32; 16], mins: &mut [f32; 16]) {
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for (i, byte) in bytes::<16>(block, 0).iter().enumerate() {
        scales[i] = d * f32::from(byte & 15);
        mins[i] = -dmin * f32::from(byte >> 4);
    }
}

fn repack(row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    device::map_blocks::<84, 64, 20>(row, main, aux, |block, main, aux| {
        aux[..4].copy_from_slice(&block[80..]);
        aux[4..].copy_from_slice(&block[..16]);
        let mut codes = [0; 256];
        unpack_codes(block, &mut codes);
        *main = device::pairs(&codes.map(|code| code as u8));
    })
}
