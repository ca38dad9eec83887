#![allow(clippy::unwrap_used)]
//! Sparsity modes on the CPU. Each mode skips what it reports, and `exact` skips nothing that
//! matters.

use std::{ops::ControlFlow, path::PathBuf, sync::Arc};

use thermocline_engine::{
    cpu::{Cpu, CpuOptions, InputPrecision, Isa},
    model::{Down, Ffn, LoadOptions, Model, Predictor, PredictorInput, PredictorKind, mask},
    runtime::{Forward, KvType, LayerFiring, Outputs, Probe, Sparsity},
};
use thermocline_tests::golden::{Expected, MODELS, argmax, max_diff};

fn here(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path)
}

fn open(path: &str) -> Model {
    Model::open(&here(path), &LoadOptions::default()).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn cpu(threads: usize, isa: Option<Isa>) -> Cpu {
    Cpu::new(&CpuOptions { threads: Some(threads), isa, ..CpuOptions::default() }).unwrap()
}

/// Everything that a pass reports, per layer.
#[derive(Default)]
struct Seen {
    fired: Vec<Vec<u32>>,
    predicted: Vec<Vec<u32>>,
    /// Outputs of layers, `[T, d]`.
    outputs: Vec<Vec<f32>>,
    bytes: u64,
}

impl Seen {
    fn of(model: &Model) -> Self {
        let empty = || vec![Vec::new(); model.config.n_layer()];
        Seen {
            fired: empty(),
            predicted: empty(),
            outputs: vec![Vec::new(); model.config.n_layer()],
            ..Seen::default()
        }
    }
}

impl Probe for Seen {
    fn wants_layer_output(&mut self) -> bool {
        true
    }

    fn layer_output(&mut self, layer: usize, x: &[f32]) {
        self.outputs[layer].extend_from_slice(x);
    }

    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        self.fired[firing.layer].extend_from_slice(firing.fired);
        self.predicted[firing.layer].extend_from_slice(firing.predicted.unwrap_or_default());
        self.bytes += firing.cpu_bytes;
    }
}

/// Returns all logits of `ids`, computed `chunk` tokens at a time.
fn run(model: &Arc<Model>, cpu: Cpu, mode: Sparsity, chunk: usize, ids: &[u32], probe: &mut dyn Probe) -> Vec<f32> {
    let mut forward = Forward::new(Arc::clone(model), cpu);
    forward.set_chunk(chunk);
    forward.set_sparsity(mode);
    let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
    forward.run(ids, &mut kv, Outputs::All, probe).unwrap().to_vec()
}

fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |most, x| most.max(x.abs()))
}

/// Returns true if the model can detect a silent neuron before it reads all of its rows.
fn skips_up_rows(model: &Model) -> bool {
    let gated = |ffn: &Ffn| matches!(ffn, Ffn::Dense(ffn) if ffn.gate.is_some());
    model.config.activation.is_sparse() && model.weights.layers.iter().all(|layer| gated(&layer.ffn))
}

#[test]
fn exact_logits_equal_dense_ones_and_read_fewer_bytes() {
    let mut sparse = 0;
    for name in MODELS {
        let path = format!("models/{name}");
        let ids = Expected::read(&here(&path).join("expected.safetensors")).ids("input_ids");
        let model = open(&path);
        let (neuron_major, report) =
            model.neuron_major(cpu(2, None).pool(), &mut |_, _| ControlFlow::Continue(())).unwrap();
        assert!(report.matrices >= model.config.n_layer() && report.error == 0.0, "{name}: {report:?}");
        for model in [Arc::new(model), Arc::new(neuron_major)] {
            let mut all = Seen::of(&model);
            let dense = run(&model, cpu(2, None), Sparsity::Dense, 1, &ids, &mut all);
            for (threads, isa) in [(2, None), (1, Some(Isa::Scalar)), (3, None)] {
                let mut seen = Seen::of(&model);
                let exact = run(&model, cpu(threads, isa), Sparsity::Exact, 1, &ids, &mut seen);
                let error = max_diff(&exact, &dense) / largest(&dense);
                assert!(error <= 1e-4, "{name} {threads} {isa:?}: {error}");
                assert!(isa.is_some() || seen.fired == all.fired, "{name}");
                assert!(seen.bytes <= all.bytes);
                if skips_up_rows(&model) {
                    assert!(seen.bytes < all.bytes, "{name}: {} of {}", seen.bytes, all.bytes);
                    sparse += 1;
                }
            }
        }
    }
    assert_eq!(sparse, 3 * 2 * 3, "gated models that fire sparsely, in both orientations, on every processor");
}

