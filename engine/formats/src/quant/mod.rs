//! Types of weights. Each block-quantised type has one page, a Rust file and a WGSL file of the
//! same name. The page has the layout, tables, decoding to codes and scales, encoding on the GPU,
//! and the WGSL text that kernels decode it with. If this engine writes the type, the page has its
//! quantisation too. Its `FORMAT` ([`BlockFormat`]) collects them. The table below lists the types.
//! [`dequantise`] (the oracle of all kernel tests), [`quantise`] and [`repack`] process rows of any
//! type.
//!
//! A new type needs a page, its `mod` and its row here, and one arm each in `blocks.rs` of
//! `cpu/simd/avx2`, `avx512` and `neon`. The compiler reports missing arms. Tests take their types
//! from [`TensorType::ALL`].
//!
//! Results are exact if the format leaves no choice. Bytes and values then equal those of the
//! reference implementation, bit for bit. If the format leaves a choice (scales of the K types),
//! `fit` minimises the squared error.

mod bf16;
mod bits;
mod block_format;
pub mod code_books;
mod device;
mod f16;
mod fit;
mod i2_s;
pub mod iq1_m;
pub mod iq1_s;
pub mod iq2_s;
pub mod iq2_xs;
pub mod iq2_xxs;
pub mod iq3_s;
pub mod iq3_xxs;
pub mod iq4_nl;
pub mod iq4_xs;
pub mod k_scales;
pub mod mxfp4;
pub mod nvfp4;
mod q1_0;
mod q2_0;
pub mod q2_k;
pub mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
pub mod q6_k;
mod q8_0;
mod round;
pub mod sample;
mod tensor_type;
pub mod tq1_0;
mod tq2_0;

pub use bits::{f16_at, f16_to_f32};
pub use block_format::{BlockFormat, DeviceFormat, Grouping, UnpackedMut};
pub use block_format::{unpack_32, unpack_256};
pub use device::repack;
pub use i2_s::encode_i2_s;

use tensor_type::tensor_types;
use thermocline_base::error::{Error, Result};

/// Type of weights. Kernels have separate arithmetic for each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WeightType {
    /// Every element is a separate number.
    Float(FloatType),
    /// Small integers in blocks with shared scales.
    Blocks(BlockType),
}

tensor_types! {
    floats {
        F32 = 0, 4 bytes;
        F16 = 1, 2 bytes;
        BF16 = 30, 2 bytes;
    }
    blocks {
        Q4_0 = 2, q4_0;
        Q4_1 = 3, q4_1;
        Q5_0 = 6, q5_0;
        Q5_1 = 7, q5_1;
        Q8_0 = 8, q8_0;
        Q2_K = 10, q2_k;
        Q3_K = 11, q3_k;
        Q4_K = 12, q4_k;
        Q5_K = 13, q5_k;
        Q6_K = 14, q6_k;
        IQ2_XXS = 16, iq2_xxs;
        IQ2_XS = 17, iq2_xs;
        IQ3_XXS = 18, iq3_xxs;
        IQ1_S = 19, iq1_s;
        IQ4_NL = 20, iq4_nl;
        IQ3_S = 21, iq3_s;
        IQ2_S = 22, iq2_s;
        IQ4_XS = 23, iq4_xs;
        IQ1_M = 29, iq1_m;
        TQ1_0 = 34, tq1_0;
        TQ2_0 = 35, tq2_0;
        I2_S = 36, i2_s;
        MXFP4 = 39, mxfp4;
        NVFP4 = 40, nvfp4;
        Q1_0 = 41, q1_0;
        Q2_0 = 42, q2_0;
    }
    numbers {
        I8 = 24, 1 bytes;
        I16 = 25, 2 bytes;
        I32 = 26, 4 bytes;
        I64 = 27, 8 bytes;
        F64 = 28, 8 bytes;
    }
}

/// Elements that are unpacked at a time, a multiple of every type's block length.
pub const UNPACK_STEP: usize = 256;

/// Decodes whole blocks of `src` into `dst`. `src` has exactly `dst.len()` elements.
///
/// # Panics
/// If the lengths disagree, or `ty` is not a weight type. Both are checked when a tensor is loaded.
pub fn dequantise(ty: TensorType, src: &[u8], dst: &mut [f32]) {
    assert_eq!(Some(src.len()), ty.row_bytes(dst.len()), "{ty} row of {} elements", dst.len());
    match ty.weight_type() {
        Some(WeightType::Float(FloatType::F32)) => {
            for (out, bytes) in dst.iter_mut().zip(src.as_chunks::<4>().0) {
                *out = f32::from_le_bytes(*bytes);
            }
        }
        Some(WeightType::Float(FloatType::F16)) => f16::dequantise(src, dst),
        Some(WeightType::Float(FloatType::BF16)) => bf16::dequantise(src, dst),
        Some(WeightType::Blocks(ty)) => match ty.format().grouping {
            Grouping { len: 16, minima: false, .. } => dequantise_blocks::<16, false>(ty.format(), src, dst),
            Grouping { len: 16, minima: true, .. } => dequantise_blocks::<16, true>(ty.format(), src, dst),
            Grouping { minima: false, .. } => dequantise_blocks::<32, false>(ty.format(), src, dst),
            Grouping { minima: true, .. } => dequantise_blocks::<32, true>(ty.format(), src, dst),
        },
        None => panic!("{ty} is not a weight type"),
    }
}

