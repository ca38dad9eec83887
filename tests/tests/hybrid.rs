//! A model in two places: every placement computes what every other does.
#![allow(clippy::unwrap_used)]

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use thermocline_engine::{
    Error,
    cpu::{Activations, Cpu, CpuOptions, Isa},
    gpu::{AdapterChoice, FaultPoint, Faults, Gpu, GpuOptions, Purpose, Tier},
    model::{
        DeviceBytes, Ffn, Forward, GpuLoad, KvType, LayerFiring, LoadOptions, Model, Outputs, Probe, Processor,
        Sparsity, mask,
    },
    sparsity::{
        executor::{HybridProcessor, Planner},
        placement::{BLOCK, Demand, DemandOptions, Machine, Placement, Plan},
    },
};
use thermocline_tests::{
    golden::{self, Expected, MODELS, Setup, max_diff},
    gpu::{FULL, open, shared},
};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn model(path: &str) -> Arc<Model> {
    Arc::new(Model::open(&here(path), &LoadOptions::default()).unwrap_or_else(|error| panic!("{path}: {error}")))
}

const POWERINFER: &str = "fixtures/powerinfer/llama-relu-f16.powerinfer.gguf";

fn cpu() -> Cpu {
    Cpu::new(&CpuOptions { threads: Some(1), isa: Some(Isa::Scalar), activations: Activations::Float }).unwrap()
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
    let mut all = Vec::new();
    if !prompt.is_empty() {
        all.extend_from_slice(forward.run(prompt, &mut kv, Outputs::All, &mut ()).unwrap());
    }
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

/// Sixteen-bit floats, so that neither side rounds activations.
fn turned(path: &str) -> Arc<Model> {
    let cpu = cpu();
    let (model, _) = model(path).neuron_major(cpu.pool(), &mut |_, _| ControlFlow::Continue(())).unwrap();
    Arc::new(model)
}

#[test]
fn every_relu_model_is_exact() {
    let gpu = shared(FULL);
    for name in MODELS {
        let model = turned(&format!("fixtures/models/{name}"));
        if !model.config.activation.is_sparse() || model.config.experts.is_some() {
            continue;
        }
        let ids = ids(&model, 30);
        let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
        let wanted = logits(&mut scalar, &ids, 6);
        scalar.set_sparsity(Sparsity::Exact);
        let error = relative(&logits(&mut scalar, &ids, 6), &wanted);
        assert!(error <= 1e-4, "{name} on the CPU: {error}");
        for (what, placement) in placements(&model, 3) {
            let mut forward = hybrid(gpu, &model, &placement, 64);
            forward.set_sparsity(Sparsity::Exact);
            let error = relative(&logits(&mut forward, &ids, 6), &wanted);
            assert!(error <= 1e-4, "{name} {what}: {error}");
        }
    }
}

#[test]
fn other_models_split_as_well() {
    let gpu = shared(FULL);
    for name in ["llama-silu-gqa", "gemma2", "qwen2", "phi3", "falcon-new"] {
        let model = turned(&format!("fixtures/models/{name}"));
        // Longer than a tile of keys.
        let ids = ids(&model, 150);
        let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
        let wanted = logits(&mut scalar, &ids, 4);
        for (what, placement) in placements(&model, 5) {
            let error = relative(&logits(&mut hybrid(gpu, &model, &placement, 64), &ids, 4), &wanted);
            assert!(error <= 1e-4, "{name} {what}: {error}");
        }
    }
}

#[test]
fn cuts_hold_on_both_sides() {
    let gpu = shared(FULL);
    let turned = turned("fixtures/models/llama-silu-gqa");
    let mut weights = turned.weights.clone();
    weights.layers.iter_mut().for_each(|layer| layer.cut = Some(0.1));
    let (config, checkpoint) = (turned.config.clone(), turned.checkpoint.clone());
    let model = Arc::new(Model { config, weights, checkpoint });
    let ids = ids(&model, 30);
    let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
    let dense = logits(&mut scalar, &ids, 30);
    scalar.set_sparsity(Sparsity::Threshold);
    let wanted = logits(&mut scalar, &ids, 30);
    assert!(relative(&wanted, &dense) > 1e-3, "the cut cuts nothing");
    for (what, placement) in placements(&model, 5) {
        let mut forward = hybrid(gpu, &model, &placement, 64);
        forward.set_sparsity(Sparsity::Threshold);
        let error = relative(&logits(&mut forward, &ids, 30), &wanted);
        assert!(error <= 1e-4, "{what}: {error}");
    }
}

/// What PowerInfer's predictors rule out is ruled out wherever the neuron is.
#[test]
fn predictors_rule_out_what_the_reference_does() {
    let expected = Expected::read(&here("fixtures/powerinfer/expected.safetensors"));
    let ids = expected.ids("input_ids");
    for (ty, tier) in [("f16", FULL), ("f16", Tier::PORTABLE), ("q4_0", FULL)] {
        let model = model(&format!("fixtures/powerinfer/llama-relu-{ty}.powerinfer.gguf"));
        let wanted = expected.f32(&format!("{ty}.masked_logits"));
        let dense = expected.f32(&format!("{ty}.dense_logits"));
        for (what, placement) in placements(&model, 9) {
            let mut forward = hybrid(shared(tier), &model, &placement, 64);
            forward.set_sparsity(Sparsity::Predicted);
            let got = logits(&mut forward, &ids, ids.len());
            let error = max_diff(&got, &wanted);
            assert!(error <= 2e-3, "{ty} {what}: masked logits differ by {error}");
            assert!(error < max_diff(&got, &dense) / 2.0, "{ty} {what}: as dense as masked");
        }
    }
}

/// Layer and tokens of what was told, the mask of what fired, and the guess.
type Told = (usize, usize, Vec<u32>, Option<Vec<u32>>);

/// What is told of each layer.
#[derive(Default)]
struct Heard(Vec<Told>);

impl Probe for Heard {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        let predicted = firing.predicted.map(<[u32]>::to_vec);
        self.0.push((firing.layer, firing.tokens, firing.fired.to_vec(), predicted));
    }
}

