//! Q5_K: 256 elements in 176 bytes, eight sub-blocks of 32. `x = d * scale * q - dmin * min`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | `d`, F16 |
//! | 2..4 | `dmin`, F16 |
//! | 4..16 | scales and mins, 6 bits, see [`k_scales`] |
//! | 16..48 | bit 4 of `q`: bit `b` of byte `l` belongs to element `32 b + l` |
//! | 48..176 | bits 0..4 of `q`: each group of 64 elements has 32 bytes, byte `l` holds element `l` (low) and `l + 32` (high) |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk low nibbles.
//! `aux` has per block 12 words: as Q4_K, then 8 words of high bits, one per chunk.

use super::{
    BlockFormat, DeviceFormat, Grouping, Result, TensorType,
    bits::bytes,
    bits::put_f16,
    block_format::{quantise_blocks, unpack_256},
    device::map_blocks,
    fit, k_scales,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::Q5_K,
    len: 256,
    bytes: 176,
    grouping: Grouping { len: 32, minima: true, lowest: 0, highest: 31 },
    unpack: |src, to| unpack_256(src, to, unpack),
    quantise: Some(|src, dst| quantise_blocks(src, dst, quantise)),
    device: DeviceFormat {
        main_words: 4,
        aux_bytes: 48,
        wgsl: include_str!("q5_k.wgsl"),
        repack,
        ..DeviceFormat::PACKED
    },
    sample: |block, random| {
        put_f16(block, 0, random(-0.01, 0.01));
        put_f16(block, 2, random(-0.01, 0.01));
    },
};

#[inline(always)]
fn unpack(block: &[u8; 176], codes: &mut [i8; 256], scales: &mut [f32; 8], mins: &mut [f32; 8]) {
    k_scales::unpack_scales(bytes(block, 0), scales, mins);
    let high: &[u8; 32] = bytes(block, 16);
    let nibbles: &[u8; 128] = bytes(block, 48);
    for (at, (group, bytes)) in codes.as_chunks_mut::<64>().0.iter_mut().zip(nibbles.as_chunks::<32>().0).enumerate() {
        for (l, byte) in bytes.iter().enumerate() {
            let bits = high[l] >> (2 * at);
            group[l] = (byte & 15 | (bits & 1) << 4) as i8;
            group[l + 32] = (byte >> 4 | (bits >> 1 & 1) << 4) as i8;
        }
    }
}

fn quantise(x: &[f32; 256]) -> [u8; 176] {
    let (header, codes) = fit::affine_block(x, 31);
    let mut block = [0; 176];
    block[..16].copy_from_slice(&header);
    for (l, byte) in block[16..48].iter_mut().enumerate() {
        *byte = (0..8).fold(0, |bits, sub| bits | (codes[32 * sub + l] >> 4) << sub);
    }
    for (group, bytes) in block[48..].as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (l, byte) in bytes.iter_mut().enumerate() {
            *byte = codes[64 * group + l] & 15 | (codes[64 * group + l + 32] & 15) << 4;
        }
    }
    block
}

fn repack(row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    map_blocks::<176, 128, 48>(row, main, aux, |block, main, aux| {
        let (head, fifths) = aux.split_at_mut(16);
        head.copy_from_slice(&k_scales::device_header(bytes(block, 0)));
        // Bit `chunk` of byte `l` becomes bit `l` of word `chunk`.
        for (chunk, out) in fifths.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let bits = block[16..48].iter().enumerate();
            *out = bits.fold(0, |word, (l, byte)| word | u32::from(byte >> chunk & 1) << l).to_le_bytes();
        }
        k_scales::device_nibbles(bytes(block, 48), main);
    })
}
