//! The predictor that needs no training: the firing rows in few bits. Only rounding causes errors
//! in their scores, so the threshold needs little slack. But the predictor is as wide as the model,
//! while a low-rank predictor is narrow.

use std::time::Instant;

use parking_lot::Mutex;

use super::{Trained, data::LayerData, options::Target, threshold::with_threshold};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::Cpu;
use thermocline_formats::{
    format::{Bytes, Matrix},
    quant,
    quant::TensorType,
};
use thermocline_model::{Predictor, PredictorInput, PredictorKind};

/// Types of the rows, smallest first. Q4_K is as small as Q4_0 and more exact, but needs a width of
/// whole blocks of 256. Smaller types are omitted, because the ones that this engine can encode
/// have at most three levels.
pub const LOW_BIT_TYPES: [TensorType; 3] = [TensorType::Q4_K, TensorType::Q4_0, TensorType::Q8_0];

/// Rows that a worker quantises at a time.
const ROWS: usize = 16;

/// Quantises `matrix` to type `ty` on all workers.
///
/// # Errors
/// [`Error::Unsupported`] if the type cannot be encoded or does not fit the width,
/// [`Error::Invalid`] for weights out of its range.
pub(super) fn quantised(cpu: &Cpu, matrix: &Matrix, ty: TensorType) -> Result<Matrix> {
    let Some(row_bytes) = ty.row_bytes(matrix.cols()) else {
        return Err(Error::unsupported(
            "predictor type",
            format!("{ty} for rows of {} weights", matrix.cols()),
            format!("types whose block length divides {}", matrix.cols()),
        ));
    };
    let mut parts: Vec<Vec<u8>> = (0..matrix.rows().div_ceil(ROWS)).map(|_| Vec::new()).collect();
    let failed = Mutex::new(None);
    let mut numbered: Vec<_> = parts.iter_mut().enumerate().collect();
    cpu.pool().for_each(&mut numbered, |_, (at, bytes)| {
        let mut row = vec![0.0; matrix.cols()];
        bytes.reserve_exact(ROWS * row_bytes);
        for r in *at * ROWS..matrix.rows().min((*at + 1) * ROWS) {
            matrix.dequantise_row(r, &mut row);
            if let Err(error) = quant::quantise(ty, &row, bytes) {
                failed.lock().get_or_insert(error);
                return;
            }
        }
    });
    match failed.into_inner() {
        Some(error) => Err(error),
        None => Matrix::new(ty, matrix.rows(), matrix.cols(), Bytes::new(parts.concat()))
            .ok_or_else(|| Error::invalid("predictor type", "a weight type", ty)),
    }
}

/// Creates the predictor of the layer's firing rows in type `ty`, with the threshold for `target`.
///
/// # Errors
/// [`Error::Unsupported`] for a type that does not fit, [`Error::Invalid`] without tokens.
pub fn low_bit(cpu: &Cpu, data: &LayerData<'_>, ty: TensorType, target: Target) -> Result<Trained> {
    target.check()?;
    let started = Instant::now();
    let linear = data.firing_rows();
    let rows = quantised(cpu, &linear.weight, ty)?;
    let kind = PredictorKind::Rows { rows, bias: linear.bias.clone() };
    let predictor =
        Predictor { kind, input: PredictorInput::Normed, threshold: 0.0, quality: None, by_input: Default::default() };
    let made = started.elapsed().as_secs_f64();
    let mut trained = with_threshold(cpu, data, predictor, target)?;
    trained.report.seconds += made;
    Ok(trained)
}
