//! Tests of predictors on layers with a known structure.

use std::ops::ControlFlow;

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

use super::{
    DataSplit, LayerData, PredictorReport, Rows, Target, ThresholdGoal, TrainOptions, Trained, activation_threshold,
    assess, gate_scales, low_bit, train,
};
use thermocline_base::error::Error;
use thermocline_cpu::{Cpu, CpuOptions};
use thermocline_formats::{
    format::{Bytes, Matrix},
    quant::TensorType,
};
use thermocline_model::{Activation, Down, FfnWeights, Linear, PredictorKind};

const D: usize = 64;
const N_FF: usize = 256;

fn cpu(threads: usize) -> Cpu {
    Cpu::new(&CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap()
}

fn matrix(rows: usize, cols: usize, values: &[f32]) -> Matrix {
    Matrix::new(TensorType::F32, rows, cols, Bytes::new(bytemuck::cast_slice(values).to_vec())).unwrap()
}

/// Returns nearly normal numbers of standard deviation 1: sums of four uniform numbers.
fn normal(rng: &mut ChaCha8Rng, n: usize) -> Vec<f32> {
    let uniform = |rng: &mut ChaCha8Rng| super::low_rank::uniform(rng, 0.5);
    (0..n).map(|_| (0..4).map(|_| uniform(rng)).sum()).collect()
}

/// Creates a gated layer whose firing rows combine `directions` directions, with a tenth of noise.
/// The gate's bias is `bias` standard deviations below zero.
fn layer(d: usize, n_ff: usize, directions: usize, bias: f32, seed: u64) -> FfnWeights {
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
    let basis = normal(rng, directions * d);
    let mut gate = Vec::with_capacity(n_ff * d);
    for _ in 0..n_ff {
        let (parts, noise) = (normal(rng, directions), normal(rng, d));
        let mut row: Vec<f32> = noise.iter().map(|x| 0.1 * x).collect();
        for (part, direction) in parts.iter().zip(basis.chunks_exact(d)) {
            row.iter_mut().zip(direction).for_each(|(row, v)| *row += part * v / (directions as f32).sqrt());
        }
        let length = row.iter().map(|w| w * w).sum::<f32>().sqrt();
        gate.extend(row.iter().map(|w| w / length));
    }
    let linear = |rows, cols, values: &[f32], bias| Linear { weight: matrix(rows, cols, values), bias };
    FfnWeights {
        gate: Some(linear(n_ff, d, &gate, Some(vec![-bias; n_ff]))),
        up: linear(n_ff, d, &normal(rng, n_ff * d), None),
        down: Down::Neurons(linear(n_ff, d, &normal(rng, n_ff * d), None)),
        bundled_gate: None,
        limit: None,
        gate_scales: None,
    }
}

/// Creates inputs `[tokens, d]` of length `sqrt(d)`, as a norm outputs them.
fn inputs(d: usize, tokens: usize, seed: u64) -> Vec<f32> {
    let mut x = normal(&mut ChaCha8Rng::seed_from_u64(seed), tokens * d);
    for x in x.chunks_exact_mut(d) {
        let scale = (d as f32 / x.iter().map(|x| x * x).sum::<f32>()).sqrt();
        x.iter_mut().for_each(|x| *x *= scale);
    }
    x
}

fn data<'a>(ffn: &'a FfnWeights, x: &'a [f32]) -> LayerData<'a> {
    LayerData::new(ffn, Activation::Relu, Rows::F32(x), None).unwrap()
}

fn go_on(_: super::TrainProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn trained(data: &LayerData<'_>, options: &TrainOptions) -> Trained {
    train(&cpu(2), data, options, &mut go_on).unwrap()
}

/// Asserts that `predictor` meets `target` on fresh text, within the text's sampling error.
fn check_fresh(
    ffn: &FfnWeights,
    d: usize,
    predictor: &thermocline_model::Predictor,
    target: Target,
) -> PredictorReport {
    let fresh = inputs(d, 20_000, 99);
    let report = assess(&cpu(2), &data(ffn, &fresh), predictor, target).unwrap();
    assert!(report.figures.recall >= target.recall - 0.01, "{report}");
    assert!(report.figures.mass_recall >= target.mass - 0.003, "{report}");
    report
}

#[test]
fn trained_predictor_of_few_directions_has_a_small_rank() {
    let ffn = layer(D, N_FF, 6, 1.3, 1);
    let x = inputs(D, 10_000, 2);
    let Trained { predictor, report } = trained(&data(&ffn, &x), &TrainOptions::default());
    assert!(report.rank.unwrap() <= 64, "{report}");
    assert_eq!(report.quality(), predictor.quality.unwrap());
    let fresh = check_fresh(&ffn, D, &predictor, Target::default());
    assert!(fresh.figures.density < 3.0 * fresh.figures.active, "{fresh}");
    assert!((0.05..0.15).contains(&fresh.figures.active), "{fresh}");
}

#[test]
fn trained_rank_grows_with_the_directions_of_a_layer() {
    // The layer is wide enough for a larger rank to pay: it has more neurons than a predictor has
    // parameters per unit.
    let (d, n_ff) = (96, 1024);
    let x = inputs(d, 12_000, 3);
    let rank = |directions| {
        let ffn = layer(d, n_ff, directions, 1.3, 4);
        trained(&data(&ffn, &x), &TrainOptions { epochs: 6, ..TrainOptions::default() }).report
    };
    let (easy, hard) = (rank(3), rank(96));
    assert!(hard.rank > easy.rank, "{easy}; {hard}");
}

#[test]
fn trained_predictor_keeps_its_parameter_budget() {
    let ffn = layer(D, N_FF, 48, 1.0, 5);
    let x = inputs(D, 4_000, 6);
    let parameters = 33 * (D + N_FF) as u64;
    let options = TrainOptions { parameters, epochs: 2, ..TrainOptions::default() };
    let Trained { predictor, report } = trained(&data(&ffn, &x), &options);
    assert_eq!(report.rank, Some(32));
    assert!(report.parameters <= parameters && predictor.bytes() == 2 * report.parameters);
    let too_few = TrainOptions { parameters: 31 * (D + N_FF) as u64, ..options };
    assert!(matches!(train(&cpu(1), &data(&ffn, &x), &too_few, &mut go_on), Err(Error::Invalid { .. })));

    let mut parameter_budget = super::ParameterBudget::new(3000, 3);
    assert_eq!(parameter_budget.next_layer(), 100);
    parameter_budget.spend(40);
    assert_eq!(parameter_budget.next_layer(), 130);
    parameter_budget.spend(500);
    assert_eq!(parameter_budget.next_layer(), 0);
}

#[test]
fn training_is_deterministic_for_a_seed_at_any_thread_count() {
    let ffn = layer(D, N_FF, 6, 1.3, 7);
    let x = inputs(D, 2_000, 8);
    let bytes = |threads, seed| {
        let options = TrainOptions { seed, epochs: 2, types: vec![TensorType::Q8_0], ..TrainOptions::default() };
        let Trained { predictor, .. } = train(&cpu(threads), &data(&ffn, &x), &options, &mut go_on).unwrap();
        let PredictorKind::LowRank { fc1, fc2 } = predictor.kind else { panic!("not low-rank") };
        (fc1.data().to_vec(), fc2.data().to_vec(), predictor.threshold.to_bits())
    };
    let first = bytes(1, 1);
    assert!(first == bytes(1, 1), "the same again");
    assert!(first == bytes(3, 1), "threads do not matter");
    assert!(first != bytes(1, 2), "seeds do");
}

#[test]
fn training_stops_when_progress_breaks() {
    let ffn = layer(D, N_FF, 6, 1.3, 9);
    let x = inputs(D, 2_000, 10);
    let mut last = 0.0;
    for calls in [1, 3, 20] {
        let mut left = calls;
        let mut stop = |progress: super::TrainProgress| {
            assert!((0.0..=1.0).contains(&progress.done));
            last = progress.done;
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let outcome = train(&cpu(1), &data(&ffn, &x), &TrainOptions::default(), &mut stop);
        assert!(matches!(outcome, Err(Error::Cancelled)), "{calls}");
    }
    assert!(last > 0.1, "it had begun to train");
}

#[test]
fn training_progress_is_monotonic_and_ends_at_one() {
    let ffn = layer(D, N_FF, 6, 1.3, 9);
    let x = inputs(D, 1_000, 10);
    let mut last = 0.0;
    let mut watch = |progress: super::TrainProgress| {
        assert!(progress.done >= last, "{progress:?} after {last}");
        last = progress.done;
        ControlFlow::Continue(())
    };
    train(&cpu(1), &data(&ffn, &x), &TrainOptions { epochs: 2, ..TrainOptions::default() }, &mut watch).unwrap();
    assert_eq!(last, 1.0);
}

#[test]
fn training_keeps_its_work_limit() {
    let ffn = layer(D, N_FF, 6, 1.3, 9);
    let x = inputs(D, 4_000, 10);
    for work in [0.0, 1e8] {
        let mut calls = 0;
        let mut count = |_| {
            calls += 1;
            ControlFlow::Continue(())
        };
        train(&cpu(2), &data(&ffn, &x), &TrainOptions { work, ..TrainOptions::default() }, &mut count).unwrap();
        // A step of the smallest rank takes 4e6 multiplications. The preparation calls `progress`
        // 32 times.
        assert!(calls < 80, "{calls} steps for {work}");
    }
}

#[test]
fn training_reports_an_exceeded_time_limit() {
    let ffn = layer(D, N_FF, 6, 1.3, 9);
    let x = inputs(D, 4_000, 10);
    let options = TrainOptions { seconds: Some(0.0), ..TrainOptions::default() };
    let report = trained(&data(&ffn, &x), &options).report;
    assert_eq!(report.limit, Some(super::QualityLimit::Time));
}

#[test]
fn low_bit_rows_meet_the_target_at_any_width() {
    for (d, activation) in [(96, Activation::Relu), (256, Activation::ReluSquared), (96, Activation::DRelu)] {
        let ffn = layer(d, N_FF, d, 1.3, 11);
        let x = inputs(d, 6_000, 12);
        let data = LayerData::new(&ffn, activation, Rows::F32(&x), None).unwrap();
        let mut bytes = 0;
        for ty in super::LOW_BIT_TYPES.into_iter().filter(|ty| d % ty.block_len() == 0) {
            let Trained { predictor, report } = low_bit(&cpu(2), &data, ty, Target::default()).unwrap();
            assert!(predictor.bytes() >= bytes, "{ty} is no smaller than those before");
            bytes = predictor.bytes();
            assert!(report.figures.recall > 0.94 && report.figures.mass_recall > 0.985, "{report}");
            // The gate alone cannot predict what a second ReLU silences.
            let slack = if activation == Activation::DRelu { 2.6 } else { 1.4 };
            assert!(report.figures.density < slack * report.figures.active + 0.01, "{activation} {report}");
        }
    }
    let ffn = layer(40, N_FF, 6, 1.3, 11);
    let x = inputs(40, 100, 12);
    let refused = low_bit(&cpu(1), &data(&ffn, &x), TensorType::Q4_0, Target::default());
    assert!(matches!(refused, Err(Error::Unsupported { .. })));
}

#[test]
fn low_bit_rows_of_ungated_layers_meet_the_target() {
    let FfnWeights { gate, down, .. } = layer(D, N_FF, 6, 1.3, 13);
    let ffn = FfnWeights { gate: None, up: gate.unwrap(), down, bundled_gate: None, limit: None, gate_scales: None };
    let x = inputs(D, 6_000, 14);
    let Trained { predictor, report } = low_bit(&cpu(2), &data(&ffn, &x), TensorType::Q8_0, Target::default()).unwrap();
    assert!(report.figures.density < 1.3 * report.figures.active, "{report}");
    check_fresh(&ffn, D, &predictor, Target::default());
}

#[test]
fn thresholds_meet_any_target_on_fresh_text() {
    let ffn = layer(D, N_FF, 64, 1.0, 15);
    let x = inputs(D, 12_000, 16);
    let mut density = 0.0;
    for target in [
        Target { recall: 0.5, mass: 0.5 },
        Target { recall: 0.9, mass: 0.5 },
        Target { recall: 0.5, mass: 0.995 },
        Target { recall: 0.99, mass: 0.999 },
    ] {
        let Trained { predictor, .. } = low_bit(&cpu(2), &data(&ffn, &x), TensorType::Q4_0, target).unwrap();
        let report = check_fresh(&ffn, D, &predictor, target);
        assert!(report.figures.density > density, "more is found by naming more: {report}");
        density = report.figures.density;
        let excess = (report.figures.recall - target.recall).min(report.figures.mass_recall - target.mass);
        assert!(excess < 0.05, "not more than it has to: {report}");
    }
}

#[test]
fn degenerate_layers_get_finite_predictors() {
    let options = TrainOptions { epochs: 2, ..TrainOptions::default() };
    for (bias, tokens, fires) in [(1e3, 300, 0.0), (-1e3, 300, 1.0), (1.3, 1, -1.0), (1.3, 3, -1.0), (1.3, 33, -1.0)] {
        let ffn = layer(D, N_FF, 6, bias, 17);
        let x = inputs(D, tokens, 18);
        let layer = data(&ffn, &x);
        let low = low_bit(&cpu(1), &layer, TensorType::Q4_0, Target::default()).unwrap();
        for Trained { predictor, report } in [trained(&layer, &options), low] {
            assert!(predictor.threshold.is_finite());
            let figures = report.figures;
            assert!([figures.recall, figures.precision, figures.density].iter().all(|x| (0.0..=1.0).contains(x)));
            if fires >= 0.0 {
                assert_eq!(figures.active, fires);
                assert!((figures.density - fires).abs() < 0.11 && figures.recall > 0.94, "{report}");
            }
        }
    }
    let (ffn, no_tokens) = (layer(D, N_FF, 6, 1.3, 17), []);
    let empty = data(&ffn, &no_tokens);
    assert!(matches!(train(&cpu(1), &empty, &options, &mut go_on), Err(Error::Invalid { .. })));
    assert!(matches!(low_bit(&cpu(1), &empty, TensorType::Q4_0, Target::default()), Err(Error::Invalid { .. })));
    assert!(LayerData::new(&ffn, Activation::Relu, Rows::F32(&[0.0; D + 1]), None).is_err());
    let wrong = Target { recall: 1.5, mass: 0.9 };
    let x = inputs(D, 30, 18);
    assert!(matches!(low_bit(&cpu(1), &data(&ffn, &x), TensorType::Q4_0, wrong), Err(Error::Invalid { .. })));
}

#[test]
fn non_finite_inputs_give_an_error_or_a_finite_threshold() {
    let ffn = layer(D, N_FF, 6, 1.3, 19);
    let mut x = inputs(D, 400, 20);
    for (i, broken) in [f32::NAN, f32::INFINITY, f32::MAX].into_iter().enumerate() {
        x[97 * D + i] = broken;
        x[390 * D + i] = broken;
        let layer = data(&ffn, &x);
        let options = TrainOptions { epochs: 1, ..TrainOptions::default() };
        let trained = train(&cpu(1), &layer, &options, &mut go_on);
        assert!(trained.is_err() || trained.unwrap().predictor.threshold.is_finite());
        let low = low_bit(&cpu(1), &layer, TensorType::Q4_0, Target::default()).unwrap();
        assert!(low.predictor.threshold.is_finite());
    }
}

#[test]
fn f16_inputs_equal_their_f32_values() {
    let ffn = layer(D, N_FF, 6, 1.3, 21);
    let x: Vec<f32> = inputs(D, 500, 22).into_iter().map(|x| half::f16::from_f32(x).to_f32()).collect();
    let halves: Vec<u8> = x.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect();
    let low = |rows| {
        let data = LayerData::new(&ffn, Activation::Relu, rows, None).unwrap();
        low_bit(&cpu(1), &data, TensorType::Q8_0, Target::default()).unwrap()
    };
    let (a, b) = (low(Rows::F32(&x)), low(Rows::F16(&halves)));
    assert_eq!(a.predictor.threshold, b.predictor.threshold);
    assert_eq!(a.report.figures, b.report.figures);
}

#[test]
fn data_split_is_of_contiguous_ranges() {
    assert_eq!(DataSplit::new(1000), DataSplit { train: 0..750, tune: 750..800, set: 800..900, test: 900..1000 });
    assert_eq!(DataSplit::new(1_000_000).test, 1_000_000 - 4096..1_000_000);
    assert_eq!(DataSplit::new(3), DataSplit { train: 0..3, tune: 0..3, set: 0..3, test: 0..3 });
}

#[test]
fn activation_thresholds_meet_their_goal() {
    let ffn = layer(D, N_FF, 64, 0.5, 23);
    let x = inputs(D, 8_000, 24);
    for activation in [Activation::Silu, Activation::GeluTanh] {
        let data = LayerData::new(&ffn, activation, Rows::F32(&x), None).unwrap();
        let cpu = cpu(2);
        let mut error = -1.0;
        for fraction in [0.0, 0.25, 0.5, 0.9] {
            let made = activation_threshold(&cpu, &data, ThresholdGoal::Sparsity(fraction)).unwrap();
            assert!((made.sparsity - fraction).abs() < 0.03, "{made:?}");
            assert!(
                made.mass > 1.0 - fraction - 0.01 && made.mass <= 1.0 + 1e-6,
                "skipped neurons have less mass: {made:?}"
            );
            assert!(made.output_error > error, "{made:?}");
            error = made.output_error;
        }
        let made = activation_threshold(&cpu, &data, ThresholdGoal::OutputError(0.1)).unwrap();
        assert!((0.08..0.11).contains(&made.output_error), "{made:?}");
        assert!(made.sparsity > 0.1, "{made:?}");
        assert_eq!(activation_threshold(&cpu, &data, ThresholdGoal::OutputError(0.0)).unwrap().mass, 1.0);
        assert!(activation_threshold(&cpu, &data, ThresholdGoal::Sparsity(1.0)).is_err());
    }
    let ungated = FfnWeights { gate: None, ..ffn };
    let data = LayerData::new(&ungated, Activation::Silu, Rows::F32(&x), None).unwrap();
    assert!(matches!(
        activation_threshold(&cpu(1), &data, ThresholdGoal::Sparsity(0.5)),
        Err(Error::Unsupported { .. })
    ));
}

/// If the sizes of up values and down vectors differ, scaled gates choose better neurons.
#[test]
fn scaled_gates_skip_neurons_with_less_error() {
    let (mut ffn, cpu) = (layer(D, N_FF, 64, 0.5, 25), cpu(2));
    let mut up = normal(&mut ChaCha8Rng::seed_from_u64(26), N_FF * D);
    let size = |neuron: usize| if neuron.is_multiple_of(3) { 4.0 } else { 0.5 };
    up.chunks_exact_mut(D).enumerate().for_each(|(at, row)| row.iter_mut().for_each(|up| *up *= size(at)));
    ffn.up = Linear { weight: matrix(N_FF, D, &up), bias: None };
    let mut x = inputs(D, 4_000, 27);
    // A first token with far larger values does not change the scales much.
    x[..D].iter_mut().for_each(|x| *x *= 1e3);
    let data = LayerData::new(&ffn, Activation::Silu, Rows::F32(&x), None).unwrap();
    let scales = gate_scales(&cpu, &data).unwrap();
    let [large, small] = [0, 1].map(|first| {
        let of = scales.iter().enumerate().filter(|(at, _)| at.is_multiple_of(3) == (first == 0)).map(|(_, it)| *it);
        of.clone().sum::<f32>() / of.count() as f32
    });
    assert!((7.0..9.0).contains(&(large / small)), "{large} {small}");
    let goal = ThresholdGoal::Sparsity(0.5);
    let plain = activation_threshold(&cpu, &data, goal).unwrap();
    let of = |scales: &[f32]| {
        let scaled = FfnWeights { gate_scales: Some(scales.into()), ..ffn.clone() };
        activation_threshold(&cpu, &data.with_ffn(&scaled), goal).unwrap()
    };
    assert_eq!(of(&[1.0; N_FF]), plain, "scales of 1 change nothing");
    let scaled = of(&scales);
    assert!((scaled.sparsity - 0.5).abs() < 0.03, "{scaled:?}");
    assert!(scaled.output_error < 0.6 * plain.output_error, "{scaled:?} {plain:?}");
}

/// Converts the matrices of `ffn` to type `ty`.
fn quantised(ffn: &FfnWeights, ty: TensorType) -> FfnWeights {
    let of = |linear: &Linear| Linear {
        weight: super::rows::quantised(&cpu(1), &linear.weight, ty).unwrap(),
        ..linear.clone()
    };
    let Down::Neurons(down) = &ffn.down else { panic!("down is output-major") };
    FfnWeights {
        gate: ffn.gate.as_ref().map(of),
        up: of(&ffn.up),
        down: Down::Neurons(of(down)),
        bundled_gate: None,
        limit: ffn.limit,
        gate_scales: None,
    }
}

#[test]
fn training_takes_the_weight_type_that_costs_least() {
    let (hard, easy) = (layer(D, N_FF, 48, 1.3, 15), layer(D, N_FF, 6, 1.3, 1));
    let x = inputs(D, 10_000, 16);
    for ffn in [quantised(&hard, TensorType::Q4_0), hard, easy] {
        let with = |types: &[TensorType]| {
            let options = TrainOptions { epochs: 4, types: types.to_vec(), ..TrainOptions::default() };
            let Trained { predictor, report } = trained(&data(&ffn, &x), &options);
            let fresh = check_fresh(&ffn, D, &predictor, Target::default()).figures;
            (super::FfnCost::new(&ffn).predicted(report.bytes, fresh.density, fresh.active), report.tensor_type)
        };
        let alone = [TensorType::Q8_0, TensorType::Q4_0].map(|ty| with(&[ty]));
        let least = if alone[0].0 < alone[1].0 { &alone[0] } else { &alone[1] };
        for both in [[TensorType::Q8_0, TensorType::Q4_0], [TensorType::Q4_0, TensorType::Q8_0]] {
            assert_eq!(&with(&both), least, "{alone:?}");
        }
    }
    let none = TrainOptions { types: Vec::new(), ..TrainOptions::default() };
    let refused = train(&cpu(1), &data(&layer(D, N_FF, 6, 1.3, 1), &x), &none, &mut go_on);
    assert!(matches!(refused, Err(Error::Invalid { .. })));
}
