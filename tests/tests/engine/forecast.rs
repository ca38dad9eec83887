//! Forecasts for a budget before it is set, and reports on the contents of VRAM.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use thermocline_engine::{
    calibration::{GpuEffort, MachineOptions, MeasureEffort, cached_machine},
    cpu::{Cpu, CpuOptions},
    gpu::{AdapterChoice, Gpu, GpuOptions},
    model::mask,
    placement::{Assumption, Forecast, Machine, Plan},
    quant::TensorType,
    runtime::Sparsity,
    session::{
        DeviceChoice, DeviceStatus, Engine, EngineOptions, Event, FrequencySource, Prompt, Request, Sampling,
        SessionOptions, SparsityChoice,
    },
};
use thermocline_tests::wait::{LONGEST, eventually};

const MIB: u64 = 1 << 20;

fn storyteller() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/storyteller/storyteller-F16.gguf")
}

fn gpu(adapter: AdapterChoice, budget: u64) -> DeviceChoice {
    DeviceChoice::Gpu(GpuOptions { adapter, budget: Some(budget), ..GpuOptions::default() })
}

fn open(path: &Path, device: DeviceChoice, mode: Sparsity) -> Engine {
    let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let sparsity = SparsityChoice::Mode(mode);
    let context = Some(128);
    Engine::open(path, EngineOptions { context, cpu, chunk: 16, device, sparsity, ..EngineOptions::default() }).unwrap()
}

/// Checks neuron by neuron that VRAM has what `forecast` predicts.
#[track_caller]
fn assert_there(engine: &Engine, forecast: &Forecast) {
    let (resident, placement) = (engine.resident().unwrap(), &forecast.plan.placement);
    assert_eq!((resident.first_layer, resident.head), (placement.first_resident, placement.head));
    for (layer, hot) in placement.hot.iter().enumerate() {
        assert_eq!(resident.count(layer), hot.len(), "layer {layer}");
        assert!(hot.iter().all(|neuron| resident.is_hot(layer, *neuron as usize)), "layer {layer}");
    }
}

/// Waits until nothing moves any more under `budget`.
#[track_caller]
fn settle(engine: &Engine, budget: u64) {
    let rests = |memory: &thermocline_engine::session::DeviceMemory| memory.budget == Some(budget) && !memory.moving;
    eventually("the rest of the device", || matches!(engine.device(), DeviceStatus::Gpu(memory) if rests(&memory)));
}

#[test]
fn forecast_matches_the_placement_that_follows() {
    let options = GpuOptions { adapter: AdapterChoice::Index(0), budget: Some(12 * MIB), ..GpuOptions::default() };
    let engine = open(&storyteller(), DeviceChoice::Auto(options), Sparsity::Predicted);
    engine.wait_for_device(LONGEST);
    settle(&engine, 12 * MIB);
    let now = engine.forecast(12 * MIB).unwrap();
    assert_there(&engine, &now);
    assert_eq!((now.arriving, now.leaving), (0, 0));
    let (hot, all) = now.units();
    assert!(0 < hot && hot < all && (0.1..0.9).contains(&now.hot_fraction()), "{hot} of {all}, {}", now.hot_fraction());

    let mut before: Option<Forecast> = None;
    for budget in (0..30).step_by(3).map(|mib| mib * MIB) {
        let next = engine.forecast(budget).unwrap();
        assert!(next.plan.bytes.total() <= budget);
        if let Some(before) = &before {
            let (before, next) = (before.plan.tokens_per_second(), next.plan.tokens_per_second());
            assert!(next >= before * (1.0 - 1e-9), "{budget} bytes");
        }
        before = Some(next);
    }
    let most = before.unwrap();
    assert_eq!(most.whole_layers().count(), engine.config().n_layer());
    assert_eq!(most.everything, now.everything);
    assert!(most.plan.bytes.total() <= most.everything && now.plan.bytes.total() < now.everything);
    let least = engine.forecast(0).unwrap();
    assert!(most.arriving > 0 && most.leaving == 0);
    assert!(most.plan.tokens_per_second() > least.plan.tokens_per_second());
    assert!(least.reason.is_some() && least.plan.bytes.total() == 0 && least.leaving > 10 * MIB - MIB);
    assert_eq!((most.tokens_per_second, most.cpu_tokens_per_second), (None, None), "nothing is measured yet");

    for budget in [20 * MIB, 14 * MIB] {
        let told = engine.forecast(budget).unwrap();
        engine.set_vram_budget(budget).unwrap();
        settle(&engine, budget);
        assert_there(&engine, &told);
    }
    engine.set_vram_budget(0).unwrap();
    eventually("an empty device", || engine.resident().is_none());
}

