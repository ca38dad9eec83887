//! Random weights of every type, in device memory and as values.

use half::{bf16, f16};
use thermocline_shaders::{WeightRow, WeightType};

use super::noise;

/// The work divisions with which a type is tested: all of them for one float type, one block type
/// and one super-block type, and the first for other types. Reading a type does not depend on the
/// division.
pub fn grids_of<T>(ty: WeightType, all: &[T]) -> &[T] {
    if matches!(ty, WeightType::F32 | WeightType::Q4_0 | WeightType::Q4_K) { all } else { &all[..1] }
}

/// A matrix `[rows, cols]`.
#[derive(Clone)]
pub struct Weights {
    pub main: Vec<u32>,
    /// `aux` words, never empty, so that they can be bound.
    pub aux: Vec<u32>,
    /// Values in row-major order.
    pub values: Vec<f64>,
}

/// Words of random bits.
fn words(len: usize, seed: u32) -> Vec<u32> {
    let half = |seed| noise(len, seed).into_iter().map(|v| (v * 32768.0) as i32 as u32 & 0xffff);
    half(seed).zip(half(seed + 1000)).map(|(low, high)| low | high << 16).collect()
}

/// Pairs of floats below `scale`.
fn scales(len: usize, seed: u32, scale: f32) -> Vec<u32> {
    let halves: Vec<f16> = noise(len * 2, seed).into_iter().map(|v| f16::from_f32(v * scale)).collect();
    bytemuck::pod_collect_to_vec(&halves)
}

/// Writes pairs of floats below `scale` to word `at` of each block of `words` words.
fn put(aux: &mut [u32], words: usize, at: usize, scale: f32) {
    let heads = scales(aux.len() / words, at as u32, scale);
    aux.chunks_exact_mut(words).zip(heads).for_each(|(block, head)| block[at] = head);
}

/// Writes pairs of floats below `scale` to the end of each row of `row` words, one float per block.
fn put_last(aux: &mut [u32], row: usize, blocks: usize, scale: f32) {
    for (at, row) in aux.chunks_exact_mut(row).enumerate() {
        let first = row.len() - blocks.div_ceil(2);
        row[first..].copy_from_slice(&scales(blocks.div_ceil(2), at as u32, scale));
    }
}

impl Weights {
    /// Random weights with values of the order of one. `cols` is a multiple of the type's block.
    pub fn random(ty: WeightType, rows: usize, cols: usize, seed: u32) -> Self {
        let (main_row, aux_row) = (ty.main_len(cols) * 4, ty.aux_len(cols));
        let mut main = words(rows * main_row, seed);
        let mut aux = words((rows * aux_row).max(1), seed + 1);
        match ty {
            WeightType::F32 => main = noise(rows * cols, seed).into_iter().map(f32::to_bits).collect(),
            WeightType::F16 => main = scales(rows * main_row, seed, 1.0),
            WeightType::BF16 => {
                let halves: Vec<bf16> = noise(rows * cols, seed).into_iter().map(bf16::from_f32).collect();
                main = bytemuck::pod_collect_to_vec(&halves);
            }
            WeightType::Q8_0 => aux = scales(rows * aux_row, seed, 0.02),
            WeightType::Q4_0 => aux = scales(rows * aux_row, seed, 0.2),
            // Scales of 2^-8 to 2^-5.
            WeightType::MXFP4 => aux.iter_mut().for_each(|word| *word = *word & 0x0303_0303 | 0x7878_7878),
            // Scales of 2^-6 to 2^-2, and smaller ones.
            WeightType::NVFP4 => {
                aux.iter_mut().for_each(|word| *word &= 0x2f2f_2f2f);
                let factors = noise(rows, seed + 2).into_iter().map(|factor| factor.to_bits());
                aux.chunks_exact_mut(aux_row).zip(factors).for_each(|(row, factor)| row[0] = factor);
            }
            WeightType::I2_S => aux = noise(rows, seed).into_iter().map(f32::to_bits).collect(),
            WeightType::Q4_1 => aux = scales(rows * aux_row, seed, 0.2),
            WeightType::Q4_K => put(&mut aux, 4, 0, 0.003),
            WeightType::Q5_K => put(&mut aux, 12, 0, 0.0015),
            WeightType::Q6_K => put(&mut aux, 21, 20, 0.0005),
            WeightType::Q5_1 => put(&mut aux, 2, 1, 0.1),
            WeightType::Q2_K => put(&mut aux, 5, 0, 0.03),
            WeightType::IQ4_XS => {
                let heads = scales(aux.len() / 2, seed, 0.0005);
                aux.chunks_exact_mut(2)
                    .zip(heads)
                    .for_each(|(block, head)| block[0] = block[0] & 0xffff_0000 | head & 0xffff);
            }
            // Scales after the words of all blocks of a row.
            WeightType::Q5_0 => put_last(&mut aux, aux_row, cols / 32, 0.1),
            WeightType::IQ4_NL => put_last(&mut aux, aux_row, cols / 32, 0.015),
            WeightType::Q1_0 | WeightType::Q2_0 | WeightType::TQ1_0 | WeightType::TQ2_0 => {
                put_last(&mut aux, aux_row, cols / ty.block(), 1.0);
            }
            WeightType::Q3_K => put_last(&mut aux, aux_row, cols / 256, 0.01),
            WeightType::IQ1_S => put_last(&mut aux, aux_row, cols / 256, 0.1),
            // The bits of the scale are the upper nibbles of the halves of the last two words.
            WeightType::IQ1_M => {
                let heads = scales(aux.len() / 6, seed, 0.1);
                for (block, head) in aux.chunks_exact_mut(6).zip(heads) {
                    for at in 0..4 {
                        let shift = at % 2 * 16 + 12;
                        block[4 + at / 2] = block[4 + at / 2] & !(15 << shift) | (head >> (4 * at) & 15) << shift;
                    }
                }
            }
            WeightType::IQ2_XXS | WeightType::IQ2_XS | WeightType::IQ2_S => {
                put_last(&mut aux, aux_row, cols / 256, 0.01);
            }
            WeightType::IQ3_XXS | WeightType::IQ3_S => put_last(&mut aux, aux_row, cols / 256, 0.003),
        }
        let mut values = Vec::with_capacity(rows * cols);
        for row in 0..rows {
            let main = &main[row * main_row..][..main_row];
            let row = WeightRow { ty, main, aux: &aux[row * aux_row..][..aux_row] };
            values.extend((0..cols).map(|col| row.value(col)));
        }
        Weights { main, aux, values }
    }
}
