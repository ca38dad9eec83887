//! OLMoE: Llama's layer with rotated halves, and q/k norms over all heads together. A softmax
//! chooses experts. Their weights are not divided by their sum.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["olmoe"], model_types: &["olmoe"], config, layer: usual_layer, import };

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    config.experts = Some(loader.required_experts(Router::softmax(false), |_| sizes.n_ff)?);
    Ok(config)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    if let Some(limit) = hf.f32(&["clip_qkv"])? {
        return Err(hf.unsupported("OLMoE with limits of queries, keys and values", "clip_qkv", limit));
    }
    draft.usual(hf, "olmoe", 10_000.0, Activation::Silu)?;
    draft.experts(hf, &["num_experts", "num_local_experts"], &["num_experts_per_tok"], &["intermediate_size"])?;
    draft.router(hf, Router::softmax(false))?;
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.norms_of_heads();
    naming.mlp_experts();
    Ok(())
}
