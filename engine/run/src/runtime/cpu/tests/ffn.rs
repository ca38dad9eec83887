//! Dense FFNs: whole and in parts, with a predictor and with an activation threshold.

use super::*;
use thermocline_model::{Predictor, PredictorInput, PredictorKind, mask};

#[test]
fn skipped_zeros_do_not_change_the_ffn_output() {
    for (activation, gated) in KINDS {
        let config = config(activation, None);
        let weights = ffn(gated, 40, &mut 5);
        for weights in [weights.clone(), neuron_major(weights)] {
            for sparsity in [Sparsity::Dense, Sparsity::Exact, Sparsity::Predicted, Sparsity::Threshold] {
                // Without a predictor and an activation threshold no mode approximates.
                check(&config, &Ffn::Dense(weights.clone()), sparsity, |x| plain(activation, &weights, x));
            }
        }
    }
}

/// The partial sums of any two disjoint sets of neurons add up to the FFN's output, for one token
/// and for several.
#[test]
fn partial_sums_add_up_to_the_output() {
    let cpu = Cpu::new(&CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap();
    let mut seed = 77;
    for (activation, gated) in KINDS {
        let weights = ffn(gated, 70, &mut seed);
        for weights in [weights.clone(), neuron_major(weights)] {
            for (sparsity, tokens, fraction) in [
                (Sparsity::Dense, 1, 0.5),
                (Sparsity::Exact, 1, -0.8),
                (Sparsity::Exact, 1, 0.9),
                (Sparsity::Exact, 5, 0.3),
            ] {
                let x: Vec<f32> = (0..tokens * D).map(|_| noise(&mut seed)).collect();
                let (one, other): (Vec<u32>, Vec<u32>) = (0..70).partition(|_| noise(&mut seed) < fraction);
                let mut sum = vec![0.0; x.len()];
                let mut fired = vec![0; tokens * mask::words(70)];
                let mut ffn = CpuFfn::default();
                for list in [&one, &other] {
                    let mut out = vec![f32::NAN; x.len()];
                    let blocks = [FfnBlock { neurons: Some(list), ..FfnBlock::whole(&weights) }];
                    let dense = FfnTask::dense(&blocks, activation, TokenInputs { x: &x, tokens });
                    let part = FfnTask { sparsity, observed: true, ..dense };
                    let before = mask::count(&fired);
                    let work = ffn.partial(&cpu, &part, &mut out).unwrap();
                    ffn.fired(0, &mut fired);
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

/// Only predicted neurons contribute, whether the prediction is a mask or a predictor, of either
/// kind and input.
#[test]
fn only_predicted_neurons_contribute() {
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
            let expected: Vec<bool> = scores.iter().map(|score| *score >= 0.2).collect();
            assert!(expected.contains(&true) && expected.contains(&false));
            let all = hidden(activation, &weights, &wide(&x));
            let masked: Vec<f64> = all.iter().zip(&expected).map(|(h, may)| if *may { *h } else { 0.0 }).collect();

            let ffn = Ffn::Dense(weights.clone());
            let config = config(activation, None);
            let task = task(&config, &ffn, &x, Sparsity::Predicted);
            let task = LayerTask { predictor: Some(&predictor), residual: &residual, ..task };
            let (mut layer, mut seen) = (LayerFfn::default(), Seen::default());
            let mut out = vec![f32::NAN; D];
            layer.run(&cpu, &task, &mut out, &mut seen).unwrap();
            close(&out, &project(&weights, &masked));
            assert!((0..40).all(|i| mask::contains(&seen.fired, i) == (masked[i] != 0.0)));
            assert!((0..40).all(|i| (f64::from(seen.strength[i]) - masked[i].abs()).abs() < 1e-4));
            let predicted = seen.predicted.clone().unwrap();
            assert!((0..40).all(|i| mask::contains(&predicted, i) == expected[i]));
            // Bytes read: the predictor, the gate rows of predicted neurons, and the up and down
            // rows of firing neurons.
            let (candidates, row) = (expected.iter().filter(|may| **may).count() as u64, (D * 4) as u64);
            assert!(seen.bytes.0 >= predictor.bytes() + candidates * row && seen.bytes.1 <= seen.bytes.0);

            // With a lower predictor threshold more neurons are predicted.
            let lower = LayerTask { shift: -3.0, ..task };
            layer.run(&cpu, &lower, &mut out, &mut seen).unwrap();
            let more = seen.predicted.clone().unwrap();
            assert!((0..40).all(|i| mask::contains(&more, i) == (scores[i] >= -2.8)));
            assert!(mask::count(&more) > mask::count(&predicted));

            // A recall check computes the predictor and ignores its prediction. The output is
            // exact, and the report contains the neurons that the predictor would have missed.
            assert!(!seen.complete);
            let checked = LayerTask { recall_check: true, ..task };
            layer.run(&cpu, &checked, &mut out, &mut seen).unwrap();
            close(&out, &project(&weights, &all));
            assert!(seen.complete && seen.predicted.as_ref() == Some(&predicted));
            assert!((0..40).all(|i| mask::contains(&seen.fired, i) == (all[i] != 0.0)));

            // The same prediction as a mask, for some of the neurons.
            let some: Vec<u32> = (0..40).filter(|i| i % 3 != 0).collect();
            let blocks = [FfnBlock { neurons: Some(&some), ..FfnBlock::whole(&weights) }];
            let dense = FfnTask::dense(&blocks, activation, TokenInputs { x: &x, tokens: 1 });
            let prediction = Some(PredictionSource::Mask(&predicted));
            let part = FfnTask { sparsity: Sparsity::Predicted, prediction, ..dense };
            CpuFfn::default().partial(&cpu, &part, &mut out).unwrap();
            layer_ffn::add_bias(&weights, 1.0, &mut out);
            let masked: Vec<f64> = (0..40).map(|i| if i % 3 == 0 { 0.0 } else { masked[i] }).collect();
            close(&out, &project(&weights, &masked));
        }
    }
}

/// Scales of gates decide with the threshold which neurons are skipped. Ones change no bit.
#[test]
fn scaled_gates_are_compared_with_the_threshold() {
    let cpu = Cpu::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
    let (activation, threshold, mut seed) = (Activation::Silu, 0.15, 23);
    let plain = ffn(true, 40, &mut seed);
    let gate = plain.gate.clone().unwrap();
    let some: Vec<u32> = (0..40).filter(|i| i % 3 != 0).collect();
    let scale = |i: usize| if i.is_multiple_of(2) { 3.0 } else { 0.5 };
    for plain in [plain.clone(), neuron_major(plain)] {
        let x: Vec<f32> = (0..D).map(|_| noise(&mut seed)).collect();
        let gates: Vec<f64> = times(&gate, &wide(&x)).into_iter().map(|g| act(activation, g).abs()).collect();
        let all = hidden(activation, &plain, &wide(&x));
        for neurons in [None, Some(&some[..])] {
            let run = |scales: Option<Vec<f32>>, separate: bool| {
                let weights = FfnWeights { gate_scales: scales.map(Into::into), ..plain.clone() };
                let blocks = [FfnBlock { neurons, ..FfnBlock::whole(&weights) }];
                // The same token twice takes the way of separate tokens.
                let tokens = if separate { 2 } else { 1 };
                let x = x.repeat(tokens);
                let task = FfnTask::dense(&blocks, activation, TokenInputs { x: &x, tokens });
                let (sparsity, activation_threshold) = (Sparsity::Threshold, Some(threshold));
                let task = FfnTask { sparsity, activation_threshold, separate, ..task };
                let mut out = vec![f32::NAN; x.len()];
                CpuFfn::default().partial(&cpu, &task, &mut out).unwrap();
                layer_ffn::add_bias(&weights, 1.0, &mut out);
                out[out.len() - D..].to_vec()
            };
            for separate in [false, true] {
                assert_eq!(run(Some(vec![1.0; 40]), separate), run(None, separate));
                let out = run(Some((0..40).map(|i| scale(i) as f32).collect()), separate);
                let counts = |i: usize| neurons.is_none_or(|list| list.contains(&(i as u32)));
                let fires = |i: usize| counts(i) && gates[i] * scale(i) > f64::from(threshold);
                let kept: Vec<f64> = (0..40).map(|i| if fires(i) { all[i] } else { 0.0 }).collect();
                close(&out, &project(&plain, &kept));
                assert_ne!(out, run(None, separate));
            }
        }
    }
}

/// A neuron whose gate's activation is below the threshold is skipped, and is reported as silent if
/// a mode computes it.
#[test]
fn neurons_below_the_threshold_are_skipped() {
    let cpu = Cpu::new(&CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap();
    let (activation, threshold, mut seed) = (Activation::Silu, 0.15, 21);
    let weights = ffn(true, 40, &mut seed);
    let Some(gate) = weights.gate.clone() else { unreachable!() };
    let config = config(activation, None);
    for weights in [weights.clone(), neuron_major(weights)] {
        let ffn = Ffn::Dense(weights.clone());
        for (sparsity, tokens) in [(Sparsity::Threshold, 1), (Sparsity::Dense, 1), (Sparsity::Threshold, 3)] {
            let skips = sparsity == Sparsity::Threshold && tokens == 1;
            let x: Vec<f32> = (0..tokens * D).map(|_| noise(&mut seed)).collect();
            let task = LayerTask { activation_threshold: Some(threshold), ..task(&config, &ffn, &x, sparsity) };
            let (mut layer, mut seen) = (LayerFfn::default(), Seen::default());
            let mut out = vec![f32::NAN; x.len()];
            layer.run(&cpu, &task, &mut out, &mut seen).unwrap();
            for (t, (out, x)) in out.chunks(D).zip(x.chunks(D)).enumerate() {
                let above: Vec<bool> = times(&gate, &wide(x))
                    .into_iter()
                    .map(|g| act(activation, g).abs() > f64::from(threshold))
                    .collect();
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
