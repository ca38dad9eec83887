//! Uploads weights to the device: repacks them row by row from the mapped file into a small ring.

use std::{
    ops::{ControlFlow, Range},
    sync::LazyLock,
    thread,
};

use super::{
    Buffer, Gpu, GpuMatrix, MatrixLayout, MemoryUse, Purpose, Recorder, UploadRing, Usage, arena::MEASURED_FROM,
    matrix::MatrixPart, op::pitch, transfer::PIECE,
};
use thermocline_base::error::{Error, Result};
use thermocline_formats::{format::Matrix, quant::repack};

/// Least and most bytes of a load.
const LEAST: u64 = 16 << 10;
const LOAD: u64 = 4 << 20;
/// Pieces of at most 1/`SMALL` of a load are collected and uploaded together.
const SMALL: usize = 8;
/// Fewest bytes that are repacked on several threads.
const PER_THREAD: usize = 256 << 10;
/// Most threads. With more, the bus is the bottleneck.
const MOST_THREADS: usize = 8;

/// Number of threads that repack.
static THREADS: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS));

/// Source of each row on the device: a matrix and a row of the matrix. `None`: zeros.
pub type RowOf<'a, 'm> = &'a (dyn Fn(usize) -> Option<(&'m Matrix, usize)> + Sync);

/// Uploads weights. The uploader and the driver hold only a few MiB of them at a time. For a device
/// that only counts, nothing is uploaded, and only the file bytes are counted.
pub struct Uploader<'a> {
    gpu: Gpu,
    ring: UploadRing,
    progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    /// Bytes of files read, and bytes announced.
    done: u64,
    total: u64,
    packed: Vec<u8>,
    /// Small pieces that are uploaded together: their bytes, and the destination of each.
    staged: Vec<u8>,
    places: Vec<(Range<usize>, Buffer, u64)>,
}

impl std::fmt::Debug for Uploader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uploader").field("done", &self.done).field("total", &self.total).finish_non_exhaustive()
    }
}

impl<'a> Uploader<'a> {
    /// Creates an uploader that calls `progress` after each load. Its arguments are the bytes of
    /// files uploaded and announced ([`Uploader::expect`]), and it can cancel. Staging buffers are
    /// as small as possible for a small budget, which plans use to the last byte, and for a device
    /// that only counts.
    ///
    /// # Errors
    /// [`Error::Memory`] if the staging buffers do not fit the budget.
    pub fn new(gpu: &Gpu, progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<Self> {
        let arena = gpu.arena();
        let least = gpu.is_counting() || arena.budget() < MEASURED_FROM;
        Self::with_loads(gpu, if least { LEAST } else { arena.available() / 64 }, progress)
    }

    /// Like [`Uploader::new`], with two staging buffers of about `load` bytes, or of fewer bytes if
    /// there is no room. The heap that a driver maps may be small, however much budget is left.
    ///
    /// # Errors
    /// As [`Uploader::new`], if there is no room for the smallest staging buffers.
    pub fn with_loads(gpu: &Gpu, load: u64, progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<Self> {
        let load = load.clamp(LEAST, LOAD).min(gpu.caps().max_buffer) / 16 * 16;
        let ring = staging(gpu, load)?;
        Ok(Uploader {
            gpu: gpu.clone(),
            ring,
            progress,
            done: 0,
            total: 0,
            packed: Vec::new(),
            staged: Vec::new(),
            places: Vec::new(),
        })
    }

    /// Announces `bytes` more of files to upload.
    pub fn expect(&mut self, bytes: u64) {
        self.total += bytes;
    }

    /// Returns the bytes of files uploaded so far.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Uploads the rows of `stacked`, in order, as one matrix. The matrices must have the same
    /// columns and the same type on the GPU.
    ///
    /// # Errors
    /// [`Error::Memory`] if the matrix does not fit the budget, [`Error::Cancelled`],
    /// [`Error::Gpu`] if the device is lost, [`Error::Invalid`] if the matrices differ or hold
    /// numbers that their device type cannot hold.
    pub fn matrix(&mut self, purpose: Purpose, what: &'static str, stacked: &[&Matrix]) -> Result<GpuMatrix> {
        let Some(first) = stacked.first() else {
            return Err(Error::invalid("matrices to stack", "at least one matrix", 0));
        };
        let (ty, cols) = (first.ty().device_type(), first.cols());
        if let Some(other) = stacked.iter().find(|it| it.cols() != cols || it.ty().device_type() != ty) {
            let got = format!("{} with {} columns", other.ty().device_type(), other.cols());
            return Err(Error::invalid("matrices to stack", format!("{ty} with {cols} columns"), got));
        }
        let rows = stacked.iter().map(|it| it.rows()).sum();
        let (what, layout) = (MemoryUse { purpose, what }, MatrixLayout { ty, rows, cols, rows_together: 1 });
        if self.gpu.is_counting() {
            self.advance(stacked.iter().map(|it| it.byte_len() as u64).sum())?;
            return self.room(what, layout);
        }
        let starts: Vec<usize> = stacked
            .iter()
            .scan(0, |end, it| {
                *end += it.rows();
                Some(*end - it.rows())
            })
            .collect();
        let row = |row: usize| {
            let at = starts.partition_point(|start| *start <= row) - 1;
            Some((stacked[at], row - starts[at]))
        };
        self.gathered(what, layout, &row)
    }

    /// Uploads a matrix whose rows are rows of other matrices, or zeros.
    ///
    /// # Errors
    /// As [`Uploader::matrix`].
    pub fn gathered<'m>(&mut self, what: MemoryUse, layout: MatrixLayout, row: RowOf<'_, 'm>) -> Result<GpuMatrix> {
        let matrix = self.room(what, layout)?;
        self.rewrite(&matrix, 0..layout.rows, row)?;
        Ok(matrix)
    }

    /// Allocates a matrix of zeros for [`Uploader::rewrite`].
    ///
    /// # Errors
    /// [`Error::Memory`] if the matrix does not fit the budget, [`Error::Gpu`] if the device is
    /// lost.
    pub fn room(&mut self, what: MemoryUse, layout: MatrixLayout) -> Result<GpuMatrix> {
        GpuMatrix::new(&self.gpu, what, layout)
    }

    /// Overwrites `rows` of `matrix`.
    ///
    /// # Errors
    /// As [`Uploader::matrix`].
    pub fn rewrite<'m>(&mut self, matrix: &GpuMatrix, rows: Range<usize>, row: RowOf<'_, 'm>) -> Result<()> {
        for part in matrix.parts() {
            let of_part = part.rows();
            self.part(matrix, part, rows.start.max(of_part.start)..rows.end.min(of_part.end), row)?;
        }
        Ok(())
    }

