//! Phi-3 and Phi-4: Llama's layer with q, k and v in one matrix and gate and up in another, partial rotation, and for long
//! contexts one divisor per frequency ("longrope").

use super::{
    Family, Loader,
    parts::{USUAL_NORMS, attention, norms},
};
use crate::{
    error::Result,
    model::{
        Activation, Ffn, FfnWeights, LayerWeights, Linear, ModelConfig, NormKind, RopeOrder,
        import::{Draft, HfConfig, SlidingLayers},
        load::Sizes,
    },
};

pub(super) const FAMILY: Family = Family { architectures: &["phi3"], model_types: &["phi3"], config, layer, import };

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    loader.apply_window(&mut config, None, 0)?;
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let (d, n_ff) = (config.d_model, loader.dense_width(config, n)?);
    let [gate, up] = Linear::split(loader, &format!("blk.{n}.ffn_up"), d, [n_ff, n_ff])?;
    let down = loader.down(n, d, n_ff)?;
    let (norms, attention) = (norms(loader, config, n, USUAL_NORMS)?, attention(loader, config, n)?);
    let ffn = Ffn::Dense(FfnWeights { gate: Some(gate), up, down });
    Ok(LayerWeights::new(norms, attention, ffn, loader.predictor(n, config)?))
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let sizes = draft.common(hf, "phi3")?;
    draft.rope(hf, &sizes, 10000.0)?;
    draft.activation(hf.activation(&["hidden_act"], Activation::Silu)?);
    // llama.cpp tells Phi-4 from Phi-3 by a window of 0.
    if draft.windows(hf, sizes.n_layer, SlidingLayers::All)?.is_none() {
        draft.window(0, None)?;
    }
    draft.naming.llama_like();
    draft.naming.add("model.layers.*.self_attn.qkv_proj", "blk.*.attn_qkv");
    draft.naming.add("model.layers.*.mlp.gate_up_proj", "blk.*.ffn_up");
    Ok(())
}
