//! Qwen 2, 2.5 and 3, dense and MoE: Llama's layer with rotated halves. Qwen 2 has biases on q, k
//! and v, Qwen 3 norms on query and key heads. Qwen2-MoE adds a shared expert.
//!
//! The rotations of the vision models (Qwen 2 VL, 2.5 VL and 3 VL) have sections for time, row and
//! column. In text, all three positions are the same number, so that the rotations are ordinary
//! ones.

use super::prelude::*;

pub(super) const FAMILY: Family = Family {
    architectures: &["qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe"],
    model_types: &[
        "qwen2",
        "qwen2_moe",
        "qwen2_vl",
        "qwen2_vl_text",
        "qwen2_5_vl",
        "qwen2_5_vl_text",
        "qwen3",
        "qwen3_moe",
        "qwen3_vl",
        "qwen3_vl_text",
        "qwen3_vl_moe",
        "qwen3_vl_moe_text",
    ],
    config,
    layer: usual_layer,
    import,
};

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    let renormalise = loader.arch.starts_with("qwen3");
    config.experts = loader.experts(Router::softmax(renormalise), |used| sizes.n_ff / used)?;
    if loader.arch.ends_with("moe") && config.experts.is_none() {
        return Err(loader.key_error("expert_count", "at least one expert", 0));
    }
    loader.apply_window(&mut config, None, 0)?;
    loader.rope_sections(&mut config, loader.arch.starts_with("qwen3vl"))?;
    Ok(config)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let arch = match hf.model_type() {
        "qwen2_moe" => "qwen2moe",
        "qwen3_moe" => "qwen3moe",
        "qwen3" => "qwen3",
        "qwen3_vl" | "qwen3_vl_text" => "qwen3vl",
        "qwen3_vl_moe" | "qwen3_vl_moe_text" => "qwen3vlmoe",
        "qwen2_vl" | "qwen2_vl_text" | "qwen2_5_vl" | "qwen2_5_vl_text" => "qwen2vl",
        _ => "qwen2",
    };
    let base = match arch {
        "qwen2vl" => 1e6,
        "qwen3vl" | "qwen3vlmoe" => 500_000.0,
        _ => 10_000.0,
    };
    let sizes = draft.usual(hf, arch, base, Activation::Silu)?;
    match arch {
        "qwen2vl" => draft.rope_sections(hf, &sizes, RopeSections { pairs: [16, 24, 24], interleaved: false })?,
        "qwen3vl" | "qwen3vlmoe" => {
            draft.rope_sections(hf, &sizes, RopeSections { pairs: [24, 20, 20], interleaved: true })?;
            // llama.cpp takes additions of the tower only if the text model announces their number.
            if let Some(layers) = hf.length_within("vision_config", "deepstack_visual_indexes")? {
                draft.set_size("n_deepstack_layers", layers)?;
            }
        }
        _ => {}
    }
    // Without `layer_types`, the first `max_window_layers` layers read all keys, and the later ones
    // have a window. In Qwen2-MoE, only every other one of the first layers has a window.
    let full = hf.or_default(&["max_window_layers"], 28)?;
    let slides = |n: usize| match arch {
        "qwen2moe" => n.is_multiple_of(2) && n < full,
        "qwen3moe" => true,
        _ => n >= full,
    };
    // Qwen 3 VL has no windows, even if its files name one.
    if !arch.starts_with("qwen3vl") {
        draft.windows(hf, sizes.n_layer, SlidingLayers::Marked((0..sizes.n_layer).map(slides).collect()))?;
    }
    if arch.ends_with("moe") {
        let count = &["num_experts", "num_local_experts"];
        draft.experts(hf, count, &["num_experts_per_tok"], &["moe_intermediate_size"])?;
        if let Some(n_ff) = hf.usize(&["shared_expert_intermediate_size"])? {
            draft.set_size("expert_shared_feed_forward_length", n_ff)?;
        }
        let renormalise = hf.bool(&["norm_topk_prob"])?.unwrap_or(arch == "qwen3vlmoe");
        draft.set("expert_weights_norm", Value::Bool(renormalise));
    }
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.norms_of_heads();
    naming.mlp_experts();
    naming.set("model.layers.*.mlp.shared_expert_gate", "blk.*.ffn_gate_inp_shexp", Transform::Flatten);
    if arch == "qwen3vlmoe" {
        let (d, n_ff) = (hf.size(&["hidden_size"])?, hf.size(&["moe_intermediate_size"])?);
        let both = n_ff.saturating_mul(2);
        for (stem, gguf, outputs, inputs) in
            [("gate_up_proj", "ffn_gate_up_exps", both, d), ("down_proj", "ffn_down_exps", d, n_ff)]
        {
            let (from, to) = (format!("model.layers.*.mlp.experts.{stem}"), format!("blk.*.{gguf}.weight"));
            naming.whole(from, to, Transform::Experts { outputs, inputs });
        }
    }
    naming.shared_expert("mlp.shared_expert");
    Ok(())
}
