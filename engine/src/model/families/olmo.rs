//! OLMo 2 and 3: norms behind attention and FFN instead of before them, and norms over all query and all key heads together. In
//! OLMo 3 three of four layers have a window; only the others stretch positions (YaRN).

use super::{
    Family, Loader,
    parts::{NORMS_AFTER, gated_layer},
};
use crate::{
    error::Result,
    model::{
        Activation, LayerWeights, ModelConfig, NormKind, Rope, RopeOrder, RopeScaling, Step,
        import::{Draft, HfConfig},
        load::Sizes,
    },
};

pub(super) const FAMILY: Family =
    Family { architectures: &["olmo2"], model_types: &["olmo2", "olmo3"], config, layer, import };

/// One layer of so many has no window, the last of them.
const INTERVAL: usize = 4;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    config.activation = loader.activation(Activation::Silu)?;
    loader.apply_window(&mut config, None, INTERVAL)?;
    let unscaled = config.add_rope(Rope { scaling: RopeScaling::None, ..config.ropes[0].clone() });
    for attention in config.attentions_mut().filter(|attention| attention.window.is_some()) {
        attention.rope = Some(unscaled);
    }
    config.set_steps(Step::norms_after());
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    gated_layer(loader, config, n, NORMS_AFTER)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let sizes = draft.common(hf, "olmo2")?;
    draft.rope(hf, &sizes, 10_000.0)?;
    draft.activation(hf.str(&["hidden_act"])?.unwrap_or("silu").parse()?);
    if hf.model_type() == "olmo3" {
        let slides = hf.sliding_layers_or(sizes.n_layer, INTERVAL)?;
        draft.window(hf.or_default(&["sliding_window"], 4096)?, Some(slides))?;
    }
    draft.naming.llama_like();
    draft.naming.norms_after();
    draft.naming.norms_of_heads();
    Ok(())
}
