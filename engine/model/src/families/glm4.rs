//! GLM 4 (0414): norms before and after attention and FFN, and gate and up in one matrix. Half of
//! each head is rotated, in pairs of neighbours.

use super::prelude::*;

pub(super) const FAMILY: Family = Family { architectures: &["glm4"], model_types: &["glm4"], config, layer, import };

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::Normal)?;
    config.set_steps(Step::norms_around());
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    fused_layer(loader, config, n, NORMS_AROUND)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    draft.usual(hf, "glm4", 10_000.0, Activation::Silu)?;
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.add("model.layers.*.mlp.gate_up_proj", "blk.*.ffn_up");
    naming.add("model.layers.*.post_self_attn_layernorm", "blk.*.post_attention_norm");
    naming.add("model.layers.*.post_mlp_layernorm", "blk.*.post_ffw_norm");
    Ok(())
}
