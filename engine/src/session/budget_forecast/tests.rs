use std::{ops::ControlFlow, path::Path};

use super::*;
use crate::session::SparsityChoice;
use thermocline_cpu::ThreadPool;
use thermocline_gpu::{Fallbacks, adapters};
use thermocline_model::{
    LoadOptions, synth,
    synth::{SynthOptions, SynthShape},
};
use thermocline_run::runtime::KvType;

const TOKEN: Duration = Duration::from_millis(20);

fn fixture() -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/llama-relu");
    Model::open(&path, &LoadOptions::default()).unwrap()
}

fn planner_with(machine: Machine, sparsity: Sparsity) -> PlacementSolver {
    let machine = Arc::new(machine);
    planner(&fixture(), None, PlanInputs { chunk: 16, machine, ..PlanInputs::new(sparsity, 64, KvType::F16) }).unwrap()
}

fn on_cpu(mode: Sparsity) -> DecodeConditions {
    DecodeConditions { mode, device: None }
}

fn cpu_rate(rates: &DecodeRates, planner: &PlacementSolver) -> Option<f64> {
    rates.corrected_rate(planner, &planner.on_cpu())
}

#[track_caller]
fn near(rate: Option<f64>, want: f64) {
    assert!(rate.is_some_and(|rate| (rate / want - 1.0).abs() < 1e-9), "{rate:?} for {want}");
}

#[test]
fn measured_rates_scale_the_expected_ones() {
    let (dense, exact) =
        (planner_with(Machine::typical(), Sparsity::Dense), planner_with(Machine::typical(), Sparsity::Exact));
    let rates = DecodeRates::default();
    (1..ENOUGH_TOKENS).for_each(|_| rates.record_token(on_cpu(Sparsity::Dense), None, TOKEN));
    assert_eq!((cpu_rate(&rates, &dense), rates.measured_rate(&on_cpu(Sparsity::Dense))), (None, None));
    rates.record_token(on_cpu(Sparsity::Dense), None, TOKEN);
    near(rates.measured_rate(&on_cpu(Sparsity::Dense)), 50.0);
    near(cpu_rate(&rates, &dense), 50.0);
    // The same factor corrects other modes.
    let correction = 50.0 / dense.on_cpu().tokens_per_second();
    near(cpu_rate(&rates, &exact), correction * exact.on_cpu().tokens_per_second());
    assert_eq!(rates.measured_rate(&on_cpu(Sparsity::Exact)), None);

    let everything = dense.price(Placement::all(dense.profile()));
    assert_eq!(rates.corrected_rate(&dense, &everything), None, "no device has decoded");
    let device = DecodeConditions { device: Some(("card".to_owned(), Some(7))), ..on_cpu(Sparsity::Dense) };
    let resident = Arc::new(Resident::default());
    (0..ENOUGH_TOKENS).for_each(|_| rates.record_token(device.clone(), Some(&resident), TOKEN / 2));
    near(rates.measured_rate(&device), 100.0);
    assert!(rates.corrected_rate(&dense, &everything).is_some());
    rates.forget_device();
    assert_eq!(rates.corrected_rate(&dense, &everything), None);
    near(cpu_rate(&rates, &dense), 50.0);
}

#[test]
fn measured_speeds_give_a_rate_at_once_and_answers_correct_it() {
    let mut machine = Machine::typical();
    machine.assumed = false;
    let measured = planner_with(machine, Sparsity::Dense);
    let rates = DecodeRates::default();
    assert_eq!(cpu_rate(&rates, &measured), Some(measured.on_cpu().tokens_per_second()));
    (0..ENOUGH_TOKENS).for_each(|_| rates.record_token(on_cpu(Sparsity::Dense), None, TOKEN));
    near(cpu_rate(&rates, &measured), 50.0);
    // The speeds may be the CPU's alone if a device was chosen after measuring.
    let alone = planner_with(Machine::new(Machine::typical().cpu, None), Sparsity::Dense);
    let on_device = alone.price(Placement::all(alone.profile()));
    assert_eq!(DecodeRates::default().corrected_rate(&alone, &on_device), None);
    assert!(cpu_rate(&DecodeRates::default(), &alone).is_some());
    // Other speeds give another expected rate for the same answer.
    let mut slower = Machine::typical();
    slower.cpu.rates.values_mut().for_each(|rate| rate.sequential /= 2.0);
    near(cpu_rate(&rates, &planner_with(slower, Sparsity::Dense)), 50.0);
}

