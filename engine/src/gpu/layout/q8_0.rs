//! Q8_0, and the types that are widened to it: 32 codes of eight bits and an F16 scale.

use half::f16;

use crate::{
    error::{Error, Result},
    format::{
        TensorType,
        blocks::{self, iq4, mxfp4},
    },
};

/// Splits blocks of `BYTES` into the codes and the scale that `of` makes of each.
fn each<const BYTES: usize>(
    row: &[u8],
    main: &mut [u8],
    aux: &mut [u8],
    of: impl Fn(&[u8; BYTES]) -> ([u8; 32], [u8; 2]),
) {
    let blocks = row.as_chunks::<BYTES>().0;
    // A row's last word of scales may have only one.
    aux[2 * blocks.len()..].fill(0);
    let out = main.as_chunks_mut::<32>().0.iter_mut().zip(aux.as_chunks_mut::<2>().0);
    for (block, (codes, scale)) in blocks.iter().zip(out) {
        (*codes, *scale) = of(block);
    }
}

/// Codes into a table of values.
fn look_up(nibbles: &[u8], table: &[i8; 16]) -> [u8; 32] {
    std::array::from_fn(|j| table[usize::from(nibbles[j % 16] >> (j / 16 * 4) & 15)] as u8)
}

/// `scale` as F16.
fn half(ty: TensorType, scale: f32) -> Result<[u8; 2]> {
    let half = f16::from_f32(scale);
    if scale.is_finite() && half.is_infinite() {
        let expected = format!("magnitudes up to {:e}", f16::MAX.to_f32());
        return Err(Error::invalid("scales of weights for the GPU", expected, format!("{scale:e} ({ty})")));
    }
    Ok(half.to_le_bytes())
}

pub(super) fn repack(row: &[u8], main: &mut [u8], aux: &mut [u8]) {
    each::<34>(row, main, aux, |block| (std::array::from_fn(|j| block[2 + j]), [block[0], block[1]]));
}

/// Five-bit codes less 16.
pub(super) fn of_q5_0(row: &[u8], main: &mut [u8], aux: &mut [u8]) {
    each::<22>(row, main, aux, |block| {
        let fifth = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
        let code = |j: usize| {
            let low = block[6 + j % 16] >> (j / 16 * 4) & 15;
            (low | ((fifth >> j & 1) as u8) << 4).wrapping_sub(16)
        };
        (std::array::from_fn(code), [block[0], block[1]])
    });
}

pub(super) fn of_iq4_nl(row: &[u8], main: &mut [u8], aux: &mut [u8]) {
    each::<18>(row, main, aux, |block| (look_up(&block[2..], &iq4::VALUES), [block[0], block[1]]));
}

pub(super) fn of_iq4_xs(row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    let out = main.as_chunks_mut::<256>().0.iter_mut().zip(aux.as_chunks_mut::<16>().0);
    for (block, (main, aux)) in row.as_chunks::<136>().0.iter().zip(out) {
        let d = f16::from_le_bytes([block[0], block[1]]).to_f32();
        for (sub, scale) in iq4::xs_scales(block).into_iter().enumerate() {
            main[32 * sub..][..32].copy_from_slice(&look_up(&block[8 + 16 * sub..][..16], &iq4::VALUES));
            aux[2 * sub..][..2].copy_from_slice(&half(TensorType::IQ4_XS, d * f32::from(scale))?);
        }
    }
    Ok(())
}

/// The codes are multiplied by eight, so that scales eight times smaller than F16's smallest are not lost.
pub(super) fn of_mxfp4(row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    let table = mxfp4::VALUES.map(|value| value * 8);
    let blocks = row.as_chunks::<17>().0;
    for block in blocks {
        half(TensorType::MXFP4, mxfp4::scale(block[0]) / 8.0)?;
    }
    each::<17>(row, main, aux, |block| {
        (look_up(&block[1..], &table), f16::from_f32(mxfp4::scale(block[0]) / 8.0).to_le_bytes())
    });
    Ok(())
}

/// Decoded and quantised again.
pub(super) fn requantise(ty: TensorType, row: &[u8], main: &mut [u8], aux: &mut [u8]) -> Result<()> {
    let (mut values, mut codes) = ([0.0; 256], Vec::with_capacity(8 * 34));
    let (bytes, len) = (ty.block_bytes(), ty.block_len());
    let chunks = row.len() / bytes * (len / 32);
    aux[2 * chunks..].fill(0);
    let out = main.chunks_exact_mut(len).zip(aux.chunks_exact_mut(len / 16));
    for (block, (main, aux)) in row.chunks_exact(bytes).zip(out) {
        let values = &mut values[..len];
        blocks::dequantise(ty, block, values);
        codes.clear();
        blocks::quantise(TensorType::Q8_0, values, &mut codes)?;
        for (at, code) in codes.as_chunks::<34>().0.iter().enumerate() {
            aux[2 * at..][..2].copy_from_slice(&code[..2]);
            main[32 * at..][..32].copy_from_slice(&code[2..]);
        }
    }
    Ok(())
}