impl Heard {
    /// Neurons that fired, or were predicted to, here or there alone.
    fn differences(&self, other: &Heard) -> u32 {
        assert_eq!(self.0.len(), other.0.len());
        let pairs = self.0.iter().zip(&other.0);
        pairs
            .map(|(a, b)| {
                assert_eq!((a.0, a.1, a.2.len(), a.3.is_some()), (b.0, b.1, b.2.len(), b.3.is_some()));
                let words = |heard: &(usize, usize, Vec<u32>, Option<Vec<u32>>)| {
                    heard.2.iter().chain(heard.3.iter().flatten()).copied().collect::<Vec<u32>>()
                };
                words(a).iter().zip(words(b)).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>()
            })
            .sum()
    }
}

#[test]
fn the_same_neurons_fire_wherever_they_are() {
    let gpu = shared(FULL);
    let model = model(POWERINFER);
    let ids = ids(&model, 40);
    for mode in [Sparsity::Dense, Sparsity::Exact, Sparsity::Predicted] {
        let hear = |forward: &mut Forward| {
            forward.set_sparsity(mode);
            let mut heard = Heard::default();
            let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
            forward.run(&ids[..33], &mut kv, Outputs::None, &mut heard).unwrap();
            for id in &ids[33..39] {
                forward.top(&[*id], &mut kv, 4, &mut heard).unwrap();
            }
            forward.run(&ids[39..], &mut kv, Outputs::Last, &mut heard).unwrap();
            heard
        };
        let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), chunk: 16, ..Setup::default() });
        let wanted = hear(&mut scalar);
        for (what, placement) in placements(&model, 4) {
            // Of 60,000: those a rounding away from zero.
            let differ = hear(&mut hybrid(gpu, &model, &placement, 16)).differences(&wanted);
            assert!(differ <= 4, "{mode} {what}: {differ} neurons differ");
        }
    }
}

