//! MiMo 2 (Xiaomi, MiMo-V2-Flash). Values are narrower than keys and scaled down, and a third of
//! each head is rotated. Most layers have a window, more key/value heads, and their own rotations
//! and sinks. After one dense layer, experts are chosen by sigmoid and bias.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["mimo2"], model_types: &["mimo_v2_flash"], config, layer: usual_layer, import };

/// Key for the factor on values.
const VALUE_SCALE: &str = "attention.value_scale";
/// Rotated fraction of a head's elements, for folders that do not say.
const ROTATED: f64 = 0.334;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let rope = loader.rope(sizes, RopeOrder::NeoX)?;
    let mut config = loader.config_with(sizes, NormKind::Rms, rope)?;
    config.experts = Some(loader.required_experts(Router::sigmoid(true), |_| 0)?);
    loader.apply_window(&mut config, None, 0)?;
    let (dims, base) = (config.ropes[0].dims, config.ropes[0].base);
    loader.local_rope(&mut config, RopeDefaults { head_dim: sizes.head_dim, dims, base })?;
    if let Some(scale) = loader.switchable(VALUE_SCALE)? {
        config.attentions_mut().for_each(|attention| attention.values.scale = scale);
    }
    Ok(config)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let mut sizes = draft.common(hf, "mimo2")?;
    let n_layer = sizes.n_layer;
    draft.set_size("attention.value_length", hf.size(&["v_head_dim"])?)?;
    // Published files use the second name.
    let eps = hf.f32(&["rms_norm_eps", "layernorm_epsilon"])?.unwrap_or(1e-5);
    draft.set("attention.layer_norm_rms_epsilon", Value::F32(eps));
    draft.set(VALUE_SCALE, Value::F32(hf.f32(&["attention_value_scale"])?.unwrap_or(1.0)));
    let usual = match hf.layer_flags("hybrid_layer_pattern", n_layer)? {
        Some(slides) => slides,
        None => (1..=n_layer).map(|n| n != 1 && !n.is_multiple_of(6)).collect(),
    };
    let windows = hf.sliding_layers(n_layer, SlidingLayers::Marked(usual))?;
    // The layer of a draft head has a window.
    let draft_slides = windows.is_some();
    let mut slides = windows.unwrap_or_else(|| vec![false; n_layer]);
    slides.push(draft_slides);
    // This key counts the tokens before the query's own, so the window is one token longer.
    let window = match hf.usize(&["sliding_window_size"])? {
        Some(before) => before.saturating_add(1),
        None => hf.size(&["sliding_window"])?,
    };
    let local = hf.or_default(&["swa_num_key_value_heads"], sizes.n_kv_head.saturating_mul(2))?;
    let heads = slides.iter().map(|slides| u32::try_from(if *slides { local } else { sizes.n_kv_head }));
    let heads = heads.collect::<Result<_, _>>().map_err(|_| hf.error("num_key_value_heads", "below 2^31", local))?;
    draft.set_with_draft_layer("attention.head_count_kv", Array::U32(heads));
    draft.window(window, None)?;
    draft.set_with_draft_layer("attention.sliding_window_pattern", Array::Bool(slides));
    sizes.rope_dims = hf.rotated_or(LayerRope::Full, sizes.head_dim, ROTATED)?;
    draft.rope(hf, &sizes, 5_000_000.0)?;
    sizes.rope_dims = hf.rotated_or(LayerRope::Sliding, sizes.head_dim, ROTATED)?;
    draft.local_rope_of(hf, &sizes, 10_000.0)?;
    draft.activation(hf.activation(&["hidden_act"], Activation::Silu)?);
    let count = &["num_local_experts", "n_routed_experts"];
    draft.experts(hf, count, &["num_experts_per_tok"], &["moe_intermediate_size"])?;
    draft.router(hf, Router::sigmoid(true))?;
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.mlp_experts();
    naming.selection_bias("mlp.gate.e_score_correction_bias");
    for name in ["attention_sink_bias", "sinks"] {
        naming.whole(format!("model.layers.*.self_attn.{name}"), "blk.*.attn_sinks.weight", Transform::None);
    }
    naming.draft_head(&Transform::None);
    naming.alias("model.mtp.layers.0.", format!("model.layers.{n_layer}."));
    naming.layers("", &[("pre_mlp_layernorm", "ffn_norm"), ("final_layernorm", "nextn.shared_head_norm")]);
    Ok(())
}
