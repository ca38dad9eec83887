//! Synthetic models in the real forward pass: they fire as they were asked to, and their predictors find what fires.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::sync::Arc;

use thermocline_engine::{
    cpu::{Cpu, CpuOptions},
    format::{Matrix, TensorType},
    model::{
        Activation, Down, Ffn, Forward, KvCache, KvType, LoadOptions, Model, Outputs, Predictor, PredictorKind, Probe,
    },
    synth::{Family, Shape, SynthOptions, generate},
};

/// Enough for the firing counts of single neurons to mean something.
const TOKENS: usize = 1024;

/// Keeps what passes by, per layer.
#[derive(Default)]
struct Recorder {
    /// `[tokens, n_ff]`: the FFN's hidden vector.
    hidden: Vec<Vec<f32>>,
    /// `[tokens, d]`
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

/// Share of the firings the predictor finds; `x` is `[tokens, d]`, what it sees.
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

/// What the FFN of a layer put out: `hidden` through its down projection, by neuron.
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

/// The smallest share of the neurons that makes 80 % of the firings.
fn hot_share(counts: &[u32]) -> f64 {
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
    let mut options = SynthOptions::new(Shape::named(shape).unwrap(), folder.path().join("m.gguf"));
    (options.ty, options.active, options.hot_share, options.seed) = (ty, active, skew, 3);
    let report = generate(&options, &mut |_| {}).unwrap();
    assert!(report.deviation() < 0.1, "{report:?}");

    let model = Arc::new(Model::open(&options.out, &LoadOptions::default()).unwrap());
    let n_ff = model.config.n_ff;
    let mut recorder = Recorder { activation: Some(model.config.activation), ..Recorder::default() };
    let mut kv = KvCache::new(&model.config, TOKENS, KvType::F16).unwrap();
    // Every token at most once; an odd factor visits all of a vocabulary of 2^n.
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
        println!("{shape} {ty} layer {layer}: {mean:.4} active, hot {:.4}", hot_share(&counts));
        near("activity", layer, mean, active);
        near("share of hot neurons", layer, hot_share(&counts), skew);

        let (Some(predictor), Ffn::Dense(ffn)) = (&weights.predictor, &weights.ffn) else { panic!("no predictor") };
        // The predictor looks at the stream before the FFN; where attention stands beside the FFN, at the layer's input.
        let seen = match options.shape.family {
            Family::Falcon if layer == 0 => continue,
            Family::Falcon => recorder.outputs[layer - 1].clone(),
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
fn llama_fires_as_asked() {
    check("tiny-relu-llama", TensorType::Q4_0, 0.10, 0.26);
    check("tiny-relu-llama", TensorType::F16, 0.25, 0.40);
}

#[test]
fn bamboo_fires_as_asked() {
    check("tiny-bamboo", TensorType::Q4_0, 0.15, 0.30);
}

#[test]
fn opt_fires_as_asked() {
    check("tiny-opt", TensorType::Q8_0, 0.10, 0.26);
}

#[test]
fn falcon_fires_as_asked() {
    check("tiny-falcon", TensorType::Q4_K, 0.10, 0.26);
}

#[test]
fn dense_shapes_run() {
    let folder = tempfile::tempdir().unwrap();
    let options = SynthOptions::new(Shape::named("tiny-llama").unwrap(), folder.path().join("m.gguf"));
    generate(&options, &mut |_| {}).unwrap();
    let model = Arc::new(Model::open(&options.out, &LoadOptions::default()).unwrap());
    assert_eq!(model.config.activation, Activation::Silu);
    let mut kv = KvCache::new(&model.config, 16, KvType::F16).unwrap();
    let mut forward = Forward::new(model, Cpu::new(&CpuOptions::default()).unwrap());
    let logits = forward.run(&[2, 3, 5, 7], &mut kv, Outputs::All, &mut ()).unwrap();
    assert!(logits.len() == 4 * 2048 && logits.iter().all(|x| x.is_finite()));
    let spread = (logits.iter().map(|x| x * x).sum::<f32>() / logits.len() as f32).sqrt();
    assert!((1.0..4.0).contains(&spread), "logits have a standard deviation of {spread}");
}
