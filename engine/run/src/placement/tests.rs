//! Solver and planner on synthetic layers.

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

use super::*;
use thermocline_formats::{format::Matrix, quant::TensorType};
use thermocline_model::{Down, Ffn, LoadOptions, Model};

mod bursts;
mod optimum;
mod plans;
mod timing;

const MIB: u64 = 1 << 20;

/// A small model of the LLaMA architecture with ReLU.
pub(super) fn llama() -> Model {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/models/llama-relu");
    Model::open(path.as_ref(), &LoadOptions::default()).unwrap()
}

/// A layer of `n` neurons with a firing row and two other rows of `row` bytes each. `frequency`
/// returns how often each neuron fires.
pub(super) fn layer(n: usize, row: u64, base: u64, skips: SkippedRows, frequency: impl Fn(usize) -> f32) -> LayerCosts {
    let reads = ReadBytes { ty: TensorType::Q4_0, cpu: row, device: row };
    let experts = skips == SkippedRows::NotRouted;
    let bytes = LayerBytes { attention: base, unit: 3 * row, ..LayerBytes::default() };
    let attention = vec![ReadBytes { ty: TensorType::Q4_0, cpu: base, device: base }];
    let mut layer = LayerCosts {
        block: if experts { 1 } else { BLOCK },
        skips,
        firing_read: if experts { ReadBytes { cpu: 0, device: 0, ..reads } } else { reads },
        other_reads: vec![reads; if experts { 3 } else { 2 }],
        ..LayerCosts::without_ffn(&bytes, base / 4, attention)
    };
    let frequency: Vec<f32> = (0..n).map(frequency).collect();
    layer.sort_units(&frequency, 1.2);
    layer
}

pub(super) fn profile(layers: Vec<LayerCosts>, head: u64, fixed: u64) -> CostProfile {
    let reads = ReadBytes { ty: TensorType::Q4_0, cpu: head, device: head };
    let head = HeadCosts { matrix: head, vectors: 0, scratch: head / 16, reads };
    CostProfile { layers, head, scratch: fixed / 2, staging: fixed - fixed / 2, assumptions: Vec::new() }
}

/// Approximate bytes of `model`, with dense FFNs, on a device, without buffers.
pub(super) fn device_bytes(model: &Model, chunk: usize) -> DeviceBytes {
    let row = |matrix: &Matrix| matrix.ty().device_type().device_row_bytes(matrix.cols()) as u64;
    let all = |matrix: &Matrix| matrix.rows() as u64 * row(matrix);
    let config = &model.config;
    let layers = model.weights.layers.iter().map(|layer| {
        let Ffn::Dense(ffn) = &layer.ffn else { panic!("an MoE layer") };
        let (attention, heads) = (layer.attention.as_ref().unwrap(), config.attentions().next().unwrap().heads);
        let down = match &ffn.down {
            Down::Neurons(down) => row(&down.weight),
            Down::Outputs(down) => all(&down.weight) / down.weight.cols() as u64,
        };
        LayerBytes {
            attention: attention.linears().map(|it| all(&it.weight)).sum(),
            vectors: 8 * config.d_model as u64,
            kv_token: 2 * (heads.k_dim() + heads.v_dim()) as u64,
            split_tables: 16 * config.n_ff as u64,
            unit: ffn.gate.as_ref().map_or(0, |gate| row(&gate.weight)) + row(&ffn.up.weight) + down,
            by_unit: true,
            ..LayerBytes::default()
        }
    });
    DeviceBytes {
        chunk,
        scratch: 32 << 10,
        staging: 16 << 10,
        streaming_buffer: 48 << 20,
        least_streaming_buffer: 1,
        layers: layers.collect(),
        head: all(&model.weights.output.weight),
        head_vectors: 4 * config.d_model as u64,
        head_scratch: 4 * config.n_vocab as u64,
    }
}

/// Frequency of the neuron at `rank` of `n`, by a power law with mean `mean`.
fn power_law(rank: usize, n: usize, mean: f64, exponent: f64) -> f32 {
    let x = (rank as f64 + 0.5) / n as f64;
    ((mean * (1.0 - exponent)) * x.powf(-exponent)).min(1.0) as f32
}

/// The costs of a model with the size and shape of LLaMA-70B in Q4_0, with layers that differ.
fn large(skips: SkippedRows, seed: u64) -> CostProfile {
    let rng = &mut StdRng::seed_from_u64(seed);
    let layers = (0..80).map(|_| {
        let (mean, exponent) = (rng.random_range(0.05..0.4), rng.random_range(0.3..0.8));
        let mut ranks: Vec<usize> = (0..28672).collect();
        rand::seq::SliceRandom::shuffle(&mut ranks[..], rng);
        layer(28672, 4608, 90 * MIB, skips, |neuron| power_law(ranks[neuron], 28672, mean, exponent))
    });
    profile(layers.collect(), 148 * MIB, 160 * MIB)
}

/// Sets the fraction of the GPU's rates that remains in bursts.
fn with_bursts(machine: &mut Machine, fraction: f64) {
    machine.gpu.iter_mut().flat_map(|gpu| gpu.bursts.values_mut()).for_each(|of| *of = fraction);
}

/// A machine on which every time is a sum over rows.
fn linear(rng: &mut impl Rng) -> Machine {
    let mut machine = Machine::typical();
    let same = |rate: f64| ProductRate { sequential: rate, scattered: rate };
    machine.cpu.join = 0.0;
    machine.cpu.rates.values_mut().for_each(|rate| *rate = same(20e9));
    let gpu = machine.gpu.as_mut().unwrap();
    let rate = 20e9 * [0.5, 2.0, 5.0, 12.0][rng.random_range(0..4)];
    gpu.rates.values_mut().for_each(|of| *of = same(rate));
    (gpu.dispatch, gpu.hand_over) = (0.0, [0.0, 20e-6, 200e-6][rng.random_range(0..3)]);
    machine
}

fn small(rng: &mut StdRng) -> CostProfile {
    let skips = [SkippedRows::Nothing, SkippedRows::Silent, SkippedRows::NotPredicted][rng.random_range(0..3)];
    let layers = (0..rng.random_range(1..=4)).map(|_| {
        let blocks = rng.random_range(2..=5);
        let n = blocks * BLOCK;
        let row = rng.random_range(2_000..20_000);
        let rates: Vec<f32> = (0..n).map(|_| rng.random_range(0.0_f32..1.0).powi(3)).collect();
        layer(n, row, rng.random_range(1..8) * MIB, skips, |at| rates[at])
    });
    let layers = layers.collect();
    profile(layers, rng.random_range(1..20) * MIB, rng.random_range(0..4) * MIB)
}
