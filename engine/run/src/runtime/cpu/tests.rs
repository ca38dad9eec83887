//! FFNs on the CPU compared with a reference in f64, in every sparsity mode, whole and in parts.

use super::*;
use crate::runtime::{LayerFiring, Probe, Sparsity};
use thermocline_base::telemetry::neurons::Strength;
use thermocline_cpu::{Cpu, CpuOptions};
use thermocline_formats::{
    format::{Bytes, Matrix},
    quant::TensorType,
};
use thermocline_model::{Activation, Down, Experts, Ffn, FfnWeights, Linear, ModelConfig, NormKind, Position};

mod experts;
mod ffn;
mod rows;

pub const D: usize = 24;

pub fn noise(seed: &mut u64) -> f32 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 40) as f32 / 8_388_608.0 - 1.0
}

/// A random F32 matrix `[rows, cols]` with a bias `[rows]`.
pub fn linear(rows: usize, cols: usize, seed: &mut u64) -> Linear {
    let data: Vec<u8> = (0..rows * cols).flat_map(|_| noise(seed).to_le_bytes()).collect();
    let weight = Matrix::new(TensorType::F32, rows, cols, Bytes::new(data)).unwrap();
    Linear { weight, bias: Some((0..rows).map(|_| noise(seed)).collect()) }
}

/// The transposed matrix, `[cols, rows]`, with the same bias.
fn transposed(linear: &Linear) -> Linear {
    let (rows, cols) = (linear.weight.rows(), linear.weight.cols());
    let mut data = vec![0u8; rows * cols * 4];
    let mut row = vec![0.0; cols];
    for r in 0..rows {
        linear.weight.dequantise_row(r, &mut row);
        for (c, x) in row.iter().enumerate() {
            data[(c * rows + r) * 4..][..4].copy_from_slice(&x.to_le_bytes());
        }
    }
    let weight = Matrix::new(TensorType::F32, cols, rows, Bytes::new(data)).unwrap();
    Linear { weight, bias: linear.bias.clone() }
}

/// Random weights of an FFN from `[D]` to `[D]` with `n_ff` neurons, output-major.
pub fn ffn(gated: bool, n_ff: usize, seed: &mut u64) -> FfnWeights {
    FfnWeights {
        gate: gated.then(|| linear(n_ff, D, seed)),
        up: linear(n_ff, D, seed),
        down: Down::Outputs(linear(D, n_ff, seed)),
        bundled_gate: None,
        limit: None,
        gate_scales: None,
    }
}

pub fn config(activation: Activation, experts: Option<Experts>) -> ModelConfig {
    ModelConfig {
        architecture: String::new(),
        name: String::new(),
        d_model: D,
        n_ff: 0,
        n_vocab: 1,
        context_length: 1,
        reads_other_keys: false,
        dense_context: None,
        norm: NormKind::Rms,
        norm_eps: 0.0,
        position: Position::Learned { offset: 0 },
        ropes: Vec::new(),
        activation,
        experts,
        per_layer_input: None,
        altup: None,
        embedding_scale: 1.0,
        residual_scale: 1.0,
        logit_scale: 1.0,
        final_softcap: None,
        pooling: None,
        layers: Vec::new(),
    }
}

/// Reference `W x + bias`, `[rows]`, in f64.
fn times(linear: &Linear, x: &[f64]) -> Vec<f64> {
    let mut row = vec![0.0; x.len()];
    (0..linear.weight.rows())
        .map(|r| {
            linear.weight.dequantise_row(r, &mut row);
            let dot: f64 = row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
            dot + linear.bias.as_ref().map_or(0.0, |bias| f64::from(bias[r]))
        })
        .collect()
}

/// Reference activation of a gate `g`.
fn act(activation: Activation, g: f64) -> f64 {
    match activation {
        Activation::Silu => g / (1.0 + (-g).exp()),
        Activation::ReluSquared => g.max(0.0).powi(2),
        _ => g.max(0.0),
    }
}

/// Reference hidden values of one token, `[n_ff]`, in f64.
fn hidden(activation: Activation, ffn: &FfnWeights, x: &[f64]) -> Vec<f64> {
    let up = times(&ffn.up, x);
    let up = up.into_iter().map(|u| if activation == Activation::DRelu && ffn.gate.is_some() { u.max(0.0) } else { u });
    match &ffn.gate {
        Some(gate) => times(gate, x).into_iter().zip(up).map(|(g, u)| act(activation, g) * u).collect(),
        None => up.map(|u| act(activation, u)).collect(),
    }
}

