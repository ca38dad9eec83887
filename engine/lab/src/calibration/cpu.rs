//! Speed of single matrix products on the CPU, in bytes per second for one token and in
//! multiply-adds per second for many tokens.

use std::ops::ControlFlow;

use serde::Serialize;

use super::turns::typical;
use thermocline_base::error::{Error, Result};
use thermocline_cpu::{Cpu, MatmulJob};
use thermocline_formats::{
    format::{Bytes, Matrix, anonymous},
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
    /// Seconds of one product, the lower quartile of all rounds.
    pub seconds: f64,
    /// Bytes of weights read per second.
    pub bytes_per_second: f64,
    /// Multiply-accumulates per second.
    pub macs_per_second: f64,
}

/// Measures `W x` for a `[rows, cols]` matrix of type `ty` and `tokens` tokens, in `rounds` rounds
/// or more.
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
    let product = || cpu.matmul(&mut [MatmulJob { weight: &weight, bias: None, out: &mut out }], &x, tokens);
    let seconds = typical(rounds, product, &mut || ControlFlow::Continue(()))?;
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
/// the time. Its memory is like that of a model's file: it has large pages if the system supports
/// them.
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
    let mut data = anonymous((rows * row_bytes).max(1), "matrix for a measurement")?;
    for part in data[..rows * row_bytes].chunks_mut(some.len().max(1)) {
        part.copy_from_slice(&some[..part.len()]);
    }
    let bytes = Bytes::new(data).slice(0..rows * row_bytes);
    bytes
        .and_then(|bytes| Matrix::new(ty, rows, cols, bytes))
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
