use std::{
    ops::{ControlFlow, Range},
    path::Path,
    sync::{
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
        mpsc::Receiver,
    },
};

use super::*;
use crate::session::{
    Engine, EngineOptions, Event, LivePlanner, Prompt, Request, Sampling, SessionOptions, SparsityChoice, StopReason,
    loader::{LoadProgress, LoadedModels},
};
use thermocline_base::error::ScarceMemory;
use thermocline_cpu::{Cpu, CpuOptions, Isa};
use thermocline_gpu::{AdapterId, FallbackPart, Fallbacks, KernelFeatures, Purpose};
use thermocline_model::{BoundStep, LoadOptions, Model, Resident};
use thermocline_run::{
    placement::Machine,
    runtime::{CpuProcessor, KvCache, KvType, Pass, Residency, Sequences, Sparsity},
};

/// What happens to one load and its device.
#[derive(Debug, Clone, Copy)]
enum Outcome {
    Works,
    LostAtChunk(usize),
    FullAtChunk(usize),
    NoDevice,
    TooSlow,
    LostInLoad,
    /// The driver refuses a kernel at this chunk.
    RefusedAtChunk(usize),
    Panics,
    Hangs,
}

/// A source of devices that compute on the CPU. Each load takes the next of these outcomes, and the
/// last outcome repeats.
#[derive(Debug)]
struct TestDevices(Vec<Outcome>, AtomicUsize, Fallbacks);

fn lost() -> Error {
    failed("unplugged", GpuFailure::Lost)
}

fn failed(reason: &str, failure: GpuFailure) -> Error {
    Error::Gpu { adapter: "stand-in".to_owned(), reason: reason.to_owned(), failure }
}

fn adapter() -> AdapterId {
    let [backend, driver, pci_bus_id] = ["vulkan", "", ""].map(str::to_owned);
    AdapterId { name: "stand-in".to_owned(), backend, driver, pci_bus_id }
}

/// Features that the refused kernel uses.
const USED: KernelFeatures = KernelFeatures { cooperative: false, packed: true, tier: thermocline_gpu::Tier::PORTABLE };

fn refused() -> Error {
    failed("no kernel", GpuFailure::Refused { kernel: "gemv_dot", used: USED })
}

impl DeviceSource for TestDevices {
    fn load(
        &self,
        _: LoadedModels<'_>,
        _: &Arc<LivePlanner>,
        budget: Option<u64>,
        progress: LoadProgress<'_>,
    ) -> Result<LoadedDevice> {
        if self.fallbacks().iter().any(|it| it.part == FallbackPart::Adapter) {
            return Err(failed("stand-in is given up", GpuFailure::GivenUp { listed: true, known: false }));
        }
        let ledger = TestLedger::new(budget)?;
        let outcome = self.0[self.1.fetch_add(1, SeqCst).min(self.0.len() - 1)];
        let mut fail = None;
        match outcome {
            Outcome::Works => {}
            Outcome::LostAtChunk(n) => fail = Some((n, lost as fn() -> Error)),
            Outcome::FullAtChunk(n) => {
                fail = Some((n, || Error::memory(ScarceMemory::KvCache, "KV cache", 2, 1)));
            }
            Outcome::RefusedAtChunk(n) => fail = Some((n, refused as fn() -> Error)),
            Outcome::NoDevice => return Err(Error::invalid("adapter", "one", "none")),
            Outcome::TooSlow => return Err(Error::SlowGpu),
            Outcome::LostInLoad => return Err(lost()),
            Outcome::Panics => panic!("as planned"),
            Outcome::Hangs => loop {
                if progress(LoadStage::Uploading { done: 1, total: 3 }) == ControlFlow::Break(()) {
                    return Err(Error::Cancelled);
                }
                std::thread::sleep(Duration::from_millis(1));
            },
        }
        let cpu = Cpu::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() })?;
        let processor = Box::new(FailingProcessor {
            cpu: CpuProcessor::new(cpu),
            fail,
            fallbacks: self.2.clone(),
            ledger: ledger.clone(),
        });
        Ok(LoadedDevice { processor, drafter: None, memory: Box::new(ledger) })
    }

    fn fallbacks(&self) -> Vec<Fallback> {
        self.2.all()
    }

    fn after_losses(&self, _: &str, why: &str) -> Option<Fallback> {
        Some(self.2.step(&adapter(), KernelFeatures::default(), why))
    }
}

