//! A model on a GPU and a CPU. Every placement computes the same.
#![allow(clippy::unwrap_used)]

mod bundles;
mod experts;
mod faults;
mod firing;
mod latent_experts;
mod moving;
mod placements;
mod preferred_routes;
mod recurrent;
mod same_bits;
mod streamed_experts;
mod streaming;
mod timing;

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use thermocline_engine::{
    Error,
    cpu::{Cpu, CpuOptions, InputPrecision, Isa},
    device::{GpuLoad, device_bytes},
    gpu::{AdapterChoice, FaultPoint, Faults, Gpu, GpuOptions, Purpose, Tier},
    hybrid::{HybridProcessor, Planner},
    model::{Ffn, FfnWeights, LoadOptions, Model, mask},
    placement::{BLOCK, CostProfile, Machine, Placement, Plan, PlanInputs, Resident, Streaming},
    runtime::{Forward, KvCache, KvType, LONGEST_PASS, LayerFiring, Outputs, Probe, Processor, Residency, Sparsity},
};
use thermocline_tests::{
    dice::Dice,
    golden::{self, Expected, MODELS, RECURRENT, Setup, max_diff},
    gpu::{FULL, open, paced, shared},
    moe,
};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn model(path: &str) -> Arc<Model> {
    Arc::new(Model::open(&here(path), &LoadOptions::default()).unwrap_or_else(|error| panic!("{path}: {error}")))
}

/// Returns the MoE model with a shared expert.
fn wide() -> Arc<Model> {
    Arc::new(moe::wide())
}

const POWERINFER: &str = "fixtures/powerinfer/llama-relu-f16.powerinfer.gguf";

fn cpu() -> Cpu {
    Cpu::new(&CpuOptions { threads: Some(1), isa: Some(Isa::Scalar), activations: InputPrecision::Float }).unwrap()
}

fn hybrid(gpu: &Gpu, model: &Arc<Model>, placement: &Placement, chunk: usize) -> Forward {
    let load = GpuLoad { chunk, ..GpuLoad::default() };
    let mut go_on = |_, _| ControlFlow::Continue(());
    let processor = HybridProcessor::load(gpu, cpu(), model, placement, &load, &mut go_on);
    let processor = processor.unwrap_or_else(|error| panic!("{placement:?}: {error}"));
    assert_eq!(processor.placement(), placement);
    let mut forward = Forward::on(Arc::clone(model), Box::new(processor));
    forward.set_chunk(chunk);
    forward
}

/// Returns the bytes that `model` needs on a device for one context of `tokens` tokens and chunks
/// of `load`'s length.
fn demand(model: &Model, tokens: usize, load: &GpuLoad) -> CostProfile {
    let (sparsity, kv_type) = (Sparsity::Predicted, KvType::F32);
    let bytes = device_bytes(shared(FULL).caps(), model, load.chunk, kv_type).unwrap();
    let inputs = PlanInputs::new(sparsity, tokens, kv_type);
    CostProfile::new(model, &bytes, &inputs).unwrap()
}

/// Moves weights towards the wanted placement. Returns true if more must move.
fn settle(forward: &mut Forward, caches: &mut [&mut KvCache]) -> Result<bool, Error> {
    let (model, residency) = forward.residency().unwrap();
    residency.settle(model, caches)
}

/// Sets the device's budget.
fn set_budget(forward: &mut Forward, bytes: u64, caches: &mut [&mut KvCache]) -> Result<(), Error> {
    let (model, residency) = forward.residency().unwrap();
    residency.set_budget(model, bytes, caches)
}

/// Returns the parts of the model on the device.
fn resident(forward: &mut Forward) -> Resident {
    let (model, residency) = forward.residency().unwrap();
    residency.resident(model).unwrap()
}

/// Calls `run` with one device after the other. The first is lost when it reaches `point`, the
/// second when it reaches `point` the second time, and so on, until a device survives. Each loss
/// must be a GPU error. Returns the number of devices.
fn lost_at_every(point: FaultPoint, mut run: impl FnMut(&Gpu) -> Result<(), Error>) -> u64 {
    let mut n = 0;
    loop {
        n += 1;
        match run(&open(GpuOptions { faults: Faults(Some((point, n))), ..GpuOptions::default() })) {
            Ok(()) => return n,
            Err(error) => assert!(matches!(error, Error::Gpu { .. }), "{point:?} {n}: {error}"),
        }
    }
}

