//! Which processor an engine's forward pass has: the CPU, or a device that is loaded in the background and may be lost.

use std::{
    sync::{Arc, mpsc::Sender},
    time::{Duration, Instant},
};

use super::{
    context::Context,
    device::{DeviceEvent, DeviceMemory, DeviceStatus},
    engine::Shared,
    loader::{Ledger, Loaded, Loader, Source},
    worker::Command,
};
use crate::{
    error::{Error, Result},
    model::{Forward, KvCache, Processor},
};

/// How long after a loss the device is tried again; after the last attempt the CPU stays.
const PATIENCE: [Duration; 3] = [Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(4)];

/// A device that has worked for so long is given all attempts again when it is lost.
const TRUSTED: Duration = Duration::from_secs(60);

/// Where the forward pass is, and what is to become of it.
#[derive(Debug)]
pub(super) struct Residence {
    shared: Arc<Shared>,
    /// For loaders, to report to.
    commands: Sender<Command>,
    /// What to load from; `None`: the CPU was chosen.
    source: Option<Arc<dyn Source>>,
    state: State,
    /// The CPU's processor while a device has its place.
    cpu: Option<Box<dyn Processor>>,
    loads: u64,
    /// Attempts since the device last worked for [`TRUSTED`].
    attempts: usize,
    /// A budget that was too small for the device to be of use.
    too_small: Option<u64>,
    /// Whether weights are on their way to or from the device.
    moving: bool,
}

#[derive(Debug)]
enum State {
    /// On the CPU, for good.
    Cpu,
    /// On the CPU, and the device is being loaded. `first`: nothing was computed yet, and requests wait for it.
    Loading { loader: Loader, first: bool },
    /// On the device.
    Device { memory: Box<dyn Ledger>, since: Instant },
    /// On the CPU until the device is tried again.
    Lost { until: Instant },
}

impl Residence {
    /// On the CPU. With a `source`, loads from there at once.
    pub fn new(shared: Arc<Shared>, commands: Sender<Command>, source: Option<Arc<dyn Source>>) -> Self {
        let mut new = Residence {
            shared,
            commands,
            source,
            state: State::Cpu,
            cpu: None,
            loads: 0,
            attempts: 0,
            too_small: None,
            moving: false,
        };
        if new.source.is_some() {
            new.load(true);
        }
        new
    }

    /// Whether requests wait.
    pub fn is_awaited(&self) -> bool {
        matches!(self.state, State::Loading { first: true, .. })
    }

    /// Whether a device computes.
    pub fn on_device(&self) -> bool {
        matches!(self.state, State::Device { .. })
    }

    /// Whether [`Residence::settle`] has something to do.
    pub fn is_moving(&self) -> bool {
        self.moving
    }

