//! Synthetic models in the real forward pass. They fire as requested, and their predictors find the
//! firing neurons.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::sync::Arc;

use thermocline_engine::{
    cpu::{Cpu, CpuOptions},
    format::{Matrix, ReadMode},
    model::{Activation, Down, Ffn, LoadOptions, Model, Predictor, PredictorKind, mask},
    quant::TensorType,
    runtime::{Forward, KvCache, KvType, LayerFiring, Outputs, Probe, Sparsity},
    synth::{SynthOptions, SynthShape, generate},
};
use thermocline_tests::golden::{Setup, argmax, greedy, max_diff};

/// Number of tokens, enough for meaningful firing counts of single neurons.
const TOKENS: usize = 1024;

/// Records activations and outputs per layer.
#[derive(Default)]
struct Recorder {
    /// Hidden activations of the FFN, `[tokens, n_ff]`.
    hidden: Vec<Vec<f32>>,
    /// Outputs, `[tokens, d]`.
    outputs: Vec<Vec<f32>>,
    activation: Option<Activation>,
}

impl Recorder {
    fn at(of: &mut Vec<Vec<f32>>, layer: usize) -> &mut Vec<f32> {
        of.resize(of.len().max(layer + 1), Vec::new());
        &mut of[layer]
    }
}

impl Probe for Recorder {
    fn wants_layer_output(&mut self) -> bool {
        true
    }

    fn wants_ffn_hidden(&mut self) -> bool {
        true
    }

    fn layer_output(&mut self, layer: usize, x: &[f32]) {
        Self::at(&mut self.outputs, layer).extend_from_slice(x);
    }

    fn ffn_hidden(&mut self, layer: usize, _: usize, gate: &[f32], up: &[f32]) {
        let hidden = Self::at(&mut self.hidden, layer);
        match self.activation.unwrap() {
            _ if gate.is_empty() => hidden.extend(up.iter().map(|u| u.max(0.0))),
            Activation::Relu => hidden.extend(gate.iter().zip(up).map(|(g, u)| g.max(0.0) * u)),
            Activation::DRelu => hidden.extend(gate.iter().zip(up).map(|(g, u)| g.max(0.0) * u.max(0.0))),
            other => panic!("{other:?}"),
        }
    }
}

fn rows(matrix: &Matrix) -> Vec<f32> {
    let mut values = vec![0.0; matrix.rows() * matrix.cols()];
    values.chunks_exact_mut(matrix.cols()).enumerate().for_each(|(row, out)| matrix.dequantise_row(row, out));
    values
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, b) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0);
    let mut sums = [0.0; 8];
    a.iter().zip(b).for_each(|(a, b)| (0..8).for_each(|i| sums[i] += a[i] * b[i]));
    sums.iter().sum()
}

/// Returns the fraction of firings that the predictor finds. `x` is its input, `[tokens, d]`.
fn recall(predictor: &Predictor, x: &[f32], hidden: &[f32]) -> f64 {
    let PredictorKind::LowRank { fc1, fc2 } = &predictor.kind else { panic!("synthetic predictors have two layers") };
    let (d, n_ff, rank) = (fc1.cols(), fc2.rows(), fc1.rows());
    let (fc1, fc2) = (rows(fc1), rows(fc2));
    let (mut fired, mut found) = (0, 0);
    for (x, hidden) in x.chunks_exact(d).zip(hidden.chunks_exact(n_ff)) {
        let inner: Vec<f32> = fc1.chunks_exact(d).map(|row| dot(row, x).max(0.0)).collect();
        for (row, _) in fc2.chunks_exact(rank).zip(hidden).filter(|(_, hidden)| **hidden != 0.0) {
            fired += 1;
            found += u32::from(dot(row, &inner) >= predictor.threshold);
        }
    }
    f64::from(found) / f64::from(fired)
}

/// Returns the output of a layer's FFN: `hidden` through its neuron-major down projection.
fn ffn_output(down: &Down, hidden: &[f32]) -> Vec<f32> {
    let Down::Neurons(down) = down else { panic!("synthetic models with predictors have a row per neuron") };
    let (n_ff, d) = (down.weight.rows(), down.weight.cols());
    let weights = rows(&down.weight);
    let mut out = vec![0.0; hidden.len() / n_ff * d];
    for (out, hidden) in out.chunks_exact_mut(d).zip(hidden.chunks_exact(n_ff)) {
        for (row, a) in weights.chunks_exact(d).zip(hidden).filter(|(_, a)| **a != 0.0) {
            out.iter_mut().zip(row).for_each(|(out, w)| *out += a * w);
        }
    }
    out
}

