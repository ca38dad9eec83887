//! An open device.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Relaxed},
        },
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use thermocline_shaders::{Kernel, Tier, WeightType};

use super::{
    AdapterChoice, AdapterId, AdapterKind, AdapterReport, Arena, Buffer, Caps, CrashSentinel, CreationLock, DevicePace,
    Fallback, FallbackPart, Fallbacks, FaultPoint, Faults, GpuFeature, KernelMutation, Pipelines, Purpose, RiskyStep,
    Usage, VramReading, enumeration,
    gpu_profile::GpuProfiler,
    pipeline_cache::PipelineCache,
    raw, subgroups,
    trust::{FaultCounter, Health},
    tune::{KernelShape, Tuning},
    vram,
};
use thermocline_base::error::{Error, GpuFailure, Result};

/// Settings of a device.
#[derive(Debug, Clone, Default)]
pub struct GpuOptions {
    /// Choice of the adapter.
    pub adapter: AdapterChoice,
    /// Most bytes to allocate, limited to the adapter's memory. `None` means nine tenths of the
    /// free memory. It means no limit if the system does not report the free memory.
    pub budget: Option<u64>,
    /// Limits the kernels to this tier, if it is plainer than the adapter's.
    pub tier: Option<Tier>,
    /// Most bytes of a binding and of a weight buffer.
    pub max_binding: Option<u64>,
    /// Multiplies integers for a single token, with activations rounded to 8 bits, if the weight
    /// type allows it. `None`: uses integers where a measurement finds them faster. All other
    /// products use floats.
    pub packed_dot: Option<bool>,
    /// Parts of adapters to disable, whatever the other settings request.
    pub fallbacks: Fallbacks,
    /// Folder for compiled kernels. `None`: kernels are not saved.
    pub pipeline_cache: Option<PathBuf>,
    /// Kind to report for the adapter instead of its driver's. Tests let a software driver pass for
    /// a card or for an adapter with shared memory.
    pub pretended_kind: Option<AdapterKind>,
    /// Bytes per second of uploads, for a bus that is slower than the adapter's. Tests let a
    /// software driver pass for a card behind a bus.
    pub slow_bus: Option<u64>,
    /// A simulated failure.
    pub faults: Faults,
    /// A kernel that computes something wrong on purpose.
    pub mutation: Option<KernelMutation>,
}

/// Time without an answer after which the device counts as hung. A software driver gets longer,
/// because it may only be slow.
const PATIENCE: Duration = Duration::from_secs(10);
const SOFTWARE_PATIENCE: Duration = Duration::from_secs(120);
/// Time to poll for results before the thread sleeps until they arrive.
const SPIN: Duration = Duration::from_micros(200);
/// Longest time from the end of a submission to the arrival of its results. Later results count as
/// missing.
const GRACE: Duration = Duration::from_secs(1);

/// Handle of an open device. Clones share the device.
#[derive(Debug, Clone)]
pub struct Gpu(Arc<OpenDevice>);

#[derive(Debug)]
struct OpenDevice {
    /// `None` if the device only counts.
    driver: Option<DriverHandles>,
    report: AdapterReport,
    health: Health,
    arena: Arena,
    pipelines: Pipelines,
    faults: FaultCounter,
    #[cfg(any(test, feature = "test-hooks"))]
    counts: super::test_counts::TestCounts,
    profiler: GpuProfiler,
    pace: DevicePace,
    /// Bytes per second of uploads over a simulated bus.
    slow_bus: Option<u64>,
    /// Time without an answer after which the device counts as hung. It depends on the adapter's
    /// real kind, not the pretended one.
    patience: Duration,
    tuning: Tuning,
    /// Placeholder for bindings that a kernel's variant does not read.
    nothing: Buffer,
    first_submission: FirstSubmission,
    /// Code books of the weight types that kernels have been prepared for.
    code_books: Mutex<HashMap<WeightType, Buffer>>,
}

/// State of a device's first submission, with its sentinel until the submission is done.
#[derive(Debug, Default)]
struct FirstSubmission {
    begun: AtomicBool,
    done: AtomicBool,
    sentinel: Mutex<Option<CrashSentinel>>,
}

/// The driver's objects of an open device.
#[derive(Debug, Clone)]
pub(super) struct DriverHandles {
    device: wgpu::Device,
    queue: wgpu::Queue,
    adapter: wgpu::Adapter,
}

