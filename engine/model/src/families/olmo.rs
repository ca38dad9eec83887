//! OLMo 2 and 3: norms follow attention and FFN instead of preceding them, and q/k norms cover all
//! heads together. In OLMo 3, three of four layers have a window. Only the others stretch positions
//! (YaRN).

use super::prelude::*;

pub(super) const FAMILY: Family =
    Family { architectures: &["olmo2"], model_types: &["olmo2", "olmo3"], config, layer, import };

/// Of every `INTERVAL` layers, the last has no window.
const INTERVAL: usize = 4;

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    loader.apply_window(&mut config, None, INTERVAL)?;
    let (dims, base) = (config.ropes[0].dims, config.ropes[0].base);
    loader.local_rope(&mut config, RopeDefaults { head_dim: sizes.head_dim, dims, base })?;
    config.set_steps(Step::norms_after());
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    gated_layer(loader, config, n, NORMS_AFTER)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let base = if hf.model_type() == "olmo3" { 500_000.0 } else { 10_000.0 };
    let sizes = draft.usual(hf, "olmo2", base, Activation::Silu)?;
    if hf.model_type() == "olmo3" {
        draft.windows(hf, sizes.n_layer, SlidingLayers::AllButEvery(INTERVAL))?;
        draft.local_rope(hf, &sizes, hf.f32(&["rope_theta"])?.unwrap_or(base))?;
    }
    draft.naming.llama_like();
    draft.naming.norms_after();
    draft.naming.norms_of_heads();
    Ok(())
}
