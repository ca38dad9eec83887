//! The solver on layers of models there could be.

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

use super::*;
use crate::format::TensorType;

mod optimum;
mod plans;

const MIB: u64 = 1 << 20;

/// A layer with a firing row and two others of `row` bytes, `n` neurons, each firing as often as `frequency` says.
pub(super) fn layer(n: usize, row: u64, base: u64, skips: Skips, frequency: impl Fn(usize) -> f32) -> LayerDemand {
    let reads = Reads { ty: TensorType::Q4_0, cpu: row, device: row };
    let experts = skips == Skips::Unchosen;
    let mut layer = LayerDemand {
        attention: base,
        vectors: 0,
        kv: base / 4,
        predictor: 0,
        routing: 0,
        split: 0,
        neuron: 3 * row,
        unit: if experts { 1 } else { BLOCK },
        order: Vec::new(),
        frequency: Vec::new(),
        named: Vec::new(),
        skips,
        attention_reads: vec![Reads { ty: TensorType::Q4_0, cpu: base, device: base }],
        predictor_reads: Vec::new(),
        routing_reads: Vec::new(),
        firing_read: if experts { Reads { cpu: 0, device: 0, ..reads } } else { reads },
        other_reads: vec![reads; if experts { 3 } else { 2 }],
        whole_reads: Vec::new(),
        loads: Vec::new(),
    };
    let frequency: Vec<f32> = (0..n).map(frequency).collect();
    layer.sort(&frequency, 1.2);
    layer
}

pub(super) fn demand(layers: Vec<LayerDemand>, head: u64, fixed: u64) -> Demand {
    let reads = Reads { ty: TensorType::Q4_0, cpu: head, device: head };
    let head = HeadDemand { matrix: head, vectors: 0, scratch: head / 16, reads };
    Demand { layers, head, scratch: fixed / 2, staging: fixed - fixed / 2, assumptions: Vec::new() }
}

/// How often the neuron at `rank` of `n` fires if `share` of them fire on average, by a power law.
fn power_law(rank: usize, n: usize, share: f64, exponent: f64) -> f32 {
    let x = (rank as f64 + 0.5) / n as f64;
    ((share * (1.0 - exponent)) * x.powf(-exponent)).min(1.0) as f32
}

/// Of a model of the size and shape of LLaMA-70B in Q4_0, with layers that differ.
fn large(skips: Skips, seed: u64) -> Demand {
    let rng = &mut StdRng::seed_from_u64(seed);
    let layers = (0..80).map(|_| {
        let (share, exponent) = (rng.random_range(0.05..0.4), rng.random_range(0.3..0.8));
        let mut ranks: Vec<usize> = (0..28672).collect();
        rand::seq::SliceRandom::shuffle(&mut ranks[..], rng);
        layer(28672, 4608, 90 * MIB, skips, |neuron| power_law(ranks[neuron], 28672, share, exponent))
    });
    demand(layers.collect(), 148 * MIB, 160 * MIB)
}

/// A machine on which every time is a sum over rows.
fn linear(rng: &mut impl Rng) -> Machine {
    let mut machine = Machine::typical();
    let same = |rate: f64| Rate { sequential: rate, scattered: rate };
    machine.cpu.join = 0.0;
    machine.cpu.rates.values_mut().for_each(|rate| *rate = same(20e9));
    let gpu = machine.gpu.as_mut().unwrap();
    let rate = 20e9 * [0.5, 2.0, 5.0, 12.0][rng.random_range(0..4)];
    gpu.rates.values_mut().for_each(|of| *of = same(rate));
    (gpu.dispatch, gpu.hand_over) = (0.0, [0.0, 20e-6, 200e-6][rng.random_range(0..3)]);
    machine
}

fn small(rng: &mut StdRng) -> Demand {
    let skips = [Skips::Nothing, Skips::Silent, Skips::RuledOut][rng.random_range(0..3)];
    let layers = (0..rng.random_range(1..=4)).map(|_| {
        let units = rng.random_range(2..=5);
        let n = units * BLOCK;
        let row = rng.random_range(2_000..20_000);
        let rates: Vec<f32> = (0..n).map(|_| rng.random_range(0.0_f32..1.0).powi(3)).collect();
        layer(n, row, rng.random_range(1..8) * MIB, skips, |at| rates[at])
    });
    let layers = layers.collect();
    demand(layers, rng.random_range(1..20) * MIB, rng.random_range(0..4) * MIB)
}