impl GpuOptions {
    /// Returns settings that choose the first adapter, for tests.
    #[cfg(test)]
    pub(crate) fn first() -> Self {
        GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() }
    }

    /// Returns these settings, with float products only if `only` is set, even if integer products
    /// are faster.
    pub fn of_floats(&self, only: bool) -> Self {
        GpuOptions { packed_dot: if only { Some(false) } else { self.packed_dot }, ..self.clone() }
    }
}

impl Gpu {
    /// Opens the adapter that `options` chooses.
    ///
    /// # Errors
    /// [`thermocline_base::error::Error::NoGpu`] if no adapter matches.
    /// [`thermocline_base::error::Error::Gpu`] if the adapter cannot be opened.
    pub fn open(options: &GpuOptions) -> Result<Self> {
        let faults = FaultCounter::new(options.faults);
        let (mut report, adapter) = enumeration::choose(&options.adapter, &options.fallbacks, &faults)?;
        if let Some(kind) = options.pretended_kind {
            report.kind = kind;
            report.vram = vram::readings(&adapter, kind.has_unified_memory());
        }
        let id = AdapterId::of(&report);
        let health = Health::new(id.clone(), options.fallbacks.clone());
        let without: Vec<GpuFeature> = report.features_given_up().collect();
        let caps = &mut report.caps;
        *caps = without.iter().fold(*caps, |caps, feature| caps.without(*feature));
        if let Some(tier) = options.tier {
            *caps = caps.at_most(tier);
        }
        caps.max_binding = caps.max_binding.min(options.max_binding.unwrap_or(u64::MAX));
        caps.check().map_err(|reason| health.error(reason))?;
        let packed = !without.contains(&GpuFeature::PackedDot) && options.packed_dot != Some(false);
        options.fallbacks.note_use(id, caps.used_by_kernels(packed));
        let cached = options.pipeline_cache.as_deref();
        let cache_features = cached.map_or(wgpu::Features::empty(), |_| PipelineCache::features(&adapter));
        let request = |caps: &Caps| {
            let descriptor = wgpu::DeviceDescriptor {
                label: Some("thermocline"),
                required_features: caps.features() | cache_features,
                required_limits: adapter.limits(),
                // Large blocks would reserve memory that the budget does not count.
                memory_hints: wgpu::MemoryHints::MemoryUsage,
                experimental_features: raw::experimental_features(caps.cooperative.is_some()),
                ..wgpu::DeviceDescriptor::default()
            };
            pollster::block_on(adapter.request_device(&descriptor))
        };
        let sentinel = health.guard(RiskyStep::Opening, FallbackPart::Adapter, "while it opened the GPU", &faults);
        let lock = CreationLock::take();
        let mut opened = request(caps);
        if opened.is_err() && caps.cooperative.is_some() {
            // An experimental feature must not prevent opening the device.
            caps.cooperative = None;
            opened = request(caps);
        }
        drop((lock, sentinel));
        let (device, queue) = opened.map_err(|error| health.failed("it cannot be opened", &error))?;
        // Both handlers are set at once: without them wgpu panics on the errors that they receive.
        let of = health.clone();
        device.on_uncaptured_error(Arc::new(move |error| of.lose_by(&error)));
        let of = health.clone();
        device.set_device_lost_callback(move |reason, message| of.lose(&format!("{reason:?}: {message}")));

        let asked = options.budget.map(|budget| budget.min(report.memory().unwrap_or(u64::MAX)));
        let budget = asked.or(vram::budget(&report.vram)).unwrap_or(u64::MAX);
        let cache = cached.and_then(|folder| PipelineCache::open(&device, &adapter, folder));
        let packed_dot = if packed { options.packed_dot } else { Some(false) };
        let options = GpuOptions { budget: Some(budget), packed_dot, ..options.clone() };
        Self::with(&options, Some(DriverHandles { device, queue, adapter }), report, health, cache)?
            .with_true_subgroups()
    }

