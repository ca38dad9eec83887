//! Models that are placed under a budget, by neurons and by whole layers: what is resident, and
//! that placement changes no logit.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, ops::ControlFlow, path::Path, sync::Arc};

use thermocline_engine::{
    cpu::{Cpu, CpuOptions, InputPrecision, Isa},
    error::Error,
    gpu::{AdapterChoice, GpuOptions},
    model::{LoadOptions, Model},
    placement::{Granularity, Machine, PlanInputs, Resident},
    runtime::{Forward, KvType, LayerFiring, Outputs, Probe, Sparsity},
    session::{DeviceLoadOptions, LivePlanner, load_on_device},
    synth,
    synth::{SynthOptions, SynthShape},
};
use thermocline_tests::golden::max_diff;

const LAYERS: usize = 4;
const TOKENS: usize = 24;

fn cpu() -> CpuOptions {
    CpuOptions { threads: Some(1), isa: Some(Isa::Scalar), activations: InputPrecision::Float }
}

/// Returns a small model with firing frequencies of its neurons or experts.
fn model(folder: &Path, shape: &str) -> Arc<Model> {
    let mut options = SynthOptions::new(SynthShape::named(shape).unwrap(), folder.join("m.gguf"));
    options.layers = Some(LAYERS);
    let report = synth::generate(&options, &mut |_| ()).unwrap();
    let mut model = Model::open(&report.path, &LoadOptions::default()).unwrap();
    let counted = if report.moe.is_some() { report.chosen } else { report.frequencies };
    for (layer, frequency) in model.weights.layers.iter_mut().zip(counted) {
        layer.frequency = Some(frequency);
    }
    Arc::new(model)
}

/// Returns a machine on which it pays to place single neurons: a slow CPU, and hand-overs without
/// cost.
fn machine() -> Machine {
    let mut machine = Machine::typical();
    for rate in machine.cpu.rates.values_mut() {
        rate.sequential /= 100.0;
        rate.scattered /= 100.0;
    }
    let gpu = machine.gpu.as_mut().unwrap();
    (gpu.dispatch, gpu.hand_over) = (0.0, 0.0);
    machine
}

/// Counts firings.
#[derive(Default)]
struct Firings(Vec<Vec<u32>>);

impl Probe for Firings {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        self.0.resize(self.0.len().max(firing.layer + 1), vec![0; 32 * firing.fired.len() / firing.tokens]);
        for row in firing.fired.chunks(firing.fired.len() / firing.tokens) {
            for (at, count) in self.0[firing.layer].iter_mut().enumerate() {
                *count += row[at / 32] >> (at % 32) & 1;
            }
        }
    }
}

/// Returns logits of a prompt and of tokens one by one.
fn logits(forward: &mut Forward, probe: &mut dyn Probe) -> Vec<f32> {
    let n_vocab = forward.model().config.n_vocab;
    let ids: Vec<u32> = (0..TOKENS).map(|at| ((at * at * 31 + 7 * at + 3) % n_vocab) as u32).collect();
    let mut kv = forward.kv_cache(TOKENS, KvType::F32).unwrap();
    let mut all = forward.run(&ids[..TOKENS / 2], &mut kv, Outputs::All, probe).unwrap().to_vec();
    for id in &ids[TOKENS / 2..] {
        all.extend_from_slice(forward.run(&[*id], &mut kv, Outputs::Last, probe).unwrap());
    }
    all
}

/// Returns the resident part, its bytes, and the logits.
fn placed(model: &Arc<Model>, granularity: Granularity, mode: Sparsity, budget: u64) -> Result<Placed, Error> {
    let gpu = GpuOptions { adapter: AdapterChoice::Index(0), budget: Some(budget), ..GpuOptions::default() };
    let options = DeviceLoadOptions { gpu, cpu: cpu(), chunk: 16, granularity, ..DeviceLoadOptions::default() };
    let planner = Arc::new(LivePlanner::new(PlanInputs::new(mode, TOKENS, KvType::F32)).with_machine(machine()));
    let (processor, gpu) = load_on_device(model, &options, &planner, &mut |_| ControlFlow::Continue(()))?;
    let mut forward = Forward::on(Arc::clone(model), Box::new(processor));
    forward.set_sparsity(mode);
    let (model, residency) = forward.residency().unwrap();
    while residency.settle(model, &mut [])? {}
    let resident = residency.resident(model).unwrap();
    let logits = logits(&mut forward, &mut ());
    Ok(Placed { resident, used: gpu.arena().used(), logits })
}

struct Placed {
    resident: Resident,
    used: u64,
    logits: Vec<f32>,
}

/// Placements of a granularity under growing budgets.
#[derive(Default)]
struct Seen {
    /// Numbers of layers on the device.
    layers: BTreeSet<usize>,
    /// Number of partly resident layers.
    split: usize,
}

