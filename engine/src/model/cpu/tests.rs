//! FFNs against plain arithmetic in f64, in every mode, whole and in parts.

use super::*;
use crate::{
    cpu::{Cpu, CpuOptions},
    format::{Bytes, Matrix, TensorType},
    model::{
        Activation, Down, ExpertWeights, Experts, Ffn, FfnWeights, LayerFiring, Linear, ModelConfig, NormKind,
        Position, Predictor, PredictorInput, PredictorKind, Probe, SharedExpert, Sparsity, mask,
    },
    telemetry::neurons::Strength,
};

pub const D: usize = 24;

pub fn noise(seed: &mut u64) -> f32 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 40) as f32 / 8_388_608.0 - 1.0
}

pub fn linear(rows: usize, cols: usize, seed: &mut u64) -> Linear {
    let data: Vec<u8> = (0..rows * cols).flat_map(|_| noise(seed).to_le_bytes()).collect();
    let weight = Matrix::new(TensorType::F32, rows, cols, Bytes::new(data)).unwrap();
    Linear { weight, bias: Some((0..rows).map(|_| noise(seed)).collect()) }
}

/// The same matrix with rows for columns.
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

pub fn ffn(gated: bool, n_ff: usize, seed: &mut u64) -> FfnWeights {
    FfnWeights {
        gate: gated.then(|| linear(n_ff, D, seed)),
        up: linear(n_ff, D, seed),
        down: Down::Outputs(linear(D, n_ff, seed)),
    }
}

pub fn config(activation: Activation, experts: Option<Experts>) -> ModelConfig {
    ModelConfig {
        architecture: String::new(),
        name: String::new(),
        d_model: D,
        n_head: 1,
        n_kv_head: 1,
        head_dim: D,
        n_ff: 0,
        n_vocab: 1,
        context_length: 1,
        norm: NormKind::Rms,
        norm_eps: 0.0,
        position: Position::Learned { offset: 0 },
        activation,
        experts,
        embedding_scale: 1.0,
        attention_scale: 1.0,
        attention_softcap: None,
        final_softcap: None,
        layers: Vec::new(),
        steps: Vec::new(),
    }
}

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

fn act(activation: Activation, g: f64) -> f64 {
    match activation {
        Activation::Silu => g / (1.0 + (-g).exp()),
        Activation::ReluSquared => g.max(0.0).powi(2),
        _ => g.max(0.0),
    }
}

/// The hidden values of one token in f64.
fn hidden(activation: Activation, ffn: &FfnWeights, x: &[f64]) -> Vec<f64> {
    let up = times(&ffn.up, x);
    let up = up.into_iter().map(|u| if activation == Activation::DRelu && ffn.gate.is_some() { u.max(0.0) } else { u });
    match &ffn.gate {
        Some(gate) => times(gate, x).into_iter().zip(up).map(|(g, u)| act(activation, g) * u).collect(),
        None => up.map(|u| act(activation, u)).collect(),
    }
}

fn project(ffn: &FfnWeights, hidden: &[f64]) -> Vec<f64> {
    match &ffn.down {
        Down::Outputs(down) => times(down, hidden),
        Down::Neurons(down) => times(&transposed(down), hidden),
    }
}

/// One token in f64.
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

/// What an observer was told.
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

/// Magnitudes of all of at most `n` neurons: of one token, where only some are listed.
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

/// A task for a layer that does nothing special.
pub fn task<'a>(ffn: &'a Ffn, x: &'a [f32], sparsity: Sparsity) -> LayerTask<'a> {
    let tokens = x.len() / D;
    let (predictor, cut) = (None, None);
    LayerTask { layer: 0, ffn, predictor, cut, sparsity, shift: 0.0, audited: false, x, residual: x, tokens }
}

