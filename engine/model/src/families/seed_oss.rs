//! Seed-OSS: Llama's layer with rotated halves, and biases on q, k and v. The heads together are
//! wider than the residual stream.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["seed_oss"], model_types: &["seed_oss"], config, layer, import };

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    // GGUF uses Hugging Face's name for the FFN's norm.
    let stems = [(NormSlot::Attention, "attn_norm"), (NormSlot::Ffn, "post_attention_norm")];
    gated_layer(loader, config, n, &stems)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    draft.usual(hf, "seed_oss", 10_000.0, Activation::Silu)?;
    draft.naming.llama_like();
    draft.naming.add("model.layers.*.post_attention_layernorm", "blk.*.post_attention_norm");
    Ok(())
}
