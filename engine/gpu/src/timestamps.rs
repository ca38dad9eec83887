//! GPU timestamps around compute passes, for profiles ([`super::GpuProfile`]) and for the times of
//! layers. They need no wait of their own, because they are read back with other results.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Buffer, Gpu, Purpose, Recorder, Usage};
use thermocline_base::error::Result;

/// Bytes of one pass's two timestamps.
const PASS_BYTES: u64 = 16;
/// Most passes that one query set holds.
const MOST_PASSES: u32 = 2048;

/// Two timestamps for each of many passes, and the part of the work that each pass belongs to.
/// Recorders write them ([`Recorder::with_timestamps`]), in one or several submissions.
#[derive(Debug, Clone)]
pub struct GpuTimestamps(Arc<TimestampQueries>);

#[derive(Debug)]
struct TimestampQueries {
    /// `None` on a device that only counts.
    queries: Option<wgpu::QuerySet>,
    /// `[room, 2]` timestamps as u64, in ticks of the device's clock.
    resolved: Buffer,
    /// Most passes.
    room: u32,
    /// Nanoseconds per tick of the clock.
    period: f64,
    passes: Mutex<TimedPasses>,
}

#[derive(Debug, Default)]
struct TimedPasses {
    /// Part that is recorded next. `None` is not timed.
    part: Option<usize>,
    /// `[passes]`: the part of each timed pass.
    parts: Vec<usize>,
    /// True if there were more passes than `room`.
    overflown: bool,
}

impl GpuTimestamps {
    /// Creates timestamps for `passes` passes, at most 2,048. `None` if the device has no readable
    /// clock.
    ///
    /// # Errors
    /// [`thermocline_base::error::Error::Memory`] if they do not fit the budget.
    /// [`thermocline_base::error::Error::Gpu`] if the device is lost.
    pub fn new(gpu: &Gpu, passes: usize) -> Result<Option<Self>> {
        if !gpu.caps().timestamps {
            return Ok(None);
        }
        let (room, bytes) = (room(passes), Self::bytes(passes));
        let resolved = gpu.arena().buffer(Purpose::Staging, "timestamps", bytes, Usage::Query)?;
        let (label, ty) = (Some("timestamps"), wgpu::QueryType::Timestamp);
        let descriptor = wgpu::QuerySetDescriptor { label, ty, count: 2 * room };
        let queries = gpu.device().map(|device| device.create_query_set(&descriptor));
        gpu.check()?;
        let passes = Mutex::new(TimedPasses { parts: Vec::with_capacity(room as usize), ..TimedPasses::default() });
        let period = f64::from(gpu.timestamp_period());
        Ok(Some(GpuTimestamps(Arc::new(TimestampQueries { queries, resolved, room, period, passes }))))
    }

    /// Returns the bytes of device memory for `passes` passes, which is also the most that
    /// [`GpuTimestamps::resolve`] returns.
    pub fn bytes(passes: usize) -> u64 {
        u64::from(room(passes)) * PASS_BYTES
    }

    /// Forgets all passes. Must be called after a recorder was dropped without submission, before
    /// the next [`GpuTimestamps::resolve`].
    pub fn restart(&self) {
        let mut passes = self.0.passes.lock();
        passes.parts.clear();
        (passes.part, passes.overflown) = (None, false);
    }

    /// Assigns the passes recorded from here on to `part`; `None` is not timed. Returns whether the
    /// part has changed.
    pub(super) fn begin_part(&self, part: Option<usize>) -> bool {
        std::mem::replace(&mut self.0.passes.lock().part, part) != part
    }

    /// Returns the timestamps of the next pass, if it is timed.
    pub(super) fn next_pass(&self) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        let query_set = self.0.queries.as_ref()?;
        let mut passes = self.0.passes.lock();
        let part = passes.part?;
        let pass = passes.parts.len() as u32;
        if pass == self.0.room {
            passes.overflown = true;
            return None;
        }
        passes.parts.push(part);
        Some(wgpu::ComputePassTimestampWrites {
            query_set,
            beginning_of_pass_write_index: Some(2 * pass),
            end_of_pass_write_index: Some(2 * pass + 1),
        })
    }

    /// Records the conversion of all timestamps so far into bytes. Every pass must have been
    /// recorded. Returns the buffer and its number of bytes.
    pub fn resolve(&self, recorder: &mut Recorder) -> Option<(&Buffer, u64)> {
        self.resolve_into(recorder.encoder_between_passes()?)
    }

    /// Like [`GpuTimestamps::resolve`], but records into an encoder.
    pub(super) fn resolve_into(&self, encoder: &mut wgpu::CommandEncoder) -> Option<(&Buffer, u64)> {
        let passes = self.0.passes.lock().parts.len() as u32;
        if passes == 0 {
            return None;
        }
        encoder.resolve_query_set(self.0.queries.as_ref()?, 0..2 * passes, self.0.resolved.raw()?, 0);
        Some((&self.0.resolved, u64::from(passes) * PASS_BYTES))
    }

    /// Adds the nanoseconds of each part to `times`, which grows as needed. `bytes` come from
    /// [`GpuTimestamps::resolve`]. Adds nothing if there were more passes than room.
    pub fn add_times(&self, bytes: &[u8], times: &mut Vec<u64>) {
        let passes = self.0.passes.lock();
        if passes.overflown {
            return;
        }
        // A pass may begin before the previous pass ends. The overlap counts only once.
        let mut until = 0;
        for (part, (began, ended)) in passes.parts.iter().zip(clock_steps(bytes)) {
            let began = began.max(until);
            until = until.max(ended);
            if *part >= times.len() {
                times.resize(part + 1, 0);
            }
            times[*part] += (ended.saturating_sub(began) as f64 * self.0.period) as u64;
        }
    }

    /// Returns the nanoseconds of each pass. `bytes` come from [`GpuTimestamps::resolve`]. A pass
    /// during which the clock was set back counts as 0.
    pub(super) fn pass_times(&self, bytes: &[u8]) -> impl Iterator<Item = f64> {
        clock_steps(bytes).map(|(began, ended)| ended.saturating_sub(began) as f64 * self.0.period)
    }
}

