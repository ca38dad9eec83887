//! The boundary between VRAM and RAM moves during an answer. The tokens stay the same, and no more
//! than the current budget is in use.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{
    path::{Path, PathBuf},
    sync::{Arc, mpsc::Receiver},
};

use thermocline_engine::{
    cpu::{Cpu, CpuOptions},
    gpu::{AdapterChoice, FaultPoint, Faults, GpuOptions},
    model::{LoadOptions, Model},
    runtime::{Forward, KvCache, KvType, Outputs, Sparsity},
    session::{
        DeviceChoice, DeviceMemory, DeviceStatus, Engine, EngineOptions, Event, Prompt, Request, Sampling, Session,
        SessionOptions, SparsityChoice, StopReason,
    },
};
use thermocline_tests::{
    gpu::{FULL, forward, shared},
    wait::{LONGEST, eventually, until_given_up},
};

/// Bytes with room for all of the tiny model, and of the storyteller.
const TINY: u64 = 3 << 20;
const STORYTELLER: u64 = 32 << 20;

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models/llama-relu")
}

fn storyteller() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/storyteller/storyteller-F16.gguf")
}

fn gpu(budget: u64) -> GpuOptions {
    GpuOptions { adapter: AdapterChoice::Index(0), budget: Some(budget), ..GpuOptions::default() }
}

fn open(path: &Path, device: DeviceChoice) -> Engine {
    // More workers than idle cores would make a tiny model slow.
    let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let sparsity = SparsityChoice::Mode(Sparsity::Exact);
    Engine::open(path, EngineOptions { cpu, chunk: 16, device, sparsity, ..EngineOptions::default() }).unwrap()
}

fn session(engine: &Engine) -> Session {
    engine.session(SessionOptions::default()).unwrap()
}

fn greedy(prompt: Prompt, tokens: usize) -> Request {
    let sampling = Sampling::greedy();
    Request { sampling, max_tokens: Some(tokens), ignore_eos: true, ..Request::new(prompt) }
}

fn numbers(tokens: usize) -> Request {
    greedy(Prompt::Tokens((5..29).collect()), tokens)
}

/// Calls `each` with the number of tokens so far whenever a token arrives. Returns all tokens.
fn listen(events: &Receiver<Event>, mut each: impl FnMut(usize)) -> Vec<u32> {
    let mut ids = Vec::new();
    loop {
        match events.recv_timeout(LONGEST) {
            Ok(Event::Token { id, .. }) => {
                ids.push(id);
                each(ids.len());
            }
            Ok(Event::Prompt { .. } | Event::Stats(_) | Event::Device(_)) => {}
            Ok(Event::Done { reason, .. }) => {
                assert_eq!(reason, StopReason::MaxTokens);
                return ids;
            }
            end => panic!("{end:?} after {ids:?}"),
        }
    }
}

/// Returns the CPU's tokens for `request`.
fn undisturbed(path: &Path, request: Request) -> Vec<u32> {
    listen(&session(&open(path, DeviceChoice::Cpu)).generate(request), |_| ())
}

fn memory(engine: &Engine) -> Option<DeviceMemory> {
    match engine.device() {
        DeviceStatus::Gpu(memory) => Some(memory),
        _ => None,
    }
}

/// Checks that memory in use is within the budget.
#[track_caller]
fn check(engine: &Engine) {
    if let Some(memory) = memory(engine) {
        assert!(memory.accounted <= memory.budget.unwrap(), "{memory:?}");
        assert_eq!(memory.by_purpose.iter().map(|(_, bytes)| bytes).sum::<u64>(), memory.accounted);
    }
}

#[track_caller]
fn wait(engine: &Engine, what: &str, done: impl Fn(&DeviceStatus) -> bool) {
    let found = until_given_up(|| done(&engine.device()).then_some(()));
    assert!(found.is_some(), "not within {LONGEST:?}: {what}: {:?}", engine.device());
}

