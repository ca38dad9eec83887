//! GLM 4.5, 4.6 and 4.5-Air: q/k norms, biases on q, k and v, and half of each head rotated. After
//! some dense layers, the other layers choose experts by sigmoid and bias, and have a shared
//! expert.
//!
//! GGUF names the FFN's norm `post_attention_norm`.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["glm4moe"], model_types: &["glm4_moe"], config, layer, import };

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    config.experts = Some(loader.required_experts(Router::sigmoid(true), |_| 0)?);
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let norms = [(NormSlot::Attention, "attn_norm"), (NormSlot::Ffn, "post_attention_norm")];
    gated_layer(loader, config, n, &norms)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    draft.usual(hf, "glm4moe", 10000.0, Activation::Silu)?;
    draft.experts(hf, &["n_routed_experts"], &["num_experts_per_tok"], &["moe_intermediate_size"])?;
    draft.set_size("expert_shared_count", hf.or_default(&["n_shared_experts"], 0)?)?;
    draft.set_size("leading_dense_block_count", hf.or_default(&["first_k_dense_replace"], 0)?)?;
    draft.router(hf, Router::sigmoid(true))?;
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.mlp_experts();
    naming.shared_expert("mlp.shared_experts");
    naming.add("model.layers.*.post_attention_layernorm", "blk.*.post_attention_norm");
    naming.add("model.layers.*.self_attn.q_norm", "blk.*.attn_q_norm");
    naming.add("model.layers.*.self_attn.k_norm", "blk.*.attn_k_norm");
    naming.selection_bias("mlp.gate.e_score_correction_bias");
    naming.draft_head(&Transform::None);
    Ok(())
}
