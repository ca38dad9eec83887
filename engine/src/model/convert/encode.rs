//! Rows of one tensor in another type, in order, on all cores.

use std::{path::Path, sync::Mutex};

use crate::{
    cpu::ThreadPool,
    error::{Error, Location, Result},
    format::{Tensor, TensorType, blocks},
};

/// Elements per worker and turn: large enough to hide the joins, small enough for the cache of a core.
const ELEMENTS: usize = 1 << 18;

/// What one worker encoded in a turn; the buffers are kept from turn to turn.
struct Turn {
    values: Vec<f32>,
    bytes: Vec<u8>,
    outcome: Result<()>,
}

/// The workers.
pub(super) struct Encoder {
    pool: ThreadPool,
}

impl Encoder {
    pub(super) fn new() -> Self {
        Encoder { pool: ThreadPool::new(None) }
    }

    /// Hands `tensor`'s rows as `ty` to `write`, in order; `progress` is told how many elements each call was about.
    /// `path` is for errors.
    pub(super) fn encode(
        &self,
        path: &Path,
        tensor: &Tensor,
        ty: TensorType,
        write: &mut dyn FnMut(&[u8]) -> Result<()>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let (rows, cols) = (tensor.rows(), tensor.cols());
        let error = |expected: String, got: String| {
            Error::malformed(path, Location::Tensor(tensor.name.clone()), expected, got)
        };
        let row_bytes = tensor.ty.row_bytes(cols).filter(|&bytes| bytes.checked_mul(rows) == Some(tensor.data.len()));
        let Some(row_bytes) = row_bytes else {
            return Err(error(format!("whole rows of {}", tensor.ty), format!("shape {:?}", tensor.shape)));
        };
        let rows_each = (ELEMENTS / cols.max(1)).max(1);
        let workers = self.pool.threads();
        let turn = |_| Mutex::new(Turn { values: vec![0.0; cols], bytes: Vec::new(), outcome: Ok(()) });
        let turns: Vec<Mutex<Turn>> = (0..workers).map(turn).collect();
        let mut start = 0;
        while start < rows {
            let end = rows.min(start + rows_each * workers);
            if tensor.ty == ty {
                write(&tensor.data[start * row_bytes..end * row_bytes])?;
            } else {
                self.pool.run(|worker| {
                    let first = end.min(start + worker * rows_each);
                    let last = end.min(first + rows_each);
                    // A poisoned lock only means that another turn panicked; the buffers are overwritten.
                    let mut turn = turns[worker].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    let Turn { values, bytes, outcome } = &mut *turn;
                    bytes.clear();
                    *outcome = (first..last).try_for_each(|row| {
                        blocks::dequantise(tensor.ty, &tensor.data[row * row_bytes..][..row_bytes], values);
                        blocks::quantise(ty, values, bytes)
                    });
                });
                for turn in &turns {
                    let mut turn = turn.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    match std::mem::replace(&mut turn.outcome, Ok(())) {
                        Ok(()) => write(&turn.bytes)?,
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
