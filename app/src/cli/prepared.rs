//! Shows a sidecar's contents as a table and as JSON.

use serde_json::{Value, json};
use thermocline_engine::{
    quant::TensorType,
    sparsity::sidecar::{PreparedLayer, Sidecar},
};

use crate::cli::table::TextTable;
use thermocline_host::units;

/// Fraction of all firings that the most active neurons of the column `make 80 %` account for.
const SKEW_OF: f64 = 0.8;

/// Builds the table, with one line per layer.
pub fn layers(sidecar: &Sidecar) -> String {
    let mut heads =
        vec!["layer", "active", "make 80 %", "predictor", "rank", "size", "recall", "mass recall", "precision"];
    heads.extend(["predicted", "threshold", "activation threshold", "down"]);
    let mut lines = TextTable::new(&heads);
    sidecar.layers.iter().enumerate().for_each(|(n, layer)| lines.row(line(n, layer)));
    lines.text()
}

fn line(n: usize, layer: &PreparedLayer) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let percent = |fraction: f32| format!("{:.1} %", 100.0 * fraction);
    let predictor = layer.predictor.as_ref();
    let quality = predictor.map(|predictor| predictor.quality);
    vec![
        n.to_string(),
        or_dash(layer.density().map(percent)),
        or_dash(layer.skew(SKEW_OF).map(|skew| percent(skew as f32))),
        or_dash(predictor.map(|predictor| predictor.kind_name().replace('_', "-"))),
        or_dash(predictor.and_then(|predictor| predictor.rank()).map(|rank| rank.to_string())),
        or_dash(predictor.map(|predictor| units::bytes(predictor.bytes()))),
        or_dash(quality.map(|quality| percent(quality.recall))),
        or_dash(quality.map(|quality| format!("{:.2} %", 100.0 * quality.mass_recall))),
        or_dash(quality.map(|quality| percent(quality.precision))),
        or_dash(quality.map(|quality| percent(quality.density))),
        or_dash(predictor.map(|predictor| format!("{:.3}", predictor.threshold))),
        or_dash(
            layer
                .activation_threshold
                .map(|threshold| format!("{:.4} ({} kept)", threshold.value, percent(threshold.density))),
        ),
        or_dash(down(layer).map(|(ty, error)| format!("{ty} ±{}", percent(error)))),
    ]
}

/// Type and error of the neuron-major down projection. For a mixture of experts: the first expert's
/// type and the largest error.
fn down(layer: &PreparedLayer) -> Option<(TensorType, f32)> {
    let of_experts = || layer.experts.as_ref().and_then(|of| Some((of.downs.first()?.ty(), of.down_error)));
    layer.down.as_ref().map(|down| (down.weight.ty(), down.error)).or_else(of_experts)
}

/// Describes the bundles of the sidecar's layers, if there are any.
pub fn bundles(sidecar: &Sidecar) -> Option<String> {
    let of_layer = |layer: &PreparedLayer| Some((layer.bundle_bytes()?, layer.bundles.as_ref()?.up.rows()));
    let sizes: Vec<(usize, usize)> = sidecar.layers.iter().filter_map(of_layer).collect();
    let (bytes, layers) = (sizes.first()?.0, sizes.len());
    let all: usize = sizes.iter().map(|(bytes, neurons)| bytes * neurons).sum();
    Some(format!(
        "bundles: {bytes} bytes per neuron in {layers} of {} layers, {} on disk; they speed up a model that is larger than \
         the RAM",
        sidecar.layers.len(),
        units::bytes(all as u64),
    ))
}

/// Describes the sidecar's size, corpus and targets in one line.
pub fn origin(sidecar: &Sidecar) -> String {
    let made = &sidecar.provenance;
    let bytes = sidecar.layers.iter().map(PreparedLayer::bytes).sum();
    let (profiled, held_out) = (made.tokens_profiled, made.tokens_held_out);
    let (recall, mass) = (100.0 * made.target_recall, 100.0 * made.target_mass_recall);
    format!(
        "{}; {profiled} tokens, {held_out} of them for measurements, from text {}; targets: {recall} % of the firings, {mass} \
         % of their mass",
        units::bytes(bytes),
        made.corpus,
    )
}

/// Formats the sidecar as JSON, without its weights.
pub fn to_json(sidecar: &Sidecar) -> Value {
    let (identity, made) = (&sidecar.identity, &sidecar.provenance);
    json!({
        "file": sidecar.path,
        "model": {
            "architecture": identity.architecture,
            "layers": identity.n_layer,
            "d_model": identity.d_model,
            "n_ff": identity.n_ff,
            "experts": identity.n_expert,
            "tensors": identity.tensors,
            "layout_hash": format!("{:016x}", identity.layout),
            "data_hash": format!("{:016x}", identity.data),
        },
        "activation": made.activation.name(),
        "corpus": made.corpus,
        "tokens_profiled": made.tokens_profiled,
        "tokens_held_out": made.tokens_held_out,
        "target_recall": made.target_recall,
        "target_mass_recall": made.target_mass_recall,
        "input_levels": sidecar.input_figures,
        "layers": sidecar.layers.iter().map(layer_json).collect::<Value>(),
    })
}

fn layer_json(layer: &PreparedLayer) -> Value {
    let predictor = layer.predictor.as_ref().map(|predictor| {
        let quality = predictor.quality;
        json!({
            "kind": predictor.kind_name(),
            "rank": predictor.rank(),
            "bytes": predictor.bytes(),
            "threshold": predictor.threshold,
            "recall": quality.recall,
            "mass_recall": quality.mass_recall,
            "precision": quality.precision,
            "density": quality.density,
        })
    });
    let down = down(layer).map(|(ty, error)| json!({ "type": ty.name(), "error": error }));
    let experts = layer
        .experts
        .as_ref()
        .map(|experts| json!({ "neurons": experts.width, "shared": experts.shared.len(), "chosen": layer.frequency }));
    json!({
        "active": layer.density(),
        "skew": layer.skew(SKEW_OF),
        "bytes": layer.bytes(),
        "predictor": predictor,
        "cut": layer.activation_threshold.map(|it| json!({ "value": it.value, "density": it.density })),
        "down": down,
        "bundle_bytes": layer.bundle_bytes(),
        "experts": experts,
    })
}
