//! Models whose down projections have a row per output, on a device that is too small for them or
//! that is chosen later.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use thermocline_engine::{
    gpu::{AdapterChoice, Fallbacks, GpuOptions, adapters},
    model::{Activation, LoadOptions, Model},
    placement::{GpuUse, Machine, Resident},
    runtime::Sparsity,
    session::{
        DeviceChoice, DeviceStatus, Engine, EngineOptions, Prompt, Request, Sampling, SessionOptions, SparsityChoice,
        unopened_planner,
    },
    synth,
    synth::{SynthOptions, SynthShape},
};
use thermocline_tests::{
    engines::alike,
    events,
    wait::{eventually, until_given_up},
};

/// Returns a machine on which everything that fits the device pays.
fn machine() -> Machine {
    let mut machine = Machine::typical();
    for rate in machine.cpu.rates.values_mut() {
        (rate.sequential, rate.scattered) = (rate.sequential / 1e3, rate.scattered / 1e3);
    }
    machine
}

fn options(sparsity: SparsityChoice, device: DeviceChoice) -> EngineOptions {
    EngineOptions { machine: Some(machine()), ..alike(sparsity, device) }
}

fn gpu(budget: Option<u64>) -> DeviceChoice {
    DeviceChoice::Gpu(GpuOptions { adapter: AdapterChoice::Index(0), budget, ..GpuOptions::default() })
}

fn on_gpu(engine: &Engine) {
    until_given_up(|| matches!(engine.device(), DeviceStatus::Gpu(_)).then_some(()));
    assert!(matches!(engine.device(), DeviceStatus::Gpu(_)), "{:?}", engine.device());
}

fn tells(engine: &Engine) -> Vec<u32> {
    let session = engine.session(SessionOptions::default()).unwrap();
    let prompt = Prompt::Tokens((0..20).map(|at| 3 + at * 7 % 90).collect());
    let request =
        Request { sampling: Sampling::greedy(), max_tokens: Some(16), ignore_eos: true, ..Request::new(prompt) };
    events::tokens(&session, request)
}

/// Waits until `is` holds for the resident part. Returns it.
fn settled(engine: &Engine, is: impl Fn(&Resident) -> bool) -> Resident {
    let found = until_given_up(|| engine.resident().filter(|resident| is(resident)));
    let found = found.unwrap_or_else(|| panic!("{:?} {:?}", engine.device(), engine.resident()));
    Resident::clone(&found)
}

/// By default, quantised down projections keep their orientation, so their FFNs are on the device
/// as a whole or not at all. If the user requests a sparse mode, they become neuron-major and
/// single neurons are resident.
#[test]
fn quantised_model_without_a_sidecar_goes_to_a_small_device() {
    const NEURONS: usize = 1024;
    let folder = tempfile::tempdir().unwrap();
    let mut synthetic = SynthOptions::new(SynthShape::named("tiny-relu-llama").unwrap(), folder.path().join("m.gguf"));
    (synthetic.layers, synthetic.predictor) = (Some(4), false);
    let path = synth::generate(&synthetic, &mut |_| ()).unwrap().path;
    let model = Model::open(&path, &LoadOptions::default()).unwrap();
    let adapter = adapters(&Fallbacks::default()).into_iter().next().unwrap();
    for (sparsity, neuron_major, part) in
        [(SparsityChoice::Auto, false, 17), (SparsityChoice::Mode(Sparsity::Exact), true, 19)]
    {
        assert_eq!(sparsity.makes_neuron_major(&model, false), neuron_major);
        let alone = Engine::open(&path, options(sparsity, DeviceChoice::Cpu)).unwrap();
        assert_eq!(alone.sparsity().mode, Sparsity::Exact);
        let want = tells(&alone);
        let planner = unopened_planner(&model, &options(sparsity, gpu(None)), Some(&adapter)).unwrap();
        let budget = planner.everything() * part / 20;
        let expected = planner.plan(budget, GpuUse::Always).unwrap().placement;

        let engine = Engine::open(&path, options(sparsity, gpu(Some(budget)))).unwrap();
        on_gpu(&engine);
        assert_eq!(tells(&engine), want, "{sparsity}");
        let counts = |resident: &Resident| -> Vec<usize> { (0..4).map(|layer| resident.count(layer)).collect() };
        let hot: Vec<usize> = expected.hot.iter().map(Vec::len).collect();
        let resident = settled(&engine, |resident| counts(resident) == hot);
        assert_eq!(resident.first_layer, expected.first_resident);
        let (some, parts) = (hot.iter().sum::<usize>(), hot.iter().any(|count| count % NEURONS != 0));
        assert!(some > 0 && some < 4 * NEURONS && parts == neuron_major, "{sparsity}: {hot:?}");
        // Changing the mode of an open model does not change the orientation.
        for mode in [Sparsity::Dense, Sparsity::Exact] {
            engine.set_sparsity(SparsityChoice::Mode(mode)).unwrap();
            assert_eq!(tells(&engine), want, "{sparsity}, then {mode}");
            assert!(matches!(engine.device(), DeviceStatus::Gpu(_)), "{:?}", engine.device());
        }
        engine.set_vram_budget(budget / 2).unwrap();
        assert_eq!(tells(&engine), want, "{sparsity} with less");
        assert!(matches!(engine.device(), DeviceStatus::Gpu(_)), "{:?}", engine.device());
    }
}

/// For a sparse mode, the CPU has neuron-major down projections of experts. A device uses the
/// orientation of the file.
#[test]
fn moe_model_opened_sparse_on_the_cpu_moves_to_a_device_and_back() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models/mixtral");
    let sparsity = SparsityChoice::Mode(Sparsity::Exact);
    let relu = |device| EngineOptions { activation: Some(Activation::Relu), ..options(sparsity, device) };
    let engine = Engine::open(&path, relu(DeviceChoice::Cpu)).unwrap();
    let want = tells(&engine);
    engine.set_device(&gpu(None)).unwrap();
    on_gpu(&engine);
    assert_eq!(tells(&engine), want, "on the device");
    let there = Engine::open(&path, relu(gpu(None))).unwrap();
    on_gpu(&there);
    assert_eq!(tells(&there), want, "opened on the device");
    let all = settled(&there, |resident| (0..2).all(|layer| resident.count(layer) == 4));
    assert_eq!(settled(&engine, |resident| *resident == all), all);
    engine.set_device(&DeviceChoice::Cpu).unwrap();
    eventually("the CPU", || matches!(engine.device(), DeviceStatus::Cpu { reason: None }));
    assert_eq!(tells(&engine), want, "back on the CPU");
}