#[test]
fn a_token_makes_nothing_and_submits_twice_for_each_split_layer() {
    let gpu = open(GpuOptions::default());
    let model = model(POWERINFER);
    let every = |_, n: usize| (0..n as u32).collect::<Vec<u32>>();
    let half = |_, n: usize| (0..n as u32 / 2).collect::<Vec<u32>>();
    for (placement, submits) in [
        (placement(&model, 0, true, every), 1),
        (placement(&model, 0, false, every), 1),
        (placement(&model, 1, true, every), 1),
        (placement(&model, 0, true, half), 5),
        (placement(&model, 1, false, half), 3),
        // Without hot neurons there is no second one.
        (placement(&model, 0, true, |_, _| Vec::new()), 3),
        (Placement::cpu(model.config.n_layer()), 0),
    ] {
        for mode in [Sparsity::Exact, Sparsity::Predicted] {
            let mut forward = hybrid(&gpu, &model, &placement, 32);
            forward.set_sparsity(mode);
            let mut kv = forward.kv_cache(100, KvType::F16).unwrap();
            forward.run(&ids(&model, 40), &mut kv, Outputs::Last, &mut Heard::default()).unwrap();
            let counts = || (gpu.submits(), gpu.arena().made(), gpu.bind_groups());
            for token in 0..10 {
                let before = counts();
                match token % 3 {
                    0 => drop(forward.run(&[token], &mut kv, Outputs::Last, &mut ()).unwrap()),
                    1 => drop(forward.top(&[token], &mut kv, 40, &mut ()).unwrap()),
                    _ => drop(forward.run(&[token], &mut kv, Outputs::Last, &mut Heard::default()).unwrap()),
                }
                let now = counts();
                assert_eq!(now.1, before.1, "{mode} {placement:?}: buffers");
                assert_eq!(now.2, before.2, "{mode} {placement:?}: bind groups");
                assert_eq!(now.0 - before.0, submits, "{mode} {placement:?}: submissions");
            }
        }
    }
}

#[test]
fn a_device_lost_at_any_moment_is_an_error() {
    let model = model(POWERINFER);
    let placement = placement(&model, 1, true, |_, n| (0..n as u32 / 2).collect());
    let ids = ids(&model, 20);
    for point in [FaultPoint::Submit, FaultPoint::Readback] {
        let mut n = 0;
        loop {
            n += 1;
            let gpu = open(GpuOptions { faults: Faults(Some((point, n))), ..GpuOptions::default() });
            let load = GpuLoad { chunk: 8, ..GpuLoad::default() };
            let loaded =
                HybridProcessor::load(&gpu, cpu(), &model, &placement, &load, &mut |_, _| ControlFlow::Continue(()));
            let done = loaded.and_then(|processor| {
                let mut forward = Forward::on(Arc::clone(&model), Box::new(processor));
                forward.set_sparsity(Sparsity::Exact);
                let mut kv = forward.kv_cache(ids.len(), KvType::F16)?;
                forward.run(&ids[..17], &mut kv, Outputs::None, &mut Heard::default())?;
                for id in &ids[17..] {
                    forward.run(&[*id], &mut kv, Outputs::Last, &mut Heard::default())?;
                }
                Ok(())
            });
            match done {
                Ok(()) => break,
                Err(error) => assert!(matches!(error, Error::Gpu { .. }), "{point:?} {n}: {error}"),
            }
        }
        assert!(n > 10, "{point:?}: passed {n} times");
    }
}

#[test]
fn memory_that_ends_at_any_moment_is_an_error() {
    let model = model(POWERINFER);
    let half = placement(&model, 0, true, |_, n| (0..n as u32 / 2).collect());
    let ids = ids(&model, 12);
    let mut n = 0;
    loop {
        n += 1;
        let faults = Faults(Some((FaultPoint::Allocation, n)));
        // The first allocation is the device's own.
        let Ok(gpu) = Gpu::open(&GpuOptions { adapter: AdapterChoice::Index(0), faults, ..GpuOptions::default() })
        else {
            continue;
        };
        let empty = gpu.arena().used();
        let load = GpuLoad { chunk: 8, ..GpuLoad::default() };
        let mut go_on = |_, _| ControlFlow::Continue(());
        let loaded = HybridProcessor::load(&gpu, cpu(), &model, &half, &load, &mut go_on);
        let done = loaded.and_then(|processor| {
            let mut forward = Forward::on(Arc::clone(&model), Box::new(processor));
            let mut kv = forward.kv_cache(ids.len(), KvType::F16)?;
            for id in &ids {
                forward.run(&[*id], &mut kv, Outputs::Last, &mut Heard::default())?;
            }
            Ok(())
        });
        let over = done.is_ok();
        if let Err(error) = done {
            assert!(matches!(error, Error::Memory { .. }), "{n}: {error}");
        }
        assert_eq!(gpu.arena().used(), empty, "{n}: something stayed");
        if over {
            break;
        }
    }
    assert!(n > 20, "{n} allocations");
}

