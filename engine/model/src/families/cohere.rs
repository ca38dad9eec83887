//! Command R and Aya (Cohere 1), Command R7B and Command A (Cohere 2). Attention and FFN run in
//! parallel after one layer norm without a bias. Logits are scaled, and rotated pairs are
//! neighbours. Command R+ has layer norms of heads. In Cohere 2, three of four layers have windows,
//! and only these layers are rotated.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["command-r", "cohere2"], model_types: &["cohere", "cohere2"], config, layer, import };

/// Of every `INTERVAL` layers, the last has no window.
const INTERVAL: usize = 4;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Layer, RopeOrder::Normal)?;
    config.logit_scale = loader.switchable("logit_scale")?.unwrap_or(1.0);
    if loader.arch == "cohere2" {
        loader.apply_window(&mut config, None, INTERVAL)?;
        let global = config.attentions_mut().filter(|attention| attention.window.is_none());
        global.for_each(|attention| attention.positions.rope = None);
    }
    config.set_steps(Step::parallel());
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    gated_layer(loader, config, n, &[(NormSlot::Attention, "attn_norm")])
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    hf.refuse_unless("use_parallel_block", true, "Cohere without parallel blocks")?;
    hf.refuse_unless("use_gated_activation", true, "Cohere without gates")?;
    let second = hf.model_type() == "cohere2";
    if second {
        hf.refuse_unless("use_qk_norm", false, "Cohere 2 with QK norms")?;
    }
    let sizes = draft.usual(
        hf,
        if second { "cohere2" } else { "command-r" },
        if second { 10_000.0 } else { 500_000.0 },
        Activation::Silu,
    )?;
    draft.set("attention.layer_norm_epsilon", Value::F32(hf.f32(&["layer_norm_eps"])?.unwrap_or(1e-5)));
    draft.set("logit_scale", Value::F32(hf.f32(&["logit_scale"])?.unwrap_or(0.0625)));
    if second {
        draft.windows(hf, sizes.n_layer, SlidingLayers::AllButEvery(INTERVAL))?;
    }
    draft.tied = true;
    draft.naming.llama_like();
    draft.naming.norms_of_heads();
    Ok(())
}
