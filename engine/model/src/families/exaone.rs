//! EXAONE 4: norms behind attention and FFN instead of before them, and norms on query and key heads. In the larger model three of
//! four layers have a window, and only those are rotated.

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["exaone4"], model_types: &["exaone4"], config, layer, import };

/// One layer of so many has no window, the last of them.
pub(super) const INTERVAL: usize = 4;
/// Key of this engine's own for the layers that are rotated, where windows do not tell.
const ROTATED: &str = "rope.layer_pattern";
/// Layers of the model that has windows though its file may not say.
const LARGER: usize = 64;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    // Files of the smaller model may name a window that no layer has.
    if sizes.n_layer == LARGER || loader.has_key("attention.sliding_window_pattern") {
        loader.apply_window(&mut config, Some(4096), INTERVAL)?;
    }
    rotate_windows(loader, &mut config)?;
    config.set_steps(Step::norms_after());
    Ok(config)
}

/// Takes the rotation from layers without a window, if some have one or the file names the rotated ones.
pub(super) fn rotate_windows(loader: &Loader<'_>, config: &mut ModelConfig) -> Result<()> {
    if config.attentions().any(|attention| attention.window.is_some()) {
        config
            .attentions_mut()
            .filter(|attention| attention.window.is_none())
            .for_each(|attention| attention.rope = None);
    }
    if let Some(rotated) = loader.layer_flags(ROTATED, config.n_layer())? {
        for (layer, rotated) in config.layers.iter_mut().zip(rotated) {
            if let Some(attention) = &mut layer.attention {
                attention.rope = attention.rope.filter(|_| rotated);
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

/// The keys of windows, and of rotations where windows do not tell.
pub(super) fn import_windows(hf: &HfConfig, draft: &mut Draft, n_layer: usize) -> Result<()> {
    match draft.windows(hf, n_layer, SlidingLayers::AllButEvery(INTERVAL))? {
        None => draft.window(0, None)?,
        // A window that no layer has takes the rotation from all.
        Some(slides) if !slides.contains(&true) => draft.set(ROTATED, Value::Array(Array::Bool(slides))),
        Some(_) => {}
    }
    Ok(())
}
