//! Cohere 2 MoE (Command A+). Attention and FFN run in parallel after one norm. After some dense
//! layers, the other layers choose experts by sigmoid and average them with a shared expert. Dense
//! layers and layers with a window are rotated, in pairs of neighbours.

use super::prelude::*;
use thermocline_formats::quant::TensorType;

pub(super) const FAMILY: Family =
    Family { architectures: &["cohere2moe"], model_types: &["cohere2_moe"], config, layer, import };

/// Of every `INTERVAL` layers, the last has no window.
const INTERVAL: usize = 4;
/// Weight of the routed experts' sum when it is averaged with the shared expert.
const HALF: f32 = 0.5;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let norm = if loader.has_key("attention.layer_norm_epsilon") { NormKind::Layer } else { NormKind::Rms };
    let mut config = loader.base_config(sizes, norm, RopeOrder::Normal)?;
    config.logit_scale = loader.switchable("logit_scale")?.unwrap_or(1.0);
    let mut experts = loader.required_experts(Router::sigmoid(true), |_| sizes.n_ff)?;
    if (0..sizes.n_layer).any(|n| loader.has(&format!("blk.{n}.ffn_up_shexp.weight"))) {
        experts.router.scale *= HALF;
    }
    config.experts = Some(experts);
    loader.apply_window(&mut config, None, INTERVAL)?;
    let dense = loader.size("leading_dense_block_count", 0..=sizes.n_layer)?.unwrap_or(0);
    let later = config.layers.iter_mut().skip(dense).filter_map(|layer| layer.attention.as_mut());
    later.filter(|attention| attention.window.is_none()).for_each(|attention| attention.positions.rope = None);
    config.set_steps(Step::parallel());
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let mut layer = gated_layer(loader, config, n, &[(NormSlot::Attention, "attn_norm")])?;
    if let Ffn::Experts(moe) = &mut layer.ffn
        && let Some(shared) = &mut moe.shared
    {
        // A gate of zeros gives `sigmoid(0) = 0.5`, the shared expert's weight in the average.
        let zeros = Bytes::new(vec![0; config.d_model * size_of::<f32>()]);
        let weight = Matrix::new(TensorType::F32, 1, config.d_model, zeros);
        shared.gate = weight.map(|weight| Linear { weight, bias: None });
    }
    Ok(layer)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let n_ff = hf.or_default(&["prefix_dense_intermediate_size"], hf.size(&["intermediate_size"])?)?;
    let sizes = draft.common_of_width(hf, "cohere2moe", n_ff)?;
    draft.rope(hf, &sizes, 10_000.0)?;
    draft.activation(hf.activation(&["hidden_act"], Activation::Silu)?);
    if hf.f32(&["rms_norm_eps"])?.is_none() {
        draft.set("attention.layer_norm_epsilon", Value::F32(hf.f32(&["layer_norm_eps"])?.unwrap_or(1e-5)));
    }
    draft.set("logit_scale", Value::F32(hf.f32(&["logit_scale"])?.unwrap_or(0.0625)));
    let (dense, slides) = layers(hf, sizes.n_layer)?;
    draft.set_size("leading_dense_block_count", dense)?;
    draft.windows(hf, sizes.n_layer, SlidingLayers::Marked(slides))?;
    draft.experts(hf, &["num_experts"], &["num_experts_per_tok"], &["intermediate_size"])?;
    draft.set_size("expert_shared_count", hf.or_default(&["num_shared_experts"], 0)?)?;
    let strategy = hf.str(&["shared_expert_combination_strategy"])?.unwrap_or("average");
    if strategy != "average" && hf.or_default(&["num_shared_experts"], 0)? > 0 {
        let what = "Cohere 2 MoE that does not average its experts";
        return Err(hf.unsupported(what, "shared_expert_combination_strategy", strategy));
    }
    draft.router(
        hf,
        match hf.str(&["expert_selection_fn"])?.unwrap_or("softmax") {
            "softmax" => Router { score: RouterScore::SoftmaxOfChosen, ..Router::softmax(false) },
            "sigmoid" => Router::sigmoid(true),
            other => return Err(hf.error("expert_selection_fn", "`softmax` or `sigmoid`", other)),
        },
    )?;
    draft.tied = true;
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.mlp_experts();
    naming.shared_expert("mlp.shared_experts");
    Ok(())
}

/// Returns the number of dense layers before the expert layers, and per layer whether it has a
/// window if `layer_types` does not say.
fn layers(hf: &HfConfig, n_layer: usize) -> Result<(usize, Vec<bool>)> {
    let key = "mlp_layer_types";
    // Even if the folder also names layer types, the interval of windows starts after these layers.
    let replaced = hf.or_default(&["first_k_dense_replace"], 0)?;
    let dense = match hf.strings(key)? {
        None => replaced,
        Some(types) => {
            let types = hf.of_layers(&types, n_layer)?;
            let dense = types.iter().take_while(|ty| **ty == "dense").count();
            if types.len() != n_layer || types[dense..].iter().any(|ty| *ty != "sparse") {
                let expected = format!("{n_layer} entries, all `dense` entries before all `sparse` entries");
                return Err(hf.error(key, expected, types.join(", ")));
            }
            dense
        }
    };
    let prefix = hf.or_default(&["prefix_dense_sliding_window_pattern"], 1)?;
    if dense > 0 && prefix != 1 {
        let what = "Cohere 2 MoE with windows on dense layers";
        return Err(hf.unsupported(what, "prefix_dense_sliding_window_pattern", prefix));
    }
    let interval = hf.or_default(&["sliding_window_pattern"], INTERVAL)?;
    let slides = |n: usize| n >= replaced && (interval == 0 || !(n - replaced + 1).is_multiple_of(interval));
    Ok((dense, (0..n_layer).map(slides).collect()))
}
