//! MiniMax M2: q/k norms over all heads together, partial rotation, and experts chosen by sigmoid
//! and bias.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["minimax-m2"], model_types: &["minimax_m2"], config, layer: usual_layer, import };

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    config.experts = Some(loader.required_experts(Router::sigmoid(true), |_| sizes.n_ff)?);
    Ok(config)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let mut sizes = draft.common(hf, "minimax-m2")?;
    sizes.rope_dims = hf.usize(&["rotary_dim"])?.unwrap_or(sizes.rope_dims);
    if sizes.rope_dims > sizes.head_dim {
        return Err(hf.error("rotary_dim", format!("at most head_dim {}", sizes.head_dim), sizes.rope_dims));
    }
    draft.rope(hf, &sizes, 5e6)?;
    draft.activation(hf.activation(&["hidden_act"], Activation::Silu)?);
    draft.experts(hf, &["num_local_experts"], &["num_experts_per_tok"], &["intermediate_size"])?;
    draft.router(hf, Router::sigmoid(true))?;
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.mixtral_experts();
    naming.norms_of_heads();
    naming.selection_bias("block_sparse_moe.e_score_correction_bias");
    Ok(())
}
