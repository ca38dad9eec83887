//! Rings of mapped buffers that transfer data to the device and back without allocations.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use super::{Buffer, Gpu, Purpose, Recorder, Usage, device::comes};
use thermocline_base::error::{Error, Result, ScarceMemory};

/// Transfers data to the device. As many loads can be in transfer as the ring has buffers.
#[derive(Debug)]
pub struct UploadRing {
    gpu: Gpu,
    stages: Vec<StagingBuffer>,
    next: usize,
    bytes: u64,
    /// True while the next stage holds a load that was not submitted yet.
    recorded: bool,
}

#[derive(Debug)]
struct StagingBuffer {
    buffer: Buffer,
    /// True while the buffer is mapped. The driver sets it when the submission that uses the buffer
    /// is done.
    mapped: Arc<AtomicBool>,
}

/// Alignment of a load's pieces in bytes.
pub(super) const PIECE: usize = wgpu::MAP_ALIGNMENT as usize;

impl UploadRing {
    /// Creates a ring of `depth` buffers of `bytes` each.
    ///
    /// # Errors
    /// [`Error::Memory`] if the buffers do not fit the budget.
    pub fn new(gpu: &Gpu, depth: usize, bytes: u64) -> Result<Self> {
        let stage = || {
            let buffer = gpu.arena().buffer(Purpose::Staging, "upload", bytes, Usage::Upload)?;
            Ok(StagingBuffer { buffer, mapped: Arc::new(AtomicBool::new(true)) })
        };
        let stages = (0..depth.max(1)).map(|_| stage()).collect::<Result<_>>()?;
        Ok(UploadRing { gpu: gpu.clone(), stages, next: 0, bytes, recorded: false })
    }

    /// Returns the most bytes of one load.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Records one load, which copies each piece to its buffer and offset, in order. Lengths and
    /// offsets are multiples of 4. A length that is not a multiple of 8 takes the room of the next
    /// multiple. The caller then submits `recorder` and calls [`UploadRing::submitted`], or drops
    /// `recorder`.
    ///
    /// # Errors
    /// [`Error::Memory`] if the pieces are longer than a buffer of the ring, [`Error::Gpu`] if the
    /// device is lost or only counts.
    pub fn record(&mut self, recorder: &mut Recorder, pieces: &[(&[u8], &Buffer, u64)]) -> Result<()> {
        let wanted = pieces.iter().fold(0, |end: usize, (data, ..)| end.next_multiple_of(PIECE) + data.len()) as u64;
        if wanted > self.bytes {
            return Err(Error::memory(ScarceMemory::Gpu, "an upload to the GPU", wanted, self.bytes));
        }
        // If the recorder of the last load was dropped, its buffer is mapped again.
        self.submitted();
        let stage = &self.stages[self.next];
        // Once all submissions are done, a buffer that is not mapped again never will be.
        if !stage.mapped.load(SeqCst) {
            self.gpu.idle()?;
            if !comes(&stage.mapped) {
                return Err(self.lost("the driver did not return an upload buffer"));
            }
        }
        let raw = stage.buffer.raw().ok_or_else(|| self.gpu.only_counts())?;
        let mut at = 0_u64;
        for (data, to, offset) in pieces {
            let length = data.len() as u64;
            if length == 0 {
                continue;
            }
            at = at.next_multiple_of(PIECE as u64);
            let view = raw.get_mapped_range_mut(at..at + length);
            view.map_err(|error| self.lost(error))?.copy_from_slice(data);
            recorder.copy(&stage.buffer, at, to, *offset, length);
            at += length;
        }
        stage.mapped.store(false, SeqCst);
        raw.unmap();
        recorder.note_upload(at);
        self.recorded = true;
        Ok(())
    }

