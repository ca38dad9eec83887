//! Hugging Face folders as checkpoints. A family translates `config.json` to GGUF keys and names its tensors
//! ([`Draft`]); this module then yields every tensor under its GGUF name. Weights are shared with the file except where
//! GGUF stores other bytes: rows of q and k (llama family) and of fused QKV (Falcon 40B) in another order, Gemma's norms
//! plus one. Running copies those few; converting makes them one at a time ([`Recipe`]).

mod draft;
mod hf_config;
mod naming;
mod recipe;

pub(super) use draft::Draft;
pub(super) use hf_config::HfConfig;
pub(super) use recipe::{Recipe, Transform};

use super::families;
use crate::{
    error::{Error, Location, Result},
    format::{Checkpoint, Container, HfFolder, Metadata, Tensor, TokenizerSource},
};

/// A folder translated, its tensors not yet made.
pub(super) struct Import {
    pub(super) metadata: Metadata,
    pub(super) tokenizer: TokenizerSource,
    pub(super) recipes: Vec<Recipe>,
}

/// Translates `folder`.
pub(super) fn import(folder: HfFolder) -> Result<Import> {
    let HfFolder { path, config, generation_config, tokenizer_json, tokenizer_config, tensors } = folder;
    let hf = HfConfig::new(&path, config)?;
    let family = families::by_model_type(hf.model_type())?;
    let mut draft = Draft::new(&hf);
    (family.import)(&hf, &mut draft)?;
    draft.special_tokens(&hf, &generation_config)?;

    let tie = hf.bool(&["tie_word_embeddings"])?.unwrap_or(draft.tied);
    let mut recipes: Vec<Recipe> = draft.made.drain(..).map(Recipe::plain).collect();
    for tensor in tensors {
        let names = draft.naming.translate(&tensor.name);
        if names.is_empty() {
            tracing::debug!(tensor = tensor.name, "not used");
        }
        for (name, transform) in names {
            // A tied head stored all the same is the embedding once more.
            if !(tie && name == "output.weight") {
                recipes.push(Recipe { tensor: Tensor { name, ..tensor.clone() }, transform });
            }
        }
    }
    if !tie && !recipes.iter().any(|recipe| recipe.tensor.name == "output.weight") {
        let location = Location::Key("tie_word_embeddings".to_owned());
        return Err(Error::malformed(&path, location, "true, as there is no `lm_head.weight`", "false"));
    }
    let tokenizer = match tokenizer_json {
        Some(tokenizer_json) => TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config },
        None => TokenizerSource::Metadata,
    };
    Ok(Import { metadata: draft.keys, tokenizer, recipes })
}

/// A checkpoint that can be run.
pub(super) fn checkpoint(folder: HfFolder) -> Result<Checkpoint> {
    let path = folder.path.clone();
    let Import { metadata, tokenizer, recipes } = import(folder)?;
    let tensors = recipes.iter().map(|recipe| recipe.make(&path)).collect::<Result<Vec<_>>>()?;
    Checkpoint::new(path, Container::HuggingFace, metadata, tokenizer, tensors)
}