/// Reference down projection of one token's hidden values `[n_ff]`, `[D]`.
fn project(ffn: &FfnWeights, hidden: &[f64]) -> Vec<f64> {
    match &ffn.down {
        Down::Outputs(down) => times(down, hidden),
        Down::Neurons(down) => times(&transposed(down), hidden),
    }
}

/// Reference FFN of one token, `[D]`, in f64.
fn plain(activation: Activation, ffn: &FfnWeights, x: &[f64]) -> Vec<f64> {
    project(ffn, &hidden(activation, ffn, x))
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

fn close(got: &[f32], wanted: &[f64]) {
    assert_eq!(got.len(), wanted.len());
    for (a, b) in got.iter().zip(wanted) {
        assert!((f64::from(*a) - b).abs() < 1e-4, "{a} {b}");
    }
}

/// The latest report of a layer's firing.
#[derive(Default)]
struct Seen {
    fired: Vec<u32>,
    chosen: Vec<u32>,
    predicted: Option<Vec<u32>>,
    complete: bool,
    strength: Vec<f32>,
    bytes: (u64, u64),
}

impl Probe for Seen {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn wants_strength(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        *self = Seen {
            fired: firing.fired.to_vec(),
            chosen: firing.chosen.map(<[u32]>::to_vec).unwrap_or_default(),
            predicted: firing.predicted.map(<[u32]>::to_vec),
            complete: firing.complete,
            strength: firing.strength.map(|strength| magnitudes(strength, firing.fired.len() * 32)).unwrap_or_default(),
            bytes: (firing.cpu_bytes, firing.cpu_scattered),
        };
    }
}

/// Magnitudes of all neurons: `[tokens, neurons]`, or `[n]` for one token if only some are listed.
fn magnitudes(strength: Strength<'_>, n: usize) -> Vec<f32> {
    match strength {
        Strength::All(values) => values.iter().map(|value| value.abs()).collect(),
        Strength::Listed { neurons, values } => {
            let mut all = vec![0.0; n];
            neurons.iter().zip(values).for_each(|(at, value)| all[*at as usize] = value.abs());
            all
        }
    }
}

/// A task for layer 0 without predictor, activation threshold or recall check.
pub fn task<'a>(config: &'a ModelConfig, ffn: &'a Ffn, x: &'a [f32], sparsity: Sparsity) -> LayerTask<'a> {
    LayerTask {
        config,
        routed: false,
        preference: None,
        layer: 0,
        ffn: ffn.kind().unwrap(),
        hidden_norm: None,
        gate_deviations: None,
        predictor: None,
        activation_threshold: None,
        skipped: None,
        sparsity,
        shift: 0.0,
        recall_check: false,
        x,
        residual: x,
        tokens: x.len() / D,
        separate: false,
    }
}

/// Compares the layer's output with `wanted`, the reference for one token, with several numbers of
/// threads and tokens.
fn check(config: &ModelConfig, ffn: &Ffn, sparsity: Sparsity, wanted: impl Fn(&[f64]) -> Vec<f64>) {
    let mut seed = 11;
    let mut layer = LayerFfn::default();
    for (threads, tokens) in [(1, 1), (2, 7), (1, 3)] {
        let cpu = Cpu::new(&CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap();
        let x: Vec<f32> = (0..tokens * D).map(|_| noise(&mut seed)).collect();
        let mut out = vec![f32::NAN; x.len()];
        let task = LayerTask { separate: tokens == 7, ..task(config, ffn, &x, sparsity) };
        layer.run(&cpu, &task, &mut out, &mut ()).unwrap();
        for (out, x) in out.chunks(D).zip(x.chunks(D)) {
            close(out, &wanted(&wide(x)));
        }
    }
}

/// The same FFN with a neuron-major down projection.
fn neuron_major(mut ffn: FfnWeights) -> FfnWeights {
    if let Down::Outputs(down) = &ffn.down {
        ffn.down = Down::Neurons(transposed(down));
    }
    ffn
}

const KINDS: [(Activation, bool); 6] = [
    (Activation::Relu, true),
    (Activation::Silu, true),
    (Activation::Relu, false),
    (Activation::ReluSquared, true),
    (Activation::ReluSquared, false),
    (Activation::DRelu, true),
];
