//! Quantised block types, one file each: layout, dequantisation (the oracle every kernel is tested against) and, for
//! the types `convert` writes, quantisation. A file works on one block; [`dequantise`] and [`quantise`] walk a row.
//! Both are exact where the format leaves no choice: the bytes and values are those of the reference implementation,
//! bit for bit. Where it does leave one (scales of the K types) `fit` minimises the squared error.

mod bf16;
mod f16;
mod fit;
pub mod iq4;
mod k_scales;
pub mod mxfp4;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod round;

pub use k_scales::unpack as unpack_k_scales;
pub use q3_k::unpack_scales as unpack_q3_k_scales;

use super::TensorType;
use crate::error::{Error, Result};

/// Decodes whole blocks of `src` into `dst`. `src` holds exactly `dst.len()` elements.
///
/// # Panics
/// If the lengths disagree or `ty` is not a weight type; both are checked when a tensor is loaded.
pub fn dequantise(ty: TensorType, src: &[u8], dst: &mut [f32]) {
    assert_eq!(Some(src.len()), ty.row_bytes(dst.len()), "{ty} row of {} elements", dst.len());
    match ty {
        TensorType::F32 => {
            for (out, bytes) in dst.iter_mut().zip(src.as_chunks::<4>().0) {
                *out = f32::from_le_bytes(*bytes);
            }
        }
        TensorType::F16 => f16::dequantise(src, dst),
        TensorType::BF16 => bf16::dequantise(src, dst),
        TensorType::Q4_0 => decode(src, dst, q4_0::dequantise),
        TensorType::Q4_1 => decode(src, dst, q4_1::dequantise),
        TensorType::Q5_0 => decode(src, dst, q5_0::dequantise),
        TensorType::Q5_1 => decode(src, dst, q5_1::dequantise),
        TensorType::Q8_0 => decode(src, dst, q8_0::dequantise),
        TensorType::Q2_K => decode(src, dst, q2_k::dequantise),
        TensorType::Q3_K => decode(src, dst, q3_k::dequantise),
        TensorType::Q4_K => decode(src, dst, q4_k::dequantise),
        TensorType::Q5_K => decode(src, dst, q5_k::dequantise),
        TensorType::Q6_K => decode(src, dst, q6_k::dequantise),
        TensorType::IQ4_NL => decode(src, dst, iq4::dequantise_nl),
        TensorType::IQ4_XS => decode(src, dst, iq4::dequantise_xs),
        TensorType::MXFP4 => decode(src, dst, mxfp4::dequantise),
        TensorType::I8 | TensorType::I16 | TensorType::I32 | TensorType::I64 | TensorType::F64 => {
            panic!("{ty} is not a weight type")
        }
    }
}

/// Types [`quantise`] writes.
pub const QUANTISABLE: [TensorType; 11] = {
    use TensorType::*;
    [F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K]
};

/// Appends the blocks of `src` to `dst`; `src` is a whole number of blocks. Rows are independent, so callers may
/// split a matrix over threads.
///
/// # Errors
/// [`Error::Unsupported`] for a type outside [`QUANTISABLE`], [`Error::Invalid`] for a length that is not a whole number
/// of blocks and for values the type cannot hold: NaN, infinities, and magnitudes beyond the range of F16 in every type
/// that stores F16 numbers. `dst` is then unchanged.
pub fn quantise(ty: TensorType, src: &[f32], dst: &mut Vec<u8>) -> Result<()> {
    let limit = match ty {
        TensorType::F32 => f32::MAX,
        TensorType::BF16 => half::bf16::MAX.to_f32(),
        _ => half::f16::MAX.to_f32(),
    };
    let Some(bytes) = ty.row_bytes(src.len()) else {
        return Err(Error::invalid("elements of a row", format!("a multiple of {} ({ty})", ty.block_len()), src.len()));
    };
    if QUANTISABLE.contains(&ty) {
        // One pass without branches; the slow search for the culprit runs only when there is one.
        let holds = src.iter().fold(true, |all, x| all & (x.abs() <= limit));
        if !holds && let Some((at, x)) = src.iter().enumerate().find(|(_, x)| x.is_nan() || x.abs() > limit) {
            return Err(Error::invalid(
                "values to quantise",
                format!("magnitudes up to {limit:e} ({ty})"),
                format!("{x} at element {at}"),
            ));
        }
    }
    dst.reserve(bytes);
    match ty {
        TensorType::F32 => src.iter().for_each(|x| dst.extend_from_slice(&x.to_le_bytes())),
        TensorType::F16 => f16::quantise(src, dst),
        TensorType::BF16 => bf16::quantise(src, dst),
        TensorType::Q4_0 => encode(src, dst, q4_0::quantise),
        TensorType::Q4_1 => encode(src, dst, q4_1::quantise),
        TensorType::Q5_0 => encode(src, dst, q5_0::quantise),
        TensorType::Q5_1 => encode(src, dst, q5_1::quantise),
        TensorType::Q8_0 => encode(src, dst, q8_0::quantise),
        TensorType::Q4_K => encode(src, dst, q4_k::quantise),
        TensorType::Q5_K => encode(src, dst, q5_k::quantise),
        TensorType::Q6_K => encode(src, dst, q6_k::quantise),
        other => {
            return Err(Error::Unsupported {
                what: "type to quantise to",
                got: other.name().to_owned(),
                supported: QUANTISABLE.map(TensorType::name).join(", "),
            });
        }
    }
    Ok(())
}

fn decode<const BYTES: usize, const LEN: usize>(src: &[u8], dst: &mut [f32], block: fn(&[u8; BYTES], &mut [f32; LEN])) {
    for (bytes, out) in src.as_chunks().0.iter().zip(dst.as_chunks_mut().0) {
        block(bytes, out);
    }
}

fn encode<const BYTES: usize, const LEN: usize>(src: &[f32], dst: &mut Vec<u8>, block: fn(&[f32; LEN]) -> [u8; BYTES]) {
    for x in src.as_chunks().0 {
        dst.extend_from_slice(&block(x));
    }
}

/// The F16 number at `at`.
fn f16_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// `x` as F16, little endian, and the value that was stored.
fn to_f16(x: f32) -> ([u8; 2], f32) {
    let half = half::f16::from_f32(x);
    (half.to_le_bytes(), half.to_f32())
}

#[cfg(test)]
mod tests;