fn neurons(model: &Model, layer: usize) -> usize {
    match &model.weights.layers[layer].ffn {
        Ffn::Dense(ffn) => ffn.up.weight.rows(),
        Ffn::Experts(moe) => moe.experts.len(),
        Ffn::None => 0,
    }
}

/// Returns a placement of the layers from `first` on. `hot` gets a layer and its number of neurons,
/// and returns the hot neurons.
fn placement(model: &Model, first: usize, head: bool, hot: impl Fn(usize, usize) -> Vec<u32>) -> Placement {
    let n_layer = model.config.n_layer();
    let hot = (0..n_layer).map(|layer| {
        let n = neurons(model, layer);
        let hot = if layer < first { Vec::new() } else { hot(layer, n) };
        // Coupled neurons are resident together or not at all.
        let part = hot.len() < n && model.weights.layers[layer].couples_neurons();
        if part { Vec::new() } else { hot }
    });
    Placement { first_resident: first, hot: hot.collect(), head }
}

/// Returns placements of every kind.
fn placements(model: &Model, seed: u64) -> Vec<(&'static str, Placement)> {
    let dice = &mut Dice(seed);
    let n_layer = model.config.n_layer();
    let every = |_, n: usize| (0..n as u32).collect::<Vec<u32>>();
    let mut all = vec![
        ("nothing", Placement::cpu(n_layer)),
        ("everything", placement(model, 0, true, every)),
        ("everything but the head", placement(model, 0, false, every)),
        ("attention alone", placement(model, 0, true, |_, _| Vec::new())),
        ("the last layer", placement(model, n_layer - 1, false, every)),
        (
            "one neuron each",
            placement(model, 0, false, |layer, n| (n > 0).then(|| (layer * 7 % n) as u32).into_iter().collect()),
        ),
        ("all but one", placement(model, 0, true, |_, n| (1..n as u32).rev().collect())),
        ("the last layer's attention and head", placement(model, n_layer - 1, true, |_, _| Vec::new())),
    ];
    for _ in 0..4 {
        let (first, head) = (dice.below(n_layer), dice.below(2) == 0);
        let lists: Vec<Vec<u32>> = (0..n_layer)
            .map(|layer| {
                let n = neurons(model, layer);
                let count = dice.below(n + 1);
                dice.some(n, count)
            })
            .collect();
        all.push(("a random part", placement(model, first, head, |layer, _| lists[layer].clone())));
    }
    all
}

fn ids(model: &Model, n: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i * 31 + i * 97 + 11) % model.config.n_vocab) as u32).collect()
}

/// Returns the logits of a prompt without its last `single` tokens, then of these tokens one by
/// one.
fn logits(forward: &mut Forward, ids: &[u32], single: usize) -> Vec<f32> {
    let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
    assert!(forward.holds(&kv));
    let (prompt, rest) = ids.split_at(ids.len() - single);
    let mut all = Vec::new();
    if !prompt.is_empty() {
        all.extend_from_slice(forward.run(prompt, &mut kv, Outputs::All, &mut ()).unwrap());
    }
    for id in rest {
        all.extend_from_slice(forward.run(&[*id], &mut kv, Outputs::Last, &mut ()).unwrap());
    }
    all
}

/// Returns the largest difference, relative to the largest logit if that is above 1.
fn relative(got: &[f32], wanted: &[f32]) -> f32 {
    max_diff(got, wanted) / wanted.iter().fold(1.0_f32, |most, logit| most.max(logit.abs()))
}

/// Opens the model at `path` with neuron-major down projections in 16-bit floats, so that neither
/// side rounds activations.
fn neuron_major(path: &str) -> Arc<Model> {
    let cpu = cpu();
    let (model, _) = model(path).neuron_major(cpu.pool(), &mut |_, _| ControlFlow::Continue(())).unwrap();
    Arc::new(model)
}
