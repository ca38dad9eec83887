//! Parts of a layer, loaded as its configuration requires: norms, attention, FFN, and a whole gated
//! layer. Families combine them.

use std::sync::Arc;

use super::prelude::*;
use crate::{PerLayerTable, PerLayerWeights};

/// Gives layers without attention the usual program, with `recurrent` in place of attention.
pub(super) fn recurrent_without_attention(config: &mut ModelConfig, recurrent: &RecurrentConfig) {
    let mut steps = Step::sequential();
    steps[1] = Step::Recurrent { from: Register::Normed };
    let steps: Arc<[Step]> = steps.into();
    for layer in config.layers.iter_mut().filter(|layer| layer.attention.is_none()) {
        (layer.recurrent, layer.steps) = (Some(recurrent.clone()), Arc::clone(&steps));
    }
}

/// Loads the norms of layer `n`, given by slot and tensor stem (`blk.{n}.{stem}`).
pub(super) fn norms(
    loader: &Loader<'_>,
    config: &ModelConfig,
    n: usize,
    stems: &[(NormSlot, &str)],
) -> Result<Vec<(NormSlot, Norm)>> {
    let norm = |&(slot, stem): &(NormSlot, &str)| {
        let norm = loader.norm_at(Some(slot), &format!("blk.{n}.{stem}"), config.norm, config.d_model)?;
        Ok((slot, norm))
    };
    stems.iter().map(norm).collect()
}

/// Norms of the usual layer: `attn_norm` and `ffn_norm`.
pub(super) const USUAL_NORMS: &[(NormSlot, &str)] = &[(NormSlot::Attention, "attn_norm"), (NormSlot::Ffn, "ffn_norm")];

/// Norms of a layer with norms after attention and FFN
/// ([`Step::norms_after`](crate::Step::norms_after)).
pub(super) const NORMS_AFTER: &[(NormSlot, &str)] =
    &[(NormSlot::PostAttention, "post_attention_norm"), (NormSlot::PostFfn, "post_ffw_norm")];

/// Norms of a layer with norms before and after attention and FFN
/// ([`Step::norms_around`](crate::Step::norms_around)).
pub(super) const NORMS_AROUND: &[(NormSlot, &str)] = &[
    (NormSlot::Attention, "attn_norm"),
    (NormSlot::PostAttention, "post_attention_norm"),
    (NormSlot::Ffn, "ffn_norm"),
    (NormSlot::PostFfn, "post_ffw_norm"),
];

/// Refuses position scalings that change the lengths of rotated vectors, for architectures whose
/// norms of heads follow the rotation.
pub(super) fn check_lengths_kept(loader: &Loader<'_>, config: &ModelConfig) -> Result<()> {
    let changed = config.ropes.iter().any(|rope| match rope.scaling {
        RopeScaling::Yarn { .. } => true,
        RopeScaling::Factors { attention_factor, .. } => attention_factor != 1.0,
        RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Dynamic { .. } => false,
    });
    if !changed {
        return Ok(());
    }
    let kind = loader.text("rope.scaling.type")?.unwrap_or("factors").to_owned();
    Err(loader.key_error(
        "rope.scaling.type",
        "a kind that keeps the length of vectors, because norms follow the rotations",
        kind,
    ))
}

/// Gives every attention gates on its heads' outputs, one per head or per element. The rows of the
/// gate matrix determine which.
pub(super) fn gated_heads(loader: &Loader<'_>, config: &mut ModelConfig, function: GateFunction) -> Result<()> {
    for (n, attention) in config.layers.iter_mut().enumerate().filter_map(|(n, it)| Some((n, it.attention.as_mut()?))) {
        let name = format!("blk.{n}.attn_gate.weight");
        let expected = format!("{} rows, one per head, or {}", attention.heads.n_head, attention.output_cols());
        let Some(rows) = loader.rows(&name) else { return Err(loader.missing_tensor(&name, expected)) };
        if ![attention.heads.n_head, attention.output_cols()].contains(&rows) {
            return Err(loader.tensor_error(&name, expected, rows));
        }
        attention.gate = Some(HeadGates::OwnMatrix { rows, function });
    }
    Ok(())
}

