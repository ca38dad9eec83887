//! SmallThinker: experts with a ReLU in their gate. The residual stream before attention chooses
//! them, so that they are known early. Three of four layers have a window and rotations. The first
//! of every four has neither.
//!
//! llama.cpp's files name only the window. This engine's files have `rope.layer_pattern` and the
//! window's pattern.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["smallthinker"], model_types: &["smallthinker"], config, layer: usual_layer, import };

/// Of every `INTERVAL` layers, the first has neither window nor rotations.
const INTERVAL: usize = 4;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    config.activation = loader.activation(Activation::Relu)?;
    config.experts = Some(loader.required_experts(Router::softmax(true), |_| sizes.n_ff)?);
    config.set_steps(Step::sequential_routed_early());
    let slides = loader.layer_flags("attention.sliding_window_pattern", sizes.n_layer)?;
    loader.apply_window(&mut config, None, 0)?;
    let windowed = config.attentions().any(|attention| attention.window.is_some());
    let rotated = loader.layer_flags("rope.layer_pattern", sizes.n_layer)?;
    for (n, attention) in
        config.layers.iter_mut().enumerate().filter_map(|(n, layer)| Some((n, layer.attention.as_mut()?)))
    {
        let usual = !windowed || n % INTERVAL != 0;
        attention.window = attention.window.filter(|_| slides.is_some() || usual);
        attention.positions.rope =
            attention.positions.rope.filter(|_| rotated.as_ref().map_or(usual, |rotated| rotated[n]));
    }
    Ok(config)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    hf.refuse_unless("moe_enable_early_router", true, "SmallThinker with a router after attention")?;
    hf.refuse_unless("moe_enable_secondary_experts", false, "SmallThinker with secondary experts")?;
    let sizes = draft.common_of_width(hf, "smallthinker", hf.size(&["moe_ffn_hidden_size"])?)?;
    draft.rope(hf, &sizes, 10_000.0)?;
    draft.activation(Activation::Relu);
    if let Some(layout) = hf.layer_flags("moe_layer_layout", sizes.n_layer)?
        && let Some(dense) = layout.iter().position(|experts| !experts)
    {
        return Err(hf.error("moe_layer_layout", "experts in every layer", format!("no experts in layer {dense}")));
    }
    // A layer may have a window without rotations, or rotations without a window.
    let windows = hf.layer_flags("sliding_window_layout", sizes.n_layer)?;
    let windows = windows.unwrap_or_else(|| vec![false; sizes.n_layer]);
    if windows.contains(&true) {
        draft.window(hf.size(&["sliding_window_size", "sliding_window"])?, Some(windows))?;
    }
    let rotated = hf.layer_flags("rope_layout", sizes.n_layer)?.unwrap_or_else(|| vec![true; sizes.n_layer]);
    draft.set("rope.layer_pattern", Value::Array(Array::Bool(rotated)));
    let (count, used) = (&["moe_num_primary_experts"], &["moe_num_active_primary_experts"]);
    draft.experts(hf, count, used, &["moe_ffn_hidden_size"])?;
    let router = match hf.bool(&["moe_primary_router_apply_softmax"])? {
        Some(false) => Router::sigmoid(true),
        _ => Router::softmax(true),
    };
    draft.router(hf, router)?;
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.experts("block_sparse_moe.experts", ["gate", "up", "down"]);
    naming.add("model.layers.*.block_sparse_moe.primary_router", "blk.*.ffn_gate_inp");
    Ok(())
}
