//! Hy3 and Hy-MT2-30B-A3B (Tencent): Llama's layer with rotated halves, and norms on query and key
//! heads before the rotation. After some dense layers, the other layers choose experts by sigmoid
//! and bias, and have a shared expert.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["hy_v3"], model_types: &["hy_v3"], config, layer: usual_layer, import };

/// Base of the rotations of folders that do not name one.
const ROPE_BASE: f32 = 11_158_840.0;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    config.experts = Some(loader.required_experts(Router::sigmoid(true), |_| 0)?);
    Ok(config)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    hf.refuse_unless("moe_router_use_sigmoid", true, "Hy3 without a sigmoid router")?;
    draft.usual(hf, "hy_v3", ROPE_BASE, Activation::Silu)?;
    let width = "moe_intermediate_size";
    draft.experts(hf, &["num_experts", "num_local_experts"], &["num_experts_per_tok"], &[width])?;
    let shared = hf.or_default(&["num_shared_experts"], 0)?;
    draft.set_size("expert_shared_count", shared)?;
    draft.set_size("expert_shared_feed_forward_length", shared.saturating_mul(hf.size(&[width])?))?;
    draft.router(hf, Router::sigmoid(hf.bool(&["route_norm"])?.unwrap_or(true)))?;
    draft.set("expert_weights_scale", Value::F32(hf.f32(&["router_scaling_factor"])?.unwrap_or(1.0)));
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.norms_of_heads();
    naming.mlp_experts();
    // Published folders have the first of these names, and the library's own names differ.
    naming.add("model.layers.*.mlp.router.gate", "blk.*.ffn_gate_inp");
    for name in ["mlp.expert_bias", "mlp.e_score_correction_bias"] {
        naming.selection_bias(name);
    }
    for stem in ["mlp.shared_mlp", "mlp.shared_experts"] {
        naming.shared_expert(stem);
    }
    naming.draft_head(&Transform::None);
    naming.layers("", &[("final_layernorm", "nextn.shared_head_norm")]);
    Ok(())
}