    /// Must be called when the recorder of the last load was submitted. The buffer is mapped again
    /// when the device is done with it. Does nothing if nothing was recorded since the last call.
    pub fn submitted(&mut self) {
        if !std::mem::take(&mut self.recorded) {
            return;
        }
        let stage = &self.stages[self.next];
        let mapped = Arc::clone(&stage.mapped);
        if let Some(raw) = stage.buffer.raw() {
            raw.map_async(wgpu::MapMode::Write, .., move |result| mapped.store(result.is_ok(), SeqCst));
        }
        self.next = (self.next + 1) % self.stages.len();
    }

    fn lost(&self, error: impl std::fmt::Display) -> Error {
        self.gpu.failed(format!("upload: {error}"))
    }
}

/// Transfers results back from the device.
#[derive(Debug)]
pub struct ReadbackRing {
    gpu: Gpu,
    stages: Vec<Buffer>,
    next: usize,
    /// True while the next stage receives results.
    coming: bool,
}

/// Results in transfer into a [`ReadbackRing`].
#[derive(Debug)]
pub struct Coming {
    index: wgpu::SubmissionIndex,
    bytes: u64,
    /// Set when the results have arrived.
    arrived: Arc<AtomicBool>,
}

impl ReadbackRing {
    /// Creates a ring of `depth` buffers of `bytes` each.
    ///
    /// # Errors
    /// [`Error::Memory`] if the buffers do not fit the budget.
    pub fn new(gpu: &Gpu, depth: usize, bytes: u64) -> Result<Self> {
        let stage = || gpu.arena().buffer(Purpose::Staging, "readback", bytes, Usage::Readback);
        let stages = (0..depth.max(1)).map(|_| stage()).collect::<Result<_>>()?;
        Ok(ReadbackRing { gpu: gpu.clone(), stages, next: 0, coming: false })
    }

    /// Returns the most bytes of one stage.
    pub fn bytes(&self) -> u64 {
        self.stages.first().map_or(0, Buffer::bytes)
    }

    /// Submits `recorder`, followed by copies of `pieces` (buffer, offset, bytes; multiples of 4).
    /// Waits, and passes the bytes of all pieces, one after another, to `read`.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost or does not answer.
    pub fn read<R>(
        &mut self,
        recorder: Recorder,
        pieces: &[(&Buffer, u64, u64)],
        submitted: impl FnOnce(),
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        let coming = self.submit(recorder, pieces)?;
        submitted();
        self.wait_and_read(coming, read)
    }

    /// Submits like [`ReadbackRing::read`], without waiting. Results not read before the next call
    /// are lost.
    ///
    /// # Errors
    /// [`Error::Memory`] if the pieces are longer than a stage, [`Error::Gpu`] if the device is
    /// lost or only counts.
    pub fn submit(&mut self, mut recorder: Recorder, pieces: &[(&Buffer, u64, u64)]) -> Result<Coming> {
        let stage = &self.stages[self.next];
        let wanted = pieces.iter().map(|(.., length)| length).sum::<u64>();
        if wanted > stage.bytes() {
            return Err(Error::memory(ScarceMemory::Gpu, "a readback from the GPU", wanted, stage.bytes()));
        }
        let raw = stage.raw().ok_or_else(|| self.gpu.only_counts())?;
        if std::mem::take(&mut self.coming) {
            raw.unmap();
        }
        let mut bytes = 0;
        for (from, offset, length) in pieces {
            recorder.copy(from, *offset, stage, bytes, *length);
            bytes += length;
        }
        let arrived = Arc::default();
        recorder.map_for_reading(stage, bytes, &arrived);
        let index = recorder.submit()?;
        self.coming = true;
        Ok(Coming { index, bytes, arrived })
    }

