//! SmolLM 3: Llama's layer, without rotation in every fourth layer.
//!
//! llama.cpp's files do not name the interval. This engine's files have `rope.layer_pattern`.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["smollm3"], model_types: &["smollm3"], config, layer: usual_layer, import };

/// Of every `INTERVAL` layers, the last is not rotated.
const INTERVAL: usize = 4;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::Normal)?;
    loader.apply_window(&mut config, None, 0)?;
    loader.apply_rope_pattern(&mut config, INTERVAL)?;
    Ok(config)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let sizes = draft.usual(hf, "smollm3", 2e6, Activation::Silu)?;
    let rotated = match hf.layer_flags("no_rope_layers", sizes.n_layer)? {
        // Despite its name, the list has 1 for layers with a rotation.
        Some(rotated) => rotated,
        None => {
            let interval = hf.or_default(&["no_rope_layer_interval"], INTERVAL)?;
            (1..=sizes.n_layer).map(|n| interval == 0 || n % interval != 0).collect()
        }
    };
    // If the model has windows, the layers without a rotation have them.
    let slides = rotated.iter().map(|rotated| !rotated).collect();
    draft.windows(hf, sizes.n_layer, SlidingLayers::Marked(slides))?;
    draft.set("rope.layer_pattern", Value::Array(Array::Bool(rotated)));
    draft.tied = true;
    draft.naming.llama_like();
    draft.naming.rotated_pairs(&sizes);
    Ok(())
}
