//! HunYuan 1, dense and MoE: Llama's layer with rotated halves, and norms on query and key heads
//! after the rotation. MoE models choose experts by softmax and have a shared expert.

use super::prelude::*;

pub(super) const FAMILY: Family = Family {
    architectures: &["hunyuan-dense", "hunyuan-moe"],
    model_types: &["hunyuan_v1_dense", "hunyuan_v1_moe"],
    config,
    layer: usual_layer,
    import,
};

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    check_lengths_kept(loader, &config)?;
    if loader.arch == "hunyuan-moe" {
        config.experts = loader.experts(Router::softmax(true), |_| sizes.n_ff)?;
    }
    config.attentions_mut().for_each(|attention| attention.positions.norm_after_rope = true);
    Ok(config)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    hf.refuse_unless("use_cla", false, "HunYuan with keys and values of other layers")?;
    let is_moe = hf.model_type() == "hunyuan_v1_moe";
    draft.usual(hf, if is_moe { "hunyuan-moe" } else { "hunyuan-dense" }, 10_000.0, Activation::Silu)?;
    if is_moe {
        draft.set_size("expert_count", same(hf, "num_experts")?)?;
        draft.set_size("expert_used_count", same(hf, "moe_topk")?)?;
        let own = hf.value("moe_intermediate_size").is_some();
        let width = same(hf, if own { "moe_intermediate_size" } else { "intermediate_size" })?;
        draft.set_size("expert_feed_forward_length", width)?;
    }
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.add("model.layers.*.self_attn.query_layernorm", "blk.*.attn_q_norm");
    naming.add("model.layers.*.self_attn.key_layernorm", "blk.*.attn_k_norm");
    naming.experts("mlp.experts", ["gate_proj", "up_proj", "down_proj"]);
    naming.shared_expert("mlp.shared_mlp");
    naming.add("model.layers.*.mlp.gate.wg", "blk.*.ffn_gate_inp");
    Ok(())
}

/// Returns a number that a folder may give per layer but that must be equal for all layers.
fn same(hf: &HfConfig, name: &str) -> Result<usize> {
    let numbers = hf.numbers(name)?;
    match numbers.iter().find(|number| **number != numbers[0]) {
        Some(other) => Err(hf.error(name, format!("{} for every layer", numbers[0]), other)),
        None => Ok(numbers[0]),
    }
}
