//! Weights with random codes, for tests of kernels. They include types without an encoder.

use rand::{Rng, RngExt};

use super::{BlockType, Encoding, FloatType, TensorType};

/// Every type of weights, floats first.
pub const WEIGHTS: [TensorType; 29] = {
    let (mut types, mut len) = ([TensorType::F32; 29], 0);
    let (mut floats, mut at) = (true, 0);
    while len < types.len() {
        if at == TensorType::ALL.len() {
            (floats, at) = (false, 0);
        }
        match TensorType::ALL[at].encoding() {
            Some(Encoding::Float(_)) if floats => (types[len], len) = (TensorType::ALL[at], len + 1),
            Some(Encoding::Blocks(_)) if !floats => (types[len], len) = (TensorType::ALL[at], len + 1),
            _ => {}
        }
        at += 1;
    }
    types
};

/// Encoded random codes, with scales that keep values within a few ones. Empty if `n` is not a
/// whole number of blocks.
pub fn random_weights(ty: TensorType, n: usize, rng: &mut impl Rng) -> Vec<u8> {
    let mut bytes = vec![0u8; ty.row_bytes(n).unwrap_or(0)];
    rng.fill_bytes(&mut bytes);
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        let mut put = |at: usize, low: f32, high: f32| {
            let scale = half::f16::from_f32(rng.random_range(low..high));
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        };
        let Some(encoding) = ty.encoding() else { continue };
        match encoding {
            Encoding::Float(FloatType::F32) => block.copy_from_slice(&rng.random_range(-1f32..1.0).to_le_bytes()),
            Encoding::Float(FloatType::F16) => put(0, -1.0, 1.0),
            Encoding::Float(FloatType::BF16) => {
                let value = half::bf16::from_f32(rng.random_range(-1.0..1.0));
                block.copy_from_slice(&value.to_le_bytes());
            }
            Encoding::Blocks(BlockType::Q4_0 | BlockType::Q5_0 | BlockType::Q8_0 | BlockType::IQ4_NL) => {
                put(0, -0.02, 0.02);
            }
            Encoding::Blocks(BlockType::IQ4_XS) => put(0, -0.001, 0.001),
            Encoding::Blocks(BlockType::Q4_1 | BlockType::Q5_1) => {
                put(0, -0.1, 0.1);
                put(2, -1.0, 1.0);
            }
            Encoding::Blocks(BlockType::Q4_K | BlockType::Q5_K) => {
                put(0, -0.01, 0.01);
                put(2, -0.01, 0.01);
            }
            Encoding::Blocks(BlockType::Q2_K) => {
                put(80, -0.05, 0.05);
                put(82, -0.05, 0.05);
            }
            Encoding::Blocks(BlockType::Q3_K) => put(108, -0.02, 0.02),
            Encoding::Blocks(BlockType::Q6_K) => put(208, -0.001, 0.001),
            Encoding::Blocks(BlockType::IQ2_XXS | BlockType::IQ2_XS | BlockType::IQ2_S) => put(0, 0.001, 0.005),
            Encoding::Blocks(BlockType::IQ3_XXS | BlockType::IQ3_S) => put(0, 0.001, 0.003),
            Encoding::Blocks(BlockType::IQ1_S) => put(0, 0.01, 0.1),
            Encoding::Blocks(BlockType::IQ1_M) => {
                let bits = half::f16::from_f32(rng.random_range(0.01..0.1)).to_bits();
                for (at, byte) in block[49..].iter_mut().step_by(2).enumerate() {
                    *byte = *byte & 15 | ((bits >> (4 * at) & 15) << 4) as u8;
                }
            }
            Encoding::Blocks(BlockType::TQ1_0) => put(52, -1.0, 1.0),
            Encoding::Blocks(BlockType::TQ2_0) => put(64, -1.0, 1.0),
            Encoding::Blocks(BlockType::Q1_0 | BlockType::Q2_0) => put(0, -1.0, 1.0),
            // Any codes. The factor belongs to the whole tensor.
            Encoding::Blocks(BlockType::I2_S) => {}
            Encoding::Blocks(BlockType::NVFP4) => block[..4].fill_with(|| rng.random_range(0x10..0x38)),
            Encoding::Blocks(BlockType::MXFP4) => block[0] = rng.random_range(120..128),
        }
    }
    bytes
}
