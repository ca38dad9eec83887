//! MiniMax M2: q/k norms over all heads together, a part of each head rotated, experts chosen by sigmoid and bias.

use super::{
    Family, Loader,
    parts::{USUAL_NORMS, gated_layer},
};
use crate::{
    error::Result,
    model::{
        Activation, LayerWeights, ModelConfig, NormKind, RopeOrder, Router,
        import::{Draft, HfConfig},
        load::Sizes,
    },
};

pub(super) const FAMILY: Family =
    Family { architectures: &["minimax-m2"], model_types: &["minimax_m2"], config, layer, import };

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    config.experts = loader.experts(Router::sigmoid(true), |_| sizes.n_ff)?;
    if config.experts.is_none() {
        return Err(loader.key_error("expert_count", "at least one expert", 0));
    }
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    gated_layer(loader, config, n, USUAL_NORMS)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let mut sizes = draft.common(hf, "minimax-m2")?;
    sizes.rope_dims = hf.usize(&["rotary_dim"])?.unwrap_or(sizes.rope_dims);
    if sizes.rope_dims > sizes.head_dim {
        return Err(hf.error("rotary_dim", format!("at most head_dim {}", sizes.head_dim), sizes.rope_dims));
    }
    draft.rope(hf, &sizes, 5e6)?;
    draft.activation(hf.activation(&["hidden_act"], Activation::Silu)?);
    draft.set_size("expert_count", hf.size(&["num_local_experts"])?)?;
    draft.set_size("expert_used_count", hf.size(&["num_experts_per_tok"])?)?;
    draft.set_size("expert_feed_forward_length", hf.size(&["intermediate_size"])?)?;
    draft.router(hf, Router::sigmoid(true))?;
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.experts("block_sparse_moe.experts", ["w1", "w3", "w2"]);
    naming.norms_of_heads();
    naming.add("model.layers.*.block_sparse_moe.gate", "blk.*.ffn_gate_inp");
    naming.selection_bias("block_sparse_moe.e_score_correction_bias");
    Ok(())
}