/// Compares expert by expert, and checks the budget.
#[test]
fn forecast_of_an_moe_model_matches_the_placement_that_follows() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models/mixtral");
    let engine = open(&path, gpu(AdapterChoice::Index(0), 64 * MIB), Sparsity::Dense);
    engine.wait_for_device(LONGEST);
    settle(&engine, 64 * MIB);
    let everything = engine.forecast(64 * MIB).unwrap().everything;
    let mut partly = 0;
    for budget in [9, 14, 11, 13, 10, 15, 12].map(|part| everything * part / 16) {
        let told = engine.forecast(budget).unwrap();
        if told.reason.is_some() {
            continue;
        }
        engine.set_vram_budget(budget).unwrap();
        settle(&engine, budget);
        assert_there(&engine, &told);
        let DeviceStatus::Gpu(memory) = engine.device() else { panic!("{:?}", engine.device()) };
        let reckoned = told.plan.bytes.total();
        assert!(memory.accounted <= reckoned && reckoned <= budget, "{} of {reckoned}", memory.accounted);
        partly += told.plan.layers.iter().filter(|layer| (1..layer.units).contains(&layer.hot)).count();
    }
    assert!(partly > 2, "{partly} layers had some experts in VRAM");
}

#[test]
fn forecast_without_a_gpu_is_the_cpu_at_any_budget() {
    let nowhere = gpu(AdapterChoice::Name("no such adapter".to_owned()), 12 * MIB);
    for (device, told) in [(DeviceChoice::Cpu, false), (nowhere, true)] {
        let engine = open(&storyteller(), device, Sparsity::Exact);
        engine.wait_for_device(LONGEST);
        let forecasts = [0, 12 * MIB, u64::MAX].map(|budget| engine.forecast(budget).unwrap());
        for forecast in forecasts {
            assert!(forecast.plan.tokens_per_second() > 0.0);
            assert_eq!((forecast.plan.bytes.total(), forecast.units().0), (0, 0));
            assert_eq!(forecast.reason.is_some(), told, "{:?}", forecast.reason);
        }
        assert!(engine.resident().is_none());
    }
}

#[test]
fn forecast_depends_on_the_mode_and_the_machine() {
    let engine = open(&storyteller(), DeviceChoice::Cpu, Sparsity::Dense);
    let dense = engine.forecast(0).unwrap().plan.tokens_per_second();
    engine.set_sparsity(SparsityChoice::Mode(Sparsity::Exact)).unwrap();
    eventually("the mode", || engine.sparsity().mode == Sparsity::Exact);
    assert!(engine.forecast(0).unwrap().plan.tokens_per_second() > dense);
    let mut slow = Machine::typical();
    slow.cpu.rates.values_mut().for_each(|rate| rate.sequential /= 10.0);
    slow.cpu.rates.values_mut().for_each(|rate| rate.scattered /= 10.0);
    let sparsity = SparsityChoice::Mode(Sparsity::Dense);
    let options = EngineOptions { machine: Some(slow), context: Some(128), sparsity, ..EngineOptions::default() };
    let slow = Engine::open(&storyteller(), options).unwrap().forecast(0).unwrap();
    assert!(slow.plan.tokens_per_second() < dense / 2.0, "{} {dense}", slow.plan.tokens_per_second());
}

/// Makes the engine decode some tokens.
#[track_caller]
fn talk(engine: &Engine, tokens: usize) {
    let prompt = Prompt::Text("Once".to_owned());
    let request =
        Request { sampling: Sampling::greedy(), max_tokens: Some(tokens), ignore_eos: true, ..Request::new(prompt) };
    let session = engine.session(SessionOptions::default()).unwrap();
    assert!(matches!(session.generate(request).iter().last(), Some(Event::Done { .. })));
}

#[test]
fn forecast_speed_is_known_after_enough_observed_tokens() {
    let near = |told: Option<f64>, seen: f64| told.is_some_and(|told| (told / seen - 1.0).abs() < 1e-6);
    let engine = open(&storyteller(), gpu(AdapterChoice::Index(0), 12 * MIB), Sparsity::Exact);
    engine.wait_for_device(LONGEST);
    settle(&engine, 12 * MIB);
    talk(&engine, 4);
    assert_eq!((engine.observed_rate(), engine.forecast(12 * MIB).unwrap().tokens_per_second), (None, None), "too few");
    talk(&engine, 40);
    settle(&engine, 12 * MIB);
    let seen = engine.observed_rate().unwrap();
    let (now, more) = (engine.forecast(12 * MIB).unwrap(), engine.forecast(20 * MIB).unwrap());
    assert!(near(now.tokens_per_second, seen), "{seen} {:?}", now.tokens_per_second);
    let ratio = seen / now.plan.tokens_per_second();
    assert!(near(more.tokens_per_second, more.plan.tokens_per_second() * ratio));
    assert_eq!(now.cpu_tokens_per_second, None, "the CPU alone was not measured");
    engine.set_vram_budget(20 * MIB).unwrap();
    settle(&engine, 20 * MIB);
    assert_eq!(engine.observed_rate(), None, "this budget has not been seen");
    assert!(engine.forecast(20 * MIB).unwrap().tokens_per_second.is_some());

    engine.set_device(&DeviceChoice::Cpu).unwrap();
    eventually("the CPU", || matches!(engine.device(), DeviceStatus::Cpu { reason: None }));
    assert_eq!(engine.forecast(0).unwrap().tokens_per_second, None);
    talk(&engine, 40);
    let seen = engine.observed_rate().unwrap();
    let alone = engine.forecast(0).unwrap();
    assert!(near(alone.tokens_per_second, seen) && alone.tokens_per_second == alone.cpu_tokens_per_second);
}