#[test]
fn model_that_is_not_open_has_forecasts_for_every_budget() {
    let model = fixture();
    let folder = tempfile::tempdir().unwrap();
    let unknown = EngineOptions { speeds: Some(folder.path().to_owned()), ..EngineOptions::default() };
    let all = adapters(&Fallbacks::default());
    let gpu = all.first();
    let planner = unopened_planner(&model, &unknown, gpu).unwrap();
    let most = planner.forecast(1 << 40, GpuUse::Always);
    assert_eq!(most.plan.bytes.total(), most.everything);
    assert!(most.tokens_per_second.is_none() && most.plan.hot_fraction() > 0.99);
    let less = planner.forecast(most.everything - 1, GpuUse::Always);
    assert!(less.plan.bytes.total() < most.everything);
    assert_eq!(planner.forecast(0, GpuUse::Always).plan.bytes.total(), 0);

    let mut machine = Machine::typical();
    machine.assumed = false;
    let known = EngineOptions { machine: Some(machine), ..EngineOptions::default() };
    let cpu = unopened_planner(&model, &known, gpu).unwrap().forecast(0, GpuUse::Always).tokens_per_second;
    assert!(cpu.is_some_and(|rate| rate > 0.0));
    let alone = unopened_planner(&model, &known, None).unwrap().forecast(1 << 40, GpuUse::Never);
    assert!(alone.plan.bytes.total() == 0 && alone.tokens_per_second == cpu);
}

/// Plans count down projections that become neuron-major at opening at their new size, on the
/// device and in RAM. Plans also include the streaming buffer of prompts.
#[test]
fn neuron_major_down_projections_are_planned_before_the_model_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let mut synthetic = SynthOptions::new(SynthShape::named("tiny-relu-llama").unwrap(), folder.path().join("m.gguf"));
    (synthetic.layers, synthetic.predictor) = (Some(2), false);
    let quantised = synth::generate(&synthetic, &mut |_| ()).unwrap().path;
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models");
    let (all, pool) = (adapters(&Fallbacks::default()), ThreadPool::new(Some(1)));
    for (path, sparsity) in [
        (models.join("llama-relu"), SparsityChoice::Auto),
        (quantised, SparsityChoice::Mode(Sparsity::Exact)),
        (models.join("mixtral"), SparsityChoice::Mode(Sparsity::Threshold)),
    ] {
        let model = Model::open(&path, &LoadOptions::default()).unwrap();
        let (neuron_major, report) = model.neuron_major(&pool, &mut |_, _| ControlFlow::Continue(())).unwrap();
        assert!(report.matrices > 0 && sparsity.makes_neuron_major(&model, false));
        let copies = |bytes: Option<u64>| {
            let room = WeightRoom { bytes, on_device: 0 };
            sparsity.neuron_major_outline(&model, false, room).map(|(_, bytes)| bytes)
        };
        assert_eq!(copies(None), Some(report.bytes));
        let enough = model.checkpoint.tensor_bytes() + report.bytes;
        assert_eq!([enough, enough - 1].map(|room| copies(Some(room))), [Some(report.bytes), None]);
        let options = EngineOptions { sparsity, stream_prompts: Some(true), ..EngineOptions::default() };
        let [closed, open] =
            [&model, &neuron_major].map(|model| unopened_planner(model, &options, all.first()).unwrap());
        let everything = open.everything();
        assert_eq!(closed.everything(), everything);
        let mut with_buffer = 0;
        for budget in (0..=20).map(|part| everything * part / 16) {
            let [closed, open] = [&closed, &open].map(|planner| planner.forecast(budget, GpuUse::Always));
            assert_eq!(closed.plan, open.plan, "{} of {budget}", path.display());
            with_buffer += usize::from(closed.plan.bytes.streaming_buffer > 0);
        }
        assert!(with_buffer > 0, "{}", path.display());
    }
}
