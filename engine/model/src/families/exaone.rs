//! EXAONE 4: norms follow attention and FFN instead of preceding them, and query and key heads have
//! norms. In the larger model, three of four layers have a window, and only these layers are
//! rotated.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["exaone4"], model_types: &["exaone4"], config, layer, import };

/// Of every `INTERVAL` layers, the last has no window.
pub(super) const INTERVAL: usize = 4;
/// This engine's own key for the rotated layers, for models in which windows do not determine them.
const ROTATED: &str = "rope.layer_pattern";
/// Number of layers of the larger model, which has windows even if its file does not say so.
const LARGER: usize = 64;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    // Files of the smaller model may name a window although no layer has one.
    if sizes.n_layer == LARGER || loader.has_key("attention.sliding_window_pattern") {
        loader.apply_window(&mut config, Some(4096), INTERVAL)?;
    }
    rotate_windows(loader, &mut config)?;
    config.set_steps(Step::norms_after());
    Ok(config)
}

/// Removes the rotation from layers without a window if some layer has one, and from layers that
/// the file does not list as rotated.
pub(super) fn rotate_windows(loader: &Loader<'_>, config: &mut ModelConfig) -> Result<()> {
    if config.attentions().any(|attention| attention.window.is_some()) {
        config
            .attentions_mut()
            .filter(|attention| attention.window.is_none())
            .for_each(|attention| attention.positions.rope = None);
    }
    if let Some(rotated) = loader.layer_flags(ROTATED, config.n_layer())? {
        for (layer, rotated) in config.layers.iter_mut().zip(rotated) {
            if let Some(attention) = &mut layer.attention {
                attention.positions.rope = attention.positions.rope.filter(|_| rotated);
            }
        }
    }
    Ok(())
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    gated_layer(loader, config, n, NORMS_AFTER)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let sizes = draft.usual(hf, "exaone4", 10_000.0, Activation::Silu)?;
    import_windows(hf, draft, sizes.n_layer)?;
    draft.naming.llama_like();
    draft.naming.norms_after();
    draft.naming.norms_of_heads();
    Ok(())
}

/// Sets the keys for windows, and those for rotations if windows do not determine them.
pub(super) fn import_windows(hf: &HfConfig, draft: &mut Draft, n_layer: usize) -> Result<()> {
    match draft.windows(hf, n_layer, SlidingLayers::AllButEvery(INTERVAL))? {
        None => draft.window(0, None)?,
        // A folder that names a window but applies it to no layer has no rotated layers.
        Some(slides) if !slides.contains(&true) => draft.set(ROTATED, Value::Array(Array::Bool(slides))),
        Some(_) => {}
    }
    Ok(())
}
