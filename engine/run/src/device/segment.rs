//! A segment: the commands of a chunk that reach the device in one submission, and the data that
//! travels with them.

use std::time::Instant;

use super::submission_clock::SubmissionClock;
use thermocline_base::error::{Error, Result, ScarceMemory};
use thermocline_gpu::{
    AdapterKind, Buffer, Coming, Gpu, GpuTimestamps, ReadbackRing, Recorder, Submission, SubmissionWork, UploadRing,
    WorkKind,
};

/// The segment that is being recorded, and the rings that carry its data.
#[derive(Debug)]
pub(crate) struct Segment {
    gpu: Gpu,
    recorder: Option<Recorder>,
    up: UploadRing,
    down: ReadbackRing,
    /// Ring that reads back hand-overs to the CPU in the middle of a chunk. Made when the first
    /// split layer needs it.
    hand_overs: Option<ReadbackRing>,
    /// Buffer and number of bytes that the next read also reads, and the bytes that the last read
    /// delivered.
    to_read_along: Option<(Buffer, u64)>,
    read_along: Vec<u8>,
    /// Tokens of the chunk, and the layer whose commands are being recorded.
    tokens: usize,
    layer: Option<usize>,
    /// Announced work of the commands that are submitted next, and the most work of a submission of
    /// several tokens, even if the device is fast.
    held: SubmissionWork,
    most_work: u64,
    /// Number of layers, and number of layers recorded since the beginning.
    layers: usize,
    recorded_layers: usize,
    /// A submission that has not been waited for.
    in_flight: Option<InFlight>,
    clock: SubmissionClock,
    /// Number of the last hand-over's submission.
    handed_over: u64,
    /// GPU timestamps if the device has a clock, whether they are being taken, and the last
    /// nanoseconds of each layer.
    timestamps: Option<GpuTimestamps>,
    times_bytes: u64,
    timed: bool,
    nanoseconds: Vec<u64>,
}

/// A submission that may be waited for.
#[derive(Debug)]
struct InFlight {
    index: Submission,
    /// Number in the submission clock.
    number: u64,
}

/// Bytes of a segment's rings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingBytes {
    /// Bytes of the ring for uploads.
    pub up: u64,
    /// Bytes of the ring for results.
    pub down: u64,
}

