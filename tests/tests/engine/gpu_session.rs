//! Sessions on a GPU, or on a software driver if there is no GPU. The tokens equal those of the
//! CPU, even if the device fails at any time.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{
    ops::{ControlFlow, RangeInclusive},
    path::{Path, PathBuf},
    sync::{Arc, mpsc::Receiver},
};

use thermocline_engine::{
    Error,
    cpu::{CpuOptions, ThreadPool},
    gpu::{
        AdapterChoice, AdapterKind, Fallback, FallbackPart, FaultPoint, Faults, GpuFeature, GpuOptions, KernelMutation,
        Purpose, Tier,
    },
    model::{LoadOptions, Model},
    placement::PlanInputs,
    runtime::{KvType, Sparsity},
    session::{
        ContextPolicy, DeviceChoice, DeviceEvent, DeviceLoadOptions, DeviceStatus, Engine, EngineOptions, Event,
        LivePlanner, LoadStage, Prompt, Request, Sampling, Session, SessionOptions, StopReason, load_on_device,
    },
    sparsity::sidecar::SidecarChoice,
};
use thermocline_tests::wait::{LONGEST, eventually, until_given_up};

/// Tokens per chunk. The prompt has two chunks.
const CHUNK: usize = 16;
/// Tokens of the prompt.
const PROMPT: u32 = 24;

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models/llama-relu")
}

fn storyteller() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/storyteller/storyteller-F16.gguf")
}

fn gpu() -> GpuOptions {
    GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() }
}

/// Returns options of a GPU that fails the `n`-th time that `point` is passed.
fn failing(point: FaultPoint, n: u64) -> GpuOptions {
    GpuOptions { faults: Faults(Some((point, n))), ..gpu() }
}

fn open_at(path: &Path, device: DeviceChoice) -> Engine {
    // More workers than idle cores would make a tiny model slow.
    let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    // Each processor rounds a predictor's scores differently. With a predictor, two processors
    // might skip different neurons.
    let sidecar = SidecarChoice::Without;
    Engine::open(path, EngineOptions { cpu, chunk: CHUNK, device, sidecar, ..EngineOptions::default() }).unwrap()
}

fn open(device: GpuOptions) -> Engine {
    open_at(&tiny(), DeviceChoice::Gpu(device))
}

fn session(engine: &Engine) -> Session {
    engine.session(SessionOptions::default()).unwrap()
}

fn greedy(tokens: usize) -> Request {
    Request {
        sampling: Sampling::greedy(),
        max_tokens: Some(tokens),
        ignore_eos: true,
        ..Request::new(Prompt::Tokens((5..5 + PROMPT).collect()))
    }
}

/// Everything that a generation reported.
#[derive(Debug, Default)]
struct Heard {
    ids: Vec<u32>,
    text: String,
    device: Vec<DeviceEvent>,
    reason: Option<StopReason>,
}

impl Heard {
    fn was_lost(&self) -> bool {
        self.device.iter().any(|event| matches!(event, DeviceEvent::Lost { .. }))
    }
}

/// Collects events to the end, which must arrive.
fn hear(events: &Receiver<Event>) -> Heard {
    let mut heard = Heard::default();
    loop {
        match events.recv_timeout(LONGEST) {
            Ok(Event::Token { id, text, .. }) => {
                heard.ids.push(id);
                heard.text.push_str(&text);
            }
            Ok(Event::Device(event)) => heard.device.push(event),
            Ok(Event::Prompt { .. } | Event::PromptLogprobs(_) | Event::Embedding(_) | Event::Stats(_)) => {}
            Ok(Event::Done { reason, .. }) => {
                heard.reason = Some(reason);
                return heard;
            }
            Ok(Event::Error(error)) => panic!("{error} after {heard:?}"),
            Err(error) => panic!("{error} after {heard:?}"),
        }
    }
}

fn generate(engine: &Engine, request: Request) -> Heard {
    hear(&session(engine).generate(request))
}

