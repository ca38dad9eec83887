//! Gemma 4. Layers with and without a window differ in head size, key/value heads and rotation.
//! Values are divided by their root mean square, and attention scores are not scaled. After each
//! layer, a factor scales the residual stream. In small models (E2B, E4B) each layer has its own
//! input, and the last layers read keys and values of earlier layers. In 26B-A4B a dense FFN and
//! experts, each with its own norms, run in parallel.
//!
//! Layers without a window rotate only the first pairs of a head, with the frequencies of the whole
//! head. `rope_freqs.weight` has 1e30 for the other pairs. In some models the values of these
//! layers are their keys, before norm and rotation.

use super::prelude::*;
use crate::LayerConfig;

pub(super) const FAMILY: Family = Family {
    architectures: &["gemma4"],
    // In unified models (12B), pictures and sound are embedded without towers.
    model_types: &["gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"],
    config,
    layer,
    import,
};

/// Of every `INTERVAL` layers, the last has no window.
const INTERVAL: usize = 6;
/// Largest accepted width of a layer's own input.
const MOST_INPUT: usize = 1 << 16;
/// Key of files that this program writes: true if the tokens of a picture read all of it in layers
/// with a window.
const WHOLE_PICTURES: &str = "attention.whole_pictures";
/// Base of the frequencies in layers with a window.
const LOCAL_BASE: f32 = 10_000.0;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = without_sharing(loader, sizes)?;
    share_keys_and_values(loader, &mut config)?;
    let width = loader.size("embedding_length_per_layer_input", 0..=MOST_INPUT)?.unwrap_or(0);
    config.per_layer_input = (width > 0).then_some(width);
    // Files without this key are large models, or small models whose layers have inputs.
    let whole = loader.flag(WHOLE_PICTURES)?.unwrap_or(width == 0);
    config.attentions_mut().for_each(|attention| attention.whole_pictures = whole && attention.window.is_some());
    config.experts = loader.experts(Router::softmax(true), |_| 0)?;
    config.set_steps(steps(&config));
    Ok(config)
}

/// Returns the configuration of a model whose layers have no inputs of their own and no experts.
/// Every layer has its own keys and values.
pub(super) fn without_sharing(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    config.activation = loader.activation(Activation::GeluTanh)?;
    config.embedding_scale = (sizes.d_model as f32).sqrt();
    config.final_softcap = loader.switchable("final_logit_softcapping")?;
    loader.apply_window(&mut config, None, INTERVAL)?;
    let head_dim = loader.size("attention.key_length_swa", 2..=sizes.head_dim)?.unwrap_or(sizes.head_dim);
    match loader.size("attention.value_length_swa", 0..=usize::MAX)? {
        Some(len) if len != head_dim => {
            let expected = format!("the length of a key, {head_dim}");
            return Err(loader.key_error("attention.value_length_swa", expected, len));
        }
        _ => {}
    }
    loader.local_rope(&mut config, RopeDefaults { head_dim, dims: head_dim, base: LOCAL_BASE })?;
    for attention in config.attentions_mut() {
        (attention.scores.scale, attention.values.normed) = (1.0, true);
        if attention.window.is_some() {
            attention.heads = HeadSizes { head_dim, value_dim: head_dim, ..attention.heads };
        }
    }
    config.set_steps(steps(&config));
    Ok(config)
}

/// Makes the last `attention.shared_kv_layers` layers read keys and values of an earlier layer.
/// Layers with a window read from the last earlier layer with a window. Layers without a window
/// read from the last earlier layer without one.
pub(super) fn share_keys_and_values(loader: &Loader<'_>, config: &mut ModelConfig) -> Result<()> {
    let (key, n_layer) = ("attention.shared_kv_layers", config.n_layer());
    let own = n_layer - loader.size(key, 0..=n_layer - 1)?.unwrap_or(0);
    let windowed = |layer: &LayerConfig| layer.attention.as_ref().is_some_and(|attention| attention.window.is_some());
    let (first, last) = config.layers.split_at_mut(own);
    for layer in last {
        let source = first.iter().rposition(|before| windowed(before) == windowed(layer));
        let Some(source) = source else {
            let kind = if windowed(layer) { "with" } else { "without" };
            let expected = format!("a number that leaves an earlier layer {kind} a window");
            return Err(loader.key_error(key, expected, n_layer - own));
        };
        if let Some(attention) = &mut layer.attention {
            attention.kv_from = Some(source);
        }
    }
    Ok(())
}