    /// When [`Residence::tick`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Lost { until } => Some(until),
            _ => None,
        }
    }

    /// Tries a lost device again when it is time.
    pub fn tick(&mut self) {
        if self.deadline().is_some_and(|until| Instant::now() >= until) {
            self.load(false);
        }
    }

    /// Shows what the device's memory is used for.
    pub fn account(&self) {
        let telemetry = &self.shared.telemetry;
        let memory = match &self.state {
            State::Device { memory, .. } => Some(DeviceMemory { moving: self.moving, ..memory.read() }),
            _ => None,
        };
        telemetry.device_bytes.set(memory.as_ref().map_or(0, |memory| memory.accounted));
        telemetry.device_budget.set(memory.as_ref().and_then(|memory| memory.budget).unwrap_or(0));
        if let Some(memory) = memory {
            self.shared.device.write(DeviceStatus::Gpu(memory));
        }
    }

    /// Moves to what `source` gives, or stays on the CPU; what was there before is given up first.
    pub fn choose(&mut self, forward: &mut Forward, source: Option<Arc<dyn Source>>) {
        self.leave(forward);
        self.source = source;
        self.retry();
    }

    /// Holds at most `bytes` on the device from now on: what is over has been released when this returns, and `contexts` (all
    /// there are) have moved with it. With too few the CPU computes; with more again the device comes back.
    pub fn set_budget(
        &mut self,
        forward: &mut Forward,
        contexts: &mut [&mut Context],
        bytes: u64,
    ) -> Option<DeviceEvent> {
        match &self.state {
            // What is loaded is asked again when it is there; what is lost, when it comes back.
            State::Loading { .. } | State::Lost { .. } => None,
            State::Cpu if self.too_small.is_some_and(|small| bytes > small) => {
                self.retry();
                None
            }
            State::Cpu => None,
            State::Device { memory, .. } => {
                let now = memory.read();
                if now.budget == Some(bytes) {
                    return None;
                }
                let done = match bytes {
                    0 => Err(Error::Memory { what: "VRAM budget", wanted: now.accounted, available: 0 }),
                    bytes => forward.set_budget(bytes, &mut caches(contexts)),
                };
                match done {
                    Ok(()) => {
                        self.moving = true;
                        self.account();
                        None
                    }
                    Err(error @ Error::Gpu { .. }) => {
                        contexts.iter_mut().filter(|context| context.on_device()).for_each(|context| context.release());
                        self.fail(forward, error)
                    }
                    Err(error) => {
                        contexts.iter_mut().for_each(|context| context.bring_home(forward));
                        self.too_small = Some(bytes);
                        self.leave(forward);
                        self.failed(error)
                    }
                }
            }
        }
    }

    /// Moves a bounded number of bytes, if any are to be moved.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the device is lost.
    pub fn settle(&mut self, forward: &mut Forward, contexts: &mut [&mut Context]) -> Result<()> {
        if !self.moving {
            return Ok(());
        }
        match forward.settle(&mut caches(contexts)) {
            Ok(more) => self.moving = more,
            Err(error @ Error::Gpu { .. }) => return Err(error),
            // There is less room than the budget promises: things stay as they are.
            Err(error) => {
                tracing::warn!(%error, "the boundary does not move any further");
                self.moving = false;
            }
        }
        Ok(())
    }

    /// Tries the device again, now and with all attempts, unless it is in use or already on its way.
    pub fn retry(&mut self) {
        match self.state {
            State::Device { .. } | State::Loading { .. } => {}
            State::Cpu | State::Lost { .. } if self.source.is_some() => {
                self.attempts = 0;
                self.too_small = None;
                self.shared.device.write(DeviceStatus::Loading { done: 0, total: 0 });
                self.load(false);
            }
            State::Cpu | State::Lost { .. } => self.shared.device.write(DeviceStatus::Cpu { reason: None }),
        }
    }

    /// Load `number` has ended: the forward pass moves to the device if it worked. `None` if nobody waits for it any more.
    pub fn loaded(&mut self, forward: &mut Forward, number: u64, result: Result<Loaded>) -> Option<DeviceEvent> {
        let budget = match &self.state {
            State::Loading { loader, .. } if loader.number == number => loader.budget,
            _ => return None,
        };
        match result {
            Ok(Loaded { processor, memory }) => {
                self.moving = true;
                self.cpu = Some(forward.replace(processor));
                self.state = State::Device { memory, since: Instant::now() };
                self.account();
                let State::Device { memory, .. } = &self.state else { return None };
                let adapter = memory.read().adapter;
                tracing::info!(adapter, "the model is loaded");
                Some(DeviceEvent::Gpu { adapter })
            }
            Err(error) => {
                if matches!(error, Error::Memory { .. }) {
                    self.too_small = budget;
                }
                self.failed(error)
            }
        }
    }

    /// The device failed with `error`: the forward pass moves to the CPU.
    pub fn fail(&mut self, forward: &mut Forward, error: Error) -> Option<DeviceEvent> {
        if let State::Device { since, .. } = &self.state
            && since.elapsed() > TRUSTED
        {
            self.attempts = 0;
        }
        self.leave(forward);
        self.failed(error)
    }

    /// To the CPU.
    fn leave(&mut self, forward: &mut Forward) {
        self.state = State::Cpu;
        self.moving = false;
        if let Some(cpu) = self.cpu.take() {
            forward.replace(cpu);
        }
    }

    /// A device that is lost may come back (and while it is away, its adapter may be missing); whatever else is wrong will
    /// still be wrong in a second.
    fn failed(&mut self, error: Error) -> Option<DeviceEvent> {
        let was_lost = matches!(self.shared.device.read(), DeviceStatus::Lost { .. });
        let delay = PATIENCE.get(self.attempts).filter(|_| was_lost || matches!(error, Error::Gpu { .. }));
        let Some(delay) = delay else {
            tracing::info!(%error, "the CPU computes");
            let reason = Arc::new(error);
            self.state = State::Cpu;
            self.shared.device.write(DeviceStatus::Cpu { reason: Some(Arc::clone(&reason)) });
            return Some(DeviceEvent::Cpu { reason });
        };
        self.attempts += 1;
        self.state = State::Lost { until: Instant::now() + *delay };
        match error {
            // That it is still lost is no news.
            Error::Gpu { adapter, reason } if !was_lost => {
                self.shared.device.write(DeviceStatus::Lost { adapter: adapter.clone(), reason: reason.clone() });
                Some(DeviceEvent::Lost { adapter, reason })
            }
            _ => None,
        }
    }

    fn load(&mut self, first: bool) {
        let Some(source) = &self.source else { return };
        self.loads += 1;
        let (source, shared, commands) = (Arc::clone(source), Arc::clone(&self.shared), self.commands.clone());
        match Loader::start(self.loads, source, shared, commands) {
            Ok(loader) => self.state = State::Loading { loader, first },
            Err(error) => drop(self.failed(error)),
        }
    }
}

