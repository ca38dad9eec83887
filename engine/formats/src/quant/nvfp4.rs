//! NVFP4: 64 four-bit floats (E2M1) in 36 bytes, four sub-blocks of 16. `x = scale / 2 * VALUES[q]`
//! with the table of MXFP4. The range of its scales is small, so files have a separate factor for
//! each tensor ([`Matrix::factor`](crate::format::Matrix::factor)). For this reason the engine does
//! not write the type.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | scales, unsigned floats of four bits of exponent with bias 7 and three of fraction (E4M3); 0x7f counts as zero |
//! | 4..36 | `q`: per sub-block eight bytes, byte `j` holds element `j` (low nibble) and `j + 8` (high nibble) |
//!
//! Encoding on the GPU ([`WeightType`](super::WeightType)): `main` has per chunk nibbles. `aux`
//! has a row's factor in F32, then per chunk two E4M3 bytes, scales of the halves.

use super::{
    BlockFormat, DeviceFormat, Grouping, Result, TensorType, bits::bytes, block_format::unpack_chunks, device,
    mxfp4::VALUES,
};

pub(super) const FORMAT: BlockFormat = BlockFormat {
    ty: TensorType::NVFP4,
    len: 64,
    bytes: 36,
    grouping: Grouping { len: 16, minima: false, lowest: -12, highest: 12 },
    unpack: |src, to| unpack_chunks(src, to, unpack),
    quantise: None,
    device: DeviceFormat {
        main_words: 4,
        aux_bytes: 4,
        row_factor: true,
        wgsl: include_str!("nvfp4.wgsl"),
        repack,
        ..DeviceFormat::PLAIN
    },
    sample: |block, random| block[..4].iter_mut().for_each(|scale| *scale = random(16.0, 56.0) as u8),
};

#[inline(always)]
fn unpack(block: &[u8; 36], codes: &mut [i8; 64], scales: &mut [f32; 4]) {
    *scales = unpack_scales(block);
    for (sub, codes) in codes.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        for (j, byte) in block[4 + 8 * sub..][..8].iter().enumerate() {
            codes[j] = VALUES[usize::from(byte & 15)];
            codes[j + 8] = VALUES[usize::from(byte >> 4)];
        }
    }
}

/// Half the scales of the four sub-blocks, to match the doubled [`VALUES`].
#[inline(always)]
pub fn unpack_scales(block: &[u8; 36]) -> [f32; 4] {
    [scale(block[0]), scale(block[1]), scale(block[2]), scale(block[3])]
}

/// Half of an E4M3 number. Its sign is ignored.
#[inline(always)]
pub(crate) fn scale(e4m3: u8) -> f32 {
    let (exponent, fraction) = (u32::from(e4m3 >> 3 & 15), u32::from(e4m3 & 7));
    // Subnormal numbers are multiples of 2^-9.
    let normal = f32::from_bits((exponent + 119) << 23 | fraction << 20);
    let subnormal = fraction as f32 * (1.0 / 1024.0);
    match e4m3 {
        0x7f => 0.0,
        _ if exponent == 0 => subnormal,
        _ => normal,
    }
}

fn repack(row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    // One block is two chunks, whose scales fill a word.
    device::map_blocks::<36, 32, 4>(row, main, aux, |block, main, aux| {
        *aux = bytes::<4>(block, 0).map(|scale| if scale == 0x7f { 0 } else { scale });
        for (chunk, main) in main.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let byte = |at: usize| block[4 + 16 * chunk + at / 16 * 8 + at % 8] >> (at / 8 % 2 * 4) & 15;
            *main = device::nibbles(&std::array::from_fn(byte));
        }
    })
}
