//! ERNIE 4.5, dense and MoE: Llama's layer with rotated pairs of neighbours, in Hugging Face
//! folders too. The MoE models start with some dense layers. The other layers choose experts by
//! softmax and bias, and have shared experts.

use super::prelude::*;

pub(super) const FAMILY: Family = Family {
    architectures: &["ernie4_5", "ernie4_5-moe"],
    model_types: &["ernie4_5", "ernie4_5_moe"],
    config,
    layer: usual_layer,
    import,
};

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::Normal)?;
    config.experts = loader.experts(Router::softmax(true), |_| 0)?;
    Ok(config)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let is_moe = hf.model_type() == "ernie4_5_moe";
    draft.usual(hf, if is_moe { "ernie4_5-moe" } else { "ernie4_5" }, 500_000.0, Activation::Silu)?;
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
    naming.mlp_experts();
    naming.shared_expert("mlp.shared_experts");
    naming.selection_bias("mlp.moe_statics.e_score_correction_bias");
    Ok(())
}
