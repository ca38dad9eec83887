//! Times of kernels. While a profile is taken, every dispatch runs in its own pass between two
//! timestamps, which is slightly slower. Without a profile, this module allocates nothing and costs
//! no time.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Instant,
};

use parking_lot::Mutex;
use serde::Serialize;
use thermocline_shaders::WeightType;

use super::{Buffer, Gpu, GpuTimestamps, Purpose, Usage, Work};
use thermocline_base::error::{Error, Result};

/// Clock of a profile's times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// The device's own clock around each dispatch.
    #[default]
    Timestamps,
    /// Time from a dispatch's submission until the CPU knows that the dispatch is done, for a
    /// device without a readable clock. Much too long for short kernels.
    Wall,
}

impl Clock {
    /// Returns the name, as shown and printed.
    pub const fn name(self) -> &'static str {
        match self {
            Clock::Timestamps => "timestamps",
            Clock::Wall => "wall time with submission and wait",
        }
    }
}

/// Total of all dispatches of one kernel on one weight type.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelTimes {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Weight type that the kernel read.
    pub weights: Option<WeightType>,
    /// Number of dispatches.
    pub calls: u64,
    /// Time of all dispatches in nanoseconds.
    pub nanoseconds: f64,
    /// Bytes that the dispatches had to read and write; 0 if unknown.
    pub bytes: u64,
    /// Floating-point operations; 0 for kernels that only move bytes.
    pub flops: u64,
}

impl KernelTimes {
    /// Returns the kernel and weight type, as `gemv Q4_0`.
    pub fn name(&self) -> String {
        self.weights.map_or_else(|| self.kernel.to_owned(), |ty| format!("{} {ty}", self.kernel))
    }

    /// Returns the bytes moved per second, if known.
    pub fn bytes_per_second(&self) -> Option<f64> {
        self.rate(self.bytes)
    }

    /// Returns the floating-point operations per second, if known.
    pub fn flops_per_second(&self) -> Option<f64> {
        self.rate(self.flops)
    }

    fn rate(&self, what: u64) -> Option<f64> {
        (what > 0 && self.nanoseconds > 0.0).then(|| what as f64 / self.nanoseconds * 1e9)
    }
}

/// Times measured between [`Gpu::start_profile`] and [`Gpu::take_profile`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GpuProfile {
    /// Clock of the times.
    pub clock: Clock,
    /// One entry per kernel and weight type, the longest time first.
    pub kernels: Vec<KernelTimes>,
}

impl GpuProfile {
    /// Returns the number of dispatches.
    pub fn calls(&self) -> u64 {
        self.kernels.iter().map(|times| times.calls).sum()
    }

    /// Returns the nanoseconds of all kernels together.
    pub fn nanoseconds(&self) -> f64 {
        self.kernels.iter().map(|times| times.nanoseconds).sum()
    }
}

/// State of a profile in progress on a device.
#[derive(Debug, Default)]
pub(super) struct GpuProfiler {
    on: AtomicBool,
    state: Mutex<ProfilerState>,
}

#[derive(Debug, Default)]
struct ProfilerState {
    clock: Clock,
    kernels: BTreeMap<(&'static str, Option<WeightType>), KernelTimes>,
    /// Timers that no recorder uses now.
    idle: Vec<DispatchTimer>,
}

impl Gpu {
    /// Starts to time every dispatch by `clock`, or by the wall clock if the device has no readable
    /// clock. Recorders created earlier are not timed. Each submission then returns only when it is
    /// done.
    pub fn start_profile(&self, clock: Clock) {
        let mut state = self.profiler().state.lock();
        state.kernels.clear();
        state.clock = if self.caps().timestamps { clock } else { Clock::Wall };
        self.profiler().on.store(true, Relaxed);
    }