    /// Creates the device of an adapter. `report` holds the limits and features that the device may
    /// use. Without a driver the device only counts.
    pub(super) fn with(
        options: &GpuOptions,
        driver: Option<DriverHandles>,
        mut report: AdapterReport,
        health: Health,
        cache: Option<PipelineCache>,
    ) -> Result<Self> {
        let faults = || FaultCounter::new(options.faults);
        let device = || driver.as_ref().map(|driver| driver.device.clone());
        let budget = options.budget.unwrap_or(u64::MAX);
        let arena = Arena::new(device(), health.clone(), budget, report.caps.max_buffer, faults());
        let nothing = arena.buffer(Purpose::Scratch, "placeholder", 16, Usage::Storage)?;
        let mutation = options.mutation.clone();
        let pipelines = Pipelines::new(device(), health.clone(), report.caps, cache, faults(), mutation);
        if faults().at(FaultPoint::Subgroups) {
            report.caps.subgroups = (128, 128);
        }
        let is_software = |it: &DriverHandles| it.adapter.get_info().device_type == wgpu::DeviceType::Cpu;
        let patience = if driver.as_ref().is_some_and(is_software) { SOFTWARE_PATIENCE } else { PATIENCE };
        Ok(Gpu(Arc::new(OpenDevice {
            driver,
            report,
            health,
            arena,
            pipelines,
            faults: faults(),
            #[cfg(any(test, feature = "test-hooks"))]
            counts: super::test_counts::TestCounts::default(),
            profiler: GpuProfiler::default(),
            pace: DevicePace::new(&faults()),
            slow_bus: options.slow_bus,
            patience,
            tuning: Tuning::new(options.packed_dot),
            nothing,
            first_submission: FirstSubmission::default(),
            code_books: Mutex::default(),
        })))
    }

    /// Disables subgroups if they differ from what the adapter reports.
    fn with_true_subgroups(mut self) -> Result<Self> {
        // Tests must not count the device's own trial.
        let pause = |on| [&self.0.faults, self.0.arena.faults()].map(|faults| faults.pause(on));
        pause(true);
        let distrusted = subgroups::distrusted(&self);
        pause(false);
        if let Some(why) = distrusted? {
            self.give_up(GpuFeature::Subgroups, &why);
            // The device has no other owner yet.
            if let Some(inner) = Arc::get_mut(&mut self.0) {
                let caps = inner.report.caps.without(GpuFeature::Subgroups);
                inner.report.caps = caps;
                inner.pipelines.narrow(caps);
            }
        }
        Ok(self)
    }

    /// Returns the same device with kernels of at most `tier`, which are compiled separately. Its
    /// budget is what this device's budget has left. It is for trials of the device, which tests do
    /// not count.
    ///
    /// # Errors
    /// [`thermocline_base::error::Error::Gpu`] if the device is lost.
    /// [`thermocline_base::error::Error::Memory`] if the budget is used up.
    pub fn on_trial(&self, tier: Tier) -> Result<Self> {
        let mutation = self.pipelines().mutation().cloned();
        let options = GpuOptions { budget: Some(self.arena().available()), mutation, ..GpuOptions::default() };
        let mut report = self.report().clone();
        report.caps = report.caps.at_most(tier);
        Self::with(&options, self.0.driver.clone(), report, self.0.health.clone(), None)
    }

    /// Returns the adapter's description, limited to what this device may use.
    pub fn report(&self) -> &AdapterReport {
        &self.0.report
    }

    /// Returns the limits and features.
    pub fn caps(&self) -> &Caps {
        &self.0.report.caps
    }

    /// Returns the allocator of the device's memory.
    pub fn arena(&self) -> &Arena {
        &self.0.arena
    }

    /// Returns the device's kernels.
    pub fn pipelines(&self) -> &Pipelines {
        &self.0.pipelines
    }

    /// Returns a buffer of 16 zero bytes, the placeholder for bindings that a kernel's variant does
    /// not read.
    pub fn nothing(&self) -> &Buffer {
        &self.0.nothing
    }

    /// Returns the code book of a weight type, if the type has one. The first call allocates it.
    pub(super) fn code_book(&self, ty: WeightType) -> Result<Option<Buffer>> {
        let Some(words) = ty.device().code_book else { return Ok(None) };
        let mut made = self.0.code_books.lock();
        if let Some(buffer) = made.get(&ty) {
            return Ok(Some(buffer.clone()));
        }
        let buffer = self.arena().buffer(Purpose::Scratch, "code book", size_of_val(words) as u64, Usage::Storage)?;
        if let (Some(driver), Some(raw)) = (&self.0.driver, buffer.raw()) {
            driver.queue.write_buffer(raw, 0, bytemuck::cast_slice(words));
        }
        self.check()?;
        made.insert(ty, buffer.clone());
        Ok(Some(buffer))
    }