fn steps(config: &ModelConfig) -> Vec<Step> {
    use Register::{Normed, NormedFfn, Out, Residual};
    let mut steps = vec![
        Step::Norm { norm: NormSlot::Attention, from: Residual, into: Normed },
        Step::Attention { from: Normed },
        Step::Norm { norm: NormSlot::PostAttention, from: Out, into: Out },
        Step::AddOut,
        Step::Norm { norm: NormSlot::Ffn, from: Residual, into: Normed },
    ];
    match config.experts {
        None => steps.push(Step::Ffn { from: Normed }),
        Some(_) => steps.extend([
            Step::DenseFfn { from: Normed },
            Step::Norm { norm: NormSlot::PostDense, from: Out, into: NormedFfn },
            Step::Norm { norm: NormSlot::Experts, from: Residual, into: Normed },
            Step::Ffn { from: Normed },
            Step::Norm { norm: NormSlot::PostExperts, from: Out, into: Out },
            Step::Add { from: NormedFfn, into: Out },
        ]),
    }
    steps.extend([Step::Norm { norm: NormSlot::PostFfn, from: Out, into: Out }, Step::AddOut]);
    if config.per_layer_input.is_some() {
        let norm = Step::Norm { norm: NormSlot::PostPerLayer, from: Out, into: Out };
        steps.extend([Step::PerLayerInput, norm, Step::AddOut]);
    }
    steps.push(Step::Scale);
    steps
}

pub(super) fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let mut norms = vec![
        (NormSlot::Attention, "attn_norm"),
        (NormSlot::PostAttention, "post_attention_norm"),
        (NormSlot::Ffn, "ffn_norm"),
        (NormSlot::PostFfn, "post_ffw_norm"),
    ];
    if config.experts.is_some() {
        norms.extend([
            (NormSlot::PostDense, "post_ffw_norm_1"),
            (NormSlot::Experts, "pre_ffw_norm_2"),
            (NormSlot::PostExperts, "post_ffw_norm_2"),
        ]);
    }
    norms.extend(config.per_layer_input.map(|_| (NormSlot::PostPerLayer, "post_norm")));
    let mut layer = gated_layer(loader, config, n, &norms)?;
    layer.per_layer = per_layer_weights(loader, config, n)?;
    let windowed = config.layers[n].attention.as_ref().filter(|of| of.window.is_some() && of.kv_from.is_none());
    if let (Some(of), Some(attention)) = (windowed, &layer.attention)
        && attention.v.is_none()
    {
        let expected = format!("values of a layer with a window, shape {:?}", [of.heads.v_dim(), config.d_model]);
        return Err(loader.missing_tensor(&format!("blk.{n}.attn_v.weight"), expected));
    }
    if let Some(experts) = &config.experts {
        let Ffn::Experts(weights) = &mut layer.ffn else {
            return Err(loader.missing_tensor(&format!("blk.{n}.ffn_gate_inp.weight"), "experts and a dense FFN"));
        };
        // The router reads the residual stream divided by its root mean square, times this vector
        // over sqrt(d).
        let mut weight = loader.vector(&format!("blk.{n}.ffn_gate_inp.scale"), config.d_model)?;
        let factor = 1.0 / (config.d_model as f32).sqrt();
        weight.iter_mut().for_each(|x| *x *= factor);
        weights.router_norm = Some(Norm { weight, bias: None, own_eps: None });
        weights.scale = Some(loader.vector(&format!("blk.{n}.ffn_down_exps.scale"), experts.count)?);
        layer.beside_experts = Some(loader.dense_ffn(n, config, true)?);
    }
    layer.output_scale = Some(loader.vector(&format!("blk.{n}.layer_output_scale.weight"), 1)?[0]);
    Ok(layer)
}

/// Sets the windows. The last layer never has one.
fn slides(hf: &HfConfig, draft: &mut Draft, n_layer: usize) -> Result<Vec<bool>> {
    let window = hf.size(&["sliding_window"])?;
    let slides = draft.windows(hf, n_layer, SlidingLayers::AllButEvery(INTERVAL))?;
    let mut slides = slides.unwrap_or_else(|| vec![false; n_layer]);
    if let Some(last) = slides.last_mut() {
        *last = false;
    }
    draft.window(window, Some(slides.clone()))?;
    Ok(slides)
}

/// Heads of layers without a window, if they differ from those of the other layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct GlobalHeads {
    head_dim: Option<usize>,
    kv_heads: Option<usize>,
}

