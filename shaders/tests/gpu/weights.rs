//! Random weights of every type, as they lie in device memory and as the numbers they mean.

use half::{bf16, f16};
use thermocline_shaders::WeightType;

use super::noise;

/// A matrix `[rows, cols]`.
#[derive(Clone)]
pub struct Weights {
    pub main: Vec<u32>,
    /// Never empty, so that it can be bound.
    pub aux: Vec<u32>,
    /// Row after row.
    pub values: Vec<f64>,
}

/// Words of random bits.
fn words(len: usize, seed: u32) -> Vec<u32> {
    let half = |seed| noise(len, seed).into_iter().map(|v| (v * 32768.0) as i32 as u32 & 0xffff);
    half(seed).zip(half(seed + 1000)).map(|(low, high)| low | high << 16).collect()
}

/// Halves of a word.
fn f16s(word: u32) -> [f64; 2] {
    [word as u16, (word >> 16) as u16].map(|bits| f16::from_bits(bits).to_f64())
}

/// Pairs of floats below `scale`.
fn scales(len: usize, seed: u32, scale: f32) -> Vec<u32> {
    let halves: Vec<f16> = noise(len * 2, seed).into_iter().map(|v| f16::from_f32(v * scale)).collect();
    bytemuck::pod_collect_to_vec(&halves)
}

/// Column `j`'s of a chunk's four words of nibbles.
fn nibble(words: &[u32], j: usize) -> u32 {
    words[j % 16 / 4] >> (j % 4 * 8 + j / 16 * 4) & 15
}

/// Scale times code minus minimum, of column `j` of chunk `c` of a super-block.
fn affine(header: &[u32], c: usize, code: u32) -> f64 {
    let [d, dmin] = f16s(header[0]);
    let scale = (header[1] >> (4 * c) & 15) | (header[3] >> (2 * c) & 3) << 4;
    let min = (header[2] >> (4 * c) & 15) | (header[3] >> (2 * c + 16) & 3) << 4;
    d * f64::from(scale) * f64::from(code) - dmin * f64::from(min)
}

impl Weights {
    /// Values of the order of one; `cols` is a multiple of the type's block.
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
            WeightType::Q4_K | WeightType::Q5_K | WeightType::Q6_K => {
                let (words, at, scale) = match ty {
                    WeightType::Q4_K => (4, 0, 0.003),
                    WeightType::Q5_K => (12, 0, 0.0015),
                    _ => (21, 20, 0.0005),
                };
                let headers = scales(aux.len() / words, seed, scale);
                aux.chunks_exact_mut(words).zip(headers).for_each(|(block, header)| block[at] = header);
            }
        }
        let mut values = Vec::with_capacity(rows * cols);
        for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
            let (chunk, j) = (col / 32, col % 32);
            let main = &main[row * main_row + chunk * (main_row * 32 / cols)..];
            let aux = &aux[row * aux_row..];
            values.push(match ty {
                WeightType::F32 => f64::from(f32::from_bits(main[j])),
                WeightType::F16 => f16s(main[j / 2])[j % 2],
                WeightType::BF16 => bf16::from_bits((main[j / 2] >> (j % 2 * 16)) as u16).to_f64(),
                WeightType::Q8_0 => {
                    f64::from((main[j / 4] >> (j % 4 * 8)) as u8 as i8) * f16s(aux[chunk / 2])[chunk % 2]
                }
                WeightType::Q4_0 => (f64::from(nibble(main, j)) - 8.0) * f16s(aux[chunk / 2])[chunk % 2],
                WeightType::MXFP4 => {
                    let (code, e) = (nibble(main, j), aux[chunk / 4] >> (chunk % 4 * 8) & 255);
                    let magnitude = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0][code as usize & 7];
                    (if code > 7 { -magnitude } else { magnitude }) * 2.0_f64.powi(e as i32 - 128)
                }
                WeightType::Q4_K => affine(&aux[chunk / 8 * 4..], chunk % 8, nibble(main, j)),
                WeightType::Q5_K => {
                    let aux = &aux[chunk / 8 * 12..];
                    affine(aux, chunk % 8, nibble(main, j) | (aux[4 + chunk % 8] >> j & 1) << 4)
                }
                WeightType::Q6_K => {
                    let (aux, c) = (&aux[chunk / 8 * 21..], chunk % 8);
                    let code = nibble(main, j) | (aux[2 * c + j / 16] >> (j % 16 * 2) & 3) << 4;
                    let scale = (aux[16 + c / 2] >> (c % 2 * 16 + j / 16 * 8)) as u8 as i8;
                    f16s(aux[20])[0] * f64::from(scale) * (f64::from(code) - 32.0)
                }
            });
        }
        Weights { main, aux, values }
    }
}
