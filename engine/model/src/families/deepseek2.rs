//! DeepSeek V2, V2-Lite, V3 and R1, Kimi K2, GLM 4.7 Flash, Mistral 4. Attention is latent. After
//! some dense layers, the other layers have routed and shared experts. V2 and Mistral choose
//! experts by softmax, the others by sigmoid and bias. Large models choose from the best groups of
//! experts. Queries of Mistral 4 grow with their position.

use super::{parts::check_gates, prelude::*};
use crate::ExpertGroups;

pub(super) const FAMILY: Family = Family {
    architectures: &["deepseek2", "mistral4"],
    model_types: &["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2", "mistral4"],
    config,
    layer,
    import,
};

/// Vocabulary and layers of GLM 4.7 Flash. Its first files do not name the function that chooses
/// experts.
const GLM_VOCABULARY: usize = 154_880;
const GLM_LAYERS: usize = 47;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::Normal)?;
    latent::configure(loader, &mut config)?;
    let mistral = loader.arch == "mistral4";
    let biased = (0..sizes.n_layer).any(|n| loader.has(&format!("blk.{n}.exp_probs_b.bias")));
    let glm = (sizes.n_vocab, sizes.n_layer) == (GLM_VOCABULARY, GLM_LAYERS);
    let router = if glm { Router::sigmoid(true) } else { Router::softmax(mistral) };
    // The score of a group is that of its best expert (V2), or of its two best (V3, Mistral).
    let groups = ExpertGroups { count: 1, used: 1, best: if biased || mistral { 2 } else { 1 } };
    config.experts = loader.experts(Router { groups: Some(groups), ..router }, |_| 0)?;
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let ffn = ffn(loader, config, n)?;
    check_gates(loader, &ffn, n)?;
    let (norms, attention) = (norms(loader, config, n, USUAL_NORMS)?, latent::attention(loader, config, n)?);
    Ok(LayerWeights::new(norms, attention, ffn, loader.predictor(n, config)?))
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    hf.refuse_unless("attention_bias", false, "latent attention with biases")?;
    hf.refuse_unless("rope_interleave", true, "latent attention that rotates halves of heads")?;
    let mistral = hf.model_type() == "mistral4";
    latent::import(hf, draft, if mistral { "mistral4" } else { "deepseek2" }, 10_000.0)?;
    if mistral {
        draft.query_scale(hf)?;
    }
    draft.activation(hf.activation(&["hidden_act"], Activation::Silu)?);
    draft.set_size("expert_count", hf.or_default(&["n_routed_experts"], 0)?)?;
    draft.set_size("expert_used_count", hf.or_default(&["num_experts_per_tok"], 0)?)?;
    draft.set_size("expert_feed_forward_length", hf.size(&["moe_intermediate_size"])?)?;
    draft.set_size("expert_shared_count", hf.or_default(&["n_shared_experts"], 0)?)?;
    draft.set_size("leading_dense_block_count", hf.or_default(&["first_k_dense_replace"], 0)?)?;
    let v2 = hf.model_type() == "deepseek_v2";
    draft.router(hf, if v2 || mistral { Router::softmax(mistral) } else { Router::sigmoid(true) })?;
    if v2 && hf.str(&["topk_method"])? != Some("group_limited_greedy") {
        draft.set_size("expert_group_count", 1)?;
    }
    if v2 {
        // V2 never divides weights by their sum, even if its files say so.
        draft.set("expert_weights_norm", Value::Bool(false));
    }
    let naming = &mut draft.naming;
    naming.mlp_experts();
    naming.stacked_experts("mlp.experts", &Transform::None);
    naming.shared_expert("mlp.shared_experts");
    naming.selection_bias("mlp.gate.e_score_correction_bias");
    naming.draft_head(&Transform::None);
    Ok(())
}