/// Returns the smallest fraction of the neurons that has 80 % of the firings.
fn hot_fraction(counts: &[u32]) -> f64 {
    let mut sorted = counts.to_vec();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let most = 0.8 * f64::from(sorted.iter().sum::<u32>());
    let mut sum = 0.0;
    let hot = sorted.iter().take_while(|count| {
        sum += f64::from(**count);
        sum < most
    });
    hot.count() as f64 / counts.len() as f64
}

fn near(what: &str, layer: usize, got: f64, asked: f64) {
    assert!((got / asked - 1.0).abs() < 0.1, "layer {layer}: {what} is {got:.4}, asked for {asked}");
}

fn check(shape: &str, ty: TensorType, active: f64, skew: f64) {
    let folder = tempfile::tempdir().unwrap();
    let mut options = SynthOptions::new(SynthShape::named(shape).unwrap(), folder.path().join("m.gguf"));
    (options.ty, options.active, options.hot_fraction, options.seed) = (ty, active, skew, 3);
    let report = generate(&options, &mut |_| {}).unwrap();
    assert!(report.deviation() < 0.1, "{report:?}");

    let model = Arc::new(Model::open(&options.out, &LoadOptions::default()).unwrap());
    let n_ff = model.config.n_ff;
    let mut recorder = Recorder { activation: Some(model.config.activation), ..Recorder::default() };
    let mut kv = KvCache::new(&model.config, TOKENS, KvType::F16).unwrap();
    // The tokens are all different. An odd factor visits every token of a vocabulary of 2^n.
    let tokens: Vec<u32> = (0..TOKENS).map(|i| ((i * 997 + 13) % model.config.n_vocab) as u32).collect();
    let mut forward = Forward::new(model.clone(), Cpu::new(&CpuOptions::default()).unwrap());
    let logits = forward.run(&tokens, &mut kv, Outputs::Last, &mut recorder).unwrap();
    assert!(logits.len() == model.config.n_vocab && logits.iter().all(|x| x.is_finite()));

    for (layer, weights) in model.weights.layers.iter().enumerate() {
        let hidden = &recorder.hidden[layer];
        let mut counts = vec![0; n_ff];
        for token in hidden.chunks_exact(n_ff) {
            counts.iter_mut().zip(token).for_each(|(count, a)| *count += u32::from(*a != 0.0));
        }
        let mean = f64::from(counts.iter().sum::<u32>()) / (n_ff * TOKENS) as f64;
        println!("{shape} {ty} layer {layer}: {mean:.4} active, hot {:.4}", hot_fraction(&counts));
        near("activity", layer, mean, active);
        near("fraction of hot neurons", layer, hot_fraction(&counts), skew);

        let (Some(predictor), Ffn::Dense(ffn)) = (&weights.predictor, &weights.ffn) else { panic!("no predictor") };
        // The predictor's input is the residual stream before the FFN. In parallel layers it is the
        // layer's input.
        let seen = match options.shape.architecture {
            "falcon" if layer == 0 => continue,
            "falcon" => recorder.outputs[layer - 1].clone(),
            _ => {
                let added = ffn_output(&ffn.down, hidden);
                recorder.outputs[layer].iter().zip(added).map(|(x, added)| x - added).collect()
            }
        };
        let recall = recall(predictor, &seen, hidden);
        println!("{shape} {ty} layer {layer}: recall {recall:.4}");
        near("recall", layer, recall, options.recall);
    }
}

#[test]
fn llama_meets_the_requested_activity() {
    check("tiny-relu-llama", TensorType::Q4_0, 0.10, 0.26);
    check("tiny-relu-llama", TensorType::F16, 0.25, 0.40);
}

#[test]
fn bamboo_meets_the_requested_activity() {
    check("tiny-bamboo", TensorType::Q4_0, 0.15, 0.30);
}

#[test]
fn opt_meets_the_requested_activity() {
    check("tiny-opt", TensorType::Q8_0, 0.10, 0.26);
}

#[test]
fn falcon_meets_the_requested_activity() {
    check("tiny-falcon", TensorType::Q4_K, 0.10, 0.26);
}