/// Returns true if nothing moves any more under `budget`.
fn rests(status: &DeviceStatus, budget: u64) -> bool {
    matches!(status, DeviceStatus::Gpu(memory) if memory.budget == Some(budget) && !memory.moving)
}

/// A generator of pseudo-random numbers below `n`.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

#[test]
fn kv_cache_moves_between_cpu_and_device_unchanged() {
    let tokens: Vec<u32> = (5..45).collect();
    for (name, ty, tolerance) in [
        ("llama-relu", KvType::F32, 1e-4),
        ("llama-relu", KvType::F16, 2e-3),
        ("gemma3", KvType::F16, 5e-3),
        ("opt", KvType::F32, 1e-4),
        ("llama-relu", KvType::Q8_0, 5e-2),
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models").join(name);
        let model = Arc::new(Model::open(&path, &LoadOptions::default()).unwrap());
        let mut cpu = Forward::new(Arc::clone(&model), Cpu::new(&CpuOptions::default()).unwrap());
        let mut device = forward(shared(FULL), &model, 8);
        let run = |forward: &mut Forward, tokens: &[u32], kv: &mut KvCache| {
            forward.run(tokens, kv, Outputs::Last, &mut ()).unwrap().to_vec()
        };
        let mut plain = cpu.kv_cache(64, ty).unwrap();
        let mut moved = cpu.kv_cache(64, ty).unwrap();
        let in_ram = moved.bytes();
        for (turn, part) in tokens.chunks(10).enumerate() {
            let want = run(&mut cpu, part, &mut plain);
            let got = if turn % 2 == 0 {
                device.residency().unwrap().1.return_kv(&mut moved).unwrap();
                assert!(moved.on_host() && cpu.holds(&moved) && moved.bytes() == in_ram, "{name}");
                run(&mut cpu, part, &mut moved)
            } else {
                assert!(!device.holds(&moved));
                let (model, residency) = device.residency().unwrap();
                residency.take_kv(model, &mut moved).unwrap();
                assert!(!moved.on_host() && device.holds(&moved), "{name}");
                run(&mut device, part, &mut moved)
            };
            let largest = want.iter().fold(0f32, |most, x| most.max(x.abs()));
            let error = want.iter().zip(&got).fold(0f32, |most, (a, b)| most.max((a - b).abs())) / largest;
            assert!(error <= tolerance, "{name} {ty}, turn {turn}: {error}");
        }
        // The cache forgets tokens on the device, then returns to RAM.
        moved.truncate(15);
        device.residency().unwrap().1.return_kv(&mut moved).unwrap();
        plain.truncate(15);
        let (want, got) = (run(&mut cpu, &[9], &mut plain), run(&mut cpu, &[9], &mut moved));
        let error = want.iter().zip(&got).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(error <= tolerance * want.iter().fold(0f32, |most, x| most.max(x.abs())), "{name}: {error}");
    }
}

#[test]
fn changing_budgets_keep_the_tokens_of_a_long_answer() {
    let request = || greedy(Prompt::Text("Once upon a time".to_owned()), 500);
    let want = undisturbed(&storyteller(), request());
    assert_eq!(want.len(), 500);
    let engine = open(&storyteller(), DeviceChoice::Gpu(gpu(STORYTELLER)));
    wait(&engine, "the device", |status| rests(status, STORYTELLER));
    let full = memory(&engine).unwrap().accounted;

    let mut dice = Dice(11);
    let (mut seen, mut least, mut most, mut asked) = (0, u64::MAX, 0, STORYTELLER);
    let ids = listen(&session(&engine).generate(request()), |tokens| {
        check(&engine);
        if let Some(memory) = memory(&engine) {
            seen += 1;
            (least, most) = (least.min(memory.accounted), most.max(memory.accounted));
        }
        // The budget changes in large and in small steps.
        if tokens.is_multiple_of(5) {
            asked = match dice.below(3) {
                0 => full / 4 + dice.below(full),
                1 => (asked + dice.below(full / 8)).min(2 * full),
                _ => asked.saturating_sub(dice.below(full / 8)).max(full / 4),
            };
            engine.set_vram_budget(asked).unwrap();
        }
    });
    assert_eq!(ids, want);
    assert!(seen > 100 && least < full / 2 && most > full / 4 * 3, "{seen} readings from {least} to {most} of {full}");
    // The budget also changes while the engine is idle.
    engine.set_vram_budget(full / 2).unwrap();
    wait(&engine, "half", |status| rests(status, full / 2));
    check(&engine);
    engine.set_vram_budget(STORYTELLER).unwrap();
    wait(&engine, "all", |status| rests(status, STORYTELLER));
    assert!(memory(&engine).unwrap().accounted > full / 4 * 3);
}