/// Bytes that the device holds, between [`TestLedger::LEAST`] and [`TestLedger::ALL`], and its
/// budget.
#[derive(Debug, Clone)]
struct TestLedger {
    held: Arc<AtomicU64>,
    budget: Arc<AtomicU64>,
}

impl TestLedger {
    const ALL: u64 = 8;
    const LEAST: u64 = 3;

    fn new(budget: Option<u64>) -> Result<Self> {
        let budget = budget.unwrap_or(10);
        Self::check(budget)?;
        let held = budget.min(Self::ALL);
        Ok(TestLedger { held: Arc::new(AtomicU64::new(held)), budget: Arc::new(AtomicU64::new(budget)) })
    }

    fn check(budget: u64) -> Result<()> {
        if budget < Self::LEAST {
            return Err(Error::memory(ScarceMemory::Gpu, "weights", Self::LEAST, budget));
        }
        Ok(())
    }
}

impl MemoryLedger for TestLedger {
    fn read(&self) -> DeviceMemory {
        let by_purpose = Purpose::ALL.map(|purpose| (purpose, 1));
        let (accounted, budget) = (self.held.load(SeqCst), Some(self.budget.load(SeqCst)));
        DeviceMemory {
            adapter: "stand-in".to_owned(),
            budget,
            card: None,
            shares_ram: false,
            accounted,
            by_purpose,
            moving: false,
            fallbacks: Vec::new(),
        }
    }

    fn gpu(&self) -> Option<&Gpu> {
        None
    }
}

/// A CPU processor that fails at the end of its n-th chunk.
#[derive(Debug)]
struct FailingProcessor {
    cpu: CpuProcessor,
    fail: Option<(usize, fn() -> Error)>,
    fallbacks: Fallbacks,
    ledger: TestLedger,
}

