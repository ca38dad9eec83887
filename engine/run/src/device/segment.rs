//! A segment: the commands of a chunk that reach the device in one submission, and the data that travels with them.

use std::time::Instant;

use super::submission_clock::SubmissionClock;
use thermocline_base::error::{Error, Result, ScarceMemory};
use thermocline_gpu::{
    AdapterKind, Buffer, Coming, Gpu, GpuTimestamps, ReadbackRing, Recorder, Submission, SubmissionWork, UploadRing,
    WorkKind,
};

/// The segment being recorded, and the rings that carry data along with it.
#[derive(Debug)]
pub(crate) struct Segment {
    gpu: Gpu,
    recorder: Option<Recorder>,
    up: UploadRing,
    down: ReadbackRing,
    /// Read-back of hand-overs to the CPU in the middle of a chunk; made when the first split layer needs it.
    hand_overs: Option<ReadbackRing>,
    /// Bytes of a buffer that the next read brings along, and those that the last one brought.
    to_read_along: Option<(Buffer, u64)>,
    read_along: Vec<u8>,
    /// Tokens of the chunk, and the layer whose commands are recorded.
    tokens: usize,
    layer: Option<usize>,
    /// Work that was announced for the commands to be submitted next, and the most of one submission of several tokens, however
    /// quick the device is.
    held: SubmissionWork,
    most_work: u64,
    /// Layers there are, and those recorded since the beginning.
    layers: usize,
    recorded_layers: usize,
    /// Submitted and not waited for.
    in_flight: Option<InFlight>,
    clock: SubmissionClock,
    /// Number of the last hand-over's submission.
    handed_over: u64,
    /// GPU timestamps, if the device has a clock; true while they are taken; nanoseconds of each layer as last read.
    timestamps: Option<GpuTimestamps>,
    times_bytes: u64,
    timed: bool,
    nanoseconds: Vec<u64>,
}

/// A submission that may be waited for.
#[derive(Debug)]
struct InFlight {
    index: Submission,
    /// Number by the clock.
    number: u64,
}

/// Bytes of a segment's rings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingBytes {
    /// Uploads.
    pub up: u64,
    /// Results.
    pub down: u64,
}

impl Segment {
    /// Rings for uploads and results, and GPU timestamps of `layers` layers ([`Segment::time`]).
    pub fn new(gpu: &Gpu, rings: RingBytes, layers: usize, most_work: u64) -> Result<Self> {
        let timestamps = GpuTimestamps::new(gpu, layers * PASSES)?;
        let times_bytes = timestamps.as_ref().map_or(0, |_| GpuTimestamps::bytes(layers * PASSES));
        let down_bytes = rings.down + times_bytes;
        Ok(Segment {
            gpu: gpu.clone(),
            recorder: None,
            up: UploadRing::new(gpu, 2, rings.up)?,
            down: ReadbackRing::new(gpu, 1, down_bytes)?,
            hand_overs: None,
            to_read_along: None,
            read_along: Vec::new(),
            tokens: 0,
            layer: None,
            held: SubmissionWork::default(),
            most_work,
            layers,
            recorded_layers: 0,
            in_flight: None,
            clock: SubmissionClock::default(),
            handed_over: 0,
            timestamps,
            times_bytes,
            timed: false,
            nanoseconds: Vec::new(),
        })
    }

    /// Commands recorded from now on are those of a chunk of `tokens` tokens.
    pub fn start_chunk(&mut self, tokens: usize) {
        (self.tokens, self.layer) = (tokens, None);
    }

    /// Forgets what was recorded and not submitted, and begins anew with an upload of `pieces` to buffers and offsets.
    pub fn begin(&mut self, pieces: &[(&[u8], &Buffer, u64)]) -> Result<()> {
        self.drop_recorded();
        if self.in_flight.is_none() {
            self.clock.forget();
        }
        self.recorded_layers = 0;
        self.nanoseconds.clear();
        self.timestamps.iter().for_each(GpuTimestamps::restart);
        self.upload(pieces)
    }

    /// Forgets what was recorded and not submitted: commands of a chunk that was given up.
    pub fn drop_recorded(&mut self) {
        self.recorder = None;
        self.to_read_along = None;
        self.held = SubmissionWork::new(self.tokens);
    }

    /// Times layers by the device's clock, or does not, from the next [`Segment::begin`] on.
    pub fn time(&mut self, on: bool) {
        self.timed = on;
    }

    /// True if timestamps are still to be read.
    pub fn is_timed(&self) -> bool {
        self.timed && self.timestamps.is_some()
    }

