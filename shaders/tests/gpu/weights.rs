//! Random weights of every type, as they lie in device memory and as the numbers they mean.

use half::f16;
use thermocline_shaders::WeightType;

use super::noise;

/// A matrix `[rows, cols]`.
pub struct Weights {
    pub main: Vec<u32>,
    /// Never empty, so that it can be bound.
    pub aux: Vec<u32>,
    /// Row after row.
    pub values: Vec<f64>,
}

impl Weights {
    /// Values of the order of one; `cols` is a multiple of the type's block.
    pub fn random(ty: WeightType, rows: usize, cols: usize, seed: u32) -> Self {
        let words = |len: usize, seed| noise(len, seed).iter().map(|v| (v * 32768.0) as i32 as u32 & 0xffff).collect();
        let halves = |len: usize, seed| -> Vec<u32> {
            let low: Vec<u32> = words(len, seed);
            let high: Vec<u32> = words(len, seed + 1000);
            low.iter().zip(high).map(|(low, high)| low | high << 16).collect()
        };
        match ty {
            WeightType::F32 => {
                let values = noise(rows * cols, seed);
                let main = values.iter().map(|v| v.to_bits()).collect();
                Weights { main, aux: vec![0], values: values.iter().map(|v| f64::from(*v)).collect() }
            }
            WeightType::Q4_0 => {
                let main = halves(rows * ty.main_len(cols) * 4, seed);
                let scales: Vec<f16> =
                    noise(rows * ty.aux_len(cols) * 2, seed + 1).iter().map(|v| f16::from_f32(v * 0.2)).collect();
                let mut values = Vec::with_capacity(rows * cols);
                for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
                    let (chunk, j) = (col / 32, col % 32);
                    let word = main[(row * ty.main_len(cols) + chunk) * 4 + j % 16 / 4];
                    let code = word >> (j % 4 * 8 + j / 16 * 4) & 15;
                    let scale = scales[row * ty.aux_len(cols) * 2 + chunk];
                    values.push((f64::from(code) - 8.0) * scale.to_f64());
                }
                Weights { main, aux: bytemuck::pod_collect_to_vec(&scales), values }
            }
            _ => panic!("{ty} weights"),
        }
    }
}
