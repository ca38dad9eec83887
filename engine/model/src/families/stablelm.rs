//! StableLM 2 and StableLM 3B: Llama's layer with layer norms, and a quarter of each head rotated,
//! in halves. In StableLM 2 12B attention and FFN read the same norm in parallel. Its queries and
//! keys have layer norms with separate weights for each head.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["stablelm"], model_types: &["stablelm"], config, layer, import };

/// Key that is true if attention and FFN run in parallel.
const PARALLEL: &str = "use_parallel_residual";

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Layer, RopeOrder::NeoX)?;
    if loader.flag(PARALLEL)? == Some(true) {
        config.set_steps(Step::parallel());
    }
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let parallel = loader.flag(PARALLEL)? == Some(true);
    gated_layer(loader, config, n, if parallel { &USUAL_NORMS[..1] } else { USUAL_NORMS })
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    draft.usual(hf, "stablelm", 10_000.0, Activation::Silu)?;
    draft.set("attention.layer_norm_epsilon", Value::F32(hf.f32(&["layer_norm_eps"])?.unwrap_or(1e-5)));
    draft.set(PARALLEL, Value::Bool(hf.bool(&["use_parallel_residual"])?.unwrap_or(false)));
    draft.naming.llama_like();
    for which in ["q", "k"] {
        let (hf, gguf) = (format!("self_attn.{which}_layernorm.norms.*"), format!("attn_{which}_norm.*"));
        draft.naming.add(format!("model.layers.*.{hf}"), format!("blk.*.{gguf}"));
    }
    Ok(())
}
