//! Ministral 3: Llama's layer with stretched positions (YaRN), and queries that grow with their position.

use super::{
    Family, Loader,
    parts::{USUAL_NORMS, gated_layer},
};
use crate::{
    error::Result,
    model::{
        Activation, LayerWeights, ModelConfig, NormKind, QueryScale, RopeOrder, RopeScaling, Router,
        import::{Draft, HfConfig},
        load::Sizes,
        rope::yarn_magnitude,
    },
};

pub(super) const FAMILY: Family =
    Family { architectures: &["mistral3"], model_types: &["ministral3"], config, layer, import };

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::Normal)?;
    config.activation = loader.activation(Activation::Silu)?;
    config.experts = loader.experts(Router::softmax(true), |_| sizes.n_ff)?;
    loader.apply_window(&mut config, None, 0)?;
    let beta = loader.switchable("attention.temperature_scale")?;
    if let RopeScaling::Yarn { factor, original_context, attention_factor, .. } = &mut config.ropes[0].scaling {
        // llama.cpp's files divide the magnitude by another that depends on this.
        if let Some(scale) = loader.switchable("rope.scaling.yarn_log_multiplier")? {
            *attention_factor /= yarn_magnitude(*factor, scale);
        }
        config.query_scale = beta.map(|beta| QueryScale { beta, length: *original_context });
    } else if beta.is_some() {
        return Err(loader.key_error("attention.temperature_scale", "nothing without YaRN scaling", "a number"));
    }
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    gated_layer(loader, config, n, USUAL_NORMS)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let sizes = draft.common(hf, "mistral3")?;
    draft.rope(hf, &sizes, 1e6)?;
    draft.activation(hf.str(&["hidden_act"])?.unwrap_or("silu").parse()?);
    if let Some(window) = hf.usize(&["sliding_window"])? {
        draft.window(window, hf.sliding_layers(sizes.n_layer)?)?;
    }
    draft.naming.llama_like();
    draft.naming.rotated_pairs(&sizes);
    Ok(())
}