    /// Waits for submitted results and passes their bytes to `read`.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost or does not answer.
    pub fn wait_and_read<R>(&mut self, coming: Coming, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        self.gpu.wait_for_results(coming.index, &coming.arrived)?;
        let raw = self.stages[self.next].raw().ok_or_else(|| self.gpu.only_counts())?;
        let view =
            raw.get_mapped_range(0..coming.bytes).map_err(|error| self.gpu.failed(format!("readback: {error}")))?;
        let result = read(&view);
        drop(view);
        raw.unmap();
        self.coming = false;
        self.next = (self.next + 1) % self.stages.len();
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::GpuOptions;

    /// Only lower bounds, because uploads take longer on a busy machine.
    #[test]
    fn uploads_over_a_slow_bus_take_their_time() {
        const BYTES: usize = 1 << 20;
        let took = |slow_bus: Option<u64>| {
            let gpu = Gpu::open(&GpuOptions { slow_bus, ..GpuOptions::first() }).unwrap();
            let buffer = gpu.arena().buffer(Purpose::Scratch, "test", BYTES as u64, Usage::Storage).unwrap();
            let mut ring = UploadRing::new(&gpu, 2, BYTES as u64).unwrap();
            let mut uploads = |bytes: usize| {
                let mut recorder = Recorder::new(&gpu);
                ring.record(&mut recorder, &[(&vec![1; bytes], &buffer, 0)]).unwrap();
                let started = Instant::now();
                let index = recorder.submit().unwrap();
                ring.submitted();
                gpu.wait(index).unwrap();
                started.elapsed()
            };
            [BYTES, BYTES / 4, BYTES].map(&mut uploads)
        };
        let [first, quarter, again] = took(Some(BYTES as u64 * 4));
        let (whole, part) = (Duration::from_millis(250), Duration::from_millis(62));
        assert!(first >= whole && again >= whole && quarter >= part, "{first:?} {quarter:?} {again:?}");
        let [slow, ..] = took(Some(BYTES as u64));
        assert!(slow >= Duration::from_secs(1), "{slow:?}");
        let fastest = took(None).into_iter().min().unwrap();
        assert!(fastest < slow, "no bus is simulated: {fastest:?}");
    }

    #[test]
    fn readback_returns_the_bytes_uploaded() {
        let gpu = Gpu::open(&GpuOptions::first()).unwrap();
        let buffer = gpu.arena().buffer(Purpose::Scratch, "test", 64, Usage::Storage).unwrap();
        let mut up = UploadRing::new(&gpu, 2, 32).unwrap();
        let mut down = ReadbackRing::new(&gpu, 2, 64).unwrap();
        let made = gpu.arena().made();
        for round in 0..7_u8 {
            let mut recorder = Recorder::new(&gpu);
            let (a, b) = ([round; 8], [round + 1; 16]);
            up.record(&mut recorder, &[(&a, &buffer, 4), (&[], &buffer, 0), (&b, &buffer, 20)]).unwrap();
            let got = down.read(recorder, &[(&buffer, 4, 8), (&buffer, 20, 16)], || up.submitted(), <[u8]>::to_vec);
            assert_eq!(got.unwrap(), [&a[..], &b[..]].concat());
        }
        // Loads whose recorders are dropped leave the ring usable.
        for round in 0..5_u8 {
            up.record(&mut Recorder::new(&gpu), &[(&[9; 32], &buffer, 0)]).unwrap();
            let mut recorder = Recorder::new(&gpu);
            up.record(&mut recorder, &[(&[round; 8], &buffer, 8)]).unwrap();
            let got = down.read(recorder, &[(&buffer, 8, 8)], || up.submitted(), <[u8]>::to_vec);
            assert_eq!(got.unwrap(), [round; 8]);
        }
        assert_eq!(gpu.arena().made(), made);
        assert!(matches!(
            up.record(&mut Recorder::new(&gpu), &[(&[0; 36], &buffer, 0)]),
            Err(Error::Memory { wanted: 36, available: 32, .. })
        ));
        gpu.lose();
        let mut recorder = Recorder::new(&gpu);
        let up = up.record(&mut recorder, &[(&[0; 4], &buffer, 0)]);
        let down = down.read(recorder, &[(&buffer, 0, 4)], || (), <[u8]>::to_vec);
        assert!(up.is_err() || matches!(down, Err(Error::Gpu { .. })));
    }
}
