//! Architecture families, one file each.
//!
//! To add an architecture, copy `llama.rs` (the shortest) to a new file beside it, and name the
//! file in the two lists below. It provides a [`Family`]. `config` reads GGUF keys into a
//! [`ModelConfig`] and sets the layer's program of [`Step`](super::Step)s. `layer` reads a layer's
//! tensors; most combine functions of [`parts`]. `import` maps the names of a Hugging Face folder
//! to GGUF's. Request tensors from the [`Loader`] by name and shape. If no key determines a tensor,
//! `has` returns whether it exists, and `rows` its size. Both also work without a file, so `synth`
//! can make a model of the family. Then add a fixture with golden logits under
//! `tests/fixtures/models`.

mod bert;
mod bitnet;
mod cohere;
mod cohere2_moe;
mod deepseek2;
mod ernie;
mod exaone;
mod exaone_moe;
mod falcon;
mod gemma;
mod gemma3n;
mod gemma4;
mod gemma4_assistant;
mod glm4;
mod glm4_moe;
mod gpt_oss;
mod granite;
mod hunyuan;
mod hy_v3;
mod laguna;
mod latent;
mod lfm2;
mod llama;
mod llama4;
mod mamba2;
mod mimo2;
mod minicpm;
mod minimax_m2;
mod mistral3;
mod modernbert;
mod muse_glimmer;
mod nemotron_h;
mod olmo;
mod olmoe;
mod opt;
mod parts;
mod phi3;
mod phimoe;
mod plm;
mod prelude;
mod qwen;
mod qwen35;
mod relu_squared;
mod seed_oss;
mod smallthinker;
mod smollm3;
mod stablelm;
mod starcoder2;
mod step35;

use super::{
    EmbeddingHead, LayerConfig, LayerWeights, Linear, ModelConfig, StateInput, Weights,
    import::{Draft, HfConfig},
    load::{Loader, Sizes},
};
use thermocline_base::error::{Error, Result};
use thermocline_formats::format::Matrix;

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

/// Every family that this engine runs.
const FAMILIES: &[&Family] = &[
    &llama::FAMILY,
    &llama4::FAMILY,
    &mistral3::FAMILY,
    &qwen::FAMILY,
    &qwen35::FAMILY,
    &gpt_oss::FAMILY,
    &gemma::FAMILY,
    &gemma3n::FAMILY,
    &gemma4::FAMILY,
    &gemma4_assistant::FAMILY,
    &phi3::FAMILY,
    &phimoe::FAMILY,
    &plm::FAMILY,
    &smollm3::FAMILY,
    &granite::FAMILY,
    &lfm2::FAMILY,
    &olmo::FAMILY,
    &olmoe::FAMILY,
    &exaone::FAMILY,
    &exaone_moe::FAMILY,
    &cohere::FAMILY,
    &cohere2_moe::FAMILY,
    &seed_oss::FAMILY,
    &glm4::FAMILY,
    &glm4_moe::FAMILY,
    &deepseek2::FAMILY,
    &hunyuan::FAMILY,
    &hy_v3::FAMILY,
    &laguna::FAMILY,
    &mimo2::FAMILY,
    &minicpm::FAMILY,
    &minimax_m2::FAMILY,
    &ernie::FAMILY,
    &relu_squared::FAMILY,
    &bitnet::FAMILY,
    &smallthinker::FAMILY,
    &muse_glimmer::FAMILY,
    &nemotron_h::FAMILY,
    &falcon::FAMILY,
    &opt::FAMILY,
    &starcoder2::FAMILY,
    &step35::FAMILY,
    &stablelm::FAMILY,
    &bert::FAMILY,
    &modernbert::FAMILY,
];

/// Returns the family of a GGUF architecture.
pub(super) fn by_architecture(name: &str) -> Result<&'static Family> {
    find(name, |family| family.architectures)
        .map_err(|supported| Error::UnknownArchitecture { got: name.to_owned(), supported })
}

