//! Weights with random codes, for tests of kernels. They include types without an encoder.

use rand::{Rng, RngExt};

use super::{FloatType, TensorType, WeightType};

/// Encoded random codes, with scales that keep values within a few ones. Empty if `n` is not a
/// whole number of blocks.
pub fn random_weights(ty: TensorType, n: usize, rng: &mut impl Rng) -> Vec<u8> {
    let mut bytes = vec![0u8; ty.row_bytes(n).unwrap_or(0)];
    rng.fill_bytes(&mut bytes);
    let Some(weight_type) = ty.weight_type() else { return bytes };
    let mut random = |low: f32, high: f32| rng.random_range(low..high);
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        match weight_type {
            WeightType::Float(FloatType::F32) => block.copy_from_slice(&random(-1.0, 1.0).to_le_bytes()),
            WeightType::Float(FloatType::F16) => super::bits::put_f16(block, 0, random(-1.0, 1.0)),
            WeightType::Float(FloatType::BF16) => {
                block.copy_from_slice(&half::bf16::from_f32(random(-1.0, 1.0)).to_le_bytes());
            }
            WeightType::Blocks(ty) => (ty.format().sample)(block, &mut random),
        }
    }
    bytes
}