/// Returns the number of compared neurons, and the indices of neurons whose masks differ.
fn differing(masks: &[Vec<u32>], n_ff: usize, wanted: &[u8]) -> (usize, Vec<usize>) {
    let tokens = wanted.len() / n_ff / masks.len();
    let mut wrong = Vec::new();
    for (at, wanted) in wanted.iter().enumerate() {
        let (layer, token, neuron) = (at / n_ff / tokens, at / n_ff % tokens, at % n_ff);
        let mask = &masks[layer][token * mask::words(n_ff)..][..mask::words(n_ff)];
        if mask::contains(mask, neuron) != (*wanted != 0) {
            wrong.push(at);
        }
    }
    (wanted.len(), wrong)
}

#[test]
fn predicted_masks_and_logits_match_powerinfer() {
    let expected = Expected::read(&here("powerinfer/expected.safetensors"));
    let ids = expected.ids("input_ids");
    // If weights are quantised, 8-bit activations differ from the reference.
    let cases = [
        ("f16", InputPrecision::Int8, 1e-3, 0.0),
        ("q4_0", InputPrecision::Float, 1e-3, 0.0),
        ("q4_0", InputPrecision::Int8, 0.9, 0.02),
    ];
    for (ty, activations, tolerance, flips) in cases {
        let model = Arc::new(open(&format!("powerinfer/llama-relu-{ty}.powerinfer.gguf")));
        let wanted = expected.f32(&format!("{ty}.masked_logits"));
        let dense = expected.f32(&format!("{ty}.dense_logits"));
        let mask = expected.u8(&format!("{ty}.pred_mask")).unwrap();
        let near = expected.i32(&format!("{ty}.pred_near_threshold")).unwrap();
        let cpu = |threads, isa| Cpu::new(&CpuOptions { threads: Some(threads), isa, activations }).unwrap();
        assert!(max_diff(&wanted, &dense) > 2.0 * tolerance, "{ty}: what is masked cannot be told from what is dense");
        for isa in Isa::available() {
            for threads in [1, 2] {
                let mut seen = Seen::of(&model);
                let logits = run(&model, cpu(threads, Some(isa)), Sparsity::Predicted, 1, &ids, &mut seen);
                let error = max_diff(&logits, &wanted);
                assert!(error <= tolerance, "{ty} {isa}: masked logits differ by {error}");
                let hidden = max_diff(&seen.outputs.concat(), &expected.f32(&format!("{ty}.masked_hidden")));
                assert!(hidden <= tolerance, "{ty} {isa}: hidden states differ by {hidden}");
                let (of, wrong) = differing(&seen.predicted, model.config.n_ff, &mask);
                let surely = wrong.iter().filter(|at| !near.contains(&(**at as i32))).count();
                assert!(surely as f32 <= flips * of as f32, "{ty} {isa}: {surely} of {of} neurons predicted otherwise");
                assert!(seen.fired.iter().flatten().zip(seen.predicted.iter().flatten()).all(|(f, p)| f & !p == 0));
            }
        }

        // Decodes greedily after a dense prompt, as in normal use.
        let mut forward = Forward::new(Arc::clone(&model), cpu(2, None));
        forward.set_sparsity(Sparsity::Predicted);
        forward.set_chunk(1);
        let wanted = expected.ids(&format!("{ty}.masked_greedy_ids"));
        let margins = expected.f32(&format!("{ty}.masked_greedy_margin"));
        let mut kv = forward.kv_cache(ids.len() + wanted.len(), KvType::F32).unwrap();
        let mut next = argmax(forward.run(&ids, &mut kv, Outputs::Last, &mut ()).unwrap());
        for (id, margin) in wanted.iter().zip(margins) {
            if next != *id {
                assert!(margin < 2.0 * tolerance, "{ty}: {next} instead of {id}, whose margin is {margin}");
                break;
            }
            next = argmax(forward.run(&[next], &mut kv, Outputs::Last, &mut ()).unwrap());
        }
    }
}

#[test]
fn chunks_of_several_tokens_are_dense() {
    let ids = Expected::read(&here("powerinfer/expected.safetensors")).ids("input_ids");
    let model = Arc::new(open("powerinfer/llama-relu-f16.powerinfer.gguf"));
    let mut all = Seen::of(&model);
    let dense = run(&model, cpu(2, None), Sparsity::Dense, 8, &ids, &mut all);
    let mut seen = Seen::of(&model);
    assert_eq!(run(&model, cpu(2, None), Sparsity::Predicted, 8, &ids, &mut seen), dense);
    assert_eq!((seen.fired, seen.bytes), (all.fired, all.bytes));
    assert!(seen.predicted.concat().is_empty());
}