#[test]
fn frequencies_are_the_profiles_or_counted() {
    let prepared = open(&storyteller(), DeviceChoice::Cpu, Sparsity::Exact);
    let profile = prepared.frequencies(1).unwrap();
    assert_eq!(profile.source, FrequencySource::Profile);
    assert_eq!(Some(&profile.values), prepared.model().weights.layers[1].frequency.as_ref());
    assert!(prepared.frequencies(99).is_none());

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models");
    let engine = open(&folder.join("llama-relu"), DeviceChoice::Cpu, Sparsity::Exact);
    assert!(engine.frequencies(0).is_none(), "nothing is counted yet");
    let session = engine.session(SessionOptions::default()).unwrap();
    let prompt = Prompt::Tokens((5..29).collect());
    let request =
        Request { sampling: Sampling::greedy(), max_tokens: Some(8), ignore_eos: true, ..Request::new(prompt) };
    assert!(matches!(session.generate(request).iter().last(), Some(Event::Done { .. })));
    let counted = engine.frequencies(0).unwrap();
    let tally = engine.neurons().tally(0);
    assert_eq!(counted.source, FrequencySource::Counted(tally.tokens));
    assert!(tally.tokens >= 24);
    let fired: u32 = engine.neurons().tokens(0..1000).iter().map(|token| token.layers[0].fired).sum();
    let sum = counted.values.iter().map(|frequency| f64::from(*frequency) * tally.tokens as f64).sum::<f64>();
    assert!((sum - f64::from(fired)).abs() < 1e-2 && fired > 0, "{sum} {fired}");

    let moe = open(&folder.join("mixtral"), DeviceChoice::Cpu, Sparsity::Dense);
    assert!(moe.frequencies(0).is_none(), "nothing was computed yet");
}

#[test]
fn moe_models_are_resident_by_expert() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models/mixtral");
    let engine = open(&path, gpu(AdapterChoice::Index(0), 64 * MIB), Sparsity::Dense);
    let status = engine.wait_for_device(LONGEST);
    assert!(matches!(status, DeviceStatus::Gpu(_)), "{status:?}");
    settle(&engine, 64 * MIB);
    let (resident, experts) = (engine.resident().unwrap(), engine.config().experts.unwrap().count);
    assert!(resident.hot.iter().all(|hot| mask::count(hot) == experts), "{resident:?}");
    assert_there(&engine, &engine.forecast(64 * MIB).unwrap());
}

#[test]
fn cached_machine_speeds_are_used_for_forecasts() {
    let folder = tempfile::tempdir().unwrap();
    let threads = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let cpu = Cpu::new(&threads).unwrap();
    let device = Gpu::open(&GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() }).unwrap();
    let effort = MeasureEffort {
        cpu_bytes: 1 << 20,
        gpu: GpuEffort { bytes: 1 << 20, seconds: 0.001, hand_overs: 5 },
        rounds: 1,
    };
    let how = MachineOptions { folder: Some(folder.path().to_owned()), effort, ..MachineOptions::default() };
    let measured =
        cached_machine(&cpu, Some(&device), &[TensorType::F16], &how, &mut || ControlFlow::Continue(())).unwrap();
    let told = |speeds: Option<PathBuf>| {
        let device = gpu(AdapterChoice::Index(0), 32 * MIB);
        let (cpu, context) = (threads.clone(), Some(128));
        let options = EngineOptions { context, cpu, device, speeds, ..EngineOptions::default() };
        let engine = Engine::open(&storyteller(), options).unwrap();
        engine.wait_for_device(LONGEST);
        engine.forecast(32 * MIB).unwrap().plan
    };
    let (kept, usual) = (told(how.folder), told(None));
    let assumed = |plan: &Plan| plan.assumptions.contains(&Assumption::UnmeasuredMachine);
    assert!(!assumed(&kept) && assumed(&usual));
    // The head multiplies F16 weights, on the device or on the CPU.
    let head = kept.placement.head.then(|| measured.gpu.unwrap().rate(TensorType::F16));
    let rate = head.unwrap_or(measured.cpu.rate(TensorType::F16)).sequential;
    assert!(kept.head_seconds > 2048.0 * 256.0 / rate && kept.head_seconds != usual.head_seconds);
}
