//! Phi-3.5-MoE: layer norms and biases, long-context divisors, and two experts per token. Each
//! expert's weight is a softmax over the experts whose logits are nearly as large (SparseMixer).
//!
//! llama.cpp weights the experts by a plain softmax instead.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["phimoe"], model_types: &["phimoe"], config, layer: usual_layer, import };

/// Jitter of the router's training. SparseMixer's tolerance for nearly as good experts is twice
/// this.
const JITTER: f32 = 0.01;
const ROUTER: Router = Router { score: RouterScore::SparseMixer, ..Router::softmax(false) };

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    // llama.cpp's files have the layer norm's epsilon under the RMS norm's key.
    let mut config = loader.base_config(sizes, NormKind::Layer, RopeOrder::NeoX)?;
    config.experts = loader.experts(ROUTER, |_| sizes.n_ff)?;
    match config.experts.map(|experts| experts.used) {
        Some(2) => {}
        used => {
            return Err(loader.key_error(
                "expert_used_count",
                "2, the only number that SparseMixer supports",
                used.unwrap_or(0),
            ));
        }
    }
    loader.apply_window(&mut config, None, 0)?;
    Ok(config)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let sizes = draft.usual(hf, "phimoe", 1e6, Activation::Silu)?;
    if let Some(jitter) = hf.f32(&["router_jitter_noise"])?
        && jitter != JITTER
    {
        return Err(hf.error("router_jitter_noise", JITTER.to_string(), jitter));
    }
    draft.windows(hf, sizes.n_layer, SlidingLayers::All)?;
    draft.set("attention.layer_norm_epsilon", Value::F32(hf.f32(&["rms_norm_eps"])?.unwrap_or(1e-5)));
    draft.set_size("expert_count", hf.size(&["num_local_experts"])?)?;
    draft.set_size("expert_used_count", hf.or_default(&["num_experts_per_tok"], 2)?)?;
    draft.set_size("expert_feed_forward_length", hf.size(&["intermediate_size"])?)?;
    let naming = &mut draft.naming;
    naming.llama_like();
    naming.mixtral_experts();
    Ok(())
}
