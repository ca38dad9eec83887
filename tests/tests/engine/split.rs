//! An engine that opens a model with PowerInfer's split follows the split.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use thermocline_engine::{
    Error,
    format::powerinfer::GpuIndex,
    gpu::{AdapterChoice, GpuOptions},
    placement::Resident,
    runtime::Sparsity,
    session::{DeviceChoice, DeviceStatus, Engine, EngineOptions, Prompt, Request, Sampling, SparsityChoice},
};
use thermocline_tests::{
    engines::alike,
    events,
    terminal::thermocline,
    wait::{LONGEST, eventually},
};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn model() -> PathBuf {
    fixture("powerinfer/llama-relu-f16.powerinfer.gguf")
}

fn split() -> PathBuf {
    GpuIndex::path_beside(&model())
}

fn options(device: DeviceChoice) -> EngineOptions {
    alike(SparsityChoice::Mode(Sparsity::Exact), device)
}

fn on_gpu(budget: Option<u64>) -> Engine {
    let gpu = GpuOptions { adapter: AdapterChoice::Index(0), budget, ..GpuOptions::default() };
    let options = EngineOptions { split: Some(split()), ..options(DeviceChoice::Gpu(gpu)) };
    let engine = Engine::open(&model(), options).unwrap();
    let status = engine.wait_for_device(LONGEST);
    assert!(matches!(status, DeviceStatus::Gpu(_)), "{status:?}");
    engine
}

fn used(engine: &Engine) -> u64 {
    let DeviceStatus::Gpu(memory) = engine.device() else { panic!("{:?}", engine.device()) };
    memory.accounted
}

fn tells(engine: &Engine) -> Vec<u32> {
    let session = engine.session(Default::default()).unwrap();
    let request = Request {
        sampling: Sampling::greedy(),
        max_tokens: Some(24),
        ..Request::new(Prompt::Tokens((0..20).map(|at| 3 + at * 7 % 90).collect()))
    };
    events::tokens(&session, request)
}

/// Checks that all resident neurons are in the split file. Returns their number.
fn is_the_files(resident: &Resident, index: &GpuIndex) -> usize {
    let mut count = 0;
    for (at, layer) in index.layers.iter().enumerate() {
        for (neuron, on_gpu) in layer.on_gpu.iter().enumerate() {
            assert!(*on_gpu || !resident.is_hot(at, neuron), "neuron {neuron} of layer {at} is not the file's");
            count += usize::from(resident.is_hot(at, neuron));
        }
    }
    count
}

#[test]
fn resident_neurons_match_the_split_file() {
    let index = GpuIndex::open(&split()).unwrap();
    let neurons: usize = index.layers.iter().map(|layer| layer.bucket.len()).sum();
    assert!(neurons > 0 && neurons < index.layers.iter().map(|layer| layer.on_gpu.len()).sum());
    let want = tells(&Engine::open(&model(), options(DeviceChoice::Cpu)).unwrap());
    assert_eq!(want.len(), 24);

    let engine = on_gpu(None);
    let resident = engine.resident().unwrap();
    assert_eq!(is_the_files(&resident, &index), neurons);
    assert!(resident.first_layer == 0 && resident.head, "everything else is there, as PowerInfer has it");
    let report = engine.split().unwrap();
    assert_eq!((report.neurons, report.resident), (neurons, neurons));
    assert_eq!(tells(&engine), want);
    let all = used(&engine);
    let forecast = engine.forecast(all + (1 << 20)).unwrap();
    assert_eq!(forecast.plan.placement.hot.iter().map(Vec::len).sum::<usize>(), neurons);

    // With less VRAM, the device has only some of the file's neurons.
    let weights = 4 * model().metadata().unwrap().len() / 5;
    let (mut least, mut tight) = (neurons, all);
    for part in 1..16 {
        let budget = all - weights * part / 16;
        let gpu = GpuOptions { adapter: AdapterChoice::Index(0), budget: Some(budget), ..GpuOptions::default() };
        let options = EngineOptions { split: Some(split()), ..options(DeviceChoice::Gpu(gpu)) };
        let engine = Engine::open(&model(), options).unwrap();
        match engine.wait_for_device(LONGEST) {
            DeviceStatus::Gpu(_) => {}
            DeviceStatus::Cpu { reason: Some(reason) } if matches!(*reason, Error::Memory { .. }) => break,
            status => panic!("{status:?}"),
        }
        let there = engine.resident().map_or(0, |resident| is_the_files(&resident, &index));
        assert_eq!(engine.split().unwrap().resident, there);
        assert!(there <= least && used(&engine) <= budget, "{there} of {least} neurons, {part}/16");
        (least, tight) = (there, budget);
        assert_eq!(tells(&engine), want, "{part}/16");
    }
    assert!(least < neurons, "some budget was too small for all of them");

    // With more VRAM, all of the file's neurons return.
    let engine = on_gpu(Some(tight));
    assert!(engine.split().unwrap().resident < neurons);
    engine.set_vram_budget(2 * all).unwrap();
    eventually("all neurons", || engine.split().unwrap().resident >= neurons);
    assert_eq!(is_the_files(&engine.resident().unwrap(), &index), neurons);
}