/// Returns the tokens of the CPU.
fn undisturbed(tokens: usize) -> Vec<u32> {
    generate(&open_at(&tiny(), DeviceChoice::Cpu), greedy(tokens)).ids
}

#[track_caller]
fn wait(engine: &Engine, what: &str, done: impl Fn(&DeviceStatus) -> bool) -> DeviceStatus {
    let found = until_given_up(|| Some(engine.device()).filter(&done));
    found.unwrap_or_else(|| panic!("not within {LONGEST:?}: {what}: {:?}", engine.device()))
}

fn settled(engine: &Engine) -> DeviceStatus {
    wait(engine, "the end of the load", |status| !matches!(status, DeviceStatus::Loading(_)))
}

/// Returns the number of submissions of a load.
fn submits_of_a_load() -> u64 {
    let model = Model::open(&tiny(), &LoadOptions::default()).unwrap();
    let pool = ThreadPool::new(Some(1));
    let (model, _) = model.neuron_major(&pool, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let planner =
        Arc::new(LivePlanner::new(PlanInputs::new(Sparsity::Exact, model.config.context_length, KvType::F16)));
    let options = DeviceLoadOptions { gpu: gpu(), chunk: CHUNK, ..DeviceLoadOptions::default() };
    let (processor, gpu) = load_on_device(&model, &options, &planner, &mut |_| ControlFlow::Continue(())).unwrap();
    let submits = gpu.submits();
    drop(processor);
    submits
}

#[test]
fn storyteller_text_is_the_same_on_gpu_and_cpu() {
    let on_gpu = open_at(&storyteller(), DeviceChoice::Gpu(gpu()));
    let on_cpu = open_at(&storyteller(), DeviceChoice::Cpu);
    for beginning in ["Ben had a red car. He liked to", "Once upon a time, there was a princess"] {
        let request = || Request {
            sampling: Sampling::greedy(),
            max_tokens: Some(200),
            ..Request::new(Prompt::Text(beginning.to_owned()))
        };
        let (got, want) = (generate(&on_gpu, request()), generate(&on_cpu, request()));
        assert!(want.ids.len() > 100 && want.text.len() > 300, "{want:?}");
        assert_eq!((got.text, got.reason), (want.text, want.reason));
        assert!(got.device.is_empty() || matches!(got.device[..], [DeviceEvent::Gpu { .. }]), "{:?}", got.device);
    }
    assert!(matches!(on_gpu.device(), DeviceStatus::Gpu(_)));
}

/// Loses the device at each submission that loads the model or computes the answer of `tokens`
/// tokens.
fn loss_at_any_submission(tokens: usize) {
    let (want, load) = (undisturbed(tokens), submits_of_a_load());
    // The prompt has two chunks, and the second gives the first token. Each further token takes one
    // submission. Moves after the load may add a few.
    let last = load + 2 + tokens as u64 - 1;
    for n in (1..=last).chain([last + 8]) {
        let engine = open(failing(FaultPoint::Submit, n));
        let heard = generate(&engine, greedy(tokens));
        assert_eq!(heard.ids, want, "lost at submission {n} of {last}");
        assert_eq!(heard.was_lost(), n <= last, "submission {n} of {last}: {:?}", heard.device);
    }
}

/// Loses the device at each token of an answer of `tokens` tokens.
fn loss_at_any_token(tokens: usize) {
    let (want, last) = (undisturbed(tokens), tokens as u64);
    // Each token reads one result, and there may be a few more.
    for n in (1..=last).chain([last + 8]) {
        let engine = open(failing(FaultPoint::Readback, n));
        let heard = generate(&engine, greedy(tokens));
        assert_eq!(heard.ids, want, "lost at token {n}");
        assert_eq!(heard.was_lost(), n <= last, "token {n}: {:?}", heard.device);
    }
}

#[test]
fn device_loss_at_any_submission_keeps_the_tokens() {
    loss_at_any_submission(8);
}

#[test]
fn device_loss_at_any_token_keeps_the_tokens() {
    loss_at_any_token(12);
}

#[test]
#[ignore = "second tier: answers longer than a tile of keys"]
fn device_loss_at_any_submission_keeps_the_tokens_of_a_long_answer() {
    loss_at_any_submission(50);
}

#[test]
#[ignore = "second tier: answers longer than a tile of keys"]
fn device_loss_at_any_token_keeps_the_tokens_of_a_long_answer() {
    loss_at_any_token(50);
}

/// Allocations of a load that are staging buffers. The first allocation belongs to the device
/// itself.
const STAGING: RangeInclusive<u64> = 2..=3;

#[test]
fn failed_allocations_continue_on_the_cpu_with_the_same_tokens() {
    let want = undisturbed(6);
    for n in 1.. {
        assert!(n < 1000, "a load has no end");
        let engine = open(failing(FaultPoint::Allocation, n));
        let heard = generate(&engine, greedy(6));
        assert_eq!(heard.ids, want, "allocation {n}");
        match engine.device() {
            DeviceStatus::Cpu { reason: Some(reason) } => assert!(matches!(*reason, Error::Memory { .. }), "{reason}"),
            // If staging is refused, the engine requests a smaller buffer.
            DeviceStatus::Gpu(_) if STAGING.contains(&n) => continue,
            DeviceStatus::Gpu(_) => {
                assert!(n > 20, "allocation {n} was not made to fail");
                assert!(heard.device.iter().all(|event| matches!(event, DeviceEvent::Gpu { .. })), "{heard:?}");
                break;
            }
            status => panic!("allocation {n}: {status:?}"),
        }
        let told = heard.device.iter().any(|event| matches!(event, DeviceEvent::Cpu { .. }));
        assert!(told || heard.device.is_empty(), "allocation {n}: {heard:?}");
    }
}

#[test]
fn device_failures_continue_on_the_cpu_with_the_same_tokens() {
    let want = undisturbed(12);
    // How often a point is passed depends on what is loaded. The test fails the first passage and
    // one in the middle.
    for (point, passages) in [
        (FaultPoint::Validation, [1, submits_of_a_load() + 3]),
        (FaultPoint::FirstUse, [2, 20]),
        (FaultPoint::Hang, [1, 6]),
    ] {
        for n in passages {
            let engine = open(failing(point, n));
            let heard = generate(&engine, greedy(12));
            assert_eq!(heard.ids, want, "{point:?} {n}");
            assert!(heard.was_lost(), "{point:?} {n}: {:?}, {:?}", heard.device, engine.device());
        }
    }
}

#[test]
fn kernel_that_the_driver_refuses_takes_away_what_it_uses() {
    let want = undisturbed(6);
    let mut without_subgroups = 0;
    for (point, told) in [(FaultPoint::Compile, "does not compile"), (FaultPoint::CompileLost, "was compiled")] {
        for n in [1, 2, 3, 4, 5, 7, 9] {
            let engine = open(failing(point, n));
            settled(&engine);
            assert_eq!(generate(&engine, greedy(6)).ids, want, "{point:?} {n}");
            match engine.device() {
                DeviceStatus::Gpu(memory) => {
                    let [Fallback { part, why, .. }] = &memory.fallbacks[..] else { panic!("{:?}", memory.fallbacks) };
                    assert_eq!(*part, FallbackPart::Feature(GpuFeature::Subgroups), "{why}");
                    assert!(why.starts_with("the ") && why.contains(" kernel `") && why.contains(told), "{why}");
                    without_subgroups += 1;
                }
                DeviceStatus::Cpu { reason: Some(reason) } => {
                    let reason = reason.to_string();
                    assert!(reason.contains(" is not used over vulkan: the ") && reason.contains(told), "{reason}");
                }
                status => panic!("{point:?} {n}: {status:?}"),
            }
        }
        // The portable tier uses no feature that could be disabled.
        let engine = open(GpuOptions { tier: Some(Tier::PORTABLE), ..failing(point, 2) });
        settled(&engine);
        assert_eq!(generate(&engine, greedy(6)).ids, want, "{point:?}");
        let DeviceStatus::Cpu { reason: Some(reason) } = engine.device() else { panic!("{:?}", engine.device()) };
        let reason = reason.to_string();
        assert!(reason.contains(" is not used over vulkan: the ") && reason.contains(told), "{reason}");
    }
    assert!(without_subgroups > 0, "every text of a kernel with subgroups is other than the one without");
}

#[test]
fn kernel_that_a_driver_computes_wrongly_is_found_before_the_first_token() {
    let (want, folder) = (undisturbed(6), tempfile::tempdir().unwrap());
    let open = |from: &str, to: &str, pretended_kind: Option<AdapterKind>| {
        let [kernel, old, new] = ["norm", from, to].map(str::to_owned);
        let mutation = Some(KernelMutation { kernel, from: old, to: new });
        let device = DeviceChoice::Gpu(GpuOptions { mutation, pretended_kind, ..gpu() });
        let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
        let (sidecar, speeds) = (SidecarChoice::Without, Some(folder.path().to_owned()));
        let options = EngineOptions { cpu, chunk: CHUNK, device, sidecar, speeds, ..EngineOptions::default() };
        Engine::open(&tiny(), options).unwrap()
    };
    let wrong = |from: &str, to: &str| {
        let engine = open(from, to, Some(AdapterKind::Discrete));
        wait(&engine, "the self-test", |status| matches!(status, DeviceStatus::Loading(LoadStage::Testing)));
        assert_eq!(generate(&engine, greedy(6)).ids, want, "{from}");
        settled(&engine)
    };
    let DeviceStatus::Gpu(memory) = wrong("subgroupAdd(value)", "subgroupMax(value)") else { panic!("of no use") };
    let [fallback] = &memory.fallbacks[..] else { panic!("{:?}", memory.fallbacks) };
    assert_eq!(fallback.part, FallbackPart::Feature(GpuFeature::Subgroups));
    assert!(fallback.why.starts_with("the kernel `norm` failed the self-test"), "{}", fallback.why);
    let sum = ["inverseSqrt(sum / n + params.eps)", "inverseSqrt(sum * n + params.eps)"];
    let DeviceStatus::Cpu { reason: Some(reason) } = wrong(sum[0], sum[1]) else { panic!("a wrong kernel is used") };
    assert!(reason.to_string().contains("the kernel `norm` failed the self-test"), "{reason}");
    // Software drivers are not tested by default.
    let engine = open(sum[0], sum[1], None);
    assert!(matches!(settled(&engine), DeviceStatus::Gpu(_)));
    assert_ne!(generate(&engine, greedy(6)).ids, want);
}

#[test]
fn adapter_without_room_for_a_row_is_refused_with_its_limit() {
    let engine = open(GpuOptions { max_binding: Some(0), ..gpu() });
    let heard = generate(&engine, greedy(6));
    assert_eq!(heard.ids, undisturbed(6));
    assert!(heard.device.iter().any(|event| told(event, "limits are too small")), "{:?}", heard.device);
}

/// Returns true if an event's reason contains `text`.
fn told(event: &DeviceEvent, text: &str) -> bool {
    format!("{event:?}").contains(text)
}

#[test]
fn any_budget_is_kept_or_falls_back_to_the_cpu() {
    let want = undisturbed(6);
    let (mut refused, mut kept) = (0, 0);
    for step in 0..=24_u64 {
        let budget = step * (64 << 10);
        let engine = open(GpuOptions { budget: Some(budget), ..gpu() });
        settled(&engine);
        assert_eq!(generate(&engine, greedy(6)).ids, want, "{budget} bytes");
        match engine.device() {
            DeviceStatus::Gpu(memory) => {
                kept += 1;
                assert!(memory.accounted <= budget && memory.budget == Some(budget), "{memory:?}");
            }
            DeviceStatus::Cpu { reason: Some(reason) } => {
                refused += 1;
                let Error::Memory { wanted, available, .. } = *reason else { panic!("{reason}") };
                assert!(wanted > available && available <= budget, "{reason}");
                assert_eq!(engine.telemetry().device_bytes, 0);
            }
            status => panic!("{status:?}"),
        }
    }
    assert!(refused > 0 && kept > 0, "{refused} refused, {kept} kept");
}

#[test]
fn device_is_loaded_again_after_a_loss() {
    // The load comes first, then the two chunks of the prompt and six tokens.
    let engine = open(failing(FaultPoint::Submit, submits_of_a_load() + 8));
    let session = session(&engine);
    let heard = hear(&session.generate(greedy(20)));
    assert_eq!(heard.ids, undisturbed(20));
    assert!(heard.was_lost());
    wait(&engine, "the device's return", |status| matches!(status, DeviceStatus::Gpu(_)));
    // The device computes the session's tokens again.
    let heard = hear(&session.generate(greedy(3)));
    assert_eq!(heard.ids, undisturbed(3));
    assert!(heard.device.is_empty() && matches!(engine.device(), DeviceStatus::Gpu(_)), "{heard:?}");
    assert!(engine.telemetry().device_bytes > 0);
}

#[test]
fn device_loss_keeps_the_tokens_of_concurrent_sessions() {
    let (want, load) = (undisturbed(30), submits_of_a_load());
    for lost_at in [None, Some(load + 3), Some(load + 5), Some(load + 20)] {
        let engine = open(lost_at.map_or_else(gpu, |n| failing(FaultPoint::Submit, n)));
        let sessions = [session(&engine), session(&engine)];
        let events = sessions.each_ref().map(|session| session.generate(greedy(30)));
        for events in &events {
            let heard = hear(events);
            assert_eq!(heard.ids, want, "{lost_at:?}");
            assert_eq!(heard.was_lost(), lost_at.is_some(), "{heard:?}");
        }
    }
}

#[test]
fn idle_sessions_release_vram_for_the_active_one() {
    let engine = open(gpu());
    let one = session(&engine);
    let first = hear(&one.generate(greedy(5)));
    let DeviceStatus::Gpu(memory) = engine.device() else { panic!("{:?}", engine.device()) };
    let kv = memory.by_purpose[Purpose::Kv as usize].1;
    assert!(kv > 0);

    let engine = open(GpuOptions { budget: Some(memory.accounted + kv / 2), ..gpu() });
    assert!(matches!(settled(&engine), DeviceStatus::Gpu(_)));
    let sessions = [session(&engine), session(&engine), session(&engine)];
    for turn in 0..6 {
        let heard = hear(&sessions[turn % 3].generate(greedy(5)));
        assert_eq!(heard.ids, first.ids, "turn {turn}");
        assert!(heard.device.is_empty(), "turn {turn}: {heard:?}");
    }
    // If the caches of two active sessions do not fit, neurons move out to make room for the
    // second.
    let events = [sessions[0].generate(greedy(20)), sessions[1].generate(greedy(20))];
    for events in &events {
        assert_eq!(hear(events).ids, undisturbed(20));
    }
    let DeviceStatus::Gpu(memory) = engine.device() else { panic!("{:?}", engine.device()) };
    assert!(memory.accounted <= memory.budget.unwrap(), "{memory:?}");
}

#[test]
fn shortlist_on_the_device_samples_the_tokens_of_all_logits() {
    let engine = open(gpu());
    let sampling = Sampling { temperature: 1.0, top_k: 20, seed: Some(3), ..Sampling::default() };
    let request = |sampling: Sampling| Request { sampling, ..greedy(60) };
    let few = generate(&engine, request(sampling.clone()));
    // A bias that raises a token needs all logits, however small it is.
    let all = generate(&engine, request(Sampling { logit_bias: vec![(7, f32::MIN_POSITIVE)], ..sampling }));
    assert_eq!(few.ids, all.ids);
    assert!(matches!(engine.device(), DeviceStatus::Gpu(_)));
}

#[test]
fn full_context_shifts_on_a_device() {
    let engine = open(gpu());
    let session = engine.session(SessionOptions { context: Some(32), ..SessionOptions::default() }).unwrap();
    let heard = hear(&session.generate(Request { on_full: ContextPolicy::Shift { keep: 4 }, ..greedy(80) }));
    assert_eq!((heard.ids.len(), heard.reason), (80, Some(StopReason::MaxTokens)));
    assert!(matches!(engine.device(), DeviceStatus::Gpu(_)));
    assert_eq!(hear(&session.generate(greedy(5))).ids, undisturbed(5));
}

#[test]
fn request_waiting_for_a_load_and_the_load_can_be_cancelled() {
    for _ in 0..5 {
        let engine = open_at(&storyteller(), DeviceChoice::Gpu(gpu()));
        let session = session(&engine);
        let events = session.generate(greedy(1000));
        session.cancel();
        assert_eq!(hear(&events).reason, Some(StopReason::Cancelled));
        // Dropping the engine does not wait for the rest of the load.
        drop((session, engine));
    }
    let engine = open_at(&storyteller(), DeviceChoice::Gpu(gpu()));
    let session = session(&engine);
    let events = session.generate(greedy(3));
    engine.set_device(&DeviceChoice::Cpu).unwrap();
    assert_eq!(hear(&events).ids.len(), 3);
    wait(&engine, "the CPU", |status| matches!(status, DeviceStatus::Cpu { reason: None }));
}

#[test]
fn device_figures_match_the_arena() {
    let engine = open(GpuOptions { budget: Some(64 << 20), ..gpu() });
    let DeviceStatus::Gpu(memory) = settled(&engine) else { panic!("{:?}", engine.device()) };
    let sum =
        |memory: &thermocline_engine::session::DeviceMemory| memory.by_purpose.iter().map(|(_, n)| n).sum::<u64>();
    assert!(!memory.adapter.is_empty() && memory.accounted == sum(&memory), "{memory:?}");
    let kv = |memory: &thermocline_engine::session::DeviceMemory| memory.by_purpose[Purpose::Kv as usize].1;
    assert_eq!(kv(&memory), 0);

    let speaker = session(&engine);
    hear(&speaker.generate(greedy(4)));
    wait(&engine, "the cache", |status| matches!(status, DeviceStatus::Gpu(memory) if kv(memory) > 0));
    let DeviceStatus::Gpu(memory) = engine.device() else { panic!("{:?}", engine.device()) };
    let now = engine.telemetry();
    assert_eq!((now.device_bytes, now.device_budget), (memory.accounted, 64 << 20));
    assert_eq!((now.kv_bytes, sum(&memory)), (kv(&memory), memory.accounted));

    drop(speaker);
    wait(&engine, "the cache's end", |status| matches!(status, DeviceStatus::Gpu(memory) if kv(memory) == 0));
    engine.set_device(&DeviceChoice::Cpu).unwrap();
    wait(&engine, "the CPU", |status| matches!(status, DeviceStatus::Cpu { reason: None }));
    eventually("an empty device", || engine.telemetry().device_bytes == 0);
}

#[test]
fn device_changes_during_an_answer_keep_the_tokens() {
    let engine = open(gpu());
    let session = session(&engine);
    let want = undisturbed(120);
    let events = session.generate(greedy(120));
    let mut ids = Vec::new();
    while ids.len() < 120 {
        if let Event::Token { id, .. } = events.recv_timeout(LONGEST).unwrap() {
            ids.push(id);
            match ids.len() {
                20 => engine.set_device(&DeviceChoice::Cpu).unwrap(),
                40 => engine.set_device(&DeviceChoice::Gpu(gpu())).unwrap(),
                _ => {}
            }
        }
    }
    assert_eq!(ids, want);
    assert_eq!(hear(&events).reason, Some(StopReason::MaxTokens));
    wait(&engine, "the device", |status| matches!(status, DeviceStatus::Gpu(_)));
    assert_eq!(hear(&session.generate(greedy(10))).ids, want[..10]);
}

#[test]
fn missing_adapter_falls_back_to_the_cpu_with_a_reason() {
    let engine = open(GpuOptions { adapter: AdapterChoice::Name("no such card".to_owned()), ..gpu() });
    assert_eq!(generate(&engine, greedy(6)).ids, undisturbed(6));
    let DeviceStatus::Cpu { reason: Some(reason) } = engine.device() else { panic!("{:?}", engine.device()) };
    assert!(reason.to_string().contains("no such card"), "{reason}");
    engine.set_device(&DeviceChoice::Gpu(gpu())).unwrap();
    wait(&engine, "another choice", |status| matches!(status, DeviceStatus::Gpu(_)));
    assert_eq!(generate(&engine, greedy(6)).ids, undisturbed(6));
}

/// Opens the tiny model on a GPU with `budget` bytes and waits until nothing moves. `streams`
/// decides whether cold rows of prompts are streamed.
fn narrow(gpu: GpuOptions, budget: u64, streams: bool) -> Engine {
    let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let device = DeviceChoice::Gpu(GpuOptions { budget: Some(budget), ..gpu });
    let (sidecar, stream_prompts) = (SidecarChoice::Without, Some(streams));
    let options = EngineOptions { cpu, chunk: CHUNK, device, sidecar, stream_prompts, ..EngineOptions::default() };
    let engine = Engine::open(&tiny(), options).unwrap();
    wait(&engine, "rest", |status| match status {
        DeviceStatus::Gpu(memory) => !memory.moving,
        status => !matches!(status, DeviceStatus::Loading(_)),
    });
    engine
}

/// An engine that streams cold rows of a prompt gives the tokens of the CPU, even if the device is
/// lost meanwhile.
#[test]
fn streamed_prompts_keep_the_tokens() {
    let want = undisturbed(4);
    let budget = open(gpu()).forecast(u64::MAX).unwrap().everything * 4 / 5;
    let scratch = |engine: &Engine| match engine.device() {
        DeviceStatus::Gpu(memory) => {
            assert!(memory.accounted <= budget, "{memory:?}");
            memory.by_purpose.iter().filter(|(purpose, _)| *purpose == Purpose::Scratch).map(|(_, bytes)| bytes).sum()
        }
        status => panic!("{status:?}"),
    };
    let [without, with] = [false, true].map(|streams| {
        let engine = narrow(gpu(), budget, streams);
        let resident = engine.resident().unwrap();
        assert!((0..3).any(|layer| resident.count(layer) < 192), "{resident:?}");
        assert_eq!(generate(&engine, greedy(4)).ids, want, "streams: {streams}");
        let scratch: u64 = scratch(&engine);
        scratch
    });
    assert!(with > without + 20_000, "{with} and {without} bytes of scratch: no streaming buffer");
    let mut lost = 0;
    for n in (1..1000).step_by(3) {
        let engine = narrow(failing(FaultPoint::Submit, n), budget, true);
        let heard = generate(&engine, greedy(4));
        assert_eq!(heard.ids, want, "lost at submission {n}");
        // The device was lost neither before nor after the prompt.
        if heard.device.is_empty() && matches!(engine.device(), DeviceStatus::Gpu(_)) && !heard.was_lost() && n > 100 {
            break;
        }
        lost += usize::from(heard.was_lost());
    }
    assert!(lost > 4, "lost {lost} times while it answered");
}
