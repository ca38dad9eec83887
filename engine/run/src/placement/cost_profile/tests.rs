//! Costs of layers: which rows are read whole, and which are skipped.

use super::*;
use crate::placement::{
    Machine, Placement, Plan,
    tests::{device_bytes, llama},
};
use thermocline_model::{Activation, Down, FfnWeights, Predictor, PredictorInput, Sparsity};

fn costs(model: &Model, mode: Sparsity) -> LayerCosts {
    let inputs = PlanInputs::new(mode, 64, KvType::F16);
    CostProfile::new(model, &device_bytes(model, 16), &inputs).unwrap().layers.remove(0)
}

/// Gates silenced below a threshold that depends on the token are priced as processors skip them.
/// Their silent neurons are skipped with any activation, and no predictor is used.
#[test]
fn silenced_gates_are_priced_without_a_predictor() {
    let mut model = llama();
    let layer = &mut model.weights.layers[0];
    let Ffn::Dense(FfnWeights { gate: Some(gate), .. }) = &layer.ffn else { panic!() };
    let kind = PredictorKind::Rows { rows: gate.weight.clone(), bias: None };
    let input = PredictorInput::Normed;
    layer.predictor = Some(Predictor { kind, input, threshold: 0.0, quality: None, by_input: Default::default() });
    assert_eq!(costs(&model, Sparsity::Predicted).skips, SkippedRows::NotPredicted);
    assert!(!costs(&model, Sparsity::Predicted).predictor_reads.is_empty());
    model.weights.layers[0].gate_deviations = Some(1.5);
    for activation in [Activation::Relu, Activation::GeluTanh] {
        model.config.activation = activation;
        for mode in [Sparsity::Exact, Sparsity::Predicted] {
            let costs = costs(&model, mode);
            assert_eq!((costs.skips, costs.predictor), (SkippedRows::Silent, 0), "{activation} {mode}");
            assert!(costs.predictor_reads.is_empty(), "{activation} {mode}");
        }
    }
    assert_eq!(costs(&model, Sparsity::Dense).skips, SkippedRows::Nothing);
}

/// An activation threshold is compared with gates. Without gates nothing is skipped.
#[test]
fn thresholds_without_gates_skip_nothing() {
    let mut model = llama();
    model.weights.layers[0].activation_threshold = Some(0.1);
    assert_eq!(costs(&model, Sparsity::Threshold).skips, SkippedRows::Silent);
    let Ffn::Dense(ffn) = &mut model.weights.layers[0].ffn else { panic!() };
    ffn.gate = None;
    assert_eq!(costs(&model, Sparsity::Threshold).skips, SkippedRows::Nothing);
}

/// A down projection without a row per neuron is read whole, by either side and for any number of
/// firing neurons. If all neurons fire, the layout makes no difference.
#[test]
fn down_projections_without_a_row_per_neuron_are_read_whole() {
    let model = llama();
    let (neuron_major, _) = model.neuron_major_outline().unwrap();
    let machine = Machine::typical();
    let inputs = PlanInputs::new(Sparsity::Exact, 64, KvType::F16);
    let seconds = |model: &Model, fires: f32, placement: fn(&CostProfile) -> Placement| {
        let mut profile = CostProfile::new(model, &device_bytes(model, 16), &inputs).unwrap();
        for layer in &mut profile.layers {
            layer.sort_units(&vec![fires; layer.units()], 1.0);
        }
        Plan::new(&profile, &machine, placement(&profile)).layers[0].time.seconds
    };
    let Ffn::Dense(ffn) = &model.weights.layers[0].ffn else { panic!() };
    let Down::Outputs(down) = &ffn.down else { panic!() };
    let on_cpu = |profile: &CostProfile| Placement::cpu(profile.layers.len());
    let down = matrix_reads(&down.weight);
    let gpu = machine.gpu.as_ref().unwrap();
    let cpu_seconds = down.cpu as f64 / machine.cpu.rate(down.ty).sequential;
    let gpu_seconds = down.device as f64 / gpu.rate(down.ty).sequential;
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
    for (placement, whole) in [(on_cpu as fn(&CostProfile) -> Placement, cpu_seconds), (Placement::all, gpu_seconds)] {
        assert!(near(seconds(&model, 0.0, placement) - seconds(&neuron_major, 0.0, placement), whole));
        assert!(near(seconds(&model, 1.0, placement), seconds(&neuron_major, 1.0, placement)));
    }
}