    /// Uploads some rows of one part, as many at a time as a load holds.
    fn part<'m>(
        &mut self,
        matrix: &GpuMatrix,
        part: &MatrixPart,
        rows: Range<usize>,
        row: RowOf<'_, 'm>,
    ) -> Result<()> {
        let bytes = |at| row(at).map_or(0, |(matrix, _)| matrix.row_bytes() as u64);
        if self.gpu.is_counting() {
            return self.advance(rows.map(bytes).sum());
        }
        let (main_row, aux_row) = matrix.row_bytes();
        let step = (self.ring.bytes() as usize / (main_row + aux_row)).max(1);
        for start in rows.clone().step_by(step) {
            let count = step.min(rows.end - start);
            // The buffer is taken out during the load, so that `self` can use the ring meanwhile.
            let mut packed = std::mem::take(&mut self.packed);
            packed.resize(count * (main_row + aux_row), 0);
            let (main, aux) = packed.split_at_mut(count * main_row);
            pack(matrix, start, main, aux, row)?;
            let at = (start - part.rows().start) as u64;
            let offsets = [part.main_offset() + at * main_row as u64, part.aux_offset() + at * aux_row as u64];
            self.send(part.buffer(), [(main, offsets[0]), (aux, offsets[1])])?;
            self.packed = packed;
            self.advance((start..start + count).map(bytes).sum())?;
        }
        Ok(())
    }

    /// Uploads `values`, padded with zeros to their [`pitch`].
    ///
    /// # Errors
    /// [`Error::Memory`] if the values do not fit the budget, [`Error::Cancelled`], [`Error::Gpu`]
    /// if the device is lost.
    pub fn vector(&mut self, purpose: Purpose, what: &'static str, values: &[f32]) -> Result<Buffer> {
        let buffer = self.gpu.arena().buffer(purpose, what, pitch(values.len()) as u64 * 4, Usage::Storage)?;
        self.send(&buffer, [(bytemuck::cast_slice(values), 0), (&[], 0)])?;
        self.advance(size_of_val(values) as u64)?;
        Ok(buffer)
    }

    /// Uploads the weights of a small `matrix`, row by row, like [`Uploader::vector`].
    ///
    /// # Errors
    /// As [`Uploader::vector`].
    pub fn decoded(&mut self, purpose: Purpose, what: &'static str, matrix: &Matrix) -> Result<Buffer> {
        let mut values = vec![0.0; matrix.rows() * matrix.cols()];
        if !self.gpu.is_counting() {
            let rows = values.chunks_exact_mut(matrix.cols().max(1)).enumerate();
            rows.for_each(|(at, row)| matrix.dequantise_row(at, row));
        }
        self.vector(purpose, what, &values)
    }

    /// Uploads `bytes` to `offset` in `to`. Offset and length are multiples of 4.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost.
    pub fn bytes(&mut self, to: &Buffer, offset: u64, bytes: &[u8]) -> Result<()> {
        self.send(to, [(bytes, offset), (&[], 0)])
    }

    /// Waits until all data has arrived.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost.
    pub fn finish(mut self) -> Result<()> {
        self.arrive()
    }

    /// Waits, like [`Uploader::finish`], until all data so far has arrived and the device has
    /// nothing else to do.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost.
    pub fn arrive(&mut self) -> Result<()> {
        self.flush()?;
        self.gpu.idle()
    }

    /// Submits the small pieces collected so far, without waiting for their arrival.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost.
    pub fn flush(&mut self) -> Result<()> {
        let (mut staged, mut places) = (std::mem::take(&mut self.staged), std::mem::take(&mut self.places));
        if !staged.is_empty() {
            let pieces = places.iter().map(|(range, to, offset)| (&staged[range.clone()], to, *offset));
            self.load(&pieces.collect::<Vec<_>>())?;
        }
        staged.clear();
        places.clear();
        (self.staged, self.places) = (staged, places);
        Ok(())
    }

    /// Uploads two pieces to their offsets in `to`, in one load if they fit.
    fn send(&mut self, to: &Buffer, [first, second]: [(&[u8], u64); 2]) -> Result<()> {
        if self.gpu.is_counting() {
            return Ok(());
        }
        let room = self.ring.bytes() as usize;
        let both = first.0.len().next_multiple_of(PIECE) + second.0.len();
        if both <= room / SMALL {
            if self.staged.len() + both > room {
                self.flush()?;
            }
            for (bytes, offset) in [first, second].into_iter().filter(|(bytes, _)| !bytes.is_empty()) {
                let start = self.staged.len();
                self.staged.extend_from_slice(bytes);
                self.places.push((start..self.staged.len(), to.clone(), offset));
                self.staged.resize(self.staged.len().next_multiple_of(PIECE), 0);
            }
            return Ok(());
        }
        // Earlier small pieces must arrive before this load.
        self.flush()?;
        if both <= room {
            return self.load(&[(first.0, to, first.1), (second.0, to, second.1)]);
        }
        for (bytes, offset) in [first, second] {
            for (at, piece) in bytes.chunks(room).enumerate() {
                self.load(&[(piece, to, offset + (at * room) as u64)])?;
            }
        }
        Ok(())
    }

    fn load(&mut self, pieces: &[(&[u8], &Buffer, u64)]) -> Result<()> {
        let mut recorder = Recorder::new(&self.gpu);
        self.ring.record(&mut recorder, pieces)?;
        recorder.submit()?;
        self.ring.submitted();
        Ok(())
    }

    fn advance(&mut self, bytes: u64) -> Result<()> {
        self.done += bytes;
        match (self.progress)(self.done, self.total.max(self.done)) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Cancelled),
        }
    }
}

