//! Firing counts that are kept between runs: how they change a plan, and files that belong to
//! another model.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::path::{Path, PathBuf};

use thermocline_engine::{
    cpu::CpuOptions,
    device::{caps_of, device_bytes},
    model::{LoadOptions, Model},
    placement::{Assumption, GpuUse, Machine, PlacementSolver, Plan, PlanInputs},
    runtime::{KvType, Sparsity},
    session::{Engine, EngineOptions, Prompt, Request, Sampling, SessionOptions},
    sparsity::{KeptCounts, lacks_profile},
    synth::{SynthOptions, SynthShape, generate},
};
use thermocline_tests::events;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models").join(name)
}

fn open(path: &Path) -> Model {
    Model::open(path, &LoadOptions::default()).unwrap()
}

/// Returns an engine that keeps counts in `counts`, after an answer of `tokens` tokens.
fn talked(path: &Path, counts: Option<&Path>, tokens: usize) -> Engine {
    let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let counts = counts.map(Path::to_path_buf);
    let engine = Engine::open(path, EngineOptions { cpu, counts, ..EngineOptions::default() }).unwrap();
    let session = engine.session(SessionOptions::default()).unwrap();
    let request = Request {
        sampling: Sampling { temperature: 1.0, seed: Some(tokens as u64), ..Sampling::default() },
        max_tokens: Some(tokens),
        ignore_eos: true,
        ..Request::new(Prompt::Tokens((5..29).collect()))
    };
    events::tokens(&session, request);
    engine
}

/// Returns plans with room for parts of the model.
fn plans(model: &Model) -> Vec<Plan> {
    // This is the model as an engine opens it.
    let (model, _) = model.neuron_major_outline().unwrap();
    let model = &model;
    let inputs = PlanInputs::new(Sparsity::Exact, 64, KvType::F16);
    let bytes = device_bytes(&caps_of(Machine::typical_limits()), model, inputs.chunk, inputs.kv_type).unwrap();
    let planner = PlacementSolver::new(model, &bytes, inputs).unwrap();
    let budgets = (20..40).map(|part| planner.everything() * part / 40);
    // The smallest budgets have no room for a layer.
    budgets.filter_map(|budget| planner.plan(budget, GpuUse::Always).ok()).collect()
}

fn counts_file(counts: &Path) -> PathBuf {
    let mut files = std::fs::read_dir(counts).unwrap();
    let path = files.next().unwrap().unwrap().path();
    assert!(files.next().is_none());
    path
}

/// Counts firings of other text, and compares a plan with counts and a plan without.
#[test]
fn counts_of_an_earlier_run_make_more_firings_hit_hot_neurons() {
    let folder = tempfile::tempdir().unwrap();
    for (shape, least) in [("tiny-relu-llama", 1.2), ("tiny-turbosparse-mixtral", 1.01)] {
        let path = folder.path().join("m.gguf");
        let options = SynthOptions { predictor: false, ..SynthOptions::new(SynthShape::named(shape).unwrap(), &path) };
        generate(&options, &mut |_| {}).unwrap();
        let counts = tempfile::tempdir().unwrap();
        drop(talked(&path, Some(counts.path()), 90));
        let (blind, mut model) = (open(&path), open(&path));
        let kept = KeptCounts::open(counts.path(), &model).unwrap();
        assert!((90..200).contains(&kept.tokens()), "{shape}: {} tokens", kept.tokens());
        kept.attach(&mut model);
        let (blind, planned) = (plans(&blind), plans(&model));
        let is_blind = |plan: &Plan| plan.assumptions.contains(&Assumption::NoProfile);
        assert!(blind.iter().all(is_blind) && !planned.iter().any(is_blind));

        let board = talked(&path, None, 60).neurons().clone();
        let hits = |plans: &[Plan]| -> f64 {
            let layers = plans.iter().flat_map(|plan| plan.placement.hot.iter().enumerate());
            let hits = layers.map(|(layer, hot)| {
                let tally = board.tally(layer);
                let of = if tally.chosen.is_empty() { tally.counts } else { tally.chosen };
                hot.iter().map(|neuron| f64::from(of[*neuron as usize])).sum::<f64>()
            });
            hits.sum()
        };
        // The figure is per hot neuron or expert, because a plan with counts may place fewer of
        // them.
        let hot =
            |plans: &[Plan]| plans.iter().flat_map(|plan| &plan.placement.hot).map(Vec::len).sum::<usize>() as f64;
        let [known, unknown] = [&planned, &blind].map(|plans| hits(plans) / hot(plans));
        println!(
            "{shape}: {known} hits per hot neuron, {unknown} without counts; {} and {} hot",
            hot(&planned),
            hot(&blind)
        );
        assert!(known >= least * unknown, "{shape}: {known} of {unknown}");
    }
}

#[test]
fn counts_of_runs_add_up_and_profiled_models_have_none() {
    let counts = tempfile::tempdir().unwrap();
    let tokens = |model: &Model| KeptCounts::open(counts.path(), model).map(|kept| kept.tokens());
    let model = open(&folder("llama-relu"));
    assert_eq!(tokens(&model), Some(0));
    drop(talked(&folder("llama-relu"), Some(counts.path()), 20));
    assert_eq!(tokens(&model), Some(0), "a few tokens are not worth a file");
    drop(talked(&folder("llama-relu"), Some(counts.path()), 90));
    let once = tokens(&model).unwrap();
    drop(talked(&folder("llama-relu"), Some(counts.path()), 90));
    assert_eq!(tokens(&model), Some(2 * once));

    let mut profiled = open(&folder("llama-relu"));
    for layer in &mut profiled.weights.layers {
        layer.frequency = Some(vec![0.5; profiled.config.n_ff]);
    }
    assert!(!lacks_profile(&profiled) && tokens(&profiled).is_none());
    assert!(!lacks_profile(&open(&folder("llama-silu-gqa"))), "SwiGLU neurons are never silent");
}

#[test]
fn malformed_and_foreign_counts_are_ignored_and_replaced() {
    let counts = tempfile::tempdir().unwrap();
    drop(talked(&folder("llama-relu"), Some(counts.path()), 90));
    let path = counts_file(counts.path());
    let good = std::fs::read(&path).unwrap();
    let other = tempfile::tempdir().unwrap();
    drop(talked(&folder("opt"), Some(other.path()), 90));
    let foreign = std::fs::read(counts_file(other.path())).unwrap();
    for bytes in [&good[..good.len() / 2], b"GGUF", b"", &foreign] {
        std::fs::write(&path, bytes).unwrap();
        let mut model = open(&folder("llama-relu"));
        let kept = KeptCounts::open(counts.path(), &model).unwrap();
        assert_eq!(kept.tokens(), 0);
        kept.attach(&mut model);
        assert!(model.weights.layers.iter().all(|layer| layer.counted_frequency.is_none()));
        drop(talked(&folder("llama-relu"), Some(counts.path()), 90));
        assert_eq!(std::fs::read(&path).unwrap().len(), good.len());
    }
}

#[test]
fn folder_that_refuses_counts_does_no_harm() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    drop(talked(&folder("llama-relu"), Some(&file.join("counts")), 90));
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
}
