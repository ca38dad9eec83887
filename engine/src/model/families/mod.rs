//! Architecture families, one file each.
//!
//! To add an architecture, write a file beside `llama.rs` (the shortest, to copy from) and name it in the two lists below. It
//! provides a [`Family`]: `config` reads GGUF keys into a [`ModelConfig`] and sets the layer's program of [`Step`](super::Step)s,
//! `layer` reads a layer's tensors (most combine functions of [`parts`]), `import` maps the names of a Hugging Face folder to
//! GGUF's. Then add a fixture under `tests/fixtures/models` with golden logits.

mod ernie;
mod falcon;
mod gemma;
mod glm4_moe;
mod gpt_oss;
mod llama;
mod minimax_m2;
mod opt;
mod parts;
mod phi3;
mod qwen;
mod qwen35;

use super::{
    LayerWeights, Linear, ModelConfig, Weights,
    import::{Draft, HfConfig},
    load::{Loader, Sizes},
};
use crate::error::{Error, Result};

/// One family of architectures: its names and its three functions.
pub(super) struct Family {
    /// GGUF's `general.architecture` values.
    pub(super) architectures: &'static [&'static str],
    /// Hugging Face's `model_type` values.
    pub(super) model_types: &'static [&'static str],
    /// Reads the configuration from GGUF keys.
    pub(super) config: fn(&Loader<'_>, &Sizes) -> Result<ModelConfig>,
    /// Reads the weights of one layer.
    pub(super) layer: fn(&Loader<'_>, &ModelConfig, usize) -> Result<LayerWeights>,
    /// Fills in GGUF keys from a `config.json`, and the names of its tensors.
    pub(super) import: fn(&HfConfig, &mut Draft) -> Result<()>,
}

/// Every family this engine runs.
const FAMILIES: &[&Family] = &[
    &llama::FAMILY,
    &qwen::FAMILY,
    &qwen35::FAMILY,
    &gpt_oss::FAMILY,
    &glm4_moe::FAMILY,
    &minimax_m2::FAMILY,
    &ernie::FAMILY,
    &gemma::FAMILY,
    &phi3::FAMILY,
    &falcon::FAMILY,
    &opt::FAMILY,
];

/// The family of a GGUF architecture.
pub(super) fn by_architecture(name: &str) -> Result<&'static Family> {
    find(name, "architecture", |family| family.architectures)
}

/// The family of a Hugging Face `model_type`.
pub(super) fn by_model_type(name: &str) -> Result<&'static Family> {
    find(name, "model type", |family| family.model_types)
}

fn find(name: &str, what: &'static str, names: impl Fn(&Family) -> &'static [&'static str]) -> Result<&'static Family> {
    FAMILIES.iter().copied().find(|family| names(family).contains(&name)).ok_or_else(|| Error::Unsupported {
        what,
        got: name.to_owned(),
        supported: FAMILIES.iter().flat_map(|family| names(family)).copied().collect::<Vec<_>>().join(", "),
    })
}

/// Reads all weights of a model whose configuration is `config`.
pub(super) fn weights(loader: &Loader<'_>, config: &mut ModelConfig, family: &Family) -> Result<Weights> {
    let (d, n_vocab) = (config.d_model, config.n_vocab);
    let token_embedding = loader.matrix("token_embd.weight", n_vocab, d)?;
    let position_embedding = opt::position_embedding(loader, config)?;
    let layers = (0..config.n_layer()).map(|n| (family.layer)(loader, config, n)).collect::<Result<Vec<_>>>()?;
    let output_norm = loader.norm("output_norm", config.norm, d)?;
    let tied = loader.find("output.weight").is_none();
    let output = if tied {
        let bias = loader.optional_vector("output.bias", n_vocab)?;
        Linear { weight: token_embedding.clone(), bias }
    } else {
        loader.linear("output", n_vocab, d)?
    };
    Ok(Weights { token_embedding, position_embedding, layers, output_norm, output, tied })
}
