//! Traits of a model that differ from a plain transformer, and its expected sparsity, as text for
//! people.

use super::{Ffn, GateFunction, HeadGates, Model};

/// Returns the traits of `model`, one line each, from its configuration and the shapes of its
/// weights. Empty for a plain transformer.
pub fn traits(model: &Model) -> Vec<String> {
    let (config, weights) = (&model.config, &model.weights);
    let mut lines = Vec::new();
    if config.is_encoder() {
        lines.push("tokens read later tokens too, so that the model embeds texts and generates none".to_owned());
    }
    let mut windows: Vec<(usize, usize)> = Vec::new();
    let lengths = config.attentions().filter_map(|attention| Some(attention.window?.length));
    for window in lengths.filter(|length| *length < usize::MAX) {
        match windows.iter_mut().find(|(known, _)| *known == window) {
            Some((_, layers)) => *layers += 1,
            None => windows.push((window, 1)),
        }
    }
    lines.extend(windows.iter().map(|(window, layers)| format!("window of {window} tokens in {}", in_layers(*layers))));
    let mut add = |layers: usize, what: &str| {
        if layers > 0 {
            lines.push(format!("{what} in {}", in_layers(layers)));
        }
    };
    let with = |has: fn(&super::AttentionConfig) -> bool| config.attentions().filter(|it| has(it)).count();
    let sinks = |layer: &&super::LayerWeights| layer.attention.as_ref().is_some_and(|it| it.sinks.is_some());
    add(weights.layers.iter().filter(sinks).count(), "attention sinks");
    add(with(|attention| attention.gate == Some(HeadGates::InQueries)), "gated attention");
    add(with(|attention| attention.latent.is_some()), "latent attention (MLA: one compressed row cached per token)");
    let gated_by = |by: GateFunction| {
        let gates = config.attentions().filter_map(|attention| attention.gate);
        gates.filter(|gate| matches!(gate, HeadGates::OwnMatrix { function, .. } if *function == by)).count()
    };
    add(gated_by(GateFunction::Softplus), "heads gated by a softplus");
    add(gated_by(GateFunction::Sigmoid), "heads gated by a sigmoid");
    add(with(|attention| attention.kv_from.is_some()), "keys and values of an earlier layer");
    let inner = |layer: &&super::LayerWeights| layer.layer_norms().any_within_part();
    add(weights.layers.iter().filter(inner).count(), "norms inside attention and FFN");
    add(thresholded(model), "gates with a threshold computed for each token");
    let mut mixers: Vec<(&str, usize)> = Vec::new();
    for name in config.layers.iter().filter_map(|layer| Some(layer.recurrent.as_ref()?.name())) {
        match mixers.iter_mut().find(|(known, _)| *known == name) {
            Some((_, layers)) => *layers += 1,
            None => mixers.push((name, 1)),
        }
    }
    mixers.into_iter().for_each(|(name, layers)| add(layers, name));
    let shared = |layer: &&super::LayerWeights| matches!(&layer.ffn, Ffn::Experts(moe) if moe.shared.is_some());
    add(weights.layers.iter().filter(shared).count(), "a shared expert");
    let latent = |layer: &&super::LayerWeights| matches!(&layer.ffn, Ffn::Experts(moe) if moe.latent.is_some());
    add(weights.layers.iter().filter(latent).count(), "experts in a latent narrower than the residual stream");
    add(weights.layers.iter().filter(|layer| layer.beside_experts.is_some()).count(), "a dense FFN beside experts");
    if let Some(experts) = &config.experts {
        lines.push(format!("{} of {} experts by {}", experts.used, experts.count, experts.router));
    }
    if let Some(width) = config.per_layer_input {
        lines.push(format!("embeddings per layer, {width} wide"));
    }
    lines
}

/// Describes the expected sparsity of `model`'s neurons by its activation, with the fraction that
/// fires in dense layers if it was measured.
pub fn expected_sparsity(model: &Model) -> String {
    let activation = model.config.activation;
    let (thresholded, layers) = (thresholded(model), model.config.n_layer());
    if thresholded > 0 {
        return format!(
            "neurons below a threshold in {thresholded} of {layers} layers can be skipped without changing the output"
        );
    }
    if !activation.is_sparse() {
        return format!("{activation}: neurons are never zero, so skipping changes the output slightly");
    }
    let dense = model.weights.layers.iter().filter(|layer| matches!(layer.ffn, Ffn::Dense(_)));
    let measured: Vec<f32> = dense.filter_map(|layer| layer.frequency.as_ref()).flatten().copied().collect();
    if measured.is_empty() {
        return format!(
            "{activation}: silent neurons can be skipped without changing the output (fraction not measured yet)"
        );
    }
    let fires = measured.iter().map(|frequency| f64::from(*frequency)).sum::<f64>() / measured.len() as f64;
    format!(
        "{activation}: silent neurons can be skipped without changing the output, {:.0} % of neurons fire (measured)",
        100.0 * fires
    )
}

/// Returns the number of layers whose gates are zero up to some standard deviations above their
/// mean (Gemma 3n).
fn thresholded(model: &Model) -> usize {
    model.weights.layers.iter().filter(|layer| layer.gate_deviations.is_some()).count()
}

fn in_layers(layers: usize) -> String {
    if layers == 1 { "1 layer".to_owned() } else { format!("{layers} layers") }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::LoadOptions;

    fn lines(name: &str) -> (Vec<String>, String) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models").join(name);
        let model = Model::open(&path, &LoadOptions::default()).expect("the fixture opens");
        (traits(&model), expected_sparsity(&model))
    }

    #[test]
    fn traits_name_sinks_windows_recurrence_shared_experts_and_embeddings_per_layer() {
        for (name, expected) in [
            ("gpt-oss", &["window of ", "attention sinks in ", "experts by softmax of the chosen"][..]),
            ("qwen3_5-moe", &["gated delta net in ", "gated attention in ", "a shared expert in "]),
            ("gemma4-e2b", &["embeddings per layer, ", "keys and values of an earlier layer in "]),
            ("gemma4-moe", &["a dense FFN beside experts in "]),
            ("gemma3n", &["gates with a threshold computed for each token in "]),
            ("deepseek-v2-lite", &["latent attention (MLA: one compressed row cached per token) in 3 layers"]),
        ] {
            let (lines, _) = lines(name);
            for part in expected {
                assert!(lines.iter().any(|line| line.contains(part)), "{name}: no {part:?} in {lines:?}");
            }
        }
        assert_eq!(lines("qwen3").0, Vec::<String>::new());
    }

    #[test]
    fn expected_sparsity_tells_exact_zeros_from_approximation() {
        assert!(lines("nemotron").1.ends_with("skipped without changing the output (fraction not measured yet)"));
        assert!(lines("gemma3n").1.starts_with("neurons below a threshold in "));
        assert!(lines("qwen3").1.ends_with("skipping changes the output slightly"));
    }
}