/// Moves experts one by one during an answer.
#[test]
fn moving_experts_during_an_answer_keeps_the_tokens() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models/mixtral");
    let want = undisturbed(&path, numbers(150));
    let engine = open(&path, DeviceChoice::Gpu(gpu(STORYTELLER)));
    wait(&engine, "the device", |status| rests(status, STORYTELLER));
    let (full, experts) = (memory(&engine).unwrap().accounted, engine.config().experts.unwrap().count);
    let mut dice = Dice(4);
    let ids = listen(&session(&engine).generate(numbers(150)), |tokens| {
        check(&engine);
        if tokens.is_multiple_of(3) {
            engine.set_vram_budget(full / 4 + dice.below(full)).unwrap();
            engine.set_adaptive(tokens % 60 > 20).unwrap();
        }
    });
    assert_eq!(ids, want);
    // Once nothing moves under a budget, layers have as many experts as fit. With the smallest
    // budgets nothing is resident.
    let mut seen = vec![0; experts + 1];
    for budget in (0..130).rev().map(|percent| full * percent / 100) {
        engine.set_vram_budget(budget).unwrap();
        wait(&engine, "rest", |status| rests(status, budget) || matches!(status, DeviceStatus::Cpu { .. }));
        check(&engine);
        let Some(resident) = engine.resident().filter(|_| memory(&engine).is_some()) else { break };
        let new = (resident.first_layer..resident.hot.len()).fold(false, |new, layer| {
            let times = &mut seen[resident.count(layer)];
            *times += 1;
            new | (*times == 1)
        });
        if new {
            assert_eq!(listen(&session(&engine).generate(numbers(40)), |_| check(&engine)), want[..40], "{budget}");
        }
    }
    assert!(!seen.contains(&0), "layers with 0, 1, .. experts in VRAM: {seen:?}");
    for budget in [full * 3 / 4, full / 2, full * 5 / 8] {
        engine.set_vram_budget(budget).unwrap();
        wait(&engine, "rest", |status| rests(status, budget));
        check(&engine);
        assert_eq!(listen(&session(&engine).generate(numbers(40)), |_| check(&engine)), want[..40]);
    }
}

#[test]
fn budget_of_zero_continues_on_the_cpu_and_more_on_the_device() {
    let want = undisturbed(&tiny(), numbers(90));
    let engine = open(&tiny(), DeviceChoice::Gpu(gpu(TINY)));
    let session = session(&engine);
    let ids = listen(&session.generate(numbers(90)), |tokens| {
        check(&engine);
        match tokens {
            10 | 50 => engine.set_vram_budget(0).unwrap(),
            30 | 70 => engine.set_vram_budget(TINY).unwrap(),
            _ => {}
        }
    });
    assert_eq!(ids, want);
    engine.set_vram_budget(0).unwrap();
    wait(&engine, "the CPU", |status| matches!(status, DeviceStatus::Cpu { reason: Some(_) }));
    assert_eq!(listen(&session.generate(numbers(10)), |_| ()), want[..10]);
    assert_eq!(engine.telemetry().device_bytes, 0);
    engine.set_vram_budget(TINY).unwrap();
    wait(&engine, "the device", |status| rests(status, TINY));
    assert_eq!(listen(&session.generate(numbers(90)), |_| ()), want);
}