    /// Ends the profile and returns it. Returns an empty profile if none was started.
    pub fn take_profile(&self) -> GpuProfile {
        self.profiler().on.store(false, Relaxed);
        let mut state = self.profiler().state.lock();
        state.idle.clear();
        let mut kernels: Vec<KernelTimes> = std::mem::take(&mut state.kernels).into_values().collect();
        kernels.sort_by(|a, b| b.nanoseconds.total_cmp(&a.nanoseconds));
        GpuProfile { clock: state.clock, kernels }
    }
}

/// Dispatches per timer.
const TIMED: usize = 512;

/// Timestamps of [`TIMED`] dispatches, and the buffer that transfers them to the CPU.
#[derive(Debug)]
struct DispatchTimer {
    timestamps: GpuTimestamps,
    readback: Buffer,
}

impl DispatchTimer {
    /// Creates a timer; `None` if the device has no readable clock.
    fn new(gpu: &Gpu) -> Result<Option<Self>> {
        let Some(timestamps) = GpuTimestamps::new(gpu, TIMED)? else { return Ok(None) };
        let bytes = GpuTimestamps::bytes(TIMED);
        let readback = gpu.arena().buffer(Purpose::Staging, "timestamps", bytes, Usage::Readback)?;
        Ok(Some(DispatchTimer { timestamps, readback }))
    }
}

/// A dispatch that is being timed.
#[derive(Debug)]
struct TimedDispatch {
    kernel: &'static str,
    weights: Option<WeightType>,
    work: Work,
    /// The wall clock sets the time at once, the device's clock later.
    nanoseconds: f64,
}

/// The timing of one recorder's dispatches.
#[derive(Debug)]
pub(super) struct DispatchTiming {
    pub clock: Clock,
    timers: Vec<DispatchTimer>,
    dispatches: Vec<TimedDispatch>,
    failed: Option<Error>,
}

impl DispatchTiming {
    /// Starts the timing of a new recorder; `None` unless a profile is being taken.
    pub fn begin(gpu: &Gpu) -> Option<Self> {
        gpu.profiler().on.load(Relaxed).then(|| DispatchTiming {
            clock: gpu.profiler().state.lock().clock,
            timers: Vec::new(),
            dispatches: Vec::new(),
            failed: None,
        })
    }

    /// Notes a dispatch.
    pub fn note(&mut self, kernel: &'static str, weights: Option<WeightType>, work: Work) {
        self.dispatches.push(TimedDispatch { kernel, weights, work, nanoseconds: 0.0 });
    }

    /// Returns the timestamps for the pass of the latest dispatch. `None` with the wall clock, or
    /// if memory is short, which [`DispatchTiming::finish`] reports.
    pub fn next_pass(&mut self, gpu: &Gpu) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        let dispatch = self.dispatches.len().checked_sub(1)?;
        if self.clock == Clock::Wall || self.failed.is_some() {
            return None;
        }
        if self.timers.len() <= dispatch / TIMED {
            let idle = gpu.profiler().state.lock().idle.pop();
            match idle.map_or_else(|| DispatchTimer::new(gpu), |timer| Ok(Some(timer))) {
                Ok(timer) => self.timers.push(timer?),
                Err(error) => {
                    self.failed = Some(error);
                    return None;
                }
            }
            let timestamps = &self.timers.last()?.timestamps;
            timestamps.restart();
            timestamps.begin_part(Some(0));
        }
        self.timers.last()?.timestamps.next_pass()
    }

    /// Sets the time of the latest dispatch, which began at `started` and is done now.
    pub fn stop(&mut self, started: Instant) {
        if let Some(dispatch) = self.dispatches.last_mut() {
            dispatch.nanoseconds = started.elapsed().as_nanos() as f64;
        }
    }

    /// Keeps the first failure, which [`DispatchTiming::finish`] returns.
    pub fn failed(&mut self, result: Result<()>) {
        self.failed = self.failed.take().or(result.err());
    }

    /// Records the transfer of the timestamps to the CPU.
    pub fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        for DispatchTimer { timestamps, readback } in &self.timers {
            if let Some((resolved, bytes)) = timestamps.resolve_into(encoder)
                && let (Some(resolved), Some(readback)) = (resolved.raw(), readback.raw())
            {
                encoder.copy_buffer_to_buffer(resolved, 0, readback, 0, bytes);
                // The later read reports a failed mapping.
                encoder.map_buffer_on_submit(readback, wgpu::MapMode::Read, 0..bytes, |_| ());
            }
        }
    }

    /// Waits for the submission that contains [`DispatchTiming::resolve`], and adds the times to
    /// the profile.
    pub fn finish(mut self, gpu: &Gpu) -> Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.clock == Clock::Timestamps && !self.dispatches.is_empty() {
            gpu.idle()?;
            for (timer, dispatches) in self.timers.iter().zip(self.dispatches.chunks_mut(TIMED)) {
                read_times(gpu, timer, dispatches)?;
            }
        }
        let mut state = gpu.profiler().state.lock();
        for TimedDispatch { kernel, weights, work, nanoseconds } in self.dispatches {
            let new = || KernelTimes { kernel, weights, calls: 0, nanoseconds: 0.0, bytes: 0, flops: 0 };
            let times = state.kernels.entry((kernel, weights)).or_insert_with(new);
            times.calls += 1;
            times.nanoseconds += nanoseconds;
            times.bytes += work.bytes;
            times.flops += work.flops;
        }
        state.idle.append(&mut self.timers);
        Ok(())
    }
}

