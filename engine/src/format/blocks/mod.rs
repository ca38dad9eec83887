//! Quantised block types, one file each: layout, dequantisation (the oracle every kernel is tested against) and,
//! for the types `convert` writes, quantisation.

use super::TensorType;

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
        TensorType::F16 => {
            for (out, bytes) in dst.iter_mut().zip(src.as_chunks::<2>().0) {
                *out = half::f16::from_le_bytes(*bytes).to_f32();
            }
        }
        TensorType::BF16 => {
            for (out, bytes) in dst.iter_mut().zip(src.as_chunks::<2>().0) {
                *out = half::bf16::from_le_bytes(*bytes).to_f32();
            }
        }
        other => panic!("{other} is not a weight type"),
    }
}