/// Allocates two staging buffers of `load` bytes. Halves the size while the allocation fails, down
/// to [`LEAST`].
fn staging(gpu: &Gpu, load: u64) -> Result<UploadRing> {
    match UploadRing::new(gpu, 2, load) {
        Err(Error::Memory { wanted, available, .. }) if load > LEAST => {
            tracing::debug!(wanted, available, "the staging buffer is halved because it does not fit");
            staging(gpu, (load / 2).max(LEAST) / 16 * 16)
        }
        made => made,
    }
}

/// Repacks rows of `matrix` from `start` on into both streams.
pub(super) fn pack<'m>(
    matrix: &GpuMatrix,
    start: usize,
    main: &mut [u8],
    aux: &mut [u8],
    row: RowOf<'_, 'm>,
) -> Result<()> {
    let (main_row, aux_row) = matrix.row_bytes();
    let threads = ((main.len() + aux.len()) / PER_THREAD).clamp(1, *THREADS);
    let rows = (main.len() / main_row).div_ceil(threads);
    let work = |first: usize, main: &mut [u8], aux: &mut [u8]| {
        for (at, main) in main.chunks_exact_mut(main_row).enumerate() {
            let aux = &mut aux[at * aux_row..(at + 1) * aux_row];
            match row(first + at) {
                Some((matrix, row)) => repack(matrix.ty(), matrix.row(row), matrix.factor(), main, aux)?,
                None => [main, aux].into_iter().for_each(|bytes| bytes.fill(0)),
            }
        }
        Ok(())
    };
    if threads == 1 {
        return work(start, main, aux);
    }
    thread::scope(|scope| {
        let (mut aux, mut workers) = (aux, Vec::with_capacity(threads));
        for (worker, main) in main.chunks_mut(rows * main_row).enumerate() {
            let (own, rest) = aux.split_at_mut(main.len() / main_row * aux_row);
            aux = rest;
            workers.push(scope.spawn(move || work(start + worker * rows, main, own)));
        }
        let ended = |_| Error::Stopped("a thread that repacks weights ended early".to_owned());
        workers.into_iter().try_for_each(|worker| worker.join().map_err(ended)?)
    })
}

#[cfg(test)]
mod tests;