fn read_times(gpu: &Gpu, timer: &DispatchTimer, dispatches: &mut [TimedDispatch]) -> Result<()> {
    let raw = timer.readback.raw().ok_or_else(|| gpu.only_counts())?;
    let view = raw
        .get_mapped_range(0..GpuTimestamps::bytes(dispatches.len()))
        .map_err(|error| gpu.failed(format!("timestamps: {error}")))?;
    for (dispatch, nanoseconds) in dispatches.iter_mut().zip(timer.timestamps.pass_times(&view)) {
        dispatch.nanoseconds = nanoseconds;
    }
    drop(view);
    raw.unmap();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GpuOptions, Op, Recorder, params::Elements};

    /// Prepares `add` on 1,000 floats.
    fn adder(gpu: &Gpu) -> (Op, Elements) {
        let buffer = || gpu.arena().buffer(Purpose::Scratch, "test", 4096, Usage::Storage).unwrap();
        let op = Op::of(gpu, "add", 64, &[], &[&buffer(), &buffer()]).unwrap();
        (op, Elements { cols: 1000, pitch: 1024, rows: 1, stride: 1024 })
    }

    fn run(gpu: &Gpu, op: &Op, params: &Elements, dispatches: usize) {
        let mut recorder = Recorder::new(gpu);
        (0..dispatches).for_each(|_| recorder.dispatch(op, params, [16, 1, 1]));
        recorder.submit().unwrap();
    }

    #[test]
    fn profile_times_every_dispatch() {
        let options = GpuOptions::first();
        let gpu = Gpu::open(&options).unwrap();
        assert!(gpu.caps().timestamps, "the software driver the tests use has timestamps");
        let (op, params) = adder(&gpu);
        let made = gpu.arena().made();
        run(&gpu, &op, &params, 3);
        assert_eq!(gpu.arena().made(), made, "nothing is made where nothing is timed");
        for clock in [Clock::Timestamps, Clock::Wall] {
            gpu.start_profile(clock);
            for dispatches in [0, 1, 7, 2 * TIMED + 1, TIMED] {
                run(&gpu, &op, &params, dispatches);
            }
            let profile = gpu.take_profile();
            assert_eq!((profile.clock, profile.kernels.len()), (clock, 1));
            let times = &profile.kernels[0];
            assert_eq!(profile.calls(), 9 + 3 * TIMED as u64, "{clock:?}");
            assert_eq!(times.bytes, 12_000 * times.calls);
            assert!(times.nanoseconds > 0.0 && times.bytes_per_second().is_some_and(|rate| rate > 0.0), "{times:?}");
            assert_eq!((times.name(), times.flops_per_second()), ("add".to_owned(), None));
        }
        assert_eq!(gpu.arena().used_for(Purpose::Staging), 0, "a profile that is taken keeps nothing");
        run(&gpu, &op, &params, 3);
        assert_eq!(gpu.take_profile().calls(), 0);
    }

    #[test]
    fn profile_fails_without_memory_or_device() {
        let gpu = Gpu::open(&GpuOptions { budget: Some(12_000), ..GpuOptions::first() }).unwrap();
        let (op, params) = adder(&gpu);
        gpu.start_profile(Clock::Timestamps);
        let mut recorder = Recorder::new(&gpu);
        recorder.dispatch(&op, &params, [16, 1, 1]);
        assert!(matches!(recorder.submit(), Err(Error::Memory { what: "timestamps", .. })));
        gpu.start_profile(Clock::Wall);
        let mut recorder = Recorder::new(&gpu);
        gpu.lose();
        recorder.dispatch(&op, &params, [16, 1, 1]);
        assert!(matches!(recorder.submit(), Err(Error::Gpu { .. })));
    }
}