/// Computes `scale * code`, and `+ min` if the type has minima, for groups of `LEN` elements.
fn dequantise_blocks<const LEN: usize, const MINIMA: bool>(format: &BlockFormat, src: &[u8], dst: &mut [f32]) {
    let (mut codes, mut scales, mut mins) = ([0; UNPACK_STEP], [0.0; UNPACK_STEP / 16], [0.0; UNPACK_STEP / 16]);
    for (src, dst) in src.chunks(UNPACK_STEP / format.len * format.bytes).zip(dst.chunks_mut(UNPACK_STEP)) {
        let codes = &mut codes[..dst.len()];
        (format.unpack)(src, UnpackedMut { codes, scales: &mut scales, mins: &mut mins });
        let groups = codes.as_chunks::<LEN>().0.iter().zip(dst.as_chunks_mut::<LEN>().0);
        for ((codes, dst), (scale, min)) in groups.zip(scales.iter().zip(&mins)) {
            for (out, code) in dst.iter_mut().zip(codes) {
                let x = scale * f32::from(*code);
                *out = if MINIMA { x + min } else { x };
            }
        }
    }
}

/// Types that [`quantise`] writes.
pub const QUANTISABLE: [TensorType; 15] = {
    use TensorType::*;
    [F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, TQ1_0, TQ2_0, MXFP4, Q1_0]
};

/// Fails to compile if [`QUANTISABLE`] lacks a type with a quantiser.
const _: () = {
    let (mut at, mut written) = (0, 0);
    while at < TensorType::ALL.len() {
        written += match TensorType::ALL[at].weight_type() {
            Some(WeightType::Blocks(ty)) => ty.format().quantise.is_some() as usize,
            Some(WeightType::Float(_)) => 1,
            None => 0,
        };
        at += 1;
    }
    assert!(written == QUANTISABLE.len());
};

/// Encodes `src`, a whole number of blocks, and appends it to `dst`. Rows are independent, so
/// callers may split a matrix over threads.
///
/// # Errors
/// [`Error::Unsupported`] for a type outside [`QUANTISABLE`]. [`Error::Invalid`] for a length that
/// is not a whole number of blocks, and for values that the type cannot represent: NaN, infinities,
/// and magnitudes beyond the range of F16 in types that store F16 numbers. `dst` is then unchanged.
pub fn quantise(ty: TensorType, src: &[f32], dst: &mut Vec<u8>) -> Result<()> {
    let Some(bytes) = ty.row_bytes(src.len()) else {
        return Err(Error::invalid("elements of a row", format!("a multiple of {} ({ty})", ty.block_len()), src.len()));
    };
    let (quantise, limit): (Option<block_format::Quantise>, f32) = match ty.weight_type() {
        Some(WeightType::Float(FloatType::F32)) => (Some(f32_bytes), f32::MAX),
        Some(WeightType::Float(FloatType::F16)) => (Some(f16::quantise), half::f16::MAX.to_f32()),
        Some(WeightType::Float(FloatType::BF16)) => (Some(bf16::quantise), half::bf16::MAX.to_f32()),
        Some(WeightType::Blocks(ty)) => (ty.format().quantise, half::f16::MAX.to_f32()),
        None => (None, 0.0),
    };
    let quantise = quantise.ok_or_else(|| {
        Error::unsupported("type to quantise to", ty.name(), QUANTISABLE.map(TensorType::name).join(", "))
    })?;
    // One pass without branches. The slow search for the bad value runs only if there is one.
    let holds = src.iter().fold(true, |all, x| all & (x.abs() <= limit));
    if !holds && let Some((at, x)) = src.iter().enumerate().find(|(_, x)| x.is_nan() || x.abs() > limit) {
        return Err(Error::invalid(
            "values to quantise",
            format!("magnitudes up to {limit:e} ({ty})"),
            format!("{x} at element {at}"),
        ));
    }
    dst.reserve(bytes);
    quantise(src, dst);
    Ok(())
}

fn f32_bytes(src: &[f32], dst: &mut Vec<u8>) {
    src.iter().for_each(|x| dst.extend_from_slice(&x.to_le_bytes()));
}

#[cfg(test)]
mod tests;