#[test]
fn mode_changes_during_an_answer_keep_the_tokens() {
    let want = undisturbed(&tiny(), numbers(90));
    for device in [DeviceChoice::Cpu, DeviceChoice::Gpu(gpu(TINY)), DeviceChoice::Gpu(gpu(TINY / 3))] {
        let engine = open(&tiny(), device.clone());
        let ids = listen(&session(&engine).generate(numbers(90)), |tokens| {
            let modes = [Sparsity::Dense, Sparsity::Exact, Sparsity::Predicted];
            engine.set_sparsity(SparsityChoice::Mode(modes[tokens % 3])).unwrap();
            engine.set_adaptive(tokens % 4 > 1).unwrap();
            check(&engine);
        });
        assert_eq!(ids, want, "{device:?}");
    }
}

#[test]
fn changing_budgets_keep_the_tokens_of_concurrent_sessions() {
    let want = undisturbed(&tiny(), numbers(80));
    let engine = open(&tiny(), DeviceChoice::Gpu(gpu(TINY)));
    let sessions = [session(&engine), session(&engine)];
    for round in 0..3 {
        let events = sessions.each_ref().map(|session| session.generate(numbers(80)));
        let mut dice = Dice(round);
        for events in &events {
            let ids = listen(events, |_| {
                check(&engine);
                engine.set_vram_budget(dice.below(TINY)).unwrap();
            });
            assert_eq!(ids, want, "round {round}");
        }
    }
}

#[test]
fn device_loss_under_changing_budgets_keeps_the_tokens() {
    let want = undisturbed(&tiny(), numbers(60));
    for n in [3, 20, 45, 60, 90, 150] {
        let options = GpuOptions { faults: Faults(Some((FaultPoint::Submit, n))), ..gpu(TINY) };
        let engine = open(&tiny(), DeviceChoice::Gpu(options));
        let mut dice = Dice(n);
        let ids = listen(&session(&engine).generate(numbers(60)), |_| {
            check(&engine);
            engine.set_vram_budget(TINY / 4 + dice.below(TINY)).unwrap();
        });
        assert_eq!(ids, want, "lost at submission {n}");
    }
}

#[test]
fn frequent_budget_changes_do_not_block_sessions() {
    let want = undisturbed(&tiny(), numbers(60));
    let engine = open(&tiny(), DeviceChoice::Gpu(gpu(TINY)));
    wait(&engine, "the device", |status| rests(status, TINY));
    let session = session(&engine);
    let events = session.generate(numbers(60));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (engine, stop) = (&engine, &stop);
            scope.spawn(move || {
                let mut dice = Dice(seed);
                while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                    engine.set_vram_budget(TINY / 2 + dice.below(TINY / 2)).unwrap();
                    engine.set_sparsity(SparsityChoice::ALL[dice.below(3) as usize]).unwrap();
                    engine.set_adaptive(dice.below(2) == 0).unwrap();
                    let _ = (engine.sparsity(), engine.vram_budget(), engine.device());
                    std::thread::yield_now();
                }
            });
        }
        let ids = listen(&events, |_| check(&engine));
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        assert_eq!(ids, want);
    });
    engine.set_vram_budget(TINY).unwrap();
    wait(&engine, "the last budget", |status| rests(status, TINY));
}

#[test]
fn auto_sparsity_reports_its_mode_and_reason() {
    let engine = open(&tiny(), DeviceChoice::Cpu);
    assert_eq!(engine.sparsity().asked, SparsityChoice::Mode(Sparsity::Exact));
    engine.set_sparsity(SparsityChoice::Auto).unwrap();
    eventually("the choice", || engine.sparsity().asked == SparsityChoice::Auto);
    let now = engine.sparsity();
    assert!(now.mode == Sparsity::Exact && now.reason.contains("relu"), "{now:?}");
}