#[test]
fn dense_shapes_run() {
    let folder = tempfile::tempdir().unwrap();
    for shape in ["tiny-llama", "tiny-mixtral", "tiny-qwen3.5", "tiny-qwen3.5-moe", "tiny-gemma4", "tiny-glm-flash"] {
        let options = SynthOptions::new(SynthShape::named(shape).unwrap(), folder.path().join("m.gguf"));
        generate(&options, &mut |_| {}).unwrap();
        let model = Arc::new(Model::open(&options.out, &LoadOptions::default()).unwrap());
        let activation = if shape == "tiny-gemma4" { Activation::GeluTanh } else { Activation::Silu };
        assert_eq!(model.config.activation, activation);
        let mut forward = Forward::new(model, Cpu::new(&CpuOptions::default()).unwrap());
        let mut kv = forward.kv_cache(16, KvType::F16).unwrap();
        let logits = forward.run(&[2, 3, 5, 7], &mut kv, Outputs::All, &mut ()).unwrap();
        assert!(logits.len() == 4 * 2048 && logits.iter().all(|x| x.is_finite()));
        let spread = (logits.iter().map(|x| x * x).sum::<f32>() / logits.len() as f32).sqrt();
        assert!((1.0..4.0).contains(&spread), "{shape}: logits have a standard deviation of {spread}");
    }
}

/// Counts per layer how often each expert was chosen and each neuron fired.
#[derive(Default)]
struct Experts {
    chosen: Vec<Vec<u32>>,
    fired: Vec<Vec<u32>>,
}

impl Probe for Experts {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        let Some(chosen) = firing.chosen else { return };
        for (of, masks) in [(&mut self.chosen, chosen), (&mut self.fired, firing.fired)] {
            let words = masks.len() / firing.tokens;
            of.resize(of.len().max(firing.layer + 1), Vec::new());
            of[firing.layer].resize(32 * words, 0);
            for row in masks.chunks_exact(words) {
                mask::neurons(row).for_each(|at| of[firing.layer][at as usize] += 1);
            }
        }
    }
}

/// In both kinds of MoE models, experts are chosen as often as requested. In a rectified model,
/// firings within each chosen expert follow a power law with the requested rate. Skipping silent
/// neurons in `exact` changes nothing.
#[test]
fn expert_choice_and_firing_meet_the_request() {
    const ALL: usize = 2 * TOKENS;
    let folder = tempfile::tempdir().unwrap();
    for (shape, ty, active) in [
        ("tiny-turbosparse-mixtral", TensorType::Q4_0, Some(0.10)),
        ("tiny-turbosparse-mixtral", TensorType::Q8_0, Some(0.20)),
        ("tiny-mixtral", TensorType::Q4_K, None),
        ("tiny-gpt-oss", TensorType::MXFP4, None),
        ("tiny-qwen3.5-moe", TensorType::Q4_0, None),
        ("tiny-glm-flash", TensorType::Q4_0, None),
        ("tiny-smallthinker", TensorType::Q4_0, Some(0.10)),
        ("tiny-nemotron-3", TensorType::Q8_0, Some(0.15)),
    ] {
        let mut options = SynthOptions::new(SynthShape::named(shape).unwrap(), folder.path().join("m.gguf"));
        (options.ty, options.active, options.seed) = (ty, active.unwrap_or(0.10), 3);
        let report = generate(&options, &mut |_| {}).unwrap();
        assert!(report.deviation() < 0.1, "{report:?}");
        let model = Arc::new(Model::open(&options.out, &LoadOptions::default()).unwrap());
        let experts = model.config.experts.unwrap();
        assert_eq!((experts.count, experts.used), (8, 2));
        let rectified = options.shape.relu();
        let activation = match (rectified, shape) {
            (true, "tiny-smallthinker") => Activation::Relu,
            (true, "tiny-nemotron-3") => Activation::ReluSquared,
            (true, _) => Activation::DRelu,
            (false, "tiny-gpt-oss") => Activation::ClampedSwiglu,
            (false, _) => Activation::Silu,
        };
        assert_eq!(model.config.activation, activation);

        let mut forward = Forward::new(Arc::clone(&model), Cpu::new(&CpuOptions::default()).unwrap());
        let (mut seen, mut kv) = (Experts::default(), forward.kv_cache(ALL, KvType::F16).unwrap());
        let tokens: Vec<u32> = (0..ALL).map(|i| ((i * 997 + 13) % model.config.n_vocab) as u32).collect();
        forward.run(&tokens, &mut kv, Outputs::None, &mut seen).unwrap();
        let layers = seen.chosen.iter().zip(&seen.fired).filter(|(chosen, _)| !chosen.is_empty());
        for (layer, (chosen, fired)) in layers.enumerate() {
            let got: Vec<f64> = chosen[..8].iter().map(|count| f64::from(*count) / ALL as f64).collect();
            println!("{shape} layer {layer}: {got:.3?} of {:.3?}", report.chosen[layer]);
            for (got, asked) in got.iter().zip(&report.chosen[layer]) {
                assert!((got / f64::from(*asked) - 1.0).abs() < 0.2, "layer {layer}: {got} of {asked}");
            }
            // This scales the firings as if every token chose every expert.
            let often = |(at, fired): (usize, &u32)| (f64::from(*fired) / got[at / experts.n_ff]) as u32;
            let routed = &fired[..8 * experts.n_ff];
            let counts: Vec<u32> = routed.iter().enumerate().map(often).collect();
            let mean = counts.iter().map(|count| f64::from(*count)).sum::<f64>() / (counts.len() * ALL) as f64;
            println!("{shape} {ty} layer {layer}: {mean:.4} active, hot {:.4}", hot_fraction(&counts));
            near("activity", layer, mean, active.unwrap_or(1.0));
            if rectified {
                near("fraction of hot neurons", layer, hot_fraction(&counts), options.hot_fraction);
            }
        }
        let run = |mode: Sparsity| {
            let mut forward = Forward::new(Arc::clone(&model), Cpu::new(&CpuOptions::default()).unwrap());
            forward.set_sparsity(mode);
            let mut kv = forward.kv_cache(8, KvType::F16).unwrap();
            let logits = |id: u32| forward.run(&[id], &mut kv, Outputs::Last, &mut ()).unwrap().to_vec();
            (2..10).flat_map(logits).collect::<Vec<f32>>()
        };
        let (dense, exact) = (run(Sparsity::Dense), run(Sparsity::Exact));
        let largest = dense.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        let off = max_diff(&dense, &exact) / largest;
        assert!(largest > 1.0 && off < 1e-4, "{shape} {ty}: {off} of {largest}");
    }
}