    /// Counts work and time of commands recorded from now on to `layer`, or to none.
    pub fn enter(&mut self, layer: Option<usize>) {
        self.layer = layer;
        if self.timed {
            self.recorder().begin_part(layer);
        }
    }

    /// Nanoseconds of `layer` on the device, as of the last [`Segment::read`]; 0 if not measured.
    pub fn nanoseconds(&self, layer: usize) -> u64 {
        self.nanoseconds.get(layer).copied().unwrap_or(0)
    }

    fn take_recorder(&mut self) -> Recorder {
        let timestamps = self.timestamps.as_ref().filter(|_| self.timed);
        self.recorder.take().unwrap_or_else(|| Recorder::with_timestamps(&self.gpu, timestamps))
    }

    /// Records an upload of `pieces`; one between two submissions.
    pub fn upload(&mut self, pieces: &[(&[u8], &Buffer, u64)]) -> Result<()> {
        let mut recorder = self.take_recorder();
        self.up.record(&mut recorder, pieces)?;
        self.recorder = Some(recorder);
        Ok(())
    }

    /// Bytes that one [`Segment::begin`] uploads at most.
    pub fn room_up(&self) -> u64 {
        self.up.bytes()
    }

    /// Bytes that one [`Segment::read`] reads without allocating.
    pub fn room_down(&self) -> u64 {
        self.down.bytes()
    }

    /// Makes room for hand-overs of `bytes`.
    pub fn reserve_hand_over(&mut self, bytes: u64) -> Result<()> {
        if bytes > self.hand_overs.as_ref().map_or(0, ReadbackRing::bytes) {
            self.hand_overs = Some(ReadbackRing::new(&self.gpu, 1, bytes)?);
        }
        Ok(())
    }

    /// Makes room for reading back `bytes`.
    pub fn reserve_down(&mut self, bytes: u64) -> Result<()> {
        let bytes = bytes + self.times_bytes;
        if bytes > self.down.bytes() {
            self.down = ReadbackRing::new(&self.gpu, 1, bytes)?;
        }
        Ok(())
    }

    /// Submits the commands recorded, with copies of `pieces` (buffer, offset, length) behind them. [`Segment::take_hand_over`] waits
    /// for the copies; more may be submitted meanwhile.
    pub fn hand_over(&mut self, pieces: &[(&Buffer, u64, u64)]) -> Result<Coming> {
        let recorder = self.take_recorder();
        let wanted = pieces.iter().map(|(.., bytes)| bytes).sum();
        let refused = Error::memory(ScarceMemory::Gpu, "hand-over to the CPU", wanted, 0);
        let (held, begun) = (self.take_held(), Instant::now());
        let coming = self.hand_overs.as_mut().ok_or(refused)?.submit(recorder, pieces)?;
        self.up.submitted();
        self.handed_over = self.clock.submitted(begun, held);
        // To wait for this submission is to wait for all before it.
        self.in_flight = None;
        Ok(coming)
    }

    /// Waits for the copies of a [`Segment::hand_over`] and passes them to `read`.
    pub fn take_hand_over<R>(&mut self, coming: Coming, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let none = Error::memory(ScarceMemory::Gpu, "hand-over to the CPU", 1, 0);
        let ring = self.hand_overs.as_mut().ok_or(none)?;
        self.clock.wait(self.gpu.pace(), self.handed_over, || ring.wait_and_read(coming, read))
    }

    /// Makes the next [`Segment::read`] bring the first `bytes` of `buffer` along.
    pub fn read_along(&mut self, buffer: &Buffer, bytes: u64) {
        self.to_read_along = Some((buffer.clone(), bytes));
    }

    /// The bytes it brought along.
    pub fn along(&self) -> &[u8] {
        &self.read_along
    }

    /// The recorder of the commands to come.
    pub fn recorder(&mut self) -> &mut Recorder {
        let recorder = self.take_recorder();
        self.recorder.insert(recorder)
    }

    /// Announces commands of so much work: what was recorded before goes ahead of them if both together would take too long.
    pub fn expect(&mut self, kind: WorkKind, work: u64) -> Result<()> {
        if self.gpu.pace().is_full(&self.held, kind, work) {
            self.submit()?;
        }
        self.held.add(kind, work, self.layer);
        Ok(())
    }

    /// Work of a kind that a submission may hold by now.
    pub fn most(&self, kind: WorkKind) -> u64 {
        self.gpu.pace().most(kind)
    }