/// A predictor of the residual stream sees the input of the FFN's norm. In Falcon's parallel layers
/// this is the layer's input. In other layers it includes attention.
#[test]
fn residual_predictors_see_the_input_of_the_norm() {
    for (name, layer_input) in [("falcon-mqa", true), ("falcon-new", true), ("llama-relu", false), ("opt", false)] {
        let path = format!("models/{name}");
        let ids = Expected::read(&here(&path).join("expected.safetensors")).ids("input_ids");
        let mut model = open(&path);
        // The predictor is the FFN's own rows, so that its predictions reveal its input.
        for layer in &mut model.weights.layers {
            let Ffn::Dense(ffn) = &layer.ffn else { panic!("{name} is an MoE model") };
            let kind = PredictorKind::Rows { rows: ffn.up.weight.clone(), bias: None };
            let input = PredictorInput::Residual;
            layer.predictor =
                Some(Predictor { kind, input, threshold: 0.0, quality: None, by_input: Default::default() });
        }
        let model = Arc::new(model);
        let (d, n_ff) = (model.config.d_model, model.config.n_ff);
        let mut seen = Seen::of(&model);
        run(&model, cpu(1, None), Sparsity::Predicted, 1, &ids, &mut seen);
        let mut same = 0;
        for layer in 1..model.config.n_layer() {
            let Ffn::Dense(ffn) = &model.weights.layers[layer].ffn else { unreachable!() };
            let mut row = vec![0.0; d];
            for (token, x) in seen.outputs[layer - 1].chunks_exact(d).enumerate() {
                for neuron in 0..n_ff {
                    ffn.up.weight.dequantise_row(neuron, &mut row);
                    let score: f64 = row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                    let predicted = mask::contains(&seen.predicted[layer][token * mask::words(n_ff)..], neuron);
                    same += usize::from(predicted == (score >= 0.0) || score.abs() < 1e-4);
                }
            }
        }
        let all = (model.config.n_layer() - 1) * ids.len() * n_ff;
        assert!(if layer_input { same == all } else { same < all }, "{name}: {same} of {all}");
    }
}

/// A higher activation threshold skips more neurons, and a threshold of 0 skips none. Layers
/// without a threshold are dense.
#[test]
fn higher_activation_thresholds_skip_more_neurons() {
    let ids = Expected::read(&here("models/llama-silu-gqa/expected.safetensors")).ids("input_ids");
    let model = open("models/llama-silu-gqa");
    let (model, _) = model.neuron_major(cpu(1, None).pool(), &mut |_, _| ControlFlow::Continue(())).unwrap();
    let dense = run(&Arc::new(copy(&model, None)), cpu(2, None), Sparsity::Threshold, 1, &ids, &mut ());
    let (mut fewer, mut error) = (usize::MAX, 0.0);
    for threshold in [0.0, 0.02, 0.1, 0.3] {
        let variant = Arc::new(copy(&model, Some(threshold)));
        let mut seen = Seen::of(&variant);
        let logits = run(&variant, cpu(2, None), Sparsity::Threshold, 1, &ids, &mut seen);
        let fired = mask::count(&seen.fired.concat());
        let off = max_diff(&logits, &dense) / largest(&dense);
        assert!(fired < fewer, "{threshold}: {fired} fire");
        assert!(threshold > 0.0 || off <= 1e-4, "{off}");
        (fewer, error) = (fired, off);
        // A probe of a dense pass gets firings by the same threshold.
        let mut told = Seen::of(&variant);
        run(&variant, cpu(2, None), Sparsity::Dense, 1, &ids[..1], &mut told);
        assert_eq!(told.fired[0], seen.fired[0][..told.fired[0].len()]);
    }
    assert!(error > 0.0);
}

/// Returns the model with this activation threshold in every layer.
fn copy(model: &Model, threshold: Option<f32>) -> Model {
    let mut weights = model.weights.clone();
    weights.layers.iter_mut().for_each(|layer| layer.activation_threshold = threshold);
    Model { config: model.config.clone(), weights, checkpoint: model.checkpoint.clone(), draft_head: None }
}

/// `Model::neuron_major` does not change a model whose down projections are already neuron-major.
#[test]
fn neuron_major_leaves_neuron_major_models_unchanged() {
    let pool = cpu(1, None);
    let model = open("powerinfer/llama-relu-q4_0.powerinfer.gguf");
    let (same, report) = model.neuron_major(pool.pool(), &mut |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!((report.matrices, report.bytes), (0, 0));
    for (a, b) in model.weights.layers.iter().zip(&same.weights.layers) {
        let (Ffn::Dense(a), Ffn::Dense(b)) = (&a.ffn, &b.ffn) else { unreachable!() };
        let (Down::Neurons(a), Down::Neurons(b)) = (&a.down, &b.down) else { unreachable!() };
        assert_eq!(a.weight.data().as_ptr(), b.weight.data().as_ptr());
    }
    let stop = model.neuron_major(pool.pool(), &mut |done, of| {
        assert!(done < of);
        ControlFlow::Break(())
    });
    assert!(matches!(stop, Err(thermocline_engine::Error::Cancelled)));
}
