//! Q4_K: 256 elements in 144 bytes, eight sub-blocks of 32. `x = d * scale * q - dmin * min`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..4 | `dmin`, F16 |
//! | 4..16 | scales and mins, 6 bits, see [`k_scales`] |
//! | 16..144 | `q`, 4 bits: each group of 64 elements has 32 bytes, byte `l` holds element `l` (low) and `l + 32` (high) |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk nibbles. `aux`
//! has per block 4 words: d, dmin; low nibbles of scales; of mins; high bit pairs of both.

use super::{
    BlockFormat, DeviceFormat, Grouping, Result, TensorType,
    bits::bytes,
    bits::put_f16,
    block_format::{quantise_blocks, unpack_256},
    device::map_blocks,
    fit, k_scales,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::Q4_K,
    len: 256,
    bytes: 144,
    grouping: Grouping { len: 32, minima: true, lowest: 0, highest: 15 },
    unpack: |src, to| unpack_256(src, to, unpack),
    quantise: Some(|src, dst| quantise_blocks(src, dst, quantise)),
    device: DeviceFormat {
        main_words: 4,
        aux_bytes: 16,
        wgsl: include_str!("q4_k.wgsl"),
        repack,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| {
        put_f16(block, 0, random(-0.01, 0.01));
        put_f16(block, 2, random(-0.01, 0.01));
    },
};

#[inline(always)]
fn unpack(block: &[u8; 144], codes: &mut [i8; 256], scales: &mut [f32; 8], mins: &mut [f32; 8]) {
    k_scales::unpack_scales(bytes(block, 0), scales, mins);
    let nibbles: &[u8; 128] = bytes(block, 16);
    for (group, bytes) in codes.as_chunks_mut::<64>().0.iter_mut().zip(nibbles.as_chunks::<32>().0) {
        for (l, byte) in bytes.iter().enumerate() {
            group[l] = (byte & 15) as i8;
            group[l + 32] = (byte >> 4) as i8;
        }
    }
}

fn quantise(x: &[f32; 256]) -> [u8; 144] {
    let (header, codes) = fit::affine_block(x, 15);
    let mut block = [0; 144];
    block[..16].copy_from_slice(&header);
    for (group, bytes) in block[16..].as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (l, byte) in bytes.iter_mut().enumerate() {
            *byte = codes[64 * group + l] | codes[64 * group + l + 32] << 4;
        }
    }
    block
}

fn repack(row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    map_blocks::<144, 128, 16>(row, main, aux, |block, main, aux| {
        *aux = k_scales::device_header(bytes(block, 0));
        k_scales::device_nibbles(bytes(block, 16), main);
    })
}
