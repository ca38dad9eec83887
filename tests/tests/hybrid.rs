//! A model in two places: every placement computes what every other does.
#![allow(clippy::unwrap_used)]

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
};

use thermocline_engine::{
    cpu::{Cpu, CpuOptions, Isa},
    gpu::{Gpu, Tier},
    model::{Ffn, Forward, GpuLoad, KvType, LoadOptions, Model, Outputs, Sparsity},
    sparsity::{executor::HybridProcessor, placement::Placement},
};
use thermocline_tests::{
    golden::{self, Setup, max_diff},
    gpu::{FULL, shared},
};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn model(path: &str) -> Arc<Model> {
    Arc::new(Model::open(&here(path), &LoadOptions::default()).unwrap_or_else(|error| panic!("{path}: {error}")))
}

const POWERINFER: &str = "fixtures/powerinfer/llama-relu-f16.powerinfer.gguf";

fn cpu() -> Cpu {
    Cpu::new(&CpuOptions { threads: Some(1), isa: Some(Isa::Scalar), ..CpuOptions::default() }).unwrap()
}

fn hybrid(gpu: &Gpu, model: &Arc<Model>, placement: &Placement, chunk: usize) -> Forward {
    let load = GpuLoad { chunk, ..GpuLoad::default() };
    let mut go_on = |_, _| ControlFlow::Continue(());
    let processor = HybridProcessor::load(gpu, cpu(), model, placement, &load, &mut go_on);
    let processor = processor.unwrap_or_else(|error| panic!("{placement:?}: {error}"));
    assert_eq!(processor.placement(), placement);
    Forward::on(Arc::clone(model), Box::new(processor))
}

fn neurons(model: &Model, layer: usize) -> usize {
    match &model.weights.layers[layer].ffn {
        Ffn::Dense(ffn) => ffn.up.weight.rows(),
        Ffn::Experts(mixture) => mixture.experts.len(),
    }
}

/// From `first` on, the hot neurons of each layer being `hot` of those there are.
fn placement(model: &Model, first: usize, head: bool, hot: impl Fn(usize, usize) -> Vec<u32>) -> Placement {
    let n_layer = model.config.n_layer();
    let hot = (0..n_layer).map(|layer| if layer < first { Vec::new() } else { hot(layer, neurons(model, layer)) });
    Placement { first_resident: first, hot: hot.collect(), head }
}

/// Numbers without structure, below `n`.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n.max(1)
    }

    /// `count` of the numbers below `n`, in any order.
    fn some(&mut self, n: usize, count: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..n as u32).collect();
        (0..count.min(n)).for_each(|at| all.swap(at, at + self.below(n - at)));
        all.truncate(count);
        all
    }
}

/// Placements of every kind.
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
        ("one neuron each", placement(model, 0, false, |layer, n| vec![(layer * 7 % n) as u32])),
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

/// Logits of a prompt of all but the last `single` tokens, then of those one by one.
fn logits(forward: &mut Forward, ids: &[u32], single: usize) -> Vec<f32> {
    let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
    assert!(forward.holds(&kv));
    let (prompt, rest) = ids.split_at(ids.len() - single);
    let mut all = forward.run(prompt, &mut kv, Outputs::All, &mut ()).unwrap().to_vec();
    for id in rest {
        all.extend_from_slice(forward.run(&[*id], &mut kv, Outputs::Last, &mut ()).unwrap());
    }
    all
}

/// The largest difference, in units of the largest logit.
fn relative(got: &[f32], wanted: &[f32]) -> f32 {
    max_diff(got, wanted) / wanted.iter().fold(1.0_f32, |most, logit| most.max(logit.abs()))
}

fn every_placement(path: &str, tier: Tier, modes: &[Sparsity]) {
    let gpu = shared(tier);
    let model = model(path);
    let ids = ids(&model, 44);
    for mode in modes {
        let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
        scalar.set_sparsity(*mode);
        let wanted = logits(&mut scalar, &ids, 5);
        for (what, placement) in placements(&model, 7) {
            for chunk in [64, 7] {
                let mut forward = hybrid(gpu, &model, &placement, chunk);
                forward.set_sparsity(*mode);
                let error = relative(&logits(&mut forward, &ids, 5), &wanted);
                assert!(error <= 1e-4, "{path} {tier} {mode} {what}, chunks of {chunk}: {error}\n{placement:?}");
            }
        }
    }
}

#[test]
fn every_placement_computes_the_same() {
    every_placement(POWERINFER, FULL, &[Sparsity::Dense, Sparsity::Exact]);
}

#[test]
fn every_placement_in_every_tier() {
    for tier in Tier::ALL {
        every_placement(POWERINFER, tier, &[Sparsity::Exact]);
    }
}
