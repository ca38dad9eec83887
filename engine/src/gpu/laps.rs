//! How long the device is at each part of what is recorded, in one submission or several, without anybody waiting for it: the
//! times come down with something that is read anyway.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{
    Buffer, Gpu, Recorder,
    stamps::{PASS_BYTES, Stamps, passes},
};
use crate::error::Result;

/// Most passes: what a set of queries has room for.
const MOST: u32 = 2048;

/// Times parts of the work that recorders record ([`Recorder::with_laps`]).
#[derive(Debug, Clone)]
pub struct Laps(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    stamps: Stamps,
    /// As many as there is room for; each is timed by itself.
    passes: u32,
    /// Nanoseconds of a step of the clock.
    period: f64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    part: Option<usize>,
    /// The part each timed pass belongs to.
    of: Vec<usize>,
    /// Whether there were more.
    full: bool,
}

impl Laps {
    /// With room for `passes` passes, or as many as there can be; `None` for a device without a clock to read.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] if there is no room, [`crate::Error::Gpu`] if the device is lost.
    pub fn new(gpu: &Gpu, passes: usize) -> Result<Option<Self>> {
        if !gpu.caps().timestamps {
            return Ok(None);
        }
        let passes = most(passes);
        let stamps = Stamps::new(gpu, passes)?;
        let state = State { of: Vec::with_capacity(passes as usize), ..State::default() };
        let period = f64::from(gpu.timestamp_period());
        Ok(Some(Laps(Arc::new(Inner { stamps, passes, period, state: Mutex::new(state) }))))
    }

    /// Bytes of device memory that those with room for `passes` passes take, and bytes of [`Laps::resolve`] at most.
    pub fn bytes(passes: usize) -> u64 {
        u64::from(most(passes)) * PASS_BYTES
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all parts; what recorders that are given up had of them must not be resolved.
    pub fn restart(&self) {
        let mut state = self.state();
        state.of.clear();
        (state.part, state.full) = (None, false);
    }

    /// What is recorded next belongs to `part`, or to none that is timed. Whether it did not before.
    pub(super) fn enter(&self, part: Option<usize>) -> bool {
        std::mem::replace(&mut self.state().part, part) != part
    }

    /// Where the next pass writes its timestamps, if it is timed.
    pub(super) fn next(&self) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        let mut state = self.state();
        let part = state.part?;
        let pass = state.of.len() as u32;
        if pass == self.0.passes {
            state.full = true;
            return None;
        }
        state.of.push(part);
        Some(self.0.stamps.of(pass))
    }

    /// Records that the timestamps become bytes; returns where, and how many.
    pub fn resolve(&self, recorder: &mut Recorder) -> Option<(&Buffer, u64)> {
        let passes = self.state().of.len() as u32;
        (passes > 0).then(|| recorder.resolve(&self.0.stamps, passes))
    }

    /// Adds the nanoseconds of each part, from the bytes that [`Laps::resolve`] left, to `times`, which grows as needed. Of
    /// more passes than there is room for nothing is known.
    pub fn read(&self, bytes: &[u8], times: &mut Vec<u64>) {
        let state = self.state();
        if state.full {
            return;
        }
        // One pass may begin before the one before has ended; no moment counts twice.
        let mut until = 0;
        for (part, (began, ended)) in state.of.iter().zip(passes(bytes)) {
            let began = began.max(until);
            until = until.max(ended);
            if *part >= times.len() {
                times.resize(part + 1, 0);
            }
            times[*part] += (ended.saturating_sub(began) as f64 * self.0.period) as u64;
        }
    }
}