/// Wants one placement after another, or as many neurons of as many layers as fit.
#[derive(Debug)]
enum Script {
    Placements(Arc<Mutex<(Option<Placement>, u64)>>),
    Most(Demand),
}

/// As many neurons of as many layers as fit.
fn most(model: &Model, demand: &Demand, budget: u64) -> Placement {
    let machine = Machine::typical();
    let n_layer = model.config.n_layer();
    let dozens = (0..=12).rev().flat_map(|dozen| (0..n_layer).map(move |first| (first, dozen)));
    let candidates = dozens.map(|(first, dozen)| {
        placement(model, first, first == 0, |_, n| (0..n as u32).rev().take(n * dozen / 12).collect())
    });
    let fits = |placement: &Placement| Plan::of(demand, &machine, placement.clone()).bytes.total() <= budget;
    candidates.into_iter().find(fits).unwrap_or_else(|| Placement::cpu(n_layer))
}

impl Planner for Script {
    fn plan(&mut self, model: &Model, budget: u64) -> thermocline_engine::Result<Placement> {
        match self {
            Script::Placements(_) => Ok(Placement::cpu(model.config.n_layer())),
            Script::Most(demand) => Ok(most(model, demand, budget)),
        }
    }

    fn revise(&mut self, _: &Model, _: &Placement) -> thermocline_engine::Result<Option<Placement>> {
        match self {
            Script::Placements(next) => Ok(next.lock().unwrap().0.take()),
            Script::Most(_) => Ok(None),
        }
    }

    fn bytes_per_move(&self) -> u64 {
        match self {
            Script::Placements(next) => next.lock().unwrap().1,
            Script::Most(_) => 50_000,
        }
    }
}

/// Whatever moves, and however little at a time, the logits stay.
#[test]
fn what_is_resident_may_move_between_tokens() {
    let gpu = shared(FULL);
    let model = model(POWERINFER);
    let ids = ids(&model, 60);
    let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
    let wanted = logits(&mut scalar, &ids, 60);
    let n_vocab = model.config.n_vocab;
    for seed in 0..4 {
        let (everywhere, dice) = (placements(&model, seed), &mut Dice(seed));
        let load = GpuLoad { chunk: 16, ..GpuLoad::default() };
        let mut go_on = |_, _| ControlFlow::Continue(());
        let start = &everywhere[dice.below(everywhere.len())].1;
        let processor = HybridProcessor::load(gpu, cpu(), &model, start, &load, &mut go_on).unwrap();
        let next = Arc::new(Mutex::new((None, 0)));
        let processor = processor.with_planner(Box::new(Script::Placements(Arc::clone(&next))));
        let mut forward = Forward::on(Arc::clone(&model), Box::new(processor));
        forward.set_sparsity(Sparsity::Exact);
        let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
        for (at, id) in ids.iter().enumerate() {
            if at % 6 == 5 {
                next.lock().unwrap().0 = Some(everywhere[dice.below(everywhere.len())].1.clone());
            }
            next.lock().unwrap().1 = [1, 20_000, u64::MAX][dice.below(3)];
            forward.settle(&mut [&mut kv]).unwrap();
            assert!(forward.holds(&kv), "seed {seed} token {at}");
            let got = forward.run(&[*id], &mut kv, Outputs::Last, &mut ()).unwrap();
            let error = relative(got, &wanted[at * n_vocab..(at + 1) * n_vocab]);
            assert!(error <= 1e-4, "seed {seed} token {at}: {error}");
        }
    }
}