/// The greedy text of a model with a draft head counts token ids. The head names the same token at
/// the requested fraction of the tokens. Its layer changes too little to matter here.
#[test]
fn draft_heads_agree_as_often_as_requested() {
    let folder = tempfile::tempdir().unwrap();
    for (shape, ty) in [("tiny-qwen3.5", TensorType::Q4_0), ("tiny-qwen3.5-moe", TensorType::Q4_K)] {
        for agreement in [0.5, 0.7, 0.9] {
            let mut options = SynthOptions::new(SynthShape::named(shape).unwrap(), folder.path().join("m.gguf"));
            (options.agreement, options.ty) = (Some(agreement), ty);
            generate(&options, &mut |_| ()).unwrap();
            let model = Arc::new(Model::open(&options.out, &LoadOptions::default()).unwrap());
            let text = greedy(&model, Setup::default(), &[1000, 2000, 700], 64);
            assert_eq!(text, (701..765).collect::<Vec<u32>>(), "{shape} {agreement}");

            let layer = model.config.n_layer();
            assert_eq!(model.config.n_layer(), options.shape.n_layer);
            let file = Model::open_checkpoint(&options.out, ReadMode::Map).unwrap();
            let d = model.config.d_model;
            let matrix = |name: &str, cols: usize| {
                let tensor = file.tensor(name).unwrap_or_else(|| panic!("{shape}: {name}"));
                let matrix = Matrix::new(tensor.ty, tensor.len() / cols, cols, tensor.data.clone()).unwrap();
                rows(&matrix)
            };
            let projection = matrix(&format!("blk.{layer}.nextn.eh_proj.weight"), 2 * d);
            let (embedding, output) = (matrix("token_embd.weight", d), matrix("output.weight", d));
            let rms = |x: &[f32]| (dot(x, x) / x.len() as f32).sqrt();
            let n_vocab = output.len() / d;
            let agrees = |token: &usize| {
                let embedded = &embedding[token * d..][..d];
                let normed: Vec<f32> = embedded.iter().map(|x| x / rms(embedded)).collect();
                let x: Vec<f32> = projection.chunks_exact(2 * d).map(|row| dot(&row[..d], &normed)).collect();
                let logits: Vec<f32> = output.chunks_exact(d).map(|row| dot(row, &x)).collect();
                argmax(&logits) as usize == (token + 1) % n_vocab
            };
            let tokens = (0..n_vocab).step_by(8);
            let right = tokens.clone().filter(agrees).count() as f64 / tokens.len() as f64;
            assert!((right - agreement).abs() < 0.06, "{shape}: {right} instead of {agreement}");
        }
    }
}

#[test]
fn draft_heads_of_other_shapes_are_refused() {
    for (shape, agreement) in [("tiny-llama", 0.5), ("tiny-qwen3.5", 0.0), ("tiny-qwen3.5", 1.5)] {
        let mut options = SynthOptions::new(SynthShape::named(shape).unwrap(), "never-written.gguf");
        options.agreement = Some(agreement);
        assert!(generate(&options, &mut |_| ()).is_err(), "{shape} {agreement}");
    }
}