fn most(passes: usize) -> u32 {
    u32::try_from(passes).unwrap_or(MOST).clamp(1, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{AdapterChoice, Clock, GpuOptions, Op, Purpose, ReadbackRing, Usage, params::Elements};

    const ROOM: usize = 100;

    /// A device, `add` on so many floats, and laps.
    fn prepared(cols: u32) -> (Gpu, Op, Elements, Laps) {
        let gpu = Gpu::open(&GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() }).unwrap();
        let bytes = u64::from(cols) * 4;
        let buffer = || gpu.arena().buffer(Purpose::Scratch, "test", bytes, Usage::Storage).unwrap();
        let pipeline = gpu.pipelines().get("add", None, 64, &[]).unwrap();
        let op = Op::new(&gpu, &pipeline, &[(&buffer()).into(), (&buffer()).into()]).unwrap();
        let laps = Laps::new(&gpu, ROOM).unwrap().expect("the software driver the tests use has timestamps");
        (gpu, op, Elements { cols, pitch: cols, rows: 1, stride: cols }, laps)
    }

    /// Reads the times behind what `recorder` has.
    fn times(gpu: &Gpu, laps: &Laps, mut recorder: Recorder) -> Vec<u64> {
        let mut times = Vec::new();
        let (buffer, bytes) = laps.resolve(&mut recorder).unwrap();
        let mut ring = ReadbackRing::new(gpu, 1, Laps::bytes(ROOM)).unwrap();
        ring.read(recorder, &[(buffer, 0, bytes)], || (), |read| laps.read(read, &mut times)).unwrap();
        times
    }

    #[test]
    fn parts_are_timed_over_several_submissions() {
        let (gpu, op, params, laps) = prepared(1 << 16);
        let groups = [(1 << 16) / 64, 1, 1];
        // The least of a few rounds: a software driver is put aside like any other program.
        let mut least = [u64::MAX; 2];
        for _ in 0..12 {
            laps.restart();
            let mut recorder = Recorder::with_laps(&gpu, Some(&laps));
            recorder.dispatch(&op, &params, groups);
            recorder.enter(Some(1));
            (0..40).for_each(|_| recorder.dispatch(&op, &params, groups));
            recorder.submit().unwrap();
            // The part goes on in the next submission.
            let mut recorder = Recorder::with_laps(&gpu, Some(&laps));
            recorder.dispatch(&op, &params, groups);
            recorder.enter(Some(3));
            recorder.dispatch(&op, &params, groups);
            recorder.enter(Some(1));
            recorder.dispatch(&op, &params, groups);
            recorder.enter(None);
            recorder.dispatch(&op, &params, groups);
            let times = times(&gpu, &laps, recorder);
            assert_eq!((times.len(), times[0], times[2]), (4, 0, 0), "{times:?}");
            assert!(times[1] > 0 && times[3] > 0, "{times:?}");
            least = [least[0].min(times[1]), least[1].min(times[3])];
        }
        assert!(least[0] > 4 * least[1], "42 dispatches against one: {least:?}");
    }

    #[test]
    fn more_passes_than_there_is_room_for_are_not_guessed() {
        let (gpu, op, params, laps) = prepared(64);
        for (passes, known) in [(ROOM, true), (ROOM + 1, false)] {
            laps.restart();
            let mut recorder = Recorder::with_laps(&gpu, Some(&laps));
            for pass in 0..passes {
                recorder.enter(Some(pass % 2));
                recorder.dispatch(&op, &params, [1, 1, 1]);
            }
            let times = times(&gpu, &laps, recorder);
            assert_eq!(times.iter().all(|time| *time > 0) && times.len() == 2, known, "{passes}: {times:?}");
        }
    }

    #[test]
    fn a_profile_goes_first() {
        let (gpu, op, params, laps) = prepared(64);
        gpu.start_profile(Clock::Timestamps);
        let mut recorder = Recorder::with_laps(&gpu, Some(&laps));
        recorder.enter(Some(0));
        recorder.dispatch(&op, &params, [1, 1, 1]);
        assert!(laps.resolve(&mut recorder).is_none());
        recorder.submit().unwrap();
        let profile = gpu.take_profile();
        assert!(profile.calls() == 1 && profile.nanoseconds() > 0.0, "{profile:?}");
    }
}
