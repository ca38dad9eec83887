//! EXAONE 4: norms behind attention and FFN instead of before them, and norms on query and key heads. In the larger model three of
//! four layers have a window, and only those are rotated.

use super::{
    Family, Loader,
    parts::{NORMS_AFTER, gated_layer},
};
use crate::{
    error::Result,
    model::{
        Activation, LayerWeights, ModelConfig, NormKind, RopeOrder, Step,
        import::{Draft, HfConfig},
        load::Sizes,
    },
};

pub(super) const FAMILY: Family =
    Family { architectures: &["exaone4"], model_types: &["exaone4"], config, layer, import };

/// One layer of so many has no window, the last of them.
const INTERVAL: usize = 4;
/// Layers of the model that has windows though its file may not say.
const LARGER: usize = 64;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    config.activation = loader.activation(Activation::Silu)?;
    // Files of the smaller model may name a window that no layer has.
    if sizes.n_layer == LARGER || loader.has_key("attention.sliding_window_pattern") {
        loader.apply_window(&mut config, Some(4096), INTERVAL)?;
    }
    if config.attentions().any(|attention| attention.window.is_some()) {
        config
            .attentions_mut()
            .filter(|attention| attention.window.is_none())
            .for_each(|attention| attention.rope = None);
    }
    config.set_steps(Step::norms_after());
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    gated_layer(loader, config, n, NORMS_AFTER)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let sizes = draft.common(hf, "exaone4")?;
    draft.rope(hf, &sizes, 10_000.0)?;
    draft.activation(hf.str(&["hidden_act"])?.unwrap_or("silu").parse()?);
    if let Some(window) = hf.usize(&["sliding_window"])? {
        let slides = hf.sliding_layers_or(sizes.n_layer, INTERVAL)?;
        draft.window(window, Some(slides))?;
    } else {
        draft.window(0, None)?;
    }
    draft.naming.llama_like();
    draft.naming.norms_after();
    draft.naming.norms_of_heads();
    Ok(())
}
