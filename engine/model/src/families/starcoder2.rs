//! StarCoder 2: layer norms and biases everywhere, rotated halves, and an ungated GELU FFN.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["starcoder2"], model_types: &["starcoder2"], config, layer, import };

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Layer, RopeOrder::NeoX)?;
    config.activation = loader.activation(Activation::GeluTanh)?;
    // llama.cpp does not store the window. This engine's files do.
    loader.apply_window(&mut config, None, 0)?;
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    ungated_layer(loader, config, n, USUAL_NORMS)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let sizes = draft.usual(hf, "starcoder2", 10_000.0, Activation::GeluTanh)?;
    draft.set("attention.layer_norm_epsilon", Value::F32(hf.f32(&["norm_epsilon"])?.unwrap_or(1e-5)));
    draft.windows(hf, sizes.n_layer, SlidingLayers::All)?;
    draft.tied = true;
    draft.naming.llama_like();
    draft.naming.add("model.layers.*.mlp.c_fc", "blk.*.ffn_up");
    draft.naming.add("model.layers.*.mlp.c_proj", "blk.*.ffn_down");
    Ok(())
}
