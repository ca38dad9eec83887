//! ERNIE 4.5, dense and MoE: Llama's layer with neighbours rotated, in Hugging Face folders, too; experts chosen by softmax and bias
//! after some dense layers, with shared ones.

use super::prelude::*;

pub(super) const FAMILY: Family = Family {
    architectures: &["ernie4_5", "ernie4_5-moe"],
    model_types: &["ernie4_5", "ernie4_5_moe"],
    config,
    layer,
    import,
};

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::Normal)?;
    config.experts = loader.experts(Router::softmax(true), |_| 0)?;
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    gated_layer(loader, config, n, USUAL_NORMS)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let is_moe = hf.model_type() == "ernie4_5_moe";
    let sizes = draft.common(hf, if is_moe { "ernie4_5-moe" } else { "ernie4_5" })?;
    draft.rope(hf, &sizes, 500_000.0)?;
    draft.activation(hf.activation(&["hidden_act"], Activation::Silu)?);
    if is_moe {
        draft.experts(hf, &["moe_num_experts"], &["moe_k"], &["moe_intermediate_size"])?;
        draft.set_size("expert_shared_count", hf.or_default(&["moe_num_shared_experts"], 0)?)?;
        draft.set_size("leading_dense_block_count", hf.or_default(&["moe_layer_start_index"], 0)?)?;
        draft.set_size("interleave_moe_layer_step", hf.or_default(&["moe_layer_interval"], 1)?)?;
        draft.router(hf, Router::softmax(true))?;
    }
    draft.tied = true;
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.experts("mlp.experts", ["gate_proj", "up_proj", "down_proj"]);
    naming.shared_expert("mlp.shared_experts");
    naming.add("model.layers.*.mlp.gate", "blk.*.ffn_gate_inp");
    naming.selection_bias("mlp.moe_statics.e_score_correction_bias");
    Ok(())
}
