//! Separate tokens in modes that skip neurons.

use super::*;
use thermocline_model::{Predictor, PredictorInput, PredictorKind, mask};

fn predictor(seed: &mut u64) -> Predictor {
    let rows = linear(70, D, seed);
    let kind = PredictorKind::Rows { rows: rows.weight, bias: rows.bias };
    Predictor { kind, input: PredictorInput::Normed, threshold: 0.1, quality: None, by_input: Default::default() }
}

/// In every mode, each token of a batch has the output, firing neurons and prediction of a
/// single-token pass. This holds whether few or nearly all neurons fire for any of the tokens.
#[test]
fn separate_tokens_are_computed_as_each_alone() {
    let mut seed = 31;
    let mut skipped = 0;
    for (activation, gated) in KINDS.into_iter().filter(|(activation, gated)| activation.is_sparse() || *gated) {
        let weights = ffn(gated, 70, &mut seed);
        let predictor = predictor(&mut seed);
        let modes: &[Sparsity] =
            if activation.is_sparse() { &[Sparsity::Exact, Sparsity::Predicted] } else { &[Sparsity::Threshold] };
        for weights in [weights.clone(), neuron_major(weights)] {
            let ffn = Ffn::Dense(weights);
            for (sparsity, tokens, threads) in
                modes.iter().flat_map(|mode| [(*mode, 2, 1), (*mode, 5, 3), (*mode, 12, 2)])
            {
                let cpu = Cpu::new(&CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap();
                let x: Vec<f32> = (0..tokens * D).map(|_| noise(&mut seed)).collect();
                let config = config(activation, None);
                let of = |x| LayerTask {
                    predictor: Some(&predictor),
                    activation_threshold: Some(0.15),
                    separate: true,
                    ..task(&config, &ffn, x, sparsity)
                };
                let (mut layer, mut seen) = (LayerFfn::default(), Seen::default());
                let mut out = vec![f32::NAN; x.len()];
                layer.run(&cpu, &of(&x), &mut out, &mut seen).unwrap();
                let words = mask::words(70);
                for (t, (out, x)) in out.chunks(D).zip(x.chunks(D)).enumerate() {
                    let (mut alone, mut single) = (vec![f32::NAN; D], Seen::default());
                    layer.run(&cpu, &of(x), &mut alone, &mut single).unwrap();
                    close(out, &wide(&alone));
                    let what = format!("{activation} {gated} {sparsity}: {t} of {tokens}");
                    assert_eq!(seen.fired[t * words..][..words], single.fired, "{what}");
                    let of_token = seen.predicted.as_ref().map(|all| all[t * words..][..words].to_vec());
                    assert_eq!(of_token, single.predicted, "{what}");
                    skipped += 70 - mask::count(&single.fired);
                }
            }
        }
    }
    assert!(skipped > 1000, "{skipped}");
}