impl FailingProcessor {
    fn end(&mut self) -> Result<()> {
        if let Some((left, error)) = &mut self.fail {
            *left = left.saturating_sub(1);
            if *left == 0 {
                let error = error();
                if matches!(error, Error::Gpu { failure: GpuFailure::Refused { .. }, .. }) {
                    self.fallbacks.step(&adapter(), USED, "no kernel");
                }
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Residency for FailingProcessor {
    fn take_kv(&mut self, _: &Model, _: &mut KvCache) -> Result<()> {
        Ok(())
    }

    fn return_kv(&mut self, _: &mut KvCache) -> Result<()> {
        Ok(())
    }

    fn copy_to_ram(&mut self, _: &[usize], _: &mut KvCache) -> Result<()> {
        Ok(())
    }

    fn set_budget(&mut self, _: &Model, bytes: u64, caches: &mut [&mut KvCache]) -> Result<()> {
        TestLedger::check(bytes)?;
        assert!(caches.iter().all(|kv| kv.on_host()));
        self.ledger.held.fetch_min(bytes, SeqCst);
        self.ledger.budget.store(bytes, SeqCst);
        Ok(())
    }

    fn settle(&mut self, _: &Model, _: &mut [&mut KvCache]) -> Result<bool> {
        let room = self.ledger.budget.load(SeqCst).min(TestLedger::ALL);
        let held = self.ledger.held.load(SeqCst);
        self.ledger.held.store(room.min(held + 1), SeqCst);
        Ok(held + 1 < room)
    }

    fn resident(&self, _: &Model) -> Option<Resident> {
        None
    }

    fn moves(&self) -> u64 {
        0
    }
}

impl Processor for FailingProcessor {
    fn isa(&self) -> Isa {
        self.cpu.isa()
    }

    fn kv_cache(&mut self, model: &Model, capacity: usize, ty: KvType) -> Result<KvCache> {
        self.cpu.kv_cache(model, capacity, ty)
    }

    fn holds(&self, kv: &KvCache) -> bool {
        self.cpu.holds(kv)
    }

    fn begin(&mut self, pass: &Pass<'_>, sequences: &Sequences<'_>) -> Result<()> {
        self.cpu.begin(pass, sequences)
    }

    fn step(&mut self, pass: &mut Pass<'_>, step: &BoundStep<'_>, sequences: &mut Sequences<'_>) -> Result<()> {
        self.cpu.step(pass, step, sequences)
    }

    fn add_inputs(&mut self, pass: &Pass<'_>, layer: usize) -> Result<()> {
        self.cpu.add_inputs(pass, layer)
    }

    fn residual(&mut self, pass: &Pass<'_>) -> Result<&[f32]> {
        self.cpu.residual(pass)
    }

    fn head(&mut self, pass: &Pass<'_>, tokens: Range<usize>, logits: &mut [f32]) -> Result<()> {
        self.end()?;
        self.cpu.head(pass, tokens, logits)
    }

    fn hidden(&mut self, pass: &Pass<'_>, out: &mut [f32]) -> Result<()> {
        self.end()?;
        self.cpu.hidden(pass, out)
    }

    fn top(&mut self, pass: &Pass<'_>, token: usize, ids: &mut [u32], logits: &mut [f32]) -> Result<()> {
        self.end()?;
        self.cpu.top(pass, token, ids, logits)
    }

    fn finish(&mut self) -> Result<()> {
        self.end()?;
        self.cpu.finish()
    }

    fn residency(&mut self) -> Option<&mut dyn Residency> {
        Some(self)
    }

    fn scratch_bytes(&self) -> u64 {
        self.cpu.scratch_bytes()
    }
}

fn engine(outcomes: &[Outcome]) -> Engine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/llama-relu");
    let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let options = EngineOptions { cpu: cpu.clone(), chunk: 4, ..EngineOptions::default() };
    let model = Model::open(&path, &LoadOptions::default()).unwrap();
    let source: Option<Arc<dyn DeviceSource>> = match outcomes {
        [] => None,
        outcomes => Some(Arc::new(TestDevices(outcomes.to_vec(), AtomicUsize::new(0), Fallbacks::default()))),
    };
    Engine::start(model, options, Cpu::new(&cpu).unwrap(), |_| source).unwrap()
}

fn request(tokens: usize) -> Request {
    Request {
        sampling: Sampling::greedy(),
        max_tokens: Some(tokens),
        ignore_eos: true,
        ..Request::new(Prompt::Tokens((5..16).collect()))
    }
}

/// Tokens and device events, in the order of arrival.
fn collect(events: &Receiver<Event>) -> (Vec<u32>, Vec<String>) {
    let (mut ids, mut heard) = (Vec::new(), Vec::new());
    for event in events {
        match event {
            Event::Token { id, .. } => ids.push(id),
            Event::Device(DeviceEvent::Lost { adapter, reason }) => heard.push(format!("lost {adapter}: {reason}")),
            Event::Device(DeviceEvent::Cpu { reason }) => heard.push(format!("cpu: {reason}")),
            Event::Device(DeviceEvent::Fallback(fallback)) => heard.push(fallback.to_string()),
            Event::Device(DeviceEvent::Gpu { adapter }) => heard.push(format!("gpu {adapter}")),
            Event::Error(error) => panic!("{error}"),
            Event::Done { reason, .. } => assert_eq!(reason, StopReason::MaxTokens),
            Event::Prompt { .. } | Event::PromptLogprobs(_) | Event::Embedding(_) | Event::Stats(_) => {}
        }
    }
    (ids, heard)
}

fn undisturbed(tokens: usize) -> Vec<u32> {
    let engine = engine(&[]);
    assert!(matches!(engine.device(), DeviceStatus::Cpu { reason: None }));
    let heard = collect(&engine.session(SessionOptions::default()).unwrap().generate(request(tokens)));
    assert_eq!(heard.1, Vec::<String>::new());
    heard.0
}

/// Longest time that a test waits for anything.
const LONGEST: Duration = Duration::from_secs(120);

fn wait(engine: &Engine, what: &str, done: impl Fn(&DeviceStatus) -> bool) {
    let started = Instant::now();
    while !done(&engine.device()) {
        assert!(started.elapsed() < LONGEST, "not within {LONGEST:?}: {what}: {:?}", engine.device());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn device_loss_at_any_chunk_keeps_the_tokens() {
    let want = undisturbed(20);
    for n in 1..=23 {
        let engine = engine(&[Outcome::LostAtChunk(n), Outcome::Hangs]);
        let (ids, heard) = collect(&engine.session(SessionOptions::default()).unwrap().generate(request(20)));
        assert_eq!(ids, want, "lost at chunk {n}");
        // The prompt has three chunks, and the third yields the first token. The last token is not
        // computed.
        match n {
            23 => assert!(matches!(engine.device(), DeviceStatus::Gpu(_))),
            _ => {
                assert_eq!(heard.last().map(String::as_str), Some("lost stand-in: unplugged"), "{n}");
                assert!(matches!(engine.device(), DeviceStatus::Lost { .. }));
            }
        }
    }
}

#[test]
fn device_is_loaded_again_after_a_loss() {
    let engine = engine(&[Outcome::LostAtChunk(5), Outcome::LostInLoad, Outcome::Works]);
    let session = engine.session(SessionOptions::default()).unwrap();
    assert_eq!(collect(&session.generate(request(20))).0, undisturbed(20));
    wait(&engine, "its return", |status| matches!(status, DeviceStatus::Gpu(_)));
    let (ids, heard) = collect(&session.generate(request(20)));
    assert_eq!((ids, heard), (undisturbed(20), Vec::new()));
    let now = engine.telemetry();
    assert_eq!((now.device_bytes, now.device_budget), (8, 10));
}

#[test]
fn after_three_attempts_a_lost_adapter_is_given_up() {
    let started = Instant::now();
    let engine = engine(&[Outcome::LostInLoad; 5]);
    let session = engine.session(SessionOptions::default()).unwrap();
    let want = undisturbed(20);
    assert_eq!(collect(&session.generate(request(20))).0, want);
    wait(&engine, "the last attempt", |status| matches!(status, DeviceStatus::Cpu { reason: Some(_) }));
    assert!(started.elapsed() >= RETRY_DELAYS.iter().sum());
    let DeviceStatus::Cpu { reason: Some(reason) } = engine.device() else { panic!("{:?}", engine.device()) };
    assert_eq!(reason.to_string(), "stand-in is given up");
    assert_eq!(collect(&session.generate(request(20))), (want, Vec::new()));
    engine.set_device(&crate::session::DeviceChoice::Cpu).unwrap();
    wait(&engine, "the choice of the CPU", |status| matches!(status, DeviceStatus::Cpu { reason: None }));
}

#[test]
fn device_that_refuses_a_kernel_is_loaded_again_at_once_without_it() {
    let want = undisturbed(20);
    for n in [1, 5] {
        // The next device works. It is loaded long before a lost device would be tried again.
        let engine = engine(&[Outcome::RefusedAtChunk(n), Outcome::Works]);
        let (ids, heard) = collect(&engine.session(SessionOptions::default()).unwrap().generate(request(20)));
        assert_eq!(ids, want, "refused at chunk {n}");
        let sentence = "stand-in runs without packed dot products over vulkan: no kernel";
        assert!(heard.iter().any(|it| it == sentence), "{heard:?}");
        assert!(!heard.iter().any(|it| it.starts_with("lost") || it.starts_with("cpu")), "{heard:?}");
        wait(&engine, "its return", |status| matches!(status, DeviceStatus::Gpu(_)));
    }
    // After the adapter itself nothing is left to disable.
    let engine = engine(&[Outcome::RefusedAtChunk(1); 4]);
    let (started, mut heard) = (Instant::now(), Vec::new());
    while !matches!(engine.device(), DeviceStatus::Cpu { reason: Some(_) }) {
        assert!(started.elapsed() < LONGEST, "{:?} {heard:?}", engine.device());
        let (ids, more) = collect(&engine.session(SessionOptions::default()).unwrap().generate(request(20)));
        assert_eq!(ids, want);
        heard.extend(more);
    }
    let given_up = heard.iter().any(|it| it == "stand-in is not used over vulkan: no kernel");
    assert!(given_up, "{heard:?}");
}

#[test]
fn devices_that_fail_for_good_are_not_tried_again() {
    let want = undisturbed(20);
    for (outcome, why) in [
        (Outcome::NoDevice, "adapter: expected one, got none"),
        (Outcome::Panics, "as planned"),
        (Outcome::FullAtChunk(7), "KV cache: 2 bytes are needed, but only 1 are available"),
    ] {
        let engine = engine(&[outcome, Outcome::Works]);
        let (ids, heard) = collect(&engine.session(SessionOptions::default()).unwrap().generate(request(20)));
        assert_eq!(ids, want, "{outcome:?}");
        // A load that fails at once may fail before the request starts.
        let told = heard.last().is_some_and(|last| last.starts_with("cpu: ") && last.contains(why));
        assert!(told || (heard.is_empty() && !matches!(outcome, Outcome::FullAtChunk(_))), "{outcome:?}: {heard:?}");
        let DeviceStatus::Cpu { reason: Some(reason) } = engine.device() else { panic!("{:?}", engine.device()) };
        assert!(reason.to_string().contains(why), "{reason}");
        engine.retry_device().unwrap();
        wait(&engine, "the device", |status| matches!(status, DeviceStatus::Gpu(_)));
    }
}

#[test]
fn device_that_seemed_slow_is_tried_again_with_the_real_speeds() {
    let engine = engine(&[Outcome::TooSlow, Outcome::Works]);
    let slow = |reason: &Option<Arc<Error>>| reason.as_deref().is_some_and(|it| matches!(it, Error::SlowGpu));
    wait(&engine, "the answer", |status| matches!(status, DeviceStatus::Cpu { reason } if slow(reason)));
    engine.set_machine(Machine::typical()).unwrap();
    wait(&engine, "the device", |status| matches!(status, DeviceStatus::Gpu(_)));
    // A working device stays in use.
    engine.set_machine(Machine::typical()).unwrap();
    let heard = collect(&engine.session(SessionOptions::default()).unwrap().generate(request(20)));
    assert_eq!(heard, (undisturbed(20), Vec::new()));
}

#[test]
fn requests_wait_for_the_first_load_and_can_be_cancelled() {
    let engine = engine(&[Outcome::Hangs]);
    wait(&engine, "progress", |status| {
        matches!(status, DeviceStatus::Loading(LoadStage::Uploading { done: 1, total: 3 }))
    });
    let (one, two) = (engine.session(SessionOptions::default()), engine.session(SessionOptions::default()));
    let (one, two) = (one.unwrap(), two.unwrap());
    let (first, second) = (one.generate(request(5)), two.generate(request(5)));
    assert!(matches!(engine.wait_for_device(Duration::from_millis(50)), DeviceStatus::Loading(_)));
    one.cancel();
    let end: Vec<Event> = first.iter().collect();
    assert!(matches!(&end[..], [Event::Done { reason: StopReason::Cancelled, .. }]), "{end:?}");
    assert!(second.try_recv().is_err(), "it waits");
    // Giving up the load unblocks it.
    engine.set_device(&crate::session::DeviceChoice::Cpu).unwrap();
    assert_eq!(collect(&second).0, undisturbed(5));
    drop(one);
    drop(two);
    // Dropping an engine ends it even if its load never ends.
    drop(self::engine(&[Outcome::Hangs]));
}

/// Bytes held on the device, its budget, and whether weights are moving.
fn memory(engine: &Engine) -> Option<(u64, u64, bool)> {
    match engine.device() {
        DeviceStatus::Gpu(memory) => Some((memory.accounted, memory.budget.unwrap_or(0), memory.moving)),
        _ => None,
    }
}

#[test]
fn changing_budgets_keep_tokens_and_are_never_exceeded() {
    let want = undisturbed(100);
    let engine = engine(&[Outcome::Works]);
    let sessions = [(); 2].map(|()| engine.session(SessionOptions::default()).unwrap());
    let events = sessions.each_ref().map(|session| session.generate(request(100)));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2_u64 {
            let (engine, done) = (&engine, &done);
            scope.spawn(move || {
                let mut step = seed;
                while !done.load(SeqCst) {
                    step = step.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    // The budget is sometimes too small for anything.
                    engine.set_vram_budget((step >> 33) % 12).unwrap();
                    engine.set_sparsity(SparsityChoice::ALL[(step >> 40) as usize % 3]).unwrap();
                    engine.set_adaptive(step >> 63 == 0).unwrap();
                    if let Some((held, budget, _)) = memory(engine) {
                        assert!(held <= budget && (TestLedger::LEAST..12).contains(&budget), "{held} of {budget}");
                    }
                }
            });
        }
        let heard = events.each_ref().map(collect);
        done.store(true, SeqCst);
        heard.into_iter().for_each(|(ids, _)| assert_eq!(ids, want));
    });
    engine.set_vram_budget(7).unwrap();
    wait(&engine, "the last budget", |_| memory(&engine) == Some((7, 7, false)));
    assert_eq!(engine.vram_budget(), Some(7));
}

#[test]
fn budget_of_zero_selects_the_cpu_and_more_the_device_again() {
    let engine = engine(&[Outcome::Works]);
    wait(&engine, "the device", |_| memory(&engine).is_some());
    for (bytes, small) in [(0, 1), (TestLedger::LEAST - 1, TestLedger::LEAST - 2)] {
        engine.set_vram_budget(bytes).unwrap();
        wait(&engine, "the CPU", |status| matches!(status, DeviceStatus::Cpu { reason: Some(_) }));
        assert_eq!(engine.telemetry().device_bytes, 0);
        // A smaller budget is not tried, a larger one is.
        engine.set_vram_budget(small.min(bytes)).unwrap();
        let heard = collect(&engine.session(SessionOptions::default()).unwrap().generate(request(10)));
        assert_eq!(heard, (undisturbed(10), Vec::new()));
        engine.set_vram_budget(TestLedger::LEAST + 1).unwrap();
        wait(&engine, "the device again", |_| {
            memory(&engine) == Some((TestLedger::LEAST + 1, TestLedger::LEAST + 1, false))
        });
    }
}

#[test]
fn larger_budget_is_filled_while_the_engine_is_idle() {
    let engine = engine(&[Outcome::Works]);
    wait(&engine, "the device", |_| memory(&engine).is_some());
    engine.set_vram_budget(4).unwrap();
    wait(&engine, "less", |_| memory(&engine) == Some((4, 4, false)));
    engine.set_vram_budget(100).unwrap();
    wait(&engine, "more", |_| memory(&engine) == Some((TestLedger::ALL, 100, false)));
}

#[test]
fn device_loss_under_a_changing_budget_keeps_tokens() {
    let want = undisturbed(40);
    for n in [2, 7, 30] {
        let engine = engine(&[Outcome::LostAtChunk(n), Outcome::Works]);
        let session = engine.session(SessionOptions::default()).unwrap();
        let events = session.generate(request(40));
        let mut ids = Vec::new();
        while ids.len() < 40 {
            if let Event::Token { id, .. } = events.recv_timeout(LONGEST).unwrap() {
                ids.push(id);
                engine.set_vram_budget(3 + ids.len() as u64 % 7).unwrap();
            }
        }
        assert_eq!(ids, want);
        engine.set_vram_budget(5).unwrap();
        wait(&engine, "the device", |_| memory(&engine) == Some((5, 5, false)));
    }
}

#[test]
fn sparsity_mode_runs_from_the_next_token_on_with_its_reason() {
    let engine = engine(&[]);
    let now = engine.sparsity();
    assert_eq!((now.asked, now.mode), (SparsityChoice::Auto, Sparsity::Exact), "{}", now.reason);
    for mode in Sparsity::ALL {
        let choice = SparsityChoice::Mode(mode);
        engine.set_sparsity(choice).unwrap();
        wait(&engine, "the mode", |_| engine.sparsity().asked == choice);
        let now = engine.sparsity();
        assert!(now.mode == mode && !now.reason.is_empty(), "{now:?}");
    }
}

#[test]
fn settings_are_applied_after_a_switch_to_the_cpu() {
    // The engine starts with a device, and then with the CPU alone.
    for outcomes in [&[Outcome::Works][..], &[]] {
        let engine = engine(outcomes);
        let loaded = |status: &DeviceStatus| matches!(status, DeviceStatus::Gpu(_)) != outcomes.is_empty();
        wait(&engine, "the first processor", loaded);
        engine.set_device(&crate::session::DeviceChoice::Cpu).unwrap();
        wait(&engine, "the CPU", |status| matches!(status, DeviceStatus::Cpu { reason: None }));
        for (mode, adaptive) in [(Sparsity::Dense, true), (Sparsity::Exact, false)] {
            let choice = SparsityChoice::Mode(mode);
            engine.set_sparsity(choice).unwrap();
            engine.set_adaptive(adaptive).unwrap();
            engine.set_vram_budget(7).unwrap();
            let state = engine.state();
            let applied = || engine.sparsity().asked == choice && state.planner.adaptation.is_on() == adaptive;
            wait(&engine, "mode and adaptation", |_| applied());
            // `change` returns true once the thread has taken all settings, so that the next change
            // notifies it.
            wait(&engine, "the budget", |_| state.settings.change(|settings| assert_eq!(settings.budget, Some(7))));
            engine.command(EngineCommand::ApplySettings).unwrap();
        }
    }
}