/// The caches there are.
fn caches<'c>(contexts: &'c mut [&mut Context]) -> Vec<&'c mut KvCache> {
    contexts.iter_mut().filter_map(|context| context.kv_mut()).collect()
}

#[cfg(test)]
mod tests {
    use std::{
        ops::{ControlFlow, Range},
        path::Path,
        sync::{
            atomic::{AtomicUsize, Ordering::SeqCst},
            mpsc::Receiver,
        },
    };

    use super::*;
    use crate::{
        cpu::{Cpu, CpuOptions},
        gpu::Purpose,
        model::{CpuProcessor, KvType, LoadOptions, Model, NormSlot, Probe, Register, Sparsity},
        session::{
            Engine, EngineOptions, Event, Prompt, Request, Sampling, SessionOptions, StopReason, loader::Progress,
        },
    };

    /// How one load goes, and what becomes of the device.
    #[derive(Debug, Clone, Copy)]
    enum Fate {
        Works,
        LostAtChunk(usize),
        FullAtChunk(usize),
        NoDevice,
        LostInLoad,
        Panics,
        Hangs,
    }

    /// A source of devices that are the CPU in disguise, in turn; the last one again and again.
    #[derive(Debug)]
    struct Fates(Vec<Fate>, AtomicUsize);

    fn lost() -> Error {
        Error::Gpu { adapter: "pretence".to_owned(), reason: "unplugged".to_owned() }
    }

