//! Every placement computes the same.

use super::*;

fn every_placement(path: &str, tier: Tier, modes: &[Sparsity]) {
    every_placement_of(path, &model(path), tier, modes);
}

pub(super) fn every_placement_of(name: &str, model: &Arc<Model>, tier: Tier, modes: &[Sparsity]) {
    let gpu = shared(tier);
    let ids = ids(model, 44);
    for mode in modes {
        let mut scalar = golden::forward(model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
        scalar.set_sparsity(*mode);
        let wanted = logits(&mut scalar, &ids, 5);
        for (what, placement) in placements(model, 7) {
            for chunk in [64, 7] {
                let mut forward = hybrid(gpu, model, &placement, chunk);
                forward.set_sparsity(*mode);
                let error = relative(&logits(&mut forward, &ids, 5), &wanted);
                assert!(error <= 1e-4, "{name} {tier} {mode} {what}, chunks of {chunk}: {error}\n{placement:?}");
            }
        }
    }
}

#[test]
fn placements_do_not_change_logits() {
    every_placement(POWERINFER, FULL, &[Sparsity::Dense, Sparsity::Exact]);
}

#[test]
fn placements_do_not_change_logits_in_any_tier() {
    for tier in Tier::ALL {
        every_placement(POWERINFER, tier, &[Sparsity::Exact]);
    }
}

#[test]
fn exact_mode_keeps_the_logits_of_every_relu_model() {
    let gpu = shared(FULL);
    for name in MODELS {
        let model = neuron_major(&format!("fixtures/models/{name}"));
        if !model.config.activation.is_sparse() || model.config.experts.is_some() {
            continue;
        }
        let ids = ids(&model, 30);
        let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
        let wanted = logits(&mut scalar, &ids, 6);
        scalar.set_sparsity(Sparsity::Exact);
        let error = relative(&logits(&mut scalar, &ids, 6), &wanted);
        assert!(error <= 1e-4, "{name} on the CPU: {error}");
        for (what, placement) in placements(&model, 3) {
            let mut forward = hybrid(gpu, &model, &placement, 64);
            forward.set_sparsity(Sparsity::Exact);
            let error = relative(&logits(&mut forward, &ids, 6), &wanted);
            assert!(error <= 1e-4, "{name} {what}: {error}");
        }
    }
}

#[test]
fn placements_do_not_change_logits_of_other_models() {
    let gpu = shared(FULL);
    for name in [
        "llama-silu-gqa",
        "gemma2",
        "gemma4",
        "gemma4-e2b",
        "qwen2",
        "phi3",
        "falcon-new",
        "olmo3",
        "cohere2",
        "granite-4-dense",
        "ministral3",
        "gemma3n",
        "bitnet",
    ] {
        let model = neuron_major(&format!("fixtures/models/{name}"));
        // The prompt is longer than a tile of keys.
        let ids = ids(&model, 150);
        let setup = Setup { isa: Some(Isa::Scalar), activations: InputPrecision::Float, ..Setup::default() };
        let mut scalar = golden::forward(&model, setup);
        let wanted = logits(&mut scalar, &ids, 4);
        for (what, placement) in placements(&model, 5) {
            let error = relative(&logits(&mut hybrid(gpu, &model, &placement, 64), &ids, 4), &wanted);
            assert!(error <= 1e-4, "{name} {what}: {error}");
        }
    }
}

/// Returns `model` with an activation threshold in every layer, and with `scales` of its gates.
pub(super) fn thresholded(model: &Model, scales: Option<&dyn Fn(usize) -> f32>) -> Arc<Model> {
    let mut model = model.clone();
    for layer in &mut model.weights.layers {
        layer.activation_threshold = Some(0.1);
        for ffn in layer.ffn.ffns_mut() {
            ffn.gate_scales = scales.map(|scale| (0..ffn.up.weight.rows()).map(scale).collect());
        }
    }
    Arc::new(model)
}

#[test]
fn placements_do_not_change_logits_with_activation_thresholds() {
    let (gpu, path) = (shared(FULL), "fixtures/models/llama-silu-gqa");
    for (model, by_neuron) in [(neuron_major(path), true), (model(path), false)] {
        let ids = ids(&model, 30);
        let skipping = |model: &Arc<Model>| {
            let mut scalar = golden::forward(model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
            scalar.set_sparsity(Sparsity::Threshold);
            logits(&mut scalar, &ids, 30)
        };
        let (plain, dense) = (thresholded(&model, None), skipping(&model));
        let scaled = thresholded(&model, Some(&|at| if at.is_multiple_of(3) { 0.25 } else { 1.5 }));
        let (wanted, wanted_scaled) = (skipping(&plain), skipping(&scaled));
        assert!(relative(&wanted, &dense) > 1e-3, "the activation threshold skips nothing");
        assert!(relative(&wanted_scaled, &wanted) > 1e-3, "scales change nothing");
        let ones = thresholded(&model, Some(&|_| 1.0));
        assert_eq!(skipping(&ones), wanted, "scales of 1");
        let whole = |placement: &Placement| {
            let mut layers = placement.hot.iter().enumerate();
            layers.all(|(layer, hot)| hot.is_empty() || hot.len() == neurons(&model, layer))
        };
        for (what, placement) in placements(&model, 5).into_iter().filter(|(_, it)| by_neuron || whole(it)) {
            let of = |model: &Arc<Model>| {
                let mut forward = hybrid(gpu, model, &placement, 64);
                forward.set_sparsity(Sparsity::Threshold);
                logits(&mut forward, &ids, 30)
            };
            let (got, got_scaled) = (of(&plain), of(&scaled));
            let got_ones = of(&ones);
            if by_neuron {
                assert_eq!(got_ones, got, "{what}: scales of 1");
            }
            for (got, wanted) in [(got, &wanted), (got_ones, &wanted), (got_scaled, &wanted_scaled)] {
                let error = relative(&got, wanted);
                assert!(error <= 1e-4, "{what}: {error}");
            }
        }
    }
}

/// Neurons that PowerInfer's predictors rule out are skipped wherever they are.
#[test]
fn placements_keep_the_references_masked_logits() {
    let expected = Expected::read(&here("fixtures/powerinfer/expected.safetensors"));
    let ids = expected.ids("input_ids");
    for (ty, tier) in [("f16", FULL), ("f16", Tier::PORTABLE), ("q4_0", FULL)] {
        let model = model(&format!("fixtures/powerinfer/llama-relu-{ty}.powerinfer.gguf"));
        let wanted = expected.f32(&format!("{ty}.masked_logits"));
        let dense = expected.f32(&format!("{ty}.dense_logits"));
        for (what, placement) in placements(&model, 9) {
            let mut forward = hybrid(shared(tier), &model, &placement, 64);
            forward.set_sparsity(Sparsity::Predicted);
            let got = logits(&mut forward, &ids, ids.len());
            let error = max_diff(&got, &wanted);
            assert!(error <= 2e-3, "{ty} {what}: masked logits differ by {error}");
            assert!(error < max_diff(&got, &dense) / 2.0, "{ty} {what}: as dense as masked");
        }
    }
}