    /// Ends a part of a layer: submits what is recorded where that is much, or where a token's first layers are to go ahead.
    pub fn worked(&mut self) -> Result<()> {
        self.recorded_layers += 1;
        let due = match self.tokens {
            1 => {
                token_submits_after(self.recorded_layers, self.layers)
                    && self.gpu.report().kind != AdapterKind::Software
            }
            _ => self.held.total() >= self.most_work,
        };
        if due { self.submit() } else { Ok(()) }
    }

    /// The work announced, which is submitted now.
    fn take_held(&mut self) -> SubmissionWork {
        std::mem::replace(&mut self.held, SubmissionWork::new(self.tokens))
    }

    /// Submits the commands recorded. At most two submissions are in flight: a third would only delay other users of the device, and a
    /// cancellation. The first ones of a device are each waited for, to know how long they take.
    pub fn submit(&mut self) -> Result<()> {
        let Some(recorder) = self.recorder.take() else { return Ok(()) };
        let (held, begun) = (self.take_held(), Instant::now());
        let alone = self.gpu.pace().is_new(&held);
        let index = recorder.submit()?;
        self.up.submitted();
        let made = InFlight { index, number: self.clock.submitted(begun, held) };
        let before = match alone {
            true => {
                self.in_flight = None;
                Some(made)
            }
            false => self.in_flight.replace(made),
        };
        let Some(InFlight { index, number }) = before else { return Ok(()) };
        self.clock.wait(self.gpu.pace(), number, || self.gpu.wait(index))
    }

    /// Submits the commands recorded, waits, and passes the bytes of `pieces` (buffer, offset, length), one after the other, to `read`.
    pub fn read<R>(&mut self, pieces: &[(&Buffer, u64, u64)], read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let (along, held) = (self.to_read_along.take(), self.take_held());
        let mut recorder = self.take_recorder();
        let timestamps = self.timestamps.as_ref().filter(|_| self.timed);
        let times = timestamps.and_then(|timestamps| timestamps.resolve(&mut recorder));
        let brings = along.iter().map(|(buffer, bytes)| (buffer, 0, *bytes));
        let times_too = times.map(|(buffer, bytes)| (buffer, 0, bytes));
        let all: Vec<(&Buffer, u64, u64)> = pieces.iter().copied().chain(brings).chain(times_too).collect();
        let [bytes, in_all] = [pieces, &all].map(|pieces| pieces.iter().map(|(.., bytes)| bytes).sum::<u64>());
        if in_all > self.down.bytes() {
            // Only observers want more than logits.
            self.down = ReadbackRing::new(&self.gpu, 1, in_all)?;
        }
        let begun = Instant::now();
        let coming = self.down.submit(recorder, &all)?;
        self.up.submitted();
        self.in_flight = None;
        let number = self.clock.submitted(begun, held);
        let (down, read_along, nanoseconds) = (&mut self.down, &mut self.read_along, &mut self.nanoseconds);
        read_along.clear();
        let read = |all: &[u8]| {
            let (asked, more) = all.split_at(bytes as usize);
            let (more, ticks) = more.split_at(along.as_ref().map_or(0, |(_, bytes)| *bytes as usize));
            read_along.extend_from_slice(more);
            if let Some(timestamps) = timestamps.filter(|_| !ticks.is_empty()) {
                nanoseconds.clear();
                timestamps.add_times(ticks, nanoseconds);
            }
            read(asked)
        };
        self.clock.wait(self.gpu.pace(), number, || down.wait_and_read(coming, read))
    }
}

/// Passes of a layer that there is room for on average: copies and submissions begin new ones.
const PASSES: usize = 16;

/// True if a token's commands are submitted after so many of its `layers`. A driver translates commands when they are submitted, which
/// takes about as long as recording them: the first few layers go ahead, so that the device has begun when the others are translated.
fn token_submits_after(recorded: usize, layers: usize) -> bool {
    const FIRST: usize = 4;
    const LEAST: usize = 8;
    let step = layers.div_ceil(3).max(LEAST);
    // The last ones go with the head.
    recorded >= FIRST && (recorded - FIRST).is_multiple_of(step) && recorded + LEAST <= layers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_deep_models_are_a_few_submissions() {
        let after = |layers: usize| (1..=layers).filter(|at| token_submits_after(*at, layers)).collect::<Vec<_>>();
        assert!(after(4).is_empty() && after(11).is_empty());
        assert_eq!(after(32), [4, 15]);
        assert_eq!(after(80), [4, 31, 58]);
        assert!((1..200).all(|layers| after(layers).len() <= 3));
    }
}