#[test]
fn in_the_end_everything_is_where_it_was_wanted() {
    let gpu = open(GpuOptions::default());
    let model = model(POWERINFER);
    let (everywhere, dice) = (placements(&model, 11), &mut Dice(5));
    let load = GpuLoad { chunk: 16, ..GpuLoad::default() };
    let mut go_on = |_, _| ControlFlow::Continue(());
    let mut processor = HybridProcessor::load(&gpu, cpu(), &model, &everywhere[0].1, &load, &mut go_on).unwrap();
    for _ in 0..30 {
        let (what, to) = &everywhere[dice.below(everywhere.len())];
        let mut steps = 0;
        while processor.apply(&model, to, &mut [], 30_000).unwrap().more {
            steps += 1;
            assert!(steps < 100, "{what}: no end");
        }
        let held = processor.resident(&model).unwrap_or_default();
        for layer in to.first_resident..model.config.n_layer() {
            assert_eq!((held.first_layer, held.head), (to.first_resident, to.head), "{what}");
            let resident = &held.hot[layer];
            assert!(to.hot[layer].iter().all(|i| mask::contains(resident, *i as usize)), "{what}, layer {layer}");
            // Memory is given back in blocks of neurons.
            let most = to.hot[layer].len().next_multiple_of(BLOCK);
            assert!(mask::count(resident) <= most, "{what}, layer {layer}: {} resident", mask::count(resident));
        }
        assert_eq!(gpu.arena().used_for(Purpose::Head) > 0, to.head, "{what}");
        assert_eq!(gpu.arena().used_for(Purpose::Attention) > 0, to.first_resident < model.config.n_layer(), "{what}");
    }
}

#[test]
fn budgets_hold_while_they_slide() {
    let model = model(POWERINFER);
    let ids = ids(&model, 120);
    let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
    let wanted = logits(&mut scalar, &ids, 120);
    let (n_vocab, n_layer) = (model.config.n_vocab, model.config.n_layer());
    let load = GpuLoad { chunk: 8, ..GpuLoad::default() };
    let bytes = DeviceBytes::of(shared(FULL).caps(), &model, load.chunk, KvType::F32).unwrap();
    let options = DemandOptions {
        context: ids.len(),
        sessions: 1,
        kv_type: KvType::F32,
        sparsity: Sparsity::Predicted,
        filled: None,
    };
    let demand = Demand::of(&model, &bytes, &options).unwrap();
    let whole = most(&model, &demand, u64::MAX);
    let all = Plan::of(&demand, &Machine::typical(), whole.clone()).bytes.total();
    let gpu = open(GpuOptions { budget: Some(all), ..GpuOptions::default() });
    let mut go_on = |_, _| ControlFlow::Continue(());
    let processor = HybridProcessor::load(&gpu, cpu(), &model, &whole, &load, &mut go_on).unwrap();
    let processor = processor.with_planner(Box::new(Script::Most(demand)));
    let mut forward = Forward::on(Arc::clone(&model), Box::new(processor));
    forward.set_sparsity(Sparsity::Exact);
    let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
    let (mut budget, mut split) = (all, 0);
    let dice = &mut Dice(1);
    for (at, id) in ids.iter().enumerate() {
        if at % 4 == 3 {
            budget = dice.below(all as usize * 5 / 4) as u64 + 1000;
            forward.set_budget(budget, &mut [&mut kv]).unwrap();
        }
        assert!(gpu.arena().used() <= budget, "token {at}: {} of {budget}", gpu.arena().used());
        forward.settle(&mut [&mut kv]).unwrap();
        assert!(gpu.arena().used() <= budget, "token {at}: {} of {budget}", gpu.arena().used());
        assert!(forward.holds(&kv), "token {at}");
        let before = gpu.submits();
        let got = forward.run(&[*id], &mut kv, Outputs::Last, &mut ()).unwrap();
        let error = relative(got, &wanted[at * n_vocab..(at + 1) * n_vocab]);
        assert!(error <= 1e-4, "token {at} in {budget}: {error}");
        assert!(gpu.arena().used() <= budget, "token {at}: {} of {budget}", gpu.arena().used());
        split += usize::from((2..=2 * n_layer as u64 + 1).contains(&(gpu.submits() - before)));
    }
    assert!(split > 10, "of {} tokens {split} were split", ids.len());
}