/// Places the model with this granularity under budgets from half of its size to all of it. Checks
/// that each placement keeps to its budget and changes no logit. Resident neurons of partly
/// resident layers must fire most.
fn every_budget(granularity: Granularity) -> Seen {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path(), "tiny-relu-llama");
    let n_ff = model.config.n_ff;
    let mut forward = Forward::new(Arc::clone(&model), Cpu::new(&cpu()).unwrap());
    let mut firings = Firings::default();
    let wanted = logits(&mut forward, &mut firings);
    let largest = wanted.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
    let all = placed(&model, Granularity::Layers, Sparsity::Exact, 1 << 30).unwrap().used;

    let mut seen = Seen::default();
    for part in (20..=40).step_by(2) {
        // Neighbouring budgets alternate between the modes.
        let mode = if part % 4 == 0 { Sparsity::Dense } else { Sparsity::Exact };
        let budget = all * part / 40;
        let placed = match placed(&model, granularity, mode, budget) {
            Ok(placed) => placed,
            // The budget lacks room for one layer's attention, or for one whole layer.
            Err(Error::Memory { wanted, available, .. }) => {
                assert!(wanted > available && part < 40, "{wanted} of {available}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let what = format!("{granularity} {mode} {part}/40");
        assert!(placed.used <= budget, "{what}: {} of {budget}", placed.used);
        let error = max_diff(&placed.logits, &wanted) / largest;
        assert!(error <= 1e-4, "{what}: {error}");
        let Resident { first_layer, .. } = placed.resident;
        let counts: Vec<usize> = (0..LAYERS).map(|layer| placed.resident.count(layer)).collect();
        if granularity == Granularity::Layers {
            assert!((0..LAYERS).all(|at| counts[at] == if at < first_layer { 0 } else { n_ff }), "{what}");
        }
        seen.layers.insert(LAYERS - first_layer);
        // In partly resident layers, the hot neurons fire most.
        for (layer, count) in counts.iter().enumerate().filter(|(_, count)| (1..n_ff).contains(*count)) {
            let fired = |hot| {
                let of = (0..n_ff).filter(|at| placed.resident.is_hot(layer, *at) == hot);
                of.map(|at| firings.0[layer][at]).sum::<u32>() as f64
            };
            let (hits, hot) = (fired(true) / (fired(true) + fired(false)), *count as f64 / n_ff as f64);
            assert!(hits > hot, "{what}, layer {layer}: {hits} of the firings on {hot} of the neurons");
            seen.split += 1;
        }
    }
    seen
}

#[test]
fn placements_of_whole_layers_do_not_change_logits() {
    let Seen { layers, .. } = every_budget(Granularity::Layers);
    assert!(layers.len() > 2, "{layers:?}");
}

#[test]
fn placements_of_neurons_do_not_change_logits() {
    let Seen { split, .. } = every_budget(Granularity::Neurons);
    assert!(split > 2, "{split} layers split");
}

#[test]
fn placements_by_frequency_do_not_change_logits() {
    let Seen { split, .. } = every_budget(Granularity::Frequency);
    assert!(split > 2, "{split} layers split");
}

/// Whole experts of MoE models are resident or not. The experts that tokens choose most come first.
#[test]
fn placements_of_experts_do_not_change_logits() {
    const EXPERTS: usize = 8;
    for (shape, mode) in [("tiny-turbosparse-mixtral", Sparsity::Exact), ("tiny-mixtral", Sparsity::Dense)] {
        let folder = tempfile::tempdir().unwrap();
        let model = model(folder.path(), shape);
        let wanted = logits(&mut Forward::new(Arc::clone(&model), Cpu::new(&cpu()).unwrap()), &mut ());
        let largest = wanted.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
        let all = placed(&model, Granularity::Neurons, mode, 1 << 30).unwrap();
        assert!((0..LAYERS).all(|layer| all.resident.count(layer) == EXPERTS), "{shape}: not all of it");
        let mut split = 0;
        for part in [12, 14, 16, 18, 20] {
            let budget = all.used * part / 20;
            let placed = placed(&model, Granularity::Neurons, mode, budget).unwrap();
            let what = format!("{shape} {part}/20");
            assert!(placed.used <= budget, "{what}: {} of {budget}", placed.used);
            let error = max_diff(&placed.logits, &wanted) / largest;
            assert!(error <= 1e-4, "{what}: {error}");
            for (layer, weights) in model.weights.layers.iter().enumerate() {
                let count = placed.resident.count(layer);
                let chosen = weights.frequency.as_ref().unwrap();
                let extremes = |hot: bool| {
                    let of = (0..EXPERTS).filter(|at| placed.resident.is_hot(layer, *at) == hot);
                    of.map(|at| chosen[at]).fold((f32::MAX, 0.0f32), |(least, most), at| (least.min(at), most.max(at)))
                };
                if (1..EXPERTS).contains(&count) {
                    assert!(extremes(true).0 >= extremes(false).1, "{what}, layer {layer}: {chosen:?}");
                    split += 1;
                }
            }
        }
        assert!(split > 1, "{shape}: {split} layers split");
    }
}
