//! Llama's layer with an ungated FFN and a squared ReLU, so that most neurons are silent: Nemotron
//! (Minitron), Arcee (AFM) and Jais 2.
//!
//! Nemotron and Jais 2 have layer norms. Nemotron rotates half of each head, and Hugging Face
//! stores its norm weights minus one.

use super::prelude::*;

pub(super) const FAMILY: Family = Family {
    architectures: &["nemotron", "arcee", "jais2"],
    model_types: &["nemotron", "arcee", "jais2"],
    config,
    layer,
    import,
};

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let (norm, order) = match loader.arch {
        "arcee" => (NormKind::Rms, RopeOrder::Normal),
        _ => (NormKind::Layer, RopeOrder::NeoX),
    };
    let mut config = loader.base_config(sizes, norm, order)?;
    config.activation = loader.activation(Activation::ReluSquared)?;
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    ungated_layer(loader, config, n, USUAL_NORMS)
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    let arch = match hf.model_type() {
        "nemotron" => "nemotron",
        "arcee" => "arcee",
        _ => "jais2",
    };
    let sizes = draft.usual(hf, arch, 10_000.0, Activation::ReluSquared)?;
    let naming = &mut draft.naming;
    naming.llama_like();
    match arch {
        "arcee" => naming.rotated_pairs(&sizes),
        "nemotron" => naming.norms_minus_one(),
        _ => {}
    }
    if arch != "arcee" {
        let eps = hf.f32(&["norm_eps", "layer_norm_eps"])?.unwrap_or(1e-5);
        draft.set("attention.layer_norm_epsilon", Value::F32(eps));
    }
    Ok(())
}