#[test]
fn split_of_another_model_is_refused() {
    let open = |path: &Path, split: &Path| {
        let options = EngineOptions { split: Some(split.to_owned()), ..options(DeviceChoice::Cpu) };
        Engine::open(path, options).map(drop).unwrap_err()
    };
    let other = open(&fixture("models/llama-relu"), &split());
    assert!(matches!(other, Error::Malformed { .. }) && other.to_string().contains("of the model"), "{other}");
    assert!(matches!(open(&model(), &model()), Error::Malformed { .. }));
    assert!(matches!(open(&model(), Path::new("/nowhere/x.gpuidx")), Error::Io { .. }));
}

#[test]
fn run_command_follows_the_split() {
    let (model, split) = (model(), split());
    let (model, split) = (model.to_str().unwrap(), split.to_str().unwrap());
    let run = ["run", "-m", model, "-p", "abc", "--raw", "-n", "6", "--temp", "0", "--context", "64", "-q"];
    let on = |flags: &[&str]| thermocline(&[&run[..], flags].concat());
    let all = on(&["--device", "0", "--split", split]);
    assert_eq!(all.stderr, "", "all of it has room");
    let want = on(&["--device", "cpu", "--activations", "float"]).ok();
    assert_eq!(all.ok(), want);
    assert!(on(&["--device", "cpu", "--split", split]).refusal().contains("--split"));
    // With a little more than the minimum, `run` places some of the neurons and reports it.
    let refused = on(&["--device", "0", "--split", split, "--vram", "64KiB"]).refusal();
    let least = refused.split(" bytes are needed").next().and_then(|text| text.rsplit(' ').next());
    let least: u64 = least.and_then(|bytes| bytes.parse().ok()).unwrap_or_else(|| panic!("{refused}"));
    let some = on(&["--device", "0", "--split", split, "--vram", &(least + 200_000).to_string()]);
    assert!(some.stderr.contains("neurons of the split are in GPU memory"), "{}", some.stderr);
    assert_eq!(some.ok(), want);
    assert!(on(&["--device", "0", "--split", model]).refusal().contains("generic.gpu_index"));

    let bench = ["bench", "-m", model, "--device", "0", "--quick", "-p", "0", "-n", "4", "-r", "1", "--split", split];
    let placed = ["--placement", "layers,neurons", "--vram", "256MiB", "-o", "json"];
    let rows = thermocline(&[&bench[..], &placed].concat()).json();
    let index = GpuIndex::open(split.as_ref()).unwrap();
    let neurons: usize = index.layers.iter().map(|layer| layer.bucket.len()).sum();
    let all: usize = index.layers.iter().map(|layer| layer.on_gpu.len()).sum();
    assert!(rows[0]["thermocline"]["split"].is_null(), "{rows}");
    let of = &rows[1]["thermocline"];
    assert!(of["split"]["neurons"] == neurons && of["split"]["resident"] == neurons, "{rows}");
    assert_eq!(of["hot_fraction"].as_f64().unwrap(), neurons as f64 / all as f64);
    thermocline(&[&bench[..], &["--placement", "layers"]].concat()).refusal();
    thermocline(&bench).refusal();
}
