//! What reaches the device at once.

use crate::{
    error::Result,
    gpu::{Buffer, Gpu, ReadbackRing, Recorder, Submission, UploadRing},
};

/// The segment being recorded, and the rings that carry data along with it.
#[derive(Debug)]
pub(crate) struct Segment {
    gpu: Gpu,
    recorder: Option<Recorder>,
    up: UploadRing,
    down: ReadbackRing,
    down_bytes: u64,
    /// Multiply-adds recorded, and how many are submitted together.
    work: u64,
    most_work: u64,
    /// Submitted and not waited for.
    flying: Option<Submission>,
}

impl Segment {
    /// Rings for loads of `up_bytes` and results of `down_bytes`.
    pub fn new(gpu: &Gpu, up_bytes: u64, down_bytes: u64, most_work: u64) -> Result<Self> {
        Ok(Segment {
            gpu: gpu.clone(),
            recorder: None,
            up: UploadRing::new(gpu, 2, up_bytes)?,
            down: ReadbackRing::new(gpu, 1, down_bytes)?,
            down_bytes,
            work: 0,
            most_work,
            flying: None,
        })
    }

    /// Forgets what was recorded and not submitted, and begins anew with an upload of `pieces` to buffers and offsets.
    pub fn begin(&mut self, pieces: &[(&[u8], &Buffer, u64)]) -> Result<()> {
        self.recorder = None;
        self.work = 0;
        let mut recorder = Recorder::new(&self.gpu);
        self.up.record(&mut recorder, pieces)?;
        self.recorder = Some(recorder);
        Ok(())
    }

    /// Bytes that [`Segment::begin`] takes.
    pub fn room_up(&self) -> u64 {
        self.up.bytes()
    }

    /// Bytes that [`Segment::read`] takes without allocating.
    pub fn room_down(&self) -> u64 {
        self.down_bytes
    }

    /// To record into.
    pub fn recorder(&mut self) -> &mut Recorder {
        self.recorder.get_or_insert_with(|| Recorder::new(&self.gpu))
    }

    /// Counts `multiply_adds` recorded for `tokens`, and submits when there are many; a single token is never cut.
    pub fn worked(&mut self, multiply_adds: u64, tokens: usize) -> Result<()> {
        self.work += multiply_adds;
        if tokens == 1 || self.work < self.most_work {
            return Ok(());
        }
        self.submit()
    }

    /// Submits what was recorded. No more than two submissions are under way: a third would only delay whoever else wants
    /// the device, and a cancellation.
    pub fn submit(&mut self) -> Result<()> {
        let Some(recorder) = self.recorder.take() else { return Ok(()) };
        let index = recorder.submit()?;
        self.up.submitted();
        self.work = 0;
        match self.flying.replace(index) {
            Some(before) => self.gpu.wait(before),
            None => Ok(()),
        }
    }

    /// Submits what was recorded, waits, and hands the bytes of `pieces` (buffer, offset, length), one after the other, to
    /// `read`.
    pub fn read<R>(&mut self, pieces: &[(&Buffer, u64, u64)], read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let bytes = pieces.iter().map(|(.., bytes)| bytes).sum();
        if bytes > self.down_bytes {
            // Only observers want more than logits.
            self.down = ReadbackRing::new(&self.gpu, 1, bytes)?;
            self.down_bytes = bytes;
        }
        let recorder = self.recorder.take().unwrap_or_else(|| Recorder::new(&self.gpu));
        self.work = 0;
        self.flying = None;
        let up = &mut self.up;
        self.down.read(recorder, pieces, || up.submitted(), read)
    }
}
