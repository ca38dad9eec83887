//! What reaches the device at once.

use crate::{
    error::{Error, Result},
    gpu::{Buffer, Coming, Gpu, Laps, ReadbackRing, Recorder, Submission, UploadRing},
};

/// The segment being recorded, and the rings that carry data along with it.
#[derive(Debug)]
pub(crate) struct Segment {
    gpu: Gpu,
    recorder: Option<Recorder>,
    up: UploadRing,
    down: ReadbackRing,
    /// What the CPU goes on with in the middle of a chunk; made when the first layer needs it.
    hand: Option<ReadbackRing>,
    /// What the next read brings along, and what it brought.
    along: Option<(Buffer, u64)>,
    brought: Vec<u8>,
    /// Multiply-adds recorded, and how many are submitted together.
    work: u64,
    most_work: u64,
    /// Submitted and not waited for.
    flying: Option<Submission>,
    /// The device's clock, if it has one, whether it is looked at, and what was read: nanoseconds of each layer.
    laps: Option<Laps>,
    times_bytes: u64,
    timed: bool,
    times: Vec<u64>,
}

impl Segment {
    /// Rings for loads of `up_bytes` and results of `down_bytes`, and what times so many layers ([`Segment::time`]).
    pub fn new(gpu: &Gpu, (up_bytes, down_bytes): (u64, u64), layers: usize, most_work: u64) -> Result<Self> {
        let laps = Laps::new(gpu, layers * PASSES)?;
        let times_bytes = laps_bytes(gpu.caps().timestamps, layers);
        let down_bytes = down_bytes + times_bytes;
        Ok(Segment {
            gpu: gpu.clone(),
            recorder: None,
            up: UploadRing::new(gpu, 2, up_bytes)?,
            down: ReadbackRing::new(gpu, 1, down_bytes)?,
            hand: None,
            along: None,
            brought: Vec::new(),
            work: 0,
            most_work,
            flying: None,
            laps,
            times_bytes,
            timed: false,
            times: Vec::new(),
        })
    }

    /// Forgets what was recorded and not submitted, and begins anew with an upload of `pieces` to buffers and offsets.
    pub fn begin(&mut self, pieces: &[(&[u8], &Buffer, u64)]) -> Result<()> {
        self.recorder = None;
        self.along = None;
        self.work = 0;
        self.times.clear();
        self.laps.iter().for_each(Laps::restart);
        self.upload(pieces)
    }

    /// Whether layers are timed by the device's clock from the next [`Segment::begin`] on.
    pub fn time(&mut self, on: bool) {
        self.timed = on;
    }

    /// Whether times are still to be read.
    pub fn is_timed(&self) -> bool {
        self.timed && self.laps.is_some()
    }

    /// What is recorded next belongs to `layer`, or to none.
    pub fn enter(&mut self, layer: Option<usize>) {
        if self.timed {
            self.recorder().enter(layer);
        }
    }

    /// Nanoseconds the device was at `layer`, as far as the last [`Segment::read`] knew; 0 where that is not measured.
    pub fn nanoseconds(&self, layer: usize) -> u64 {
        self.times.get(layer).copied().unwrap_or(0)
    }

    fn take_recorder(&mut self) -> Recorder {
        let laps = self.laps.as_ref().filter(|_| self.timed);
        self.recorder.take().unwrap_or_else(|| Recorder::with_laps(&self.gpu, laps))
    }

    /// Records an upload of `pieces`; one between two submissions.
    pub fn upload(&mut self, pieces: &[(&[u8], &Buffer, u64)]) -> Result<()> {
        let mut recorder = self.take_recorder();
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
        self.down.bytes()
    }

    /// Room for handing over `bytes`, if that is more than nothing.
    pub fn reserve(&mut self, bytes: u64) -> Result<()> {
        if bytes > self.hand.as_ref().map_or(0, ReadbackRing::bytes) {
            self.hand = Some(ReadbackRing::new(&self.gpu, 1, bytes)?);
        }
        Ok(())
    }

    /// Room for reading `bytes`.
    pub fn reserve_down(&mut self, bytes: u64) -> Result<()> {
        let bytes = bytes + self.times_bytes;
        if bytes > self.down.bytes() {
            self.down = ReadbackRing::new(&self.gpu, 1, bytes)?;
        }
        Ok(())
    }

    /// Submits what was recorded with copies of `pieces` behind it, which [`Segment::take`] waits for while more may be
    /// submitted.
    pub fn hand_over(&mut self, pieces: &[(&Buffer, u64, u64)]) -> Result<Coming> {
        let recorder = self.take_recorder();
        let wanted = pieces.iter().map(|(.., bytes)| bytes).sum();
        let refused = Error::Memory { what: "what is handed over", wanted, available: 0 };
        let coming = self.hand.as_mut().ok_or(refused)?.submit(recorder, pieces)?;
        self.up.submitted();
        self.work = 0;
        // Whoever waits for this has waited for all before it.
        self.flying = None;
        Ok(coming)
    }

    /// Waits for what [`Segment::hand_over`] copied and hands it to `read`.
    pub fn take<R>(&mut self, coming: Coming, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let none = Error::Memory { what: "what is handed over", wanted: 1, available: 0 };
        self.hand.as_mut().ok_or(none)?.take(coming, read)
    }

    /// The next [`Segment::read`] brings the first `bytes` of `buffer` along.
    pub fn bring(&mut self, buffer: &Buffer, bytes: u64) {
        self.along = Some((buffer.clone(), bytes));
    }

    /// What it brought.
    pub fn brought(&self) -> &[u8] {
        &self.brought
    }

    /// To record into.
    pub fn recorder(&mut self) -> &mut Recorder {
        let recorder = self.take_recorder();
        self.recorder.insert(recorder)
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
        let along = self.along.take();
        let mut recorder = self.take_recorder();
        let laps = self.laps.as_ref().filter(|_| self.timed);
        let times = laps.and_then(|laps| laps.resolve(&mut recorder));
        let brings = along.iter().map(|(buffer, bytes)| (buffer, 0, *bytes));
        let times_too = times.map(|(buffer, bytes)| (buffer, 0, bytes));
        let all: Vec<(&Buffer, u64, u64)> = pieces.iter().copied().chain(brings).chain(times_too).collect();
        let [bytes, in_all] = [pieces, &all].map(|pieces| pieces.iter().map(|(.., bytes)| bytes).sum::<u64>());
        if in_all > self.down.bytes() {
            // Only observers want more than logits.
            self.down = ReadbackRing::new(&self.gpu, 1, in_all)?;
        }
        self.work = 0;
        self.flying = None;
        let (up, brought, nanoseconds) = (&mut self.up, &mut self.brought, &mut self.times);
        brought.clear();
        let read = |all: &[u8]| {
            let (asked, more) = all.split_at(bytes as usize);
            let (more, stamps) = more.split_at(along.as_ref().map_or(0, |(_, bytes)| *bytes as usize));
            brought.extend_from_slice(more);
            if let Some(laps) = laps.filter(|_| !stamps.is_empty()) {
                nanoseconds.clear();
                laps.read(stamps, nanoseconds);
            }
            read(asked)
        };
        self.down.read(recorder, &all, || up.submitted(), read)
    }
}

/// Passes of a layer there is room for on average: copies and what is submitted begin new ones.
const PASSES: usize = 16;

/// What the times of so many layers take on a device that tells them, and once more where they come down.
pub(super) fn laps_bytes(timestamps: bool, layers: usize) -> u64 {
    if timestamps { Laps::bytes(layers * PASSES) } else { 0 }
}
