//! Seed-OSS: Llama's layer with halves rotated, biases on q, k and v, and heads wider than the residual stream divided among them.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["seed_oss"], model_types: &["seed_oss"], config, layer, import };

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    // GGUF names the FFN's norm as Hugging Face does.
    let stems = [(NormSlot::Attention, "attn_norm"), (NormSlot::Ffn, "post_attention_norm")];
    gated_layer(loader, config, n, &stems)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    draft.usual(hf, "seed_oss", 10_000.0, Activation::Silu)?;
    draft.naming.llama_like();
    draft.naming.add("model.layers.*.post_attention_layernorm", "blk.*.post_attention_norm");
    Ok(())
}
