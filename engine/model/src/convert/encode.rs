//! Encodes the rows of one tensor in another type, in order, on all cores.

use std::{path::Path, sync::Mutex};

use thermocline_base::error::{Error, Location, Result};
use thermocline_cpu::ThreadPool;
use thermocline_formats::{format::Tensor, quant, quant::TensorType};

/// Elements per worker and round: large enough to hide the joins, small enough for the cache of a
/// core.
const ELEMENTS: usize = 1 << 18;

/// Result of one worker in a round; the buffers are reused.
struct Round {
    values: Vec<f32>,
    bytes: Vec<u8>,
    outcome: Result<()>,
}

/// Thread pool that encodes tensors.
pub(super) struct TensorEncoder {
    pool: ThreadPool,
}

impl TensorEncoder {
    pub fn new() -> Self {
        TensorEncoder { pool: ThreadPool::new(None) }
    }

    /// Encodes `tensor`'s rows as `ty` and passes them to `write` in order. `factors` divides the
    /// rows into equal parts, and each row is multiplied by the factor of its part. `progress`
    /// receives the number of elements since its last call. `path` is for errors.
    pub fn encode(
        &self,
        path: &Path,
        tensor: &Tensor,
        factors: &[f32],
        ty: TensorType,
        write: &mut dyn FnMut(&[u8]) -> Result<()>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let (rows, cols) = (tensor.rows(), tensor.cols());
        let error = |expected: String, got: String| {
            Error::malformed(path, Location::Tensor(tensor.name.clone()), expected, got)
        };
        let Some(matrix) = tensor.matrix() else {
            return Err(error(format!("whole rows of {}", tensor.ty), format!("shape {:?}", tensor.shape)));
        };
        let rows_each = (ELEMENTS / cols.max(1)).max(1);
        let workers = self.pool.threads();
        let round = |_| Mutex::new(Round { values: vec![0.0; cols], bytes: Vec::new(), outcome: Ok(()) });
        let rounds: Vec<Mutex<Round>> = (0..workers).map(round).collect();
        let mut start = 0;
        while start < rows {
            let end = rows.min(start + rows_each * workers);
            if tensor.ty == ty && factors.is_empty() {
                match matrix.packed() {
                    Some(packed) => write(&packed[start * matrix.row_bytes()..end * matrix.row_bytes()])?,
                    None => (start..end).try_for_each(|row| write(matrix.row(row)))?,
                }
            } else {
                self.pool.run(|worker| {
                    let first = end.min(start + worker * rows_each);
                    let last = end.min(first + rows_each);
                    // A poisoned lock only means that another worker panicked. The buffers are
                    // overwritten.
                    let mut round = rounds[worker].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    let Round { values, bytes, outcome } = &mut *round;
                    bytes.clear();
                    *outcome = (first..last).try_for_each(|row| {
                        matrix.dequantise_row(row, values);
                        if let Some(factor) = factors.get(row * factors.len() / rows) {
                            values.iter_mut().for_each(|value| *value *= factor);
                        }
                        quant::quantise(ty, values, bytes)
                    });
                });
                for round in &rounds {
                    let mut round = round.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    match std::mem::replace(&mut round.outcome, Ok(())) {
                        Ok(()) => write(&round.bytes)?,
                        Err(Error::Invalid { expected, got, .. }) => return Err(error(expected, got)),
                        Err(other) => return Err(other),
                    }
                }
            }
            progress(((end - start) * cols) as u64);
            start = end;
        }
        Ok(())
    }
}
