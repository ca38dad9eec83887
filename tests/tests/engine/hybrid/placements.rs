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

#[test]
fn placements_do_not_change_logits_with_activation_thresholds() {
    let gpu = shared(FULL);
    let model = neuron_major("fixtures/models/llama-silu-gqa");
    let mut weights = model.weights.clone();
    weights.layers.iter_mut().for_each(|layer| layer.activation_threshold = Some(0.1));
    let (config, checkpoint) = (model.config.clone(), model.checkpoint.clone());
    let model = Arc::new(Model { config, weights, checkpoint, draft_head: None });
    let ids = ids(&model, 30);
    let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), ..Setup::default() });
    let dense = logits(&mut scalar, &ids, 30);
    scalar.set_sparsity(Sparsity::Threshold);
    let wanted = logits(&mut scalar, &ids, 30);
    assert!(relative(&wanted, &dense) > 1e-3, "the activation threshold skips nothing");
    for (what, placement) in placements(&model, 5) {
        let mut forward = hybrid(gpu, &model, &placement, 64);
        forward.set_sparsity(Sparsity::Threshold);
        let error = relative(&logits(&mut forward, &ids, 30), &wanted);
        assert!(error <= 1e-4, "{what}: {error}");
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
