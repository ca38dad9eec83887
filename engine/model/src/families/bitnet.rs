//! BitNet (b1.58 2B4T, and the community's SwiGLU form). Weights have three values. Norms precede
//! attention's output matrix and the down projection. The FFN of 2B4T squares its ReLU, so that
//! most neurons are silent.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["bitnet-b1.58", "bitnet-25", "bitnet"], model_types: &["bitnet"], config, layer, import };

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    // Files do not name the activation.
    let usual = if loader.arch == "bitnet" { Activation::Silu } else { Activation::ReluSquared };
    config.activation = loader.activation(usual)?;
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let mut layer = gated_layer(loader, config, n, USUAL_NORMS)?;
    let heads = config.layers[n].attention.as_ref().map_or(0, |attention| attention.output_cols());
    for (slot, stem, len) in
        [(NormSlot::Heads, "attn_sub_norm", heads), (NormSlot::Hidden, "ffn_sub_norm", config.layers[n].n_ff)]
    {
        layer.norms.push((slot, loader.norm(&format!("blk.{n}.{stem}"), config.norm, len)?));
    }
    Ok(layer)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    hf.refuse_unless("attention_bias", false, "BitNet with biases")?;
    draft.usual(hf, "bitnet-b1.58", 500_000.0, Activation::ReluSquared)?;
    draft.naming.llama_like();
    draft.naming.add("model.layers.*.self_attn.attn_sub_norm", "blk.*.attn_sub_norm");
    draft.naming.add("model.layers.*.mlp.ffn_sub_norm", "blk.*.ffn_sub_norm");
    Ok(())
}
