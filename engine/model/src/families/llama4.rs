//! Llama 4. Three of four layers are rotated and read one chunk of the text. The others read all of
//! it without positions, and their queries grow with their position. All layers, or every other
//! one, choose experts by sigmoid. The expert weight multiplies the expert's input, and a shared
//! expert is added.
//!
//! Norms of heads follow the rotation and have no weights. Files do not say whether these norms
//! exist, but the number of experts determines it.

use super::prelude::*;
use crate::QueryScale;

pub(super) const FAMILY: Family =
    Family { architectures: &["llama4"], model_types: &["llama4", "llama4_text"], config, layer, import };

/// Of every `INTERVAL` layers, the last is not rotated and reads all keys.
const INTERVAL: usize = 4;
/// Tokens of a chunk.
const CHUNK: usize = 8192;
/// Growth of queries with their position. The first position counts as 1.
const GROWTH: QueryScale = QueryScale { beta: 0.1, length: CHUNK, offset: 1 };
/// Number of experts of the model whose heads have no norms (Maverick).
const WITHOUT_NORMS: usize = 128;
/// This engine's own keys: whether heads have norms, and which layers are rotated.
const NORMS: &str = "attention.qk_norm";
const ROTATED: &str = "rope.layer_pattern";

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::Normal)?;
    check_lengths_kept(loader, &config)?;
    config.experts = loader.experts(Router { weighs_inputs: true, ..Router::sigmoid(false) }, |_| 0)?;
    loader.apply_window(&mut config, Some(CHUNK), INTERVAL)?;
    // Models without chunks rotate every layer.
    let all_seen = config.attentions().all(|attention| attention.window.is_none());
    loader.apply_rope_pattern(&mut config, if all_seen { usize::MAX } else { INTERVAL })?;
    let usual = config.experts.is_none_or(|experts| experts.count != WITHOUT_NORMS);
    let norms = loader.flag(NORMS)?.unwrap_or(usual);
    let named = loader.has_key("attention.temperature_scale");
    for attention in config.attentions_mut() {
        let rotated = attention.positions.rope.is_some();
        attention.window.iter_mut().for_each(|window| window.chunked = true);
        attention.positions.norm_after_rope = norms && rotated;
        let scale = if named { attention.scores.query_scale } else { Some(GROWTH).filter(|_| !all_seen) };
        attention.scores.query_scale =
            scale.filter(|_| !rotated).map(|scale| QueryScale { offset: GROWTH.offset, ..scale });
    }
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let mut layer = gated_layer(loader, config, n, USUAL_NORMS)?;
    let normed = config.layers[n].attention.as_ref().filter(|attention| attention.positions.norm_after_rope);
    if let (Some(of), Some(weights)) = (normed, &mut layer.attention) {
        let ones = || Norm { weight: vec![1.0; of.heads.head_dim], bias: None, own_eps: None };
        (weights.q_norm, weights.k_norm) = (Some(ones()), Some(ones()));
    }
    Ok(layer)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let width = hf.size(&["intermediate_size"])?;
    let sizes = draft.common_of_width(hf, "llama4", hf.or_default(&["intermediate_size_mlp"], width)?)?;
    draft.rope(hf, &sizes, 500_000.0)?;
    draft.activation(hf.activation(&["hidden_act"], Activation::Silu)?);
    draft.experts(hf, &["num_local_experts"], &["num_experts_per_tok"], &["intermediate_size"])?;
    draft.set_size("interleave_moe_layer_step", hf.or_default(&["interleave_moe_layer_step"], 1)?)?;
    draft.set(NORMS, Value::Bool(hf.bool(&["use_qk_norm"])?.unwrap_or(true)));
    let rotated = rotated(hf, sizes.n_layer)?;
    let chunk = hf.or_default(&["attention_chunk_size"], 0)?;
    let kinds = hf.layers_of_type("chunked_attention", &["full_attention"], sizes.n_layer)?;
    draft.window(chunk, Some(kinds.unwrap_or_else(|| rotated.clone())))?;
    draft.set(ROTATED, Value::Array(Array::Bool(rotated)));
    // Published files have 4 for true.
    let grows =
        hf.value("attn_temperature_tuning").is_none_or(|value| value.as_bool().unwrap_or(value.as_u64() != Some(0)));
    let beta = hf.f32(&["attn_scale"])?.unwrap_or(GROWTH.beta);
    draft.set("attention.temperature_scale", Value::F32(if grows { beta } else { 0.0 }));
    draft.set_size("attention.temperature_length", hf.or_default(&["floor_scale"], GROWTH.length)?)?;
    let naming = &mut draft.naming;
    naming.llama_like();
    let names =
        [("gate_proj", "ffn_gate"), ("up_proj", "ffn_up"), ("down_proj", "ffn_down"), ("router", "ffn_gate_inp")];
    naming.layers("feed_forward.", &names);
    naming.stacked_experts("feed_forward.experts", &Transform::InputsFirst(ExpertOutputs::All));
    naming.shared_expert("feed_forward.shared_expert");
    Ok(())
}

/// Returns, per layer, whether it is rotated. An empty list counts as no list.
fn rotated(hf: &HfConfig, n_layer: usize) -> Result<Vec<bool>> {
    let name = "no_rope_layers";
    let is_empty = hf.value(name).is_some_and(|value| value.as_array().is_some_and(Vec::is_empty));
    let given = if is_empty { None } else { hf.layer_flags(name, n_layer)? };
    let interval = hf.or_default(&["no_rope_layer_interval"], INTERVAL)?.max(1);
    Ok(given.unwrap_or_else(|| (1..=n_layer).map(|n| !n.is_multiple_of(interval)).collect()))
}