    impl Source for Fates {
        fn load(&self, _: &Model, _: Option<u64>, progress: Progress<'_>) -> Result<Loaded> {
            let fate = self.0[self.1.fetch_add(1, SeqCst).min(self.0.len() - 1)];
            let mut fail = None;
            match fate {
                Fate::Works => {}
                Fate::LostAtChunk(n) => fail = Some((n, lost as fn() -> Error)),
                Fate::FullAtChunk(n) => {
                    fail = Some((n, || Error::Memory { what: "KV cache", wanted: 2, available: 1 }));
                }
                Fate::NoDevice => return Err(Error::invalid("adapter", "one", "none")),
                Fate::LostInLoad => return Err(lost()),
                Fate::Panics => panic!("as planned"),
                Fate::Hangs => loop {
                    if progress(1, 3) == ControlFlow::Break(()) {
                        return Err(Error::Cancelled);
                    }
                    std::thread::sleep(Duration::from_millis(1));
                },
            }
            let cpu = Cpu::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() })?;
            let processor = Box::new(Pretence { cpu: CpuProcessor::new(cpu), fail });
            Ok(Loaded { processor, memory: Box::new(Purse) })
        }
    }

    #[derive(Debug)]
    struct Purse;

    impl Ledger for Purse {
        fn read(&self) -> DeviceMemory {
            let by_purpose = Purpose::ALL.map(|purpose| (purpose, 1));
            DeviceMemory { adapter: "pretence".to_owned(), budget: Some(10), accounted: 8, by_purpose, moving: false }
        }
    }

    /// The CPU, failing at the end of its n-th chunk.
    #[derive(Debug)]
    struct Pretence {
        cpu: CpuProcessor,
        fail: Option<(usize, fn() -> Error)>,
    }

    impl Pretence {
        fn end(&mut self) -> Result<()> {
            if let Some((left, error)) = &mut self.fail {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    return Err(error());
                }
            }
            Ok(())
        }
    }

    impl Processor for Pretence {
        fn kv_cache(&mut self, model: &Model, capacity: usize, ty: KvType) -> Result<KvCache> {
            self.cpu.kv_cache(model, capacity, ty)
        }

        fn holds(&self, kv: &KvCache) -> bool {
            self.cpu.holds(kv)
        }

        fn begin(&mut self, model: &Model, tokens: &[u32], kv: &KvCache) -> Result<()> {
            self.cpu.begin(model, tokens, kv)
        }

        fn norm(&mut self, model: &Model, layer: usize, norm: NormSlot, from: Register, into: Register) -> Result<()> {
            self.cpu.norm(model, layer, norm, from, into)
        }

        fn attention(&mut self, model: &Model, layer: usize, from: Register, kv: &mut KvCache) -> Result<()> {
            self.cpu.attention(model, layer, from, kv)
        }

        fn ffn(&mut self, model: &Model, layer: usize, from: Register, probe: &mut dyn Probe) -> Result<()> {
            self.cpu.ffn(model, layer, from, probe)
        }

        fn add_out(&mut self) -> Result<()> {
            self.cpu.add_out()
        }

        fn residual(&mut self) -> Result<&[f32]> {
            self.cpu.residual()
        }

        fn head(&mut self, model: &Model, tokens: Range<usize>, logits: &mut [f32]) -> Result<()> {
            self.end()?;
            self.cpu.head(model, tokens, logits)
        }

        fn top(&mut self, model: &Model, token: usize, ids: &mut [u32], logits: &mut [f32]) -> Result<()> {
            self.end()?;
            self.cpu.top(model, token, ids, logits)
        }

        fn finish(&mut self) -> Result<()> {
            self.end()?;
            self.cpu.finish()
        }

        fn set_sparsity(&mut self, mode: Sparsity) {
            self.cpu.set_sparsity(mode);
        }

        fn scratch_bytes(&self) -> u64 {
            self.cpu.scratch_bytes()
        }
    }

    fn engine(fates: &[Fate]) -> Engine {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/llama-relu");
        let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
        let options = EngineOptions { cpu, chunk: 4, ..EngineOptions::default() };
        let model = Model::open(&path, &LoadOptions::default()).unwrap();
        let source: Option<Arc<dyn Source>> = match fates {
            [] => None,
            fates => Some(Arc::new(Fates(fates.to_vec(), AtomicUsize::new(0)))),
        };
        Engine::start(model, options, source).unwrap()
    }

    fn request(tokens: usize) -> Request {
        Request {
            sampling: Sampling::greedy(),
            max_tokens: Some(tokens),
            ignore_eos: true,
            ..Request::new(Prompt::Tokens((5..16).collect()))
        }
    }

    /// Tokens and device events, in order of their arrival.
    fn hear(events: &Receiver<Event>) -> (Vec<u32>, Vec<String>) {
        let (mut ids, mut heard) = (Vec::new(), Vec::new());
        for event in events {
            match event {
                Event::Token { id, .. } => ids.push(id),
                Event::Device(DeviceEvent::Lost { adapter, reason }) => heard.push(format!("lost {adapter}: {reason}")),
                Event::Device(DeviceEvent::Cpu { reason }) => heard.push(format!("cpu: {reason}")),
                Event::Device(DeviceEvent::Gpu { adapter }) => heard.push(format!("gpu {adapter}")),
                Event::Error(error) => panic!("{error}"),
                Event::Done { reason, .. } => assert_eq!(reason, StopReason::MaxTokens),
                Event::Prompt { .. } | Event::Stats(_) => {}
            }
        }
        (ids, heard)
    }

    fn undisturbed(tokens: usize) -> Vec<u32> {
        let engine = engine(&[]);
        assert!(matches!(engine.device(), DeviceStatus::Cpu { reason: None }));
        let heard = hear(&engine.session(SessionOptions::default()).unwrap().generate(request(tokens)));
        assert_eq!(heard.1, Vec::<String>::new());
        heard.0
    }

    fn wait(engine: &Engine, what: &str, done: impl Fn(&DeviceStatus) -> bool) {
        let started = Instant::now();
        while !done(&engine.device()) {
            assert!(started.elapsed() < Duration::from_secs(20), "not within 20 s: {what}: {:?}", engine.device());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn a_device_lost_at_any_chunk_changes_no_token() {
        let want = undisturbed(20);
        for n in 1..=23 {
            let engine = engine(&[Fate::LostAtChunk(n), Fate::Hangs]);
            let (ids, heard) = hear(&engine.session(SessionOptions::default()).unwrap().generate(request(20)));
            assert_eq!(ids, want, "lost at chunk {n}");
            // The prompt has three chunks, the last with the first token; the last token is not computed.
            match n {
                23 => assert!(matches!(engine.device(), DeviceStatus::Gpu(_))),
                _ => {
                    assert_eq!(heard.last().map(String::as_str), Some("lost pretence: unplugged"), "{n}");
                    assert!(matches!(engine.device(), DeviceStatus::Lost { .. }));
                }
            }
        }
    }

    #[test]
    fn a_device_that_comes_back_is_used_again() {
        let engine = engine(&[Fate::LostAtChunk(5), Fate::LostInLoad, Fate::Works]);
        let session = engine.session(SessionOptions::default()).unwrap();
        assert_eq!(hear(&session.generate(request(20))).0, undisturbed(20));
        wait(&engine, "its return", |status| matches!(status, DeviceStatus::Gpu(_)));
        let (ids, heard) = hear(&session.generate(request(20)));
        assert_eq!((ids, heard), (undisturbed(20), Vec::new()));
        let now = engine.telemetry();
        assert_eq!((now.device_bytes, now.device_budget), (8, 10));
    }

    #[test]
    fn after_three_attempts_the_cpu_stays_until_asked() {
        let started = Instant::now();
        let engine = engine(&[Fate::LostInLoad; 5]);
        let session = engine.session(SessionOptions::default()).unwrap();
        let want = undisturbed(20);
        assert_eq!(hear(&session.generate(request(20))).0, want);
        wait(&engine, "the last attempt", |status| matches!(status, DeviceStatus::Cpu { reason: Some(_) }));
        assert!(started.elapsed() >= PATIENCE.iter().sum());
        engine.retry_device().unwrap();
        wait(&engine, "one more", |status| matches!(status, DeviceStatus::Lost { .. }));
        assert_eq!(hear(&session.generate(request(20))).0, want);
        engine.set_device(&crate::session::DeviceChoice::Cpu).unwrap();
        wait(&engine, "the choice of the CPU", |status| matches!(status, DeviceStatus::Cpu { reason: None }));
    }

    #[test]
    fn what_will_not_get_better_is_not_tried_again() {
        let want = undisturbed(20);
        for (fate, why) in [
            (Fate::NoDevice, "adapter: expected one, got none"),
            (Fate::Panics, "as planned"),
            (Fate::FullAtChunk(7), "KV cache: 2 bytes wanted, 1 available"),
        ] {
            let engine = engine(&[fate, Fate::Works]);
            let (ids, heard) = hear(&engine.session(SessionOptions::default()).unwrap().generate(request(20)));
            assert_eq!(ids, want, "{fate:?}");
            assert!(heard.last().is_some_and(|last| last.starts_with("cpu: ") && last.contains(why)), "{heard:?}");
            let DeviceStatus::Cpu { reason: Some(reason) } = engine.device() else { panic!("{:?}", engine.device()) };
            assert!(reason.to_string().contains(why), "{reason}");
            engine.retry_device().unwrap();
            wait(&engine, "what was asked for", |status| matches!(status, DeviceStatus::Gpu(_)));
        }
    }

    #[test]
    fn requests_wait_for_the_first_load_and_can_be_cancelled_meanwhile() {
        let engine = engine(&[Fate::Hangs]);
        wait(&engine, "progress", |status| matches!(status, DeviceStatus::Loading { done: 1, total: 3 }));
        let (one, two) = (engine.session(SessionOptions::default()), engine.session(SessionOptions::default()));
        let (one, two) = (one.unwrap(), two.unwrap());
        let (first, second) = (one.generate(request(5)), two.generate(request(5)));
        assert!(matches!(engine.wait_for_device(Duration::from_millis(50)), DeviceStatus::Loading { .. }));
        one.cancel();
        let end: Vec<Event> = first.iter().collect();
        assert!(matches!(&end[..], [Event::Done { reason: StopReason::Cancelled, .. }]), "{end:?}");
        assert!(second.try_recv().is_err(), "it waits");
        // Giving up the load lets it go on.
        engine.set_device(&crate::session::DeviceChoice::Cpu).unwrap();
        assert_eq!(hear(&second).0, undisturbed(5));
        drop(one);
        drop(two);
        // The engine of a load that never ends ends.
        drop(self::engine(&[Fate::Hangs]));
    }
}
