//! Phi-3 and Phi-4: Llama's layer with q, k and v in one matrix and gate and up in another, and
//! partial rotation. For long contexts, each frequency has a divisor ("longrope").

use super::prelude::*;

pub(super) const FAMILY: Family = Family { architectures: &["phi3"], model_types: &["phi3"], config, layer, import };

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::NeoX)?;
    loader.apply_window(&mut config, None, 0)?;
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    fused_layer(loader, config, n, USUAL_NORMS)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let sizes = draft.usual(hf, "phi3", 10000.0, Activation::Silu)?;
    // llama.cpp recognises Phi-4 by a window of 0.
    if draft.windows(hf, sizes.n_layer, SlidingLayers::All)?.is_none() {
        draft.window(0, None)?;
    }
    draft.naming.llama_like();
    draft.naming.add("model.layers.*.self_attn.qkv_proj", "blk.*.attn_qkv");
    draft.naming.add("model.layers.*.mlp.gate_up_proj", "blk.*.ffn_up");
    Ok(())
}
