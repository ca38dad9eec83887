//! Speed of single matrix products on the CPU, in bytes per second for one token and in
//! multiply-adds per second for many tokens.

use std::time::Instant;

use serde::Serialize;

use thermocline_base::error::{Error, Result};
use thermocline_cpu::{Cpu, MatmulJob};
use thermocline_formats::{
    format::{Bytes, Matrix},
    quant,
    quant::TensorType,
};

/// Speed of the product of one weight type.
#[derive(Debug, Clone, Serialize)]
pub struct KernelSpeed {
    /// Name of the weight type.
    pub weight_type: String,
    /// Tokens multiplied together.
    pub tokens: usize,
    /// Seconds of one product, the shortest of all rounds.
    pub seconds: f64,
    /// Bytes of weights read per second.
    pub bytes_per_second: f64,
    /// Multiply-accumulates per second.
    pub macs_per_second: f64,
}

/// Measures `W x` for a `[rows, cols]` matrix of type `ty` and `tokens` tokens, the best of
/// `rounds`.
///
/// # Errors
/// If `cols` is not a whole number of blocks, or the type has no encoder.
pub fn kernel_speed(
    cpu: &Cpu,
    ty: TensorType,
    rows: usize,
    cols: usize,
    tokens: usize,
    rounds: usize,
) -> Result<KernelSpeed> {
    let weight = matrix_of_repeated_rows(ty, rows, cols)?;
    let bytes = weight.data().len();
    let x = noise(tokens * cols);
    let mut out = vec![0.0; tokens * rows];
    let mut seconds = f64::INFINITY;
    for _ in 0..rounds.max(1) + 1 {
        let started = Instant::now();
        cpu.matmul(&mut [MatmulJob { weight: &weight, bias: None, out: &mut out }], &x, tokens);
        seconds = seconds.min(started.elapsed().as_secs_f64());
    }
    Ok(KernelSpeed {
        weight_type: ty.to_string(),
        tokens,
        seconds,
        bytes_per_second: bytes as f64 / seconds,
        macs_per_second: (rows * cols * tokens) as f64 / seconds,
    })
}

/// Returns `count` pseudo-random numbers from -1 to 1, the same at every call.
pub(super) fn noise(count: usize) -> Vec<f32> {
    let mut state = 1u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

/// Creates a `[rows, cols]` matrix that repeats a few distinct rows, because values do not change
/// the time.
pub(super) fn matrix_of_repeated_rows(ty: TensorType, rows: usize, cols: usize) -> Result<Matrix> {
    let distinct = rows.min(16);
    let mut some = Vec::new();
    if quant::QUANTISABLE.contains(&ty) {
        quant::quantise(ty, &noise(distinct * cols), &mut some)?;
    } else {
        // For types without an encoder, this byte yields scales of moderate size.
        some.resize(distinct * ty.row_bytes(cols).unwrap_or(0), 0x2b);
    }
    let row_bytes = some.len() / distinct.max(1);
    let mut data = Vec::with_capacity(rows * row_bytes);
    while data.len() < rows * row_bytes {
        data.extend_from_slice(&some[..some.len().min(rows * row_bytes - data.len())]);
    }
    Matrix::new(ty, rows, cols, Bytes::new(data))
        .ok_or_else(|| Error::invalid("columns", format!("whole blocks of {ty}"), cols))
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_cpu::CpuOptions;

    /// Includes types without an encoder.
    #[test]
    fn kernel_speed_measures_every_weight_type() {
        let cpu = Cpu::new(&CpuOptions::default()).unwrap();
        for ty in TensorType::ALL.into_iter().filter(|ty| ty.is_weight()) {
            for tokens in [1, 9] {
                let speed = kernel_speed(&cpu, ty, 20, 512, tokens, 1).unwrap();
                assert_eq!((speed.weight_type.as_str(), speed.tokens), (ty.name(), tokens));
                assert!(speed.seconds > 0.0 && speed.bytes_per_second.is_finite(), "{ty}");
            }
            let weight = matrix_of_repeated_rows(ty, 20, 512).unwrap();
            let mut row = vec![f32::NAN; 512];
            weight.dequantise_row(19, &mut row);
            assert!(row.iter().all(|w| w.is_finite() && w.abs() < 1e3), "{ty}");
        }
    }
}