/// Loads the attention of layer `n` ([`AttentionWeights::load`]).
pub(super) fn attention(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<AttentionWeights> {
    let Some(shape) = config.layers.get(n).and_then(|layer| layer.attention.as_ref()) else {
        return Err(loader.key_error("attention.head_count_kv", format!("heads for layer {n}"), 0));
    };
    AttentionWeights::load(&config.layer_tensors(loader, n), shape)
}

/// Loads the table of the layers' own inputs, if the model has them.
pub(super) fn per_layer_table(loader: &Loader<'_>, config: &ModelConfig) -> Result<Option<PerLayerTable>> {
    let Some(width) = config.per_layer_input else { return Ok(None) };
    let all = config.per_layer_inputs();
    Ok(Some(PerLayerTable {
        rows: loader.matrix("per_layer_token_embd.weight", config.n_vocab, all)?,
        projection: loader.linear("per_layer_model_proj", all, config.d_model)?,
        norm: loader.norm("per_layer_proj_norm", config.norm, width)?,
    }))
}

/// Loads the weights for layer `n`'s own input, if it has one.
pub(super) fn per_layer_weights(
    loader: &Loader<'_>,
    config: &ModelConfig,
    n: usize,
) -> Result<Option<PerLayerWeights>> {
    config.per_layer_input.map(|width| PerLayerWeights::load(&config.layer_tensors(loader, n), width)).transpose()
}

/// Loads a layer of norms, attention and an ungated FFN.
pub(super) fn ungated_layer(
    loader: &Loader<'_>,
    config: &ModelConfig,
    n: usize,
    stems: &[(NormSlot, &str)],
) -> Result<LayerWeights> {
    let (norms, attention) = (norms(loader, config, n, stems)?, attention(loader, config, n)?);
    let ffn = Ffn::Dense(loader.dense_ffn(n, config, false)?);
    Ok(LayerWeights::new(norms, attention, ffn, loader.predictor(n, config)?))
}

/// Loads the FFN of layer `n`: a gated FFN or experts.
pub(super) fn ffn(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<Ffn> {
    // Some MoE models have dense layers in between.
    let has = |stem: &str| loader.has(&format!("blk.{n}.{stem}.weight"));
    let has_experts = || ["ffn_gate_inp", "ffn_up_exps", "ffn_gate_up_exps", "ffn_up.0"].into_iter().any(has);
    Ok(match &config.experts {
        Some(experts) if config.layers[n].n_ff == 0 || has_experts() => {
            Ffn::Experts(ExpertWeights::load(&config.layer_tensors(loader, n), experts)?)
        }
        _ => Ffn::Dense(loader.dense_ffn(n, config, true)?),
    })
}

/// Loads a layer of norms, attention and an FFN whose `ffn_up` holds gate and up, the gate's rows
/// first.
pub(super) fn fused_layer(
    loader: &Loader<'_>,
    config: &ModelConfig,
    n: usize,
    stems: &[(NormSlot, &str)],
) -> Result<LayerWeights> {
    let (d, n_ff) = (config.d_model, loader.dense_width(config, n)?);
    let [gate, up] = Linear::split(loader, &format!("blk.{n}.ffn_up"), d, [n_ff, n_ff])?;
    let down = loader.down(n, d, n_ff)?;
    let (norms, attention) = (norms(loader, config, n, stems)?, attention(loader, config, n)?);
    let ffn = Ffn::Dense(FfnWeights { gate: Some(gate), up, down, bundled_gate: None, limit: None, gate_scales: None });
    Ok(LayerWeights::new(norms, attention, ffn, loader.predictor(n, config)?))
}

/// Refuses experts of layer `n` without gates, for architectures whose experts have gates.
pub(super) fn check_gates(loader: &Loader<'_>, ffn: &Ffn, n: usize) -> Result<()> {
    let Ffn::Experts(moe) = ffn else { return Ok(()) };
    let missing = |stem: &str, expected: &str| Err(loader.missing_tensor(&format!("blk.{n}.{stem}.weight"), expected));
    if moe.experts.iter().any(|ffn| ffn.gate.is_none()) {
        return missing("ffn_gate_exps", "the gate matrices of the experts");
    }
    if moe.shared.as_ref().is_some_and(|shared| shared.ffn.gate.is_none()) {
        return missing("ffn_gate_shexp", "the gate matrix of the shared expert");
    }
    Ok(())
}

/// Loads a layer of the usual shape with the usual norms.
pub(super) fn usual_layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    gated_layer(loader, config, n, USUAL_NORMS)
}

/// Loads a layer of the usual shape: norms, attention, and a gated FFN or experts.
pub(super) fn gated_layer(
    loader: &Loader<'_>,
    config: &ModelConfig,
    n: usize,
    stems: &[(NormSlot, &str)],
) -> Result<LayerWeights> {
    let ffn = ffn(loader, config, n)?;
    check_gates(loader, &ffn, n)?;
    let (norms, attention) = (norms(loader, config, n, stems)?, attention(loader, config, n)?);
    Ok(LayerWeights::new(norms, attention, ffn, loader.predictor(n, config)?))
}