impl Segment {
    /// Makes rings for uploads and results, and GPU timestamps of `layers` layers
    /// ([`Segment::time`]). Without layers there are no timestamps.
    pub fn new(gpu: &Gpu, rings: RingBytes, layers: usize, most_work: u64) -> Result<Self> {
        let timestamps = if layers == 0 { None } else { GpuTimestamps::new(gpu, layers * PASSES)? };
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

    /// Declares that the following commands belong to a chunk of `tokens` tokens.
    pub fn start_chunk(&mut self, tokens: usize) {
        (self.tokens, self.layer) = (tokens, None);
    }

    /// Discards recorded commands that were not submitted, and starts with an upload of `pieces` to
    /// buffers and offsets.
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

    /// Discards recorded commands that were not submitted, because their chunk was given up.
    pub fn drop_recorded(&mut self) {
        self.recorder = None;
        self.to_read_along = None;
        self.held = SubmissionWork::new(self.tokens);
    }

    /// Turns the timing of layers by the device's clock on or off, from the next
    /// [`Segment::begin`].
    pub fn time(&mut self, on: bool) {
        self.timed = on;
    }

    /// True if timestamps are still to be read.
    pub fn is_timed(&self) -> bool {
        self.timed && self.timestamps.is_some()
    }

    /// Attributes work and time of the following commands to `layer`, or to no layer.
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

    /// Records an upload of `pieces`, at most one between two submissions.
    pub fn upload(&mut self, pieces: &[(&[u8], &Buffer, u64)]) -> Result<()> {
        let mut recorder = self.take_recorder();
        self.up.record(&mut recorder, pieces)?;
        self.recorder = Some(recorder);
        Ok(())
    }

    /// Most bytes that one [`Segment::begin`] can upload.
    pub fn room_up(&self) -> u64 {
        self.up.bytes()
    }

    /// Most bytes that one [`Segment::read`] can read without allocating. The times of steps are
    /// read along.
    pub fn room_down(&self) -> u64 {
        self.down.bytes().saturating_sub(self.times_bytes)
    }

    /// Makes room for hand-overs of `bytes` bytes.
    pub fn reserve_hand_over(&mut self, bytes: u64) -> Result<()> {
        if bytes > self.hand_overs.as_ref().map_or(0, ReadbackRing::bytes) {
            // A plan has room for one ring, so the smaller one is freed first.
            self.hand_overs = None;
            self.hand_overs = Some(ReadbackRing::new(&self.gpu, 1, bytes)?);
        }
        Ok(())
    }

    /// Makes room for reading back `bytes` bytes.
    pub fn reserve_down(&mut self, bytes: u64) -> Result<()> {
        let bytes = bytes + self.times_bytes;
        if bytes > self.down.bytes() {
            // A plan has room for one ring, so the smaller one is freed first.
            let before = self.down.bytes();
            self.down = ReadbackRing::new(&self.gpu, 1, 0)?;
            match ReadbackRing::new(&self.gpu, 1, bytes) {
                Ok(ring) => self.down = ring,
                Err(error) => {
                    self.down = ReadbackRing::new(&self.gpu, 1, before)?;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Submits the recorded commands, followed by copies of `pieces` (buffer, offset, length).
    /// [`Segment::take_hand_over`] waits for the copies. More commands may be submitted meanwhile.
    pub fn hand_over(&mut self, pieces: &[(&Buffer, u64, u64)]) -> Result<Coming> {
        let recorder = self.take_recorder();
        let wanted = pieces.iter().map(|(.., bytes)| bytes).sum();
        let refused = Error::memory(ScarceMemory::Gpu, "hand-over to the CPU", wanted, 0);
        let (held, begun) = (self.take_held(), Instant::now());
        let coming = self.hand_overs.as_mut().ok_or(refused)?.submit(recorder, pieces)?;
        self.up.submitted();
        self.handed_over = self.clock.submitted(begun, held);
        // Waiting for this submission includes waiting for all earlier ones.
        self.in_flight = None;
        Ok(coming)
    }

    /// Waits for the copies of a [`Segment::hand_over`] and passes them to `read`.
    pub fn take_hand_over<R>(&mut self, coming: Coming, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let none = Error::memory(ScarceMemory::Gpu, "hand-over to the CPU", 1, 0);
        let ring = self.hand_overs.as_mut().ok_or(none)?;
        self.clock.wait(self.gpu.pace(), self.handed_over, || ring.wait_and_read(coming, read))
    }

    /// Makes the next [`Segment::read`] also read the first `bytes` bytes of `buffer`.
    pub fn read_along(&mut self, buffer: &Buffer, bytes: u64) {
        self.to_read_along = Some((buffer.clone(), bytes));
    }

    /// The bytes that [`Segment::read_along`] requested.
    pub fn along(&self) -> &[u8] {
        &self.read_along
    }

    /// The recorder of the following commands.
    pub fn recorder(&mut self) -> &mut Recorder {
        let recorder = self.take_recorder();
        self.recorder.insert(recorder)
    }

    /// Announces work of the following commands. Commands recorded before are submitted first if
    /// both together would take too long.
    pub fn expect(&mut self, kind: WorkKind, work: u64) -> Result<()> {
        if self.gpu.pace().is_full(&self.held, kind, work) {
            self.submit()?;
        }
        self.held.add(kind, work, self.layer);
        Ok(())
    }

    /// Most work of this kind in a submission, at the current pace.
    pub fn most(&self, kind: WorkKind) -> u64 {
        self.gpu.pace().most(kind)
    }

    /// Ends a part of a layer. Submits the recorded commands if they are much work, or if a token's
    /// first layers are to be submitted early.
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

    /// Takes the announced work, which is submitted now.
    fn take_held(&mut self) -> SubmissionWork {
        std::mem::replace(&mut self.held, SubmissionWork::new(self.tokens))
    }

    /// Submits the recorded commands. At most two submissions are in flight, because a third would
    /// delay other users of the device and a cancellation. The CPU waits for each of a device's
    /// first submissions to measure their time.
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

    /// Submits the recorded commands, waits, and passes the bytes of `pieces` (buffer, offset,
    /// length), one after the other, to `read`.
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
            // Only observers read more than logits.
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

/// Average number of compute passes per layer that there is room for. Copies and submissions begin
/// new passes.
const PASSES: usize = 16;

/// True if a token's commands are submitted after `recorded` of its `layers`. A driver translates
/// commands at submission, which takes about as long as recording them. The first few layers are
/// submitted early, so that the device starts while the CPU records the others.
fn token_submits_after(recorded: usize, layers: usize) -> bool {
    const FIRST: usize = 4;
    const LEAST: usize = 8;
    let step = layers.div_ceil(3).max(LEAST);
    // The last layers are submitted with the head.
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
