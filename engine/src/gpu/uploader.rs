//! Weights on their way to the device: repacked row by row from where they lie in the file into a small ring.

use std::{ops::ControlFlow, thread};

use super::{
    Buffer, Gpu, GpuMatrix, Purpose, Recorder, UploadRing, Usage,
    layout::{device_type, repack},
    matrix::MatrixPart,
    op::pitch,
};
use crate::{
    error::{Error, Result},
    format::Matrix,
};

/// Most bytes of one load.
const LOAD: u64 = 4 << 20;
/// Fewer bytes than this are repacked on one thread.
const PER_THREAD: usize = 256 << 10;
/// Most threads: past a few the bus is the limit.
const MOST_THREADS: usize = 8;

/// Uploads weights. Neither it nor the driver holds more of them than a few MiB at a time.
pub struct Uploader<'a> {
    gpu: Gpu,
    ring: UploadRing,
    progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    /// Bytes of files read, and those announced.
    done: u64,
    total: u64,
    packed: Vec<u8>,
    threads: usize,
}

impl std::fmt::Debug for Uploader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uploader").field("done", &self.done).field("total", &self.total).finish_non_exhaustive()
    }
}

impl<'a> Uploader<'a> {
    /// An uploader that tells `progress` after each load how many bytes of files are done and how many there are
    /// ([`Uploader::expect`]); it may cancel.
    ///
    /// # Errors
    /// [`Error::Memory`] if the staging buffers do not fit the budget.
    pub fn new(gpu: &Gpu, progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<Self> {
        // A small budget is not spent on staging.
        let load = (gpu.arena().available() / 64).clamp(16 << 10, LOAD) / 16 * 16;
        let threads = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
        let ring = UploadRing::new(gpu, 2, load)?;
        Ok(Uploader { gpu: gpu.clone(), ring, progress, done: 0, total: 0, packed: Vec::new(), threads })
    }

    /// `bytes` more of files will be uploaded.
    pub fn expect(&mut self, bytes: u64) {
        self.total += bytes;
    }

    /// One matrix of the rows of `stacked`, in order. They have the same columns and the same [`device_type`].
    ///
    /// # Errors
    /// [`Error::Memory`] if it does not fit the budget, [`Error::Cancelled`], [`Error::Gpu`] if the device is lost,
    /// [`Error::Invalid`] if the matrices differ or hold numbers their device type cannot.
    pub fn matrix(&mut self, purpose: Purpose, what: &'static str, stacked: &[&Matrix]) -> Result<GpuMatrix> {
        self.units(purpose, what, stacked, 1)
    }

    /// The matrices of `experts` experts, one behind the other, none of them cut in two; each expert's may be several of
    /// `stacked`.
    ///
    /// # Errors
    /// As [`Uploader::matrix`]; also if the rows do not divide by `experts`.
    pub fn experts(
        &mut self,
        purpose: Purpose,
        what: &'static str,
        stacked: &[&Matrix],
        experts: usize,
    ) -> Result<GpuMatrix> {
        let rows: usize = stacked.iter().map(|it| it.rows()).sum();
        if experts == 0 || !rows.is_multiple_of(experts) {
            return Err(Error::invalid("rows of all experts", format!("a multiple of {experts}"), rows));
        }
        self.units(purpose, what, stacked, rows / experts)
    }

    fn units(&mut self, purpose: Purpose, what: &'static str, stacked: &[&Matrix], unit: usize) -> Result<GpuMatrix> {
        let Some(first) = stacked.first() else {
            return Err(Error::invalid("matrices to stack", "at least one", 0));
        };
        let (ty, cols) = (device_type(first.ty()), first.cols());
        if let Some(other) = stacked.iter().find(|it| it.cols() != cols || device_type(it.ty()) != ty) {
            let got = format!("{} with {} columns", device_type(other.ty()), other.cols());
            return Err(Error::invalid("matrices to stack", format!("{ty} with {cols} columns"), got));
        }
        let rows = stacked.iter().map(|it| it.rows()).sum();
        let matrix = GpuMatrix::new(&self.gpu, purpose, what, ty, (rows, cols), unit)?;
        let starts: Vec<usize> = stacked
            .iter()
            .scan(0, |end, it| {
                *end += it.rows();
                Some(*end - it.rows())
            })
            .collect();
        let row = |row: usize| {
            let at = starts.partition_point(|start| *start <= row) - 1;
            (stacked[at], row - starts[at])
        };
        for part in matrix.parts() {
            self.part(&matrix, part, &row)?;
        }
        Ok(matrix)
    }

    /// The rows of one part, as many at a time as a load holds.
    fn part<'m>(
        &mut self,
        matrix: &GpuMatrix,
        part: &MatrixPart,
        row: &(dyn Fn(usize) -> (&'m Matrix, usize) + Sync),
    ) -> Result<()> {
        let (ty, cols) = (matrix.ty(), matrix.cols());
        let (main_row, aux_row) = (ty.main_len(cols) * 16, ty.aux_len(cols) * 4);
        let step = (self.ring.bytes() as usize / (main_row + aux_row)).max(1);
        let rows = part.rows();
        for start in rows.clone().step_by(step) {
            let count = step.min(rows.end - start);
            // Taken out for the time of the load, so that what reads it may use the ring.
            let mut packed = std::mem::take(&mut self.packed);
            packed.resize(count * (main_row + aux_row), 0);
            let (main, aux) = packed.split_at_mut(count * main_row);
            let threads = (count * (main_row + aux_row) / PER_THREAD).clamp(1, self.threads);
            pack(start, (main, main_row), (aux, aux_row), threads, row)?;
            let at = (start - rows.start) as u64;
            self.send(part.buffer(), [(main, at * main_row as u64), (aux, part.aux_offset() + at * aux_row as u64)])?;
            self.packed = packed;
            self.advance((start..start + count).map(|at| row(at).0.row_bytes() as u64).sum())?;
        }
        Ok(())
    }

    /// `values`, padded with zeros to their [`pitch`].
    ///
    /// # Errors
    /// [`Error::Memory`] if they do not fit the budget, [`Error::Cancelled`], [`Error::Gpu`] if the device is lost.
    pub fn vector(&mut self, purpose: Purpose, what: &'static str, values: &[f32]) -> Result<Buffer> {
        let buffer = self.gpu.arena().buffer(purpose, what, pitch(values.len()) as u64 * 4, Usage::Storage)?;
        self.send(&buffer, [(bytemuck::cast_slice(values), 0), (&[], 0)])?;
        self.advance(size_of_val(values) as u64)?;
        Ok(buffer)
    }

    /// Waits until everything has arrived.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost.
    pub fn finish(self) -> Result<()> {
        self.gpu.idle()
    }

    /// Two pieces to their offsets in `to`, in one load if they fit.
    fn send(&mut self, to: &Buffer, [first, second]: [(&[u8], u64); 2]) -> Result<()> {
        let room = self.ring.bytes() as usize;
        if first.0.len() + second.0.len() <= room {
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

/// Repacks rows from `start` on into both streams, on `threads` threads.
fn pack<'m>(
    start: usize,
    (main, main_row): (&mut [u8], usize),
    (aux, aux_row): (&mut [u8], usize),
    threads: usize,
    row: &(dyn Fn(usize) -> (&'m Matrix, usize) + Sync),
) -> Result<()> {
    let share = (main.len() / main_row).div_ceil(threads);
    let work = |first: usize, main: &mut [u8], aux: &mut [u8]| {
        for (at, main) in main.chunks_exact_mut(main_row).enumerate() {
            let (matrix, row) = row(first + at);
            repack(matrix.ty(), matrix.row(row), main, &mut aux[at * aux_row..(at + 1) * aux_row])?;
        }
        Ok(())
    };
    if threads == 1 {
        return work(start, main, aux);
    }
    thread::scope(|scope| {
        let (mut aux, mut workers) = (aux, Vec::with_capacity(threads));
        for (worker, main) in main.chunks_mut(share * main_row).enumerate() {
            let (own, rest) = aux.split_at_mut(main.len() / main_row * aux_row);
            aux = rest;
            workers.push(scope.spawn(move || work(start + worker * share, main, own)));
        }
        let ended = |_| Error::Stopped("a thread that repacks weights ended early".to_owned());
        workers.into_iter().try_for_each(|worker| worker.join().map_err(ended)?)
    })
}
