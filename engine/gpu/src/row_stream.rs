//! Streams weights through the device: rows from the CPU's memory are repacked into matrices that
//! are overwritten again and again.

use super::{
    Buffer, Gpu, GpuMatrix, Recorder, UploadRing,
    transfer::PIECE,
    uploader::{RowOf, pack},
};
use thermocline_base::error::{Error, Result};

/// The first rows of a matrix in one buffer, to be overwritten.
#[derive(Clone, Copy)]
pub struct RowLoad<'a, 'm> {
    /// Matrix that receives the rows.
    pub matrix: &'a GpuMatrix,
    /// Number of rows.
    pub rows: usize,
    /// Source of each row.
    pub row: RowOf<'a, 'm>,
}

/// Numbers for the beginning of a buffer.
#[derive(Debug, Clone, Copy)]
pub struct NumberLoad<'a> {
    /// The numbers' bytes, a multiple of 4.
    pub bytes: &'a [u8],
    /// Buffer that receives the numbers.
    pub to: &'a Buffer,
}

/// Streams loads of rows. While the device uses one load, the CPU repacks the next.
#[derive(Debug)]
pub struct RowStream {
    ring: UploadRing,
    packed: Vec<u8>,
}

impl RowStream {
    /// Prepares staging buffers for loads of `bytes`, which includes the padding of pieces.
    ///
    /// # Errors
    /// [`Error::Memory`] if the staging buffers do not fit the budget, [`Error::Gpu`] if the device
    /// is lost.
    pub fn new(gpu: &Gpu, bytes: u64) -> Result<Self> {
        Ok(RowStream { ring: UploadRing::new(gpu, 2, bytes)?, packed: Vec::new() })
    }

    /// Returns the bytes of a load whose matrices and vectors have `pieces` bytes each.
    pub fn bytes_of(pieces: impl IntoIterator<Item = u64>) -> u64 {
        // A matrix has two pieces.
        pieces.into_iter().map(|bytes| bytes + 2 * PIECE as u64).sum()
    }

    /// Records the upload of `loads` and `numbers` before the commands recorded next. Returns the
    /// uploaded bytes. The caller then submits `recorder` and calls [`RowStream::submitted`], or
    /// drops `recorder`.
    ///
    /// # Errors
    /// [`Error::Memory`] if the data exceeds the size of a load, [`Error::Invalid`] if a row holds
    /// numbers that its device type cannot hold, [`Error::Gpu`] if the device is lost.
    pub fn record(
        &mut self,
        recorder: &mut Recorder,
        loads: &[RowLoad<'_, '_>],
        numbers: &[NumberLoad<'_>],
    ) -> Result<u64> {
        let bytes = loads.iter().map(|load| {
            let (main, aux) = load.matrix.row_bytes();
            load.rows * (main + aux)
        });
        let bytes = bytes.sum();
        if self.packed.len() < bytes {
            self.packed.resize(bytes, 0);
        }
        let (mut rest, mut pieces) = (&mut self.packed[..bytes], Vec::with_capacity(2 * loads.len() + numbers.len()));
        for load in loads {
            let [part] = load.matrix.parts() else {
                return Err(Error::invalid("buffers of a streamed matrix", "1", load.matrix.parts().len()));
            };
            let (main_row, aux_row) = load.matrix.row_bytes();
            let (main, later) = rest.split_at_mut(load.rows * main_row);
            let (aux, later) = later.split_at_mut(load.rows * aux_row);
            rest = later;
            pack(load.matrix, 0, main, aux, load.row)?;
            pieces.extend([(&*main, part.buffer(), part.main_offset()), (&*aux, part.buffer(), part.aux_offset())]);
        }
        pieces.extend(numbers.iter().map(|numbers| (numbers.bytes, numbers.to, 0)));
        self.ring.record(recorder, &pieces)?;
        Ok(pieces.iter().map(|(bytes, ..)| bytes.len() as u64).sum())
    }

    /// Must be called once the recorded loads are submitted.
    pub fn submitted(&mut self) {
        self.ring.submitted();
    }
}
