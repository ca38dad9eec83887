//! Granite 3 and 4: Llama's layer with four factors: on embeddings, on attention scores, on
//! additions to the residual stream, and (as a divisor) on logits. Granite 3 MoE has experts, with
//! or without a shared one. Granite 4 H replaces most attention with Mamba-2. Its other attention
//! has no positions, and most models have experts and a shared expert.

use std::sync::Arc;

use super::prelude::*;

pub(super) const FAMILY: Family = Family {
    architectures: &["granite", "granitemoe", "granitehybrid"],
    model_types: &["granite", "granitemoe", "granitemoeshared", "granitemoehybrid"],
    config,
    layer,
    import,
};

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::Normal)?;
    config.embedding_scale = loader.switchable("embedding_scale")?.unwrap_or(1.0);
    config.residual_scale = loader.switchable("residual_scale")?.unwrap_or(1.0);
    config.logit_scale = 1.0 / loader.switchable("logit_scale")?.unwrap_or(1.0);
    // llama.cpp keeps in this key whether the model rotates at all.
    if loader.flag("rope.scaling.finetuned")? == Some(false) {
        config.attentions_mut().for_each(|attention| attention.positions.rope = None);
    }
    if loader.arch != "granite" {
        config.experts = loader.experts(Router::softmax(true), |_| sizes.n_ff)?;
    }
    if loader.arch == "granitehybrid" && config.attentions().count() < sizes.n_layer {
        recurrent_without_attention(&mut config, &mamba2::config(loader)?);
    }
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let (norms, ffn) = (norms(loader, config, n, USUAL_NORMS)?, ffn(loader, config, n)?);
    let recurrent = mamba2::weights(loader, config, n)?;
    let attention = recurrent.is_none().then(|| attention(loader, config, n)).transpose()?;
    Ok(LayerWeights { recurrent, ..LayerWeights::new(norms, attention, ffn, loader.predictor(n, config)?) })
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let hybrid = hf.model_type() == "granitemoehybrid";
    let experts = hf.or_default(&["num_local_experts"], 0)?;
    let plain = hf.model_type() == "granite";
    if experts > 0 && plain {
        return Err(hf.unsupported("Granite with experts", "num_local_experts", experts));
    }
    // Without `layer_types`, every layer is recurrent.
    let recurrent = hybrid && (hf.has_layer("linear_attention") || hf.value("layer_types").is_none());
    let arch = match (recurrent, hybrid, experts) {
        (false, _, 0) => "granite",
        (false, false, _) => "granitemoe",
        _ => "granitehybrid",
    };
    let shared = hf.or_default(&["shared_intermediate_size"], 0)?;
    let n_ff = if shared > 0 { shared } else { hf.size(&["intermediate_size"])? };
    let sizes = draft.common_of_width(hf, arch, n_ff)?;
    if recurrent {
        hf.silu_only("hidden_act", "Mamba-2 layers with another activation")?;
        let layers = hf.layers_of_type("full_attention", &["linear_attention"], sizes.n_layer)?;
        let layers = layers.unwrap_or_else(|| vec![false; sizes.n_layer]);
        let heads = layers.into_iter().map(|attention| if attention { sizes.n_kv_head as u32 } else { 0 });
        draft.set("attention.head_count_kv", Value::Array(Array::U32(heads.collect())));
        let heads = hf.size(&["mamba_n_heads"])?;
        let of = mamba2::HfMamba2 {
            heads,
            head_dim: mamba_head_dim(hf, heads)?,
            groups: hf.size(&["mamba_n_groups"])?,
            state: hf.size(&["mamba_d_state"])?,
            taps: hf.size(&["mamba_d_conv"])?,
            least_step: 0.0,
        };
        if of.groups > 1 {
            return Err(hf.unsupported("Granite with several groups", "mamba_n_groups", of.groups));
        }
        of.draft(hf, draft, "mamba")?;
    }
    if experts > 0 {
        draft.experts(hf, &["num_local_experts"], &["num_experts_per_tok"], &["intermediate_size"])?;
        draft.set_size("expert_shared_feed_forward_length", shared)?;
    }
    draft.rope(hf, &sizes, 10_000.0)?;
    let rotates = !hybrid || hf.str(&["position_embedding_type"])? == Some("rope");
    draft.set("rope.scaling.finetuned", Value::Bool(rotates));
    draft.activation(hf.activation(&["hidden_act"], Activation::Silu)?);
    for (name, key) in [
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("attention_multiplier", "attention.scale"),
        ("logits_scaling", "logit_scale"),
    ] {
        draft.set(key, Value::F32(hf.f32(&[name])?.unwrap_or(1.0)));
    }
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.rotated_pairs(&sizes);
    // The shared MLP is the FFN of dense models and the shared expert of MoE models.
    let end = if experts > 0 { "_shexp" } else { "" };
    for (first, role) in [(0, "gate"), (n_ff, "up")] {
        let rows = Arc::new(Gather::new(n_ff.saturating_mul(2), [(first, n_ff)]));
        let (from, to) = ("model.layers.*.shared_mlp.input_linear.weight", format!("blk.*.ffn_{role}{end}.weight"));
        naming.whole(from, to, Transform::Rows(rows));
    }
    naming.add("model.layers.*.shared_mlp.output_linear", format!("blk.*.ffn_down{end}"));
    naming.add("model.layers.*.block_sparse_moe.router.layer", "blk.*.ffn_gate_inp");
    let names = [("input_linear", "ffn_gate_up_exps"), ("output_linear", "ffn_down_exps")];
    naming.layers("block_sparse_moe.", &names);
    Ok(())
}

/// Returns the elements of a recurrent head. Folders may derive them from the width of the residual
/// stream.
fn mamba_head_dim(hf: &HfConfig, heads: usize) -> Result<usize> {
    let name = "mamba_d_head";
    if hf.value(name).and_then(|value| value.as_str()) != Some("auto") {
        return hf.size(&[name]);
    }
    let inner = hf.size(&["mamba_expand"])?.saturating_mul(hf.size(&["hidden_size"])?);
    if !inner.is_multiple_of(heads) {
        return Err(hf.error("mamba_n_heads", format!("a divisor of {inner}"), heads));
    }
    Ok(inner / heads)
}