/// Reads the heads of layers without a window. Folders have separate keys for them. Newer libraries
/// save them layer by layer.
fn global_heads(hf: &HfConfig, slides: &[bool]) -> Result<GlobalHeads> {
    let name = "per_layer_config";
    let [head_dim, kv_heads] = ["head_dim", "num_key_value_heads"].map(|key| hf.by_layer(name, key, slides.len()));
    let (Some(head_dim), Some(kv_heads)) = (head_dim?, kv_heads?) else {
        let head_dim = hf.usize(&["global_head_dim"])?.filter(|dim| *dim > 0);
        let own = hf.bool(&["attention_k_eq_v"])?.unwrap_or(false);
        let kv_heads = if own { hf.usize(&["num_global_key_value_heads"])? } else { None };
        return Ok(GlobalHeads { head_dim, kv_heads });
    };
    let of = |n: usize| GlobalHeads { head_dim: head_dim[n], kv_heads: kv_heads[n] };
    let last = of(slides.len() - 1);
    for (n, slides) in slides.iter().enumerate() {
        let wanted = if *slides { GlobalHeads { head_dim: None, kv_heads: None } } else { last };
        if of(n) != wanted {
            let expected = "the same value for all layers without a window, and no value for other layers";
            return Err(hf.error(name, expected, format!("another value in layer {n}")));
        }
    }
    Ok(last)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    import_as("gemma4", hf, draft)
}

/// Imports a folder as the architecture `arch`.
pub(super) fn import_as(arch: &'static str, hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let common = draft.common(hf, arch)?;
    let (n_layer, local_dim) = (common.n_layer, common.head_dim);
    let slides = slides(hf, draft, n_layer)?;
    let global = global_heads(hf, &slides)?;
    let head_dim = global.head_dim.unwrap_or(local_dim);
    let rope_dims = hf.rotated(LayerRope::Full, head_dim)?;
    draft.rope(hf, &HfSizes { head_dim, rope_dims, ..common }, 1e6)?;
    draft.local_rope(hf, &common, LOCAL_BASE)?;
    draft.set(WHOLE_PICTURES, Value::Bool(hf.reads_whole_pictures()));
    for key in ["attention.key_length", "attention.value_length"] {
        draft.set_size(key, head_dim)?;
        draft.set_size(&format!("{key}_swa"), local_dim)?;
    }
    if let Some(global) = global.kv_heads {
        let heads = |slides: &bool| u32::try_from(if *slides { common.n_kv_head } else { global }).unwrap_or(u32::MAX);
        let heads = slides.iter().map(heads).collect();
        draft.set("attention.head_count_kv", Value::Array(Array::U32(heads)));
    }
    let shared = hf.or_default(&["num_kv_shared_layers"], 0)?;
    draft.set_size("attention.shared_kv_layers", shared)?;
    draft.set_size("embedding_length_per_layer_input", hf.or_default(&["hidden_size_per_layer_input"], 0)?)?;
    if hf.bool(&["use_double_wide_mlp"])?.unwrap_or(false) {
        let width = hf.size(&["intermediate_size"])?;
        let width = |n: usize| if n + shared >= n_layer { width.saturating_mul(2) } else { width };
        let widths = (0..n_layer).map(|n| u32::try_from(width(n)).unwrap_or(u32::MAX)).collect();
        draft.set("feed_forward_length", Value::Array(Array::U32(widths)));
    }
    if hf.bool(&["enable_moe_block"])?.unwrap_or(false) {
        draft.experts(hf, &["num_experts"], &["top_k_experts"], &["moe_intermediate_size"])?;
    }
    draft.activation(hf.activation(&["hidden_activation"], Activation::GeluTanh)?);
    if let Some(cap) = hf.f32(&["final_logit_softcapping"])? {
        draft.set("final_logit_softcapping", Value::F32(cap));
    }
    draft.tied = true;
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.norms_of_heads();
    naming.norms_after();
    naming.add("model.layers.*.pre_feedforward_layernorm", "blk.*.ffn_norm");
    naming.per_layer_inputs();
    naming.add("model.layers.*.pre_feedforward_layernorm_2", "blk.*.pre_ffw_norm_2");
    naming.add("model.layers.*.post_feedforward_layernorm_1", "blk.*.post_ffw_norm_1");
    naming.add("model.layers.*.post_feedforward_layernorm_2", "blk.*.post_ffw_norm_2");
    naming.add("model.layers.*.router.proj", "blk.*.ffn_gate_inp");
    naming.stacked_experts("experts", &Transform::None);
    for (hf, gguf) in [
        ("router.scale", "ffn_gate_inp.scale"),
        ("router.per_expert_scale", "ffn_down_exps.scale"),
        ("layer_scalar", "layer_output_scale.weight"),
    ] {
        naming.whole(format!("model.layers.*.{hf}"), format!("blk.*.{gguf}"), Transform::None);
    }
    Ok(())
}
