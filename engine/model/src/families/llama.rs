//! Llama 1 to 3 and models of the same shape: Mistral, Mixtral, ReluLLaMA, ProSparse, Bamboo,
//! TurboSparse.
//!
//! GGUF stores query and key rows with rotated pairs as neighbours. Hugging Face stores them as
//! halves. Importing therefore permutes rows.

use super::prelude::*;

pub(super) const FAMILY: Family = Family {
    architectures: &["llama", "bamboo"],
    model_types: &["llama", "mistral", "mixtral", "bamboo", "turbosparsemistral", "turbosparsemixtral"],
    config,
    layer: usual_layer,
    import,
};

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::Normal)?;
    config.activation = loader.activation(match loader.arch {
        "bamboo" => Activation::DRelu,
        _ if loader.is_powerinfer() => Activation::Relu,
        _ => Activation::Silu,
    })?;
    config.experts = loader.experts(Router::softmax(true), |_| sizes.n_ff)?;
    // llama.cpp does not store Mistral's window. This engine's files do.
    loader.apply_window(&mut config, None, 0)?;
    Ok(config)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let model_type = hf.model_type();
    let sizes = draft.common(hf, if model_type == "bamboo" { "bamboo" } else { "llama" })?;
    draft.rope(hf, &sizes, if model_type == "mixtral" { 1e6 } else { 10_000.0 })?;
    let dual = matches!(model_type, "bamboo" | "turbosparsemistral" | "turbosparsemixtral");
    draft.activation(if dual { Activation::DRelu } else { hf.activation(&["hidden_act"], Activation::Silu)? });
    // Llama itself has no windows, even if its files name one.
    if model_type != "llama" {
        draft.windows(hf, sizes.n_layer, SlidingLayers::All)?;
    }
    if let Some(count) = hf.usize(&["num_local_experts"])? {
        draft.set_size("expert_count", count)?;
        draft.set_size("expert_used_count", hf.size(&["num_experts_per_tok"])?)?;
    }
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.rotated_pairs(&sizes);
    naming.mixtral_experts();
    Ok(())
}
