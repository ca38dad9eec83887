//! Granite 3 and the dense Granite 4: Llama's layer with four factors, on embeddings, on attention scores, on what is added to the
//! residual stream, and (as a divisor) on logits.

use std::sync::Arc;

use super::{
    Family, Loader,
    parts::{USUAL_NORMS, gated_layer},
};
use crate::{
    error::Result,
    format::Value,
    model::{
        Activation, LayerWeights, ModelConfig, NormKind, RopeOrder,
        import::{Draft, Gather, HfConfig, Transform},
        load::Sizes,
    },
};

pub(super) const FAMILY: Family =
    Family { architectures: &["granite"], model_types: &["granite", "granitemoehybrid"], config, layer, import };

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::Normal)?;
    config.activation = loader.activation(Activation::Silu)?;
    config.embedding_scale = loader.switchable("embedding_scale")?.unwrap_or(1.0);
    config.residual_scale = loader.switchable("residual_scale")?.unwrap_or(1.0);
    config.logit_scale = 1.0 / loader.switchable("logit_scale")?.unwrap_or(1.0);
    // Where llama.cpp keeps whether there is a rotation at all.
    if loader.flag("rope.scaling.finetuned")? == Some(false) {
        config.attentions_mut().for_each(|attention| attention.rope = None);
    }
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    gated_layer(loader, config, n, USUAL_NORMS)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    if let Some(experts @ 1..) = hf.usize(&["num_local_experts"])? {
        return Err(hf.unsupported("Granite with experts", "num_local_experts", experts));
    }
    if hf.model_type() == "granitemoehybrid" && hf.has_layer("mamba") {
        return Err(hf.unsupported("Granite with recurrent layers", "layer_types", "mamba"));
    }
    let n_head = hf.size(&["num_attention_heads"])?;
    let n_kv_head = hf.or_default(&["num_key_value_heads"], n_head)?;
    let n_ff = hf.size(&["shared_intermediate_size", "intermediate_size"])?;
    let sizes = draft.common_with(hf, "granite", n_kv_head, n_ff)?;
    draft.rope(hf, &sizes, 10_000.0)?;
    let rotates = hf.model_type() == "granite" || hf.str(&["position_embedding_type"])? == Some("rope");
    draft.set("rope.scaling.finetuned", Value::Bool(rotates));
    draft.activation(hf.str(&["hidden_act"])?.unwrap_or("silu").parse()?);
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
    for (first, role) in [(0, "gate"), (n_ff, "up")] {
        let rows = Arc::new(Gather::new(n_ff.saturating_mul(2), [(first, n_ff)]));
        let (from, to) = ("model.layers.*.shared_mlp.input_linear.weight", format!("blk.*.ffn_{role}.weight"));
        naming.whole(from, to, Transform::Rows(rows));
    }
    naming.add("model.layers.*.shared_mlp.output_linear", "blk.*.ffn_down");
    Ok(())
}