/// Returns the family of a Hugging Face `model_type`.
pub(super) fn by_model_type(name: &str) -> Result<&'static Family> {
    find(name, |family| family.model_types).map_err(|supported| Error::unsupported("model type", name, supported))
}

/// Returns the family with `name` among its `names`. The error lists the names of all families.
fn find(name: &str, names: impl Fn(&Family) -> &'static [&'static str]) -> Result<&'static Family, String> {
    FAMILIES
        .iter()
        .copied()
        .find(|family| names(family).contains(&name))
        .ok_or_else(|| FAMILIES.iter().flat_map(|family| names(family)).copied().collect::<Vec<_>>().join(", "))
}

/// Architectures whose tokens read later tokens too, whether their files say so or not.
const ENCODERS: &[&str] =
    &["bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "modernbert", "gemma-embedding"];

/// Reads the configuration of a model: that of its family, and whether it embeds or ranks texts.
pub(super) fn config(loader: &Loader<'_>, family: &Family) -> Result<ModelConfig> {
    let mut config = (family.config)(loader, &loader.sizes()?)?;
    let encoder = ENCODERS.contains(&loader.arch) || loader.flag("attention.causal")? == Some(false);
    if encoder {
        config.read_both_directions();
        let plain = |layer: &LayerConfig| {
            let attention = layer.attention.as_ref();
            layer.recurrent.is_none() && attention.is_none_or(|of| of.latent.is_none() && of.kv_from.is_none())
        };
        if !config.layers.iter().all(plain) || config.streams() > 1 {
            let got = format!("{} = false", loader.key("attention.causal"));
            return Err(Error::unsupported("parts of a model whose tokens read later tokens", got, "plain attention"));
        }
    }
    config.pooling = loader.pooling(encoder)?;
    Ok(config)
}

/// Reads the embeddings of token types, if the model has them.
fn token_types(loader: &Loader<'_>, d_model: usize) -> Result<Option<Matrix>> {
    let name = "token_types.weight";
    loader.rows(name).map(|types| loader.matrix(name, types, d_model)).transpose()
}

/// Reads all weights of a model whose configuration is `config`.
pub(super) fn weights(loader: &Loader<'_>, config: &mut ModelConfig, family: &Family) -> Result<Weights> {
    let (d, n_vocab) = (config.d_model, config.n_vocab);
    let token_embedding = loader.matrix("token_embd.weight", n_vocab, d)?;
    let position_embedding = opt::position_embedding(loader, config)?;
    let per_layer = parts::per_layer_table(loader, config)?;
    let altup = gemma3n::streams(loader, config)?;
    let layers = (0..config.n_layer()).map(|n| (family.layer)(loader, config, n)).collect::<Result<Vec<_>>>()?;
    // LFM2's files name the final norm differently.
    let renamed = loader.has("token_embd_norm.weight") && !loader.has("output_norm.weight");
    let mut output_norm = match renamed {
        false => loader.norm("output_norm", config.norm, d)?,
        true if config.is_encoder() => bert::output_norm(loader, config)?,
        true => loader.norm("token_embd_norm", config.norm, d)?,
    };
    let tied = !loader.has("output.weight");
    let mut output = if tied {
        let bias = loader.optional_vector("output.bias", n_vocab)?;
        Linear { weight: token_embedding.clone(), bias }
    } else {
        loader.linear("output", n_vocab, d)?
    };
    if config.logit_scale != 1.0 {
        let vectors = [Some(&mut output_norm.weight), output_norm.bias.as_mut(), output.bias.as_mut()];
        vectors.into_iter().flatten().flatten().for_each(|x| *x *= config.logit_scale);
    }
    Ok(Weights {
        token_embedding,
        position_embedding,
        token_types: token_types(loader, d)?,
        embedding_head: EmbeddingHead::load(loader, d, config.norm)?,
        per_layer,
        state_input: StateInput::load(loader, d)?,
        assistant: None,
        altup,
        layers,
        output_norm,
        output,
        tied,
        input_level: None,
        input_figures: Vec::new(),
    })
}