    /// Returns the parts of the adapter that are disabled by now.
    pub fn fallbacks(&self) -> Vec<Fallback> {
        self.0.health.fallbacks()
    }

    /// Disables `feature` of the adapter from the next opening on, because of `why`.
    pub(super) fn give_up(&self, feature: GpuFeature, why: &str) {
        self.0.health.give_up(feature, why);
    }

    /// Returns the sentinel of a step. If the process ends before the sentinel is dropped, `part`
    /// is disabled. `when` ends the message about it.
    pub fn guard(&self, step: RiskyStep, part: FallbackPart, when: &str) -> Option<CrashSentinel> {
        self.0.health.guard(step, part, when, &self.0.faults)
    }

    /// If the device was lost in a trial of the kernel `name`, disables the feature in trial and
    /// returns the error.
    pub(super) fn check_trial(&self, name: &str, weights: Option<WeightType>) -> Result<()> {
        let (Some(kernel), Some(reason)) = (Kernel::named(name), self.lost()) else { return self.check() };
        let why = format!("the device was lost in a trial of the kernel `{name}`: {reason}");
        Err(self.0.health.refused(kernel.name, kernel.features(self.caps().tier, weights), &why))
    }

    /// Returns the [`thermocline_base::error::Error::Gpu`] of a device that was lost or failed for
    /// `reason`.
    pub(super) fn failed(&self, reason: impl ToString) -> Error {
        self.check().err().unwrap_or_else(|| self.0.health.failure(reason, GpuFailure::Lost))
    }

    /// Returns the reason of the loss, if the device was lost.
    pub fn lost(&self) -> Option<&str> {
        self.0.health.reason()
    }

    /// Returns [`thermocline_base::error::Error::Gpu`] if the device was lost.
    pub fn check(&self) -> Result<()> {
        self.0.health.check()
    }

    /// Loses the device, as a driver update or an unplugged cable does.
    pub(super) fn lose(&self) {
        if let Some(device) = self.device() {
            device.destroy();
            // Polling runs the callback. Its result does not matter, because the device is lost.
            let _ = device.poll(wgpu::PollType::Poll);
        }
        self.0.health.lose("destroyed");
    }

    /// Reads the adapter's memory now and returns one reading per source. Takes up to a few
    /// milliseconds.
    pub fn vram(&self) -> Vec<VramReading> {
        let unified = self.0.report.kind.has_unified_memory();
        self.0.driver.as_ref().map_or_else(Vec::new, |driver| vram::readings(&driver.adapter, unified))
    }

    /// Returns the weight types used so far whose single-token products round activations to 8
    /// bits.
    pub fn rounding_types(&self) -> Vec<WeightType> {
        self.0.tuning.rounding_types()
    }

    /// True if each of up to [`FEW_TOKENS`](super::FEW_TOKENS) tokens has the bits that it has
    /// alone, in every kernel that has been prepared. A driver's compiler may break this.
    pub fn keeps_bits(&self) -> bool {
        self.0.tuning.keeps_bits()
    }

    pub(super) fn tuning(&self) -> &Tuning {
        &self.0.tuning
    }

    /// Returns the kernel shape of products with weights of type `ty`.
    pub(super) fn shape(&self, ty: WeightType) -> Result<KernelShape> {
        self.0.tuning.shape(self, ty)
    }

    /// Returns the driver's device; `None` if this device only counts.
    pub(super) fn device(&self) -> Option<&wgpu::Device> {
        self.0.driver.as_ref().map(|driver| &driver.device)
    }

    pub(super) fn profiler(&self) -> &GpuProfiler {
        &self.0.profiler
    }

    /// Returns the measured pace, which limits the work of a submission.
    pub fn pace(&self) -> &DevicePace {
        &self.0.pace
    }

    /// Returns the nanoseconds per tick of the device's clock.
    pub(super) fn timestamp_period(&self) -> f32 {
        self.0.driver.as_ref().map_or(1.0, |driver| driver.queue.get_timestamp_period())
    }

    /// Returns the counters for tests.
    #[cfg(any(test, feature = "test-hooks"))]
    pub(super) fn counts(&self) -> &super::test_counts::TestCounts {
        &self.0.counts
    }

