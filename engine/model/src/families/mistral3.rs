//! Ministral 3: Llama's layer with stretched positions (YaRN), and queries that grow with their
//! position.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["mistral3"], model_types: &["ministral3"], config, layer: usual_layer, import };

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::Normal)?;
    config.experts = loader.experts(Router::softmax(true), |_| sizes.n_ff)?;
    loader.apply_window(&mut config, None, 0)?;
    if let RopeScaling::Yarn { factor, attention_factor, .. } = &mut config.ropes[0].scaling {
        // In llama.cpp's files, the magnitude has to be divided by a second one that depends on
        // this key.
        if let Some(scale) = loader.switchable("rope.scaling.yarn_log_multiplier")? {
            *attention_factor /= yarn_magnitude(*factor, scale);
        }
    }
    Ok(config)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let sizes = draft.common(hf, "mistral3")?;
    draft.rope(hf, &sizes, 10_000.0)?;
    draft.query_scale(hf)?;
    draft.activation(hf.activation(&["hidden_act"], Activation::Silu)?);
    draft.windows(hf, sizes.n_layer, SlidingLayers::All)?;
    draft.naming.llama_like();
    draft.naming.rotated_pairs(&sizes);
    Ok(())
}
