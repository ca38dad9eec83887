//! StableLM 2 and StableLM 3B: Llama's layer with layer norms and a quarter of each head rotated, in halves.

use super::{
    Family, Loader,
    parts::{USUAL_NORMS, gated_layer},
};
use crate::{
    error::{Error, Result},
    format::Value,
    model::{
        Activation, LayerWeights, ModelConfig, NormKind, RopeOrder,
        import::{Draft, HfConfig},
        load::Sizes,
    },
};

pub(super) const FAMILY: Family =
    Family { architectures: &["stablelm"], model_types: &["stablelm"], config, layer, import };

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Layer, RopeOrder::NeoX)?;
    config.activation = loader.activation(Activation::Silu)?;
    if loader.has("blk.0.attn_q_norm.weight") {
        return Err(Error::Unsupported {
            what: "variant of StableLM 2",
            got: "norms of heads".to_owned(),
            supported: "models without them: StableLM 2 1.6B, StableLM 3B".to_owned(),
        });
    }
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    gated_layer(loader, config, n, USUAL_NORMS)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    hf.refuse_unless("use_parallel_residual", false, "StableLM 2 with parallel blocks")?;
    hf.refuse_unless("qk_layernorm", false, "StableLM 2 with norms of heads")?;
    let mut sizes = draft.common(hf, "stablelm")?;
    if hf.rotary_fraction()?.is_none() {
        sizes.rope_dims = sizes.head_dim / 4;
    }
    draft.rope(hf, &sizes, 10_000.0)?;
    draft.activation(hf.str(&["hidden_act"])?.unwrap_or("silu").parse()?);
    draft.set("attention.layer_norm_epsilon", Value::F32(hf.f32(&["layer_norm_eps"])?.unwrap_or(1e-5)));
    draft.naming.llama_like();
    Ok(())
}