/// Returns the passes of a timer that should hold `passes`.
fn room(passes: usize) -> u32 {
    u32::try_from(passes).unwrap_or(MOST_PASSES).clamp(1, MOST_PASSES)
}

/// Returns begin and end of each pass, in ticks of the device's clock.
fn clock_steps(bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    bytes.as_chunks::<16>().0.iter().map(|both| {
        let both = u128::from_le_bytes(*both);
        (both as u64, (both >> 64) as u64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, GpuOptions, Op, Purpose, ReadbackRing, Usage, params::Elements};

    const ROOM: usize = 100;

    /// Prepares a device, `add` on `cols` floats, and timestamps.
    fn prepared(cols: u32) -> (Gpu, Op, Elements, GpuTimestamps) {
        let gpu = Gpu::open(&GpuOptions::first()).unwrap();
        let bytes = u64::from(cols) * 4;
        let buffer = || gpu.arena().buffer(Purpose::Scratch, "test", bytes, Usage::Storage).unwrap();
        let op = Op::of(&gpu, "add", 64, &[], &[&buffer(), &buffer()]).unwrap();
        let timestamps =
            GpuTimestamps::new(&gpu, ROOM).unwrap().expect("the software driver the tests use has timestamps");
        (gpu, op, Elements { cols, pitch: cols, rows: 1, stride: cols }, timestamps)
    }

    /// Returns the times of the parts, read back after the work of `recorder`.
    fn times(gpu: &Gpu, timestamps: &GpuTimestamps, mut recorder: Recorder) -> Vec<u64> {
        let mut times = Vec::new();
        let (buffer, bytes) = timestamps.resolve(&mut recorder).unwrap();
        let mut ring = ReadbackRing::new(gpu, 1, GpuTimestamps::bytes(ROOM)).unwrap();
        ring.read(recorder, &[(buffer, 0, bytes)], || (), |read| timestamps.add_times(read, &mut times)).unwrap();
        times
    }

    #[test]
    fn add_times_sums_a_part_over_submissions() {
        let (gpu, op, params, timestamps) = prepared(1 << 16);
        let groups = [(1 << 16) / 64, 1, 1];
        // The minimum of a few rounds counts, because a software driver is preempted like any other
        // program.
        let mut least = [u64::MAX; 2];
        for _ in 0..12 {
            timestamps.restart();
            let mut recorder = Recorder::with_timestamps(&gpu, Some(&timestamps));
            recorder.dispatch(&op, &params, groups);
            recorder.begin_part(Some(1));
            (0..40).for_each(|_| recorder.dispatch(&op, &params, groups));
            recorder.submit().unwrap();
            // The part continues in the next submission.
            let mut recorder = Recorder::with_timestamps(&gpu, Some(&timestamps));
            recorder.dispatch(&op, &params, groups);
            recorder.begin_part(Some(3));
            recorder.dispatch(&op, &params, groups);
            recorder.begin_part(Some(1));
            recorder.dispatch(&op, &params, groups);
            recorder.begin_part(None);
            recorder.dispatch(&op, &params, groups);
            let times = times(&gpu, &timestamps, recorder);
            assert_eq!((times.len(), times[0], times[2]), (4, 0, 0), "{times:?}");
            assert!(times[1] > 0 && times[3] > 0, "{times:?}");
            least = [least[0].min(times[1]), least[1].min(times[3])];
        }
        assert!(least[0] > 4 * least[1], "42 dispatches against one: {least:?}");
    }

    #[test]
    fn add_times_adds_nothing_past_the_room() {
        let (gpu, op, params, timestamps) = prepared(64);
        for (passes, known) in [(ROOM, true), (ROOM + 1, false)] {
            timestamps.restart();
            let mut recorder = Recorder::with_timestamps(&gpu, Some(&timestamps));
            for pass in 0..passes {
                recorder.begin_part(Some(pass % 2));
                recorder.dispatch(&op, &params, [1, 1, 1]);
            }
            let times = times(&gpu, &timestamps, recorder);
            assert_eq!(times.iter().all(|time| *time > 0) && times.len() == 2, known, "{passes}: {times:?}");
        }
    }

    #[test]
    fn timestamps_leave_passes_to_a_profile() {
        let (gpu, op, params, timestamps) = prepared(64);
        gpu.start_profile(Clock::Timestamps);
        let mut recorder = Recorder::with_timestamps(&gpu, Some(&timestamps));
        recorder.begin_part(Some(0));
        recorder.dispatch(&op, &params, [1, 1, 1]);
        assert!(timestamps.resolve(&mut recorder).is_none());
        recorder.submit().unwrap();
        let profile = gpu.take_profile();
        assert!(profile.calls() == 1 && profile.nanoseconds() > 0.0, "{profile:?}");
    }
}