fn check(config: &ModelConfig, ffn: &Ffn, sparsity: Sparsity, wanted: impl Fn(&[f64]) -> Vec<f64>) {
    let mut seed = 11;
    let mut layer = LayerFfn::default();
    for (threads, tokens) in [(1, 1), (2, 7), (1, 3)] {
        let cpu = Cpu::new(&CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap();
        let x: Vec<f32> = (0..tokens * D).map(|_| noise(&mut seed)).collect();
        let mut out = vec![f32::NAN; x.len()];
        layer.run(&cpu, config, &task(ffn, &x, sparsity), &mut out, &mut ()).unwrap();
        for (out, x) in out.chunks(D).zip(x.chunks(D)) {
            close(out, &wanted(&wide(x)));
        }
    }
}

/// The same FFN with neurons as rows of its down projection.
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

#[test]
fn nothing_changes_where_zeros_are_skipped() {
    for (activation, gated) in KINDS {
        let config = config(activation, None);
        let weights = ffn(gated, 40, &mut 5);
        for weights in [weights.clone(), neuron_major(weights)] {
            for sparsity in [Sparsity::Dense, Sparsity::Exact, Sparsity::Predicted, Sparsity::Threshold] {
                // Without a predictor and a cut no mode approximates.
                check(&config, &Ffn::Dense(weights.clone()), sparsity, |x| plain(activation, &weights, x));
            }
        }
    }
}

/// Any split of the neurons adds up to the whole, for tokens alone and together.
#[test]
fn parts_add_up() {
    let cpu = Cpu::new(&CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap();
    let mut seed = 77;
    for (activation, gated) in KINDS {
        let weights = ffn(gated, 70, &mut seed);
        for weights in [weights.clone(), neuron_major(weights)] {
            for (sparsity, tokens, share) in [
                (Sparsity::Dense, 1, 0.5),
                (Sparsity::Exact, 1, -0.8),
                (Sparsity::Exact, 1, 0.9),
                (Sparsity::Exact, 5, 0.3),
            ] {
                let x: Vec<f32> = (0..tokens * D).map(|_| noise(&mut seed)).collect();
                let (ours, theirs): (Vec<u32>, Vec<u32>) = (0..70).partition(|_| noise(&mut seed) < share);
                let mut sum = vec![0.0; x.len()];
                let mut fired = vec![0; tokens * mask::words(70)];
                let mut computes = CpuFfn::default();
                for list in [&ours, &theirs] {
                    let mut out = vec![f32::NAN; x.len()];
                    let part = FfnTask {
                        blocks: &[FfnBlock { neurons: Some(list), ..FfnBlock::whole(&weights) }],
                        activation,
                        sparsity,
                        guess: None,
                        audited: false,
                        cut: None,
                        x: &x,
                        tokens,
                        observed: true,
                    };
                    let before = mask::count(&fired);
                    let work = computes.partial(&cpu, &part, &mut out).unwrap();
                    computes.fired(0, &mut fired);
                    assert!(work.active <= list.len() && (work.active > 0 || mask::count(&fired) == before));
                    sum.iter_mut().zip(out).for_each(|(sum, out)| *sum += out);
                }
                layer_ffn::add_bias(&weights, 1.0, &mut sum);
                for (t, (sum, x)) in sum.chunks(D).zip(x.chunks(D)).enumerate() {
                    let hidden = hidden(activation, &weights, &wide(x));
                    close(sum, &project(&weights, &hidden));
                    let fired = &fired[t * mask::words(70)..];
                    assert!(
                        (0..70).all(|i| mask::contains(fired, i) == (hidden[i] != 0.0)),
                        "{activation} {gated} {sparsity}"
                    );
                }
            }
        }
    }
}

/// Neurons a predictor rules out do not count; whoever guesses, and whatever it sees.
#[test]
fn only_what_is_predicted_counts() {
    let cpu = Cpu::new(&CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap();
    let mut seed = 9;
    for (activation, gated) in KINDS.into_iter().filter(|(activation, _)| activation.is_sparse()) {
        let weights = neuron_major(ffn(gated, 40, &mut seed));
        let (fc1, fc2) = (linear(32, D, &mut seed).weight, linear(40, 32, &mut seed).weight);
        let rows = linear(40, D, &mut seed);
        let kinds =
            [PredictorKind::LowRank { fc1, fc2 }, PredictorKind::Rows { rows: rows.weight, bias: rows.bias.clone() }];
        for (kind, input) in kinds.into_iter().zip([PredictorInput::Residual, PredictorInput::Normed]) {
            let predictor = Predictor { kind, input, threshold: 0.2, quality: None, by_input: Default::default() };
            let x: Vec<f32> = (0..D).map(|_| noise(&mut seed)).collect();
            let residual: Vec<f32> = (0..D).map(|_| noise(&mut seed)).collect();
            let scores = match &predictor.kind {
                PredictorKind::LowRank { fc1, fc2 } => {
                    let plain = |weight: &Matrix| Linear { weight: weight.clone(), bias: None };
                    let rank = times(&plain(fc1), &wide(&residual)).into_iter().map(|h| h.max(0.0)).collect::<Vec<_>>();
                    times(&plain(fc2), &rank)
                }
                PredictorKind::Rows { rows, bias } => {
                    times(&Linear { weight: rows.clone(), bias: bias.clone() }, &wide(&x))
                }
            };
            let guessed: Vec<bool> = scores.iter().map(|score| *score >= 0.2).collect();
            assert!(guessed.contains(&true) && guessed.contains(&false));
            let all = hidden(activation, &weights, &wide(&x));
            let masked: Vec<f64> = all.iter().zip(&guessed).map(|(h, may)| if *may { *h } else { 0.0 }).collect();

            let ffn = Ffn::Dense(weights.clone());
            let task =
                LayerTask { predictor: Some(&predictor), residual: &residual, ..task(&ffn, &x, Sparsity::Predicted) };
            let (mut layer, mut seen) = (LayerFfn::default(), Seen::default());
            let mut out = vec![f32::NAN; D];
            layer.run(&cpu, &config(activation, None), &task, &mut out, &mut seen).unwrap();
            close(&out, &project(&weights, &masked));
            assert!((0..40).all(|i| mask::contains(&seen.fired, i) == (masked[i] != 0.0)));
            assert!((0..40).all(|i| (f64::from(seen.strength[i]) - masked[i].abs()).abs() < 1e-4));
            let predicted = seen.predicted.clone().unwrap();
            assert!((0..40).all(|i| mask::contains(&predicted, i) == guessed[i]));
            // The predictor's own bytes, the candidates' firing rows, the other rows of those that fire.
            let (candidates, row) = (guessed.iter().filter(|may| **may).count() as u64, (D * 4) as u64);
            assert!(seen.bytes.0 >= predictor.bytes() + candidates * row && seen.bytes.1 <= seen.bytes.0);

            // A lower threshold lets more through.
            let lower = LayerTask { shift: -3.0, ..task };
            layer.run(&cpu, &config(activation, None), &lower, &mut out, &mut seen).unwrap();
            let more = seen.predicted.clone().unwrap();
            assert!((0..40).all(|i| mask::contains(&more, i) == (scores[i] >= -2.8)));
            assert!(mask::count(&more) > mask::count(&predicted));

            // An audited predictor is asked and not followed: nothing is missed, and what would have been can be seen.
            assert!(!seen.complete);
            let audited = LayerTask { audited: true, ..task };
            layer.run(&cpu, &config(activation, None), &audited, &mut out, &mut seen).unwrap();
            close(&out, &project(&weights, &all));
            assert!(seen.complete && seen.predicted.as_ref() == Some(&predicted));
            assert!((0..40).all(|i| mask::contains(&seen.fired, i) == (all[i] != 0.0)));

            // The same guess from elsewhere, for some of the neurons.
            let some: Vec<u32> = (0..40).filter(|i| i % 3 != 0).collect();
            let part = FfnTask {
                blocks: &[FfnBlock { neurons: Some(&some), ..FfnBlock::whole(&weights) }],
                activation,
                sparsity: Sparsity::Predicted,
                guess: Some(Guess::Mask(&predicted)),
                audited: false,
                cut: None,
                x: &x,
                tokens: 1,
                observed: false,
            };
            CpuFfn::default().partial(&cpu, &part, &mut out).unwrap();
            layer_ffn::add_bias(&weights, 1.0, &mut out);
            let masked: Vec<f64> = (0..40).map(|i| if i % 3 == 0 { 0.0 } else { masked[i] }).collect();
            close(&out, &project(&weights, &masked));
        }
    }
}

/// A neuron whose gate's activation is under the cut is left out, and said not to have fired even where it is computed.
#[test]
fn what_is_under_the_cut_is_left_out() {
    let cpu = Cpu::new(&CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap();
    let (activation, cut, mut seed) = (Activation::Silu, 0.15, 21);
    let weights = ffn(true, 40, &mut seed);
    let Some(gate) = weights.gate.clone() else { unreachable!() };
    for weights in [weights.clone(), neuron_major(weights)] {
        let ffn = Ffn::Dense(weights.clone());
        for (sparsity, tokens) in [(Sparsity::Threshold, 1), (Sparsity::Dense, 1), (Sparsity::Threshold, 3)] {
            let skips = sparsity == Sparsity::Threshold && tokens == 1;
            let x: Vec<f32> = (0..tokens * D).map(|_| noise(&mut seed)).collect();
            let task = LayerTask { cut: Some(cut), ..task(&ffn, &x, sparsity) };
            let (mut layer, mut seen) = (LayerFfn::default(), Seen::default());
            let mut out = vec![f32::NAN; x.len()];
            layer.run(&cpu, &config(activation, None), &task, &mut out, &mut seen).unwrap();
            for (t, (out, x)) in out.chunks(D).zip(x.chunks(D)).enumerate() {
                let above: Vec<bool> =
                    times(&gate, &wide(x)).into_iter().map(|g| act(activation, g).abs() > f64::from(cut)).collect();
                assert!(above.contains(&true) && above.contains(&false));
                let hidden = hidden(activation, &weights, &wide(x));
                let counts = |i: usize| if above[i] || !skips { hidden[i] } else { 0.0 };
                close(out, &project(&weights, &(0..40).map(counts).collect::<Vec<_>>()));
                let fired = &seen.fired[t * mask::words(40)..];
                assert!((0..40).all(|i| mask::contains(fired, i) == above[i]), "{sparsity} {tokens}");
            }
        }
    }
}

#[test]
fn mixtures_with_and_without_a_shared_expert() {
    let mut seed = 3;
    for (activation, renormalise, with_shared) in
        [(Activation::Silu, true, false), (Activation::Silu, false, true), (Activation::Relu, true, true)]
    {
        let (router, experts) = (linear(5, D, &mut seed), (0..5).map(|_| ffn(true, 16, &mut seed)).collect());
        let always = |seed: &mut _| Box::new(SharedExpert { gate: linear(1, D, seed), ffn: ffn(true, 32, seed) });
        let shared = with_shared.then(|| always(&mut seed));
        let weights = ExpertWeights { router, experts, shared, file_down: Vec::new() };
        let experts = Experts { count: 5, used: 2, renormalise, n_ff: 16 };
        let config = config(activation, Some(experts));
        check(&config, &Ffn::Experts(weights.clone()), Sparsity::Exact, |x| {
            let scores = times(&weights.router, x);
            let total: f64 = scores.iter().map(|s| s.exp()).sum();
            let mut order: Vec<usize> = (0..5).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            let shares: Vec<f64> = order[..2].iter().map(|e| scores[*e].exp() / total).collect();
            let sum = if renormalise { shares.iter().sum() } else { 1.0 };
            let mut out = vec![0.0; D];
            for (e, share) in order.iter().zip(shares) {
                for (out, y) in out.iter_mut().zip(plain(activation, &weights.experts[*e], x)) {
                    *out += share / sum * y;
                }
            }
            if let Some(shared) = &weights.shared {
                let gate = 1.0 / (1.0 + (-times(&shared.gate, x)[0]).exp());
                for (out, y) in out.iter_mut().zip(plain(activation, &shared.ffn, x)) {
                    *out += gate * y;
                }
            }
            out
        });
    }
}

/// Neurons of the chosen experts fire as plain arithmetic says, those of others do not, and nobody computes otherwise for being
/// watched.
#[test]
fn chosen_experts_tell_which_of_their_neurons_fired() {
    const WIDTH: usize = 20;
    let mut seed = 5;
    for (activation, cut, shared, sparsity) in [
        (Activation::Relu, None, 0, Sparsity::Exact),
        (Activation::Relu, None, 40, Sparsity::Dense),
        (Activation::DRelu, None, 33, Sparsity::Exact),
        (Activation::Silu, None, 40, Sparsity::Dense),
        (Activation::Silu, Some(0.2), 40, Sparsity::Threshold),
    ] {
        let router = linear(5, D, &mut seed);
        let experts = (0..5).map(|_| ffn(true, WIDTH, &mut seed)).collect();
        let always = |seed: &mut _| Box::new(SharedExpert { gate: linear(1, D, seed), ffn: ffn(true, shared, seed) });
        let shared_expert = (shared > 0).then(|| always(&mut seed));
        let weights = ExpertWeights { router, experts, shared: shared_expert, file_down: Vec::new() };
        let config = config(activation, Some(Experts { count: 5, used: 2, renormalise: true, n_ff: WIDTH }));
        let ffn = Ffn::Experts(weights.clone());
        let all = 5 * WIDTH + shared;
        assert_eq!(ffn.neurons().count(), all);
        let mut layer = LayerFfn::default();
        let cpu = Cpu::new(&CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap();
        for tokens in [1, 7, 3] {
            let x: Vec<f32> = (0..tokens * D).map(|_| noise(&mut seed)).collect();
            let [mut out, mut unseen] = [(); 2].map(|()| vec![f32::NAN; x.len()]);
            let task = LayerTask { cut, ..task(&ffn, &x, sparsity) };
            let mut seen = Seen::default();
            layer.run(&cpu, &config, &task, &mut out, &mut seen).unwrap();
            layer.run(&cpu, &config, &task, &mut unseen, &mut ()).unwrap();
            assert_eq!(out, unseen);
            assert!(seen.complete && seen.bytes.0 > 0);
            assert_eq!((seen.fired.len(), seen.chosen.len()), (tokens * mask::words(all), tokens));
            for (t, x) in x.chunks(D).enumerate() {
                let x = wide(x);
                let scores = times(&weights.router, &x);
                let mut order: Vec<usize> = (0..5).collect();
                order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
                let chosen = |e: usize| order[..2].contains(&e);
                assert_eq!(seen.chosen[t], (0..5).filter(|e| chosen(*e)).map(|e| 1 << e).sum::<u32>());
                let fired = &seen.fired[t * mask::words(all)..][..mask::words(all)];
                let strength = &seen.strength[t * all..][..all];
                let experts = weights.experts.iter().enumerate().map(|(e, ffn)| (e * WIDTH, chosen(e), ffn));
                let shared = weights.shared.iter().map(|shared| (5 * WIDTH, true, &shared.ffn));
                let mut some = 0;
                let total: f64 = order[..2].iter().map(|e| scores[*e].exp()).sum();
                let mut sum = vec![0.0; D];
                for (first, works, ffn) in experts.chain(shared) {
                    let gate = times(ffn.gate.as_ref().unwrap(), &x);
                    let mut values = hidden(activation, ffn, &x);
                    let share = match &weights.shared {
                        Some(shared) if first == 5 * WIDTH => 1.0 / (1.0 + (-times(&shared.gate, &x)[0]).exp()),
                        _ => scores[first / WIDTH].exp() / total,
                    };
                    for (i, value) in values.iter_mut().enumerate() {
                        let above = cut.map_or(*value != 0.0, |cut| act(activation, gate[i]).abs() > f64::from(cut));
                        // Only single tokens leave anything out.
                        *value = if sparsity == Sparsity::Threshold && tokens == 1 && !above { 0.0 } else { *value };
                        let wanted = if works { value.abs() } else { 0.0 };
                        assert_eq!(mask::contains(fired, first + i), works && above, "{activation} {tokens}");
                        assert!((f64::from(strength[first + i]) - wanted).abs() < 1e-5, "{activation} {tokens}");
                        some += usize::from(works && above);
                    }
                    if works {
                        sum.iter_mut().zip(project(ffn, &values)).for_each(|(sum, y)| *sum += share * y);
                    }
                }
                close(&out[t * D..][..D], &sum);
                assert_eq!(mask::count(fired), some);
                assert!(some > 0, "{activation}");
            }
        }
    }
}
