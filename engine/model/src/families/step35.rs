//! Step 3.5 and the language model of Step 3.7 (StepFun): norms of query and key heads, and a
//! sigmoid gate per head. Most layers have windows, more heads and their own rotations. After some
//! dense layers, experts are chosen by sigmoid and bias, with a shared expert. Some layers limit
//! the hidden values of their experts, or of the shared expert and dense FFNs.
//!
//! For layers without a window, GGUF counts twice the rotated elements. Folders store norm weights
//! minus one.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["step35"], model_types: &["step3p5", "step3p7"], config, layer, import };

/// Key for the limits of routed experts.
const EXPERT_LIMITS: &str = "swiglu_clamp_exp";
/// Key for the limits of shared experts and dense FFNs.
const OTHER_LIMITS: &str = "swiglu_clamp_shexp";

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let rope = loader.halved_rope(sizes, RopeOrder::NeoX)?;
    let mut config = loader.config_with(sizes, NormKind::Rms, rope)?;
    config.experts = Some(loader.required_experts(Router::sigmoid(true), |_| 0)?);
    loader.apply_window(&mut config, None, 0)?;
    let (head_dim, base) = (sizes.head_dim, config.ropes[0].base);
    let counted = loader.size("rope.dimension_count", 2..=2 * head_dim)?.unwrap_or(head_dim);
    loader.local_rope(&mut config, RopeDefaults { head_dim, dims: counted.min(head_dim), base })?;
    gated_heads(loader, &mut config, GateFunction::Sigmoid)?;
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let mut layer = gated_layer(loader, config, n, USUAL_NORMS)?;
    let limit = |key: &str| Ok(loader.layer_floats(key, config.n_layer())?.map(|all| all[n]).filter(|it| *it > 0.0));
    let (routed, others) = (limit(EXPERT_LIMITS)?, limit(OTHER_LIMITS)?);
    let set = |ffn: &mut FfnWeights, limit| ffn.limit = limit;
    match &mut layer.ffn {
        Ffn::Dense(ffn) => set(ffn, others),
        Ffn::Experts(moe) => {
            moe.experts.iter_mut().for_each(|expert| set(expert, routed));
            moe.shared.iter_mut().for_each(|shared| set(&mut shared.ffn, others));
        }
        Ffn::None => {}
    }
    Ok(layer)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let (n_head, n_ff) = (hf.size(&["num_attention_heads"])?, hf.size(&["intermediate_size"])?);
    let n_kv_head = hf.or_default(&["num_attention_groups", "num_key_value_heads"], n_head)?;
    let sizes = draft.common_with(hf, "step35", n_kv_head, n_ff)?;
    let n_layer = sizes.n_layer;
    let eps = hf.f32(&["rms_norm_eps"])?.unwrap_or(1e-5);
    draft.set("attention.layer_norm_rms_epsilon", Value::F32(eps));
    let slides = windows(hf, draft, n_layer)?;
    draft.set_with_draft_layer("attention.head_count", Array::U32(heads(hf, n_head, &slides)?));
    if let Some(scalar) = hf.f32(&["query_pre_attn_scalar"])?.filter(|it| *it > 0.0 && *it != sizes.head_dim as f32) {
        draft.set("attention.scale", Value::F32(1.0 / scalar.sqrt()));
    }
    draft.rope(hf, &sizes, 10_000.0)?;
    draft.set_size("rope.dimension_count", 2 * sizes.rope_dims)?;
    // One divisor for every pair that any layer rotates.
    draft.lengthen("rope_freqs.weight", sizes.head_dim / 2);
    draft.local_rope(hf, &sizes, 10_000.0)?;
    draft.activation(Activation::Silu);
    draft.set_size("expert_count", hf.size(&["moe_num_experts", "num_local_experts", "n_routed_experts"])?)?;
    draft.set_size("expert_used_count", hf.size(&["moe_top_k", "num_experts_per_tok"])?)?;
    draft.set_size("expert_feed_forward_length", hf.size(&["moe_intermediate_size"])?)?;
    draft.set_size("expert_shared_feed_forward_length", hf.size(&["share_expert_dims", "share_expert_dim"])?)?;
    draft.router(hf, Router::sigmoid(true))?;
    draft.set("expert_weights_scale", Value::F32(hf.f32(&["moe_router_scaling_factor"])?.unwrap_or(1.0)));
    for (name, key) in [("swiglu_limits", EXPERT_LIMITS), ("swiglu_limits_shared", OTHER_LIMITS)] {
        if let Some(mut limits) = hf.layer_floats(name, n_layer)? {
            let limit = hf.value(name).and_then(|list| list.get(n_layer)?.as_f64()).unwrap_or(0.0);
            limits.push((limit as f32).max(0.0));
            draft.set_with_draft_layer(key, Array::F32(limits));
        }
    }
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.norms_minus_one();
    for head in ["q", "k"] {
        let hf = format!("model.layers.*.self_attn.{head}_norm");
        naming.set(hf, format!("blk.*.attn_{head}_norm"), Transform::AddOne);
    }
    naming.add("model.layers.*.self_attn.g_proj", "blk.*.attn_gate");
    let experts = [("gate_proj", "ffn_gate_exps"), ("up_proj", "ffn_up_exps"), ("down_proj", "ffn_down_exps")];
    naming.layers("moe.", &experts);
    naming.add("model.layers.*.moe.gate", "blk.*.ffn_gate_inp");
    naming.selection_bias("moe.router_bias");
    naming.shared_expert("share_expert");
    naming.draft_head(&Transform::AddOne);
    naming.set("model.layers.*.transformer.shared_head.norm", "blk.*.nextn.shared_head_norm", Transform::AddOne);
    naming.add("model.layers.*.transformer.shared_head.output", "blk.*.nextn.shared_head_head");
    Ok(())
}

/// Sets which layers have a window. Returns, per layer and for the layer of a draft head, whether
/// it has the window.
fn windows(hf: &HfConfig, draft: &mut Draft, n_layer: usize) -> Result<Vec<bool>> {
    let Some(mut slides) = hf.sliding_layers(n_layer, SlidingLayers::None)? else {
        return Ok(vec![false; n_layer + 1]);
    };
    // Published lists have further elements for the layers of draft heads. Libraries save these
    // elements in a list of their own.
    let draft_kind = |name: &str, n: usize| hf.value(name).and_then(|list| list.get(n)?.as_str());
    let kind = draft_kind("mtp_layer_types", 0).or_else(|| draft_kind("layer_types", n_layer));
    slides.push(kind == Some("sliding_attention"));
    draft.window(hf.size(&["sliding_window"])?, None)?;
    draft.set_with_draft_layer("attention.sliding_window_pattern", Array::Bool(slides.clone()));
    Ok(slides)
}

/// Returns the query heads of each layer: from `per_layer_config`, or one number for all layers
/// with a window.
fn heads(hf: &HfConfig, n_head: usize, slides: &[bool]) -> Result<Vec<u32>> {
    let local = match hf.usize(&["num_sliding_attention_heads"])? {
        Some(heads) => Some(heads),
        None => hf.size_within("attention_other_setting", "num_attention_heads")?,
    };
    let named = hf.by_layer("per_layer_config", "num_attention_heads", slides.len())?;
    let of_layer = |(n, slides): (usize, &bool)| {
        let named = named.as_ref().and_then(|all| all[n]);
        let heads = named.or(local.filter(|_| *slides)).unwrap_or(n_head);
        u32::try_from(heads).map_err(|_| hf.error("num_attention_heads", "numbers of heads below 2^32", heads))
    };
    slides.iter().enumerate().map(of_layer).collect()
}
