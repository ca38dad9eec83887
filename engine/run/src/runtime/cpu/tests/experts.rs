//! MoE layers compared with a reference in f64.

use super::*;
use thermocline_model::{ExpertWeights, Router, SharedExpert, mask};

#[test]
fn moe_output_is_the_weighted_sum_with_and_without_a_shared_expert() {
    let mut seed = 3;
    for (activation, renormalise, with_shared) in
        [(Activation::Silu, true, false), (Activation::Silu, false, true), (Activation::Relu, true, true)]
    {
        let weights = five_experts(16, if with_shared { 32 } else { 0 }, &mut seed);
        let experts = Experts { count: 5, used: 2, router: Router::softmax(renormalise), n_ff: 16 };
        let config = config(activation, Some(experts));
        check(&config, &Ffn::Experts(weights.clone()), Sparsity::Exact, |x| {
            let scores = times(&weights.router, x);
            let total: f64 = scores.iter().map(|s| s.exp()).sum();
            let mut order: Vec<usize> = (0..5).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            let router_weights: Vec<f64> = order[..2].iter().map(|e| scores[*e].exp() / total).collect();
            let sum = if renormalise { router_weights.iter().sum() } else { 1.0 };
            let mut out = vec![0.0; D];
            for (e, router_weight) in order.iter().zip(router_weights) {
                for (out, y) in out.iter_mut().zip(plain(activation, &weights.experts[*e], x)) {
                    *out += router_weight / sum * y;
                }
            }
            if let Some(shared) = &weights.shared {
                let gate = 1.0 / (1.0 + (-times(shared.gate.as_ref().unwrap(), x)[0]).exp());
                for (out, y) in out.iter_mut().zip(plain(activation, &shared.ffn, x)) {
                    *out += gate * y;
                }
            }
            out
        });
    }
}

/// Five experts of `width` neurons, and a shared expert of `shared` neurons unless that is 0.
fn five_experts(width: usize, shared: usize, seed: &mut u64) -> ExpertWeights {
    let router = linear(5, D, seed);
    let experts = (0..5).map(|_| ffn(true, width, seed)).collect();
    let always = |seed: &mut _| Box::new(SharedExpert { gate: Some(linear(1, D, seed)), ffn: ffn(true, shared, seed) });
    ExpertWeights {
        router,
        router_norm: None,
        scale: None,
        selection_bias: None,
        latent: None,
        experts,
        shared: (shared > 0).then(|| always(seed)),
        file_down: Vec::new(),
    }
}

/// The reported neurons are the chosen experts' neurons that fire in the reference. The output is
/// equal with and without a probe.
#[test]
fn firing_neurons_of_chosen_experts_are_reported() {
    const WIDTH: usize = 20;
    let mut seed = 5;
    for (activation, activation_threshold, shared, sparsity) in [
        (Activation::Relu, None, 0, Sparsity::Exact),
        (Activation::Relu, None, 40, Sparsity::Dense),
        (Activation::DRelu, None, 33, Sparsity::Exact),
        (Activation::Silu, None, 40, Sparsity::Dense),
        (Activation::Silu, Some(0.2), 40, Sparsity::Threshold),
    ] {
        let weights = five_experts(WIDTH, shared, &mut seed);
        let config =
            config(activation, Some(Experts { count: 5, used: 2, router: Router::softmax(true), n_ff: WIDTH }));
        let ffn = Ffn::Experts(weights.clone());
        let all = 5 * WIDTH + shared;
        assert_eq!(ffn.neurons().count(), all);
        let mut layer = LayerFfn::default();
        let cpu = Cpu::new(&CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap();
        for tokens in [1, 7, 3] {
            let x: Vec<f32> = (0..tokens * D).map(|_| noise(&mut seed)).collect();
            let [mut out, mut unseen] = [(); 2].map(|()| vec![f32::NAN; x.len()]);
            let task = LayerTask { activation_threshold, ..task(&config, &ffn, &x, sparsity) };
            let mut seen = Seen::default();
            layer.run(&cpu, &task, &mut out, &mut seen).unwrap();
            layer.run(&cpu, &task, &mut unseen, &mut ()).unwrap();
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
                    let router_weight = match &weights.shared {
                        Some(shared) if first == 5 * WIDTH => {
                            1.0 / (1.0 + (-times(shared.gate.as_ref().unwrap(), &x)[0]).exp())
                        }
                        _ => scores[first / WIDTH].exp() / total,
                    };
                    for (i, value) in values.iter_mut().enumerate() {
                        let above = activation_threshold.map_or(*value != 0.0, |activation_threshold| {
                            act(activation, gate[i]).abs() > f64::from(activation_threshold)
                        });
                        // Only single tokens skip neurons.
                        *value = if sparsity == Sparsity::Threshold && tokens == 1 && !above { 0.0 } else { *value };
                        let wanted = if works { value.abs() } else { 0.0 };
                        assert_eq!(mask::contains(fired, first + i), works && above, "{activation} {tokens}");
                        assert!((f64::from(strength[first + i]) - wanted).abs() < 1e-5, "{activation} {tokens}");
                        some += usize::from(works && above);
                    }
                    if works {
                        sum.iter_mut().zip(project(ffn, &values)).for_each(|(sum, y)| *sum += router_weight * y);
                    }
                }
                close(&out[t * D..][..D], &sum);
                assert_eq!(mask::count(fired), some);
                assert!(some > 0, "{activation}");
            }
        }
    }
}
