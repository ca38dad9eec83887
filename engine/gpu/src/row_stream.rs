//! Weights that pass through: rows from the CPU's memory are repacked into matrices that are written again and again, as part of
//! what is recorded.

use super::{
    Buffer, Gpu, GpuMatrix, Recorder, UploadRing,
    transfer::PIECE,
    uploader::{RowOf, pack},
};
use thermocline_base::error::{Error, Result};

/// The first rows of a matrix in one buffer, to be written.
#[derive(Clone, Copy)]
pub struct RowLoad<'a, 'm> {
    /// Their destination.
    pub matrix: &'a GpuMatrix,
    /// Number of rows.
    pub rows: usize,
    /// Their sources.
    pub row: RowOf<'a, 'm>,
}

/// Carries them. While the device is at one load the next is repacked.
#[derive(Debug)]
pub struct RowStream {
    ring: UploadRing,
    packed: Vec<u8>,
}

impl RowStream {
    /// For loads of `bytes`, with what their pieces are rounded up to.
    ///
    /// # Errors
    /// [`Error::Memory`] if the staging buffers do not fit the budget, [`Error::Gpu`] if the device is lost.
    pub fn new(gpu: &Gpu, bytes: u64) -> Result<Self> {
        Ok(RowStream { ring: UploadRing::new(gpu, 2, bytes)?, packed: Vec::new() })
    }

    /// Bytes of a load of matrices and vectors of so many bytes.
    pub fn bytes_of(pieces: impl IntoIterator<Item = u64>) -> u64 {
        // A matrix is two pieces.
        pieces.into_iter().map(|bytes| bytes + 2 * PIECE as u64).sum()
    }

    /// Records `loads`, and numbers that go to the beginning of a buffer, ahead of what is recorded next; returns how many bytes
    /// those are. To be followed by `recorder`'s submission and [`RowStream::submitted`], unless `recorder` is given up.
    ///
    /// # Errors
    /// [`Error::Memory`] if that is more than a load holds, [`Error::Invalid`] if a row holds numbers its type on the device
    /// cannot, [`Error::Gpu`] if the device is lost.
    pub fn record(
        &mut self,
        recorder: &mut Recorder,
        loads: &[RowLoad<'_, '_>],
        numbers: Option<(&[f32], &Buffer)>,
    ) -> Result<u64> {
        let bytes = loads.iter().map(|load| {
            let (main, aux) = load.matrix.row_bytes();
            load.rows * (main + aux)
        });
        let bytes = bytes.sum();
        if self.packed.len() < bytes {
            self.packed.resize(bytes, 0);
        }
        let (mut rest, mut pieces) = (&mut self.packed[..bytes], Vec::with_capacity(2 * loads.len() + 1));
        for load in loads {
            let [part] = load.matrix.parts() else {
                return Err(Error::invalid("a matrix that is streamed", "one buffer", load.matrix.parts().len()));
            };
            let (main_row, aux_row) = load.matrix.row_bytes();
            let (main, later) = rest.split_at_mut(load.rows * main_row);
            let (aux, later) = later.split_at_mut(load.rows * aux_row);
            rest = later;
            pack(load.matrix, 0, main, aux, load.row)?;
            pieces.extend([(&*main, part.buffer(), 0), (&*aux, part.buffer(), part.aux_offset())]);
        }
        pieces.extend(numbers.map(|(numbers, to)| (bytemuck::cast_slice(numbers), to, 0)));
        self.ring.record(recorder, &pieces)?;
        Ok(pieces.iter().map(|(bytes, ..)| bytes.len() as u64).sum())
    }

    /// Call once the recorded loads were submitted.
    pub fn submitted(&mut self) {
        self.ring.submitted();
    }
}
