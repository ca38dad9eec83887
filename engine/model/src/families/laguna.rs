//! Laguna (Poolside, XS.2 and M.1): q/k norms, outputs of heads gated by a softplus, and experts
//! chosen by sigmoid and bias, with a shared expert. In XS.2, three of four layers have windows,
//! more heads and their own rotations. Its other layers rotate half of each head and stretch
//! positions (YaRN).

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["laguna"], model_types: &["laguna"], config, layer: usual_layer, import };

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    config.experts = Some(loader.required_experts(Router::sigmoid(true), |_| 0)?);
    loader.apply_window(&mut config, None, 0)?;
    let dims = sizes.head_dim;
    loader.local_rope(&mut config, RopeDefaults { head_dim: dims, dims, base: 10_000.0 })?;
    gated_heads(loader, &mut config, GateFunction::Softplus)?;
    Ok(config)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    hf.refuse_unless("attention_bias", false, "Laguna with biases")?;
    hf.refuse_unless("moe_apply_router_weight_on_input", false, "Laguna with router weights on expert inputs")?;
    if let Some(cap) = hf.f32(&["moe_router_logit_softcapping"])?.filter(|cap| *cap > 0.0) {
        return Err(hf.unsupported("Laguna that caps its router's logits", "moe_router_logit_softcapping", cap));
    }
    let sizes = draft.common(hf, "laguna")?;
    let heads = hf.layer_sizes("num_attention_heads_per_layer", sizes.n_layer)?;
    if let Some(heads) = heads {
        draft.set("attention.head_count", Value::Array(Array::U32(heads)));
    }
    draft.rope(hf, &sizes, 500_000.0)?;
    draft.local_rope(hf, &sizes, 10_000.0)?;
    draft.activation(hf.activation(&["hidden_act"], Activation::Silu)?);
    draft.windows(hf, sizes.n_layer, SlidingLayers::None)?;
    draft.experts(hf, &["num_experts"], &["num_experts_per_tok"], &["moe_intermediate_size"])?;
    draft.router(hf, Router::sigmoid(true))?;
    draft.set("expert_weights_scale", Value::F32(hf.f32(&["moe_routed_scaling_factor"])?.unwrap_or(1.0)));
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.norms_of_heads();
    naming.add("model.layers.*.self_attn.g_proj", "blk.*.attn_gate");
    naming.mlp_experts();
    naming.shared_expert("mlp.shared_expert");
    for stem in ["mlp.experts", "mlp.gate"] {
        naming.selection_bias(&format!("{stem}.e_score_correction_bias"));
    }
    Ok(())
}
