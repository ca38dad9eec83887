//! SmolLM 3: Llama's layer, of which every fourth has no rotation.
//!
//! llama.cpp's files leave the interval to the architecture; files this engine writes have `rope.layer_pattern`.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["smollm3"], model_types: &["smollm3"], config, layer: usual_layer, import };

/// One layer of so many is not rotated, the last of them.
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
        // In spite of its name, the list has 1 where there is a rotation.
        Some(rotated) => rotated,
        None => {
            let interval = hf.or_default(&["no_rope_layer_interval"], INTERVAL)?;
            (1..=sizes.n_layer).map(|n| interval == 0 || n % interval != 0).collect()
        }
    };
    // Where there are windows, layers without a rotation have them.
    let slides = rotated.iter().map(|rotated| !rotated).collect();
    draft.windows(hf, sizes.n_layer, SlidingLayers::Marked(slides))?;
    draft.set("rope.layer_pattern", Value::Array(Array::Bool(rotated)));
    draft.tied = true;
    draft.naming.llama_like();
    draft.naming.rotated_pairs(&sizes);
    Ok(())
}