    pub(super) fn submit(&self, commands: wgpu::CommandBuffer) -> Result<wgpu::SubmissionIndex> {
        let DriverHandles { device, queue, .. } = self.0.driver.as_ref().ok_or_else(|| self.only_counts())?;
        if self.0.faults.at(FaultPoint::Submit) {
            self.lose();
        }
        if self.0.faults.at(FaultPoint::Validation)
            && let Some(nothing) = self.0.nothing.raw()
        {
            // A copy of three bytes is invalid.
            let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            encoder.copy_buffer_to_buffer(nothing, 0, nothing, 0, 3);
            queue.submit([encoder.finish()]);
        }
        if self.0.health.hollow.load(Relaxed) {
            device.destroy();
            return Err(self.0.health.lost("it ran out of memory at the first use of an allocated buffer"));
        }
        self.check()?;
        let first = &self.0.first_submission;
        if !first.begun.swap(true, Relaxed) {
            let sentinel = self.guard(RiskyStep::Submission, FallbackPart::Adapter, "during its first GPU submission");
            *first.sentinel.lock() = sentinel;
        }
        let index = queue.submit([commands]);
        #[cfg(any(test, feature = "test-hooks"))]
        if !self.0.faults.paused() {
            self.0.counts.submits.fetch_add(1, Relaxed);
        }
        self.check()?;
        Ok(index)
    }

    /// Waits as long as `bytes` take over a simulated bus. A device copies and computes in order,
    /// so it finishes earlier submissions first.
    pub(super) fn cross_bus(&self, bytes: u64) -> Result<()> {
        let Some(rate) = self.0.slow_bus.filter(|_| bytes > 0) else { return Ok(()) };
        self.idle()?;
        thread::sleep(Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64));
        Ok(())
    }

    /// Waits until the submission `index` is done.
    ///
    /// # Errors
    /// [`thermocline_base::error::Error::Gpu`] if the device is lost, does not answer, or only
    /// counts.
    pub fn wait(&self, index: wgpu::SubmissionIndex) -> Result<()> {
        if self.0.faults.at(FaultPoint::Readback) {
            self.lose();
        }
        self.wait_for(Some(index))
    }

    /// Waits until the submission `index` is done and the callback of its mapping has set
    /// `arrived`. Polls for a moment first, because waking a thread takes longer than a hand-over.
    pub(super) fn wait_for_results(&self, index: wgpu::SubmissionIndex, arrived: &AtomicBool) -> Result<()> {
        if self.0.faults.at(FaultPoint::Readback) {
            self.lose();
        }
        let hangs = self.0.faults.at(FaultPoint::Hang);
        if let Some(device) = self.device().filter(|_| self.0.report.kind != AdapterKind::Software) {
            let started = Instant::now();
            while !arrived.load(Acquire) && started.elapsed() < SPIN {
                if device.poll(wgpu::PollType::Poll).is_err() {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        if hangs || !arrived.load(Acquire) {
            self.wait_for(Some(index))?;
        }
        if hangs || !comes(arrived) {
            // The driver reports the submission as done, but its results did not arrive.
            self.0.health.hang("it does not answer: the results of a submission did not arrive");
        }
        self.check()
    }

    /// Waits until all submissions are done.
    pub(super) fn idle(&self) -> Result<()> {
        self.wait_for(None)
    }

    fn wait_for(&self, submission_index: Option<wgpu::SubmissionIndex>) -> Result<()> {
        self.check()?;
        let device = match (self.device(), &submission_index) {
            (Some(device), _) => device,
            // Nothing was submitted.
            (None, None) => return Ok(()),
            (None, Some(_)) => return Err(self.only_counts()),
        };
        let wait = wgpu::PollType::Wait { submission_index, timeout: Some(self.0.patience) };
        if let Err(error) = device.poll(wait) {
            self.0.health.hang(&format!("it does not answer: {error}"));
        }
        let first = &self.0.first_submission;
        if first.begun.load(Relaxed) && !first.done.swap(true, Relaxed) {
            first.sentinel.lock().take();
        }
        self.check()
    }
}

/// True once a callback has set `called`. The submission of the callback is done, but another
/// thread that polled first may not have run the callback yet.
pub(super) fn comes(called: &AtomicBool) -> bool {
    let deadline = Instant::now() + GRACE;
    while !called.load(Acquire) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    called.load(Acquire)
}
