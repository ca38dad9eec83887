//! Hugging Face folders as checkpoints. A family translates `config.json` to GGUF keys and names
//! its tensors ([`Draft`]). This module then makes every tensor under its GGUF name. Weights are
//! shared with the file unless GGUF stores other bytes. GGUF reorders rows of q and k (llama
//! family) and of fused QKV (Falcon 40B), and adds one to Gemma's norms. Running a model copies
//! these few tensors. Converting makes them one at a time ([`Recipe`]).

mod defaults;
mod draft;
mod draft_layer;
mod expert_outputs;
mod gather;
mod hf_config;
mod naming;
mod nvfp4;
mod projected;
mod recipe;
mod rope;
mod sentence;
mod ternary;
mod windows;
mod wrapped;

pub(super) use draft::{Draft, HfSizes};
pub(super) use expert_outputs::ExpertOutputs;
pub(super) use gather::Gather;
pub(super) use hf_config::HfConfig;
pub(super) use naming::Naming;
pub(super) use recipe::{Recipe, Transform};
pub(super) use rope::LayerRope;
pub(super) use windows::SlidingLayers;

use std::{collections::HashMap, path::Path};

use super::{
    Companion, families,
    load::{factor_names, layer_and_name},
};
use thermocline_base::error::{Error, Location, Result};
use thermocline_formats::{
    format::{Bytes, Checkpoint, Container, HfFolder, MappedFiles, Metadata, Tensor, TokenizerSource},
    quant::TensorType,
};

/// A translated folder whose tensors are not yet made.
pub(super) struct Import {
    pub(super) metadata: Metadata,
    pub(super) tokenizer: TokenizerSource,
    pub(super) recipes: Vec<Recipe>,
    /// Tensors without a GGUF name, under their Hugging Face names.
    pub(super) unused: Vec<Tensor>,
}

/// Translates `folder`.
pub(super) fn import(folder: HfFolder) -> Result<Import> {
    let HfFolder { path, mut config, generation_config, tokenizer_json, tokenizer_config, tensors, sentence, .. } =
        folder;
    wrapped::name_text_model(&mut config, &tensors);
    let hf = HfConfig::new(&path, config)?;
    let family = families::by_model_type(hf.model_type()).map_err(|unknown| {
        let companion = Companion::of_architecture(hf.model_type(), &Metadata::new(&path));
        companion.map_or(unknown, |companion| companion.refusal(&path))
    })?;
    let mut draft = Draft::new(&hf);
    (family.import)(&hf, &mut draft)?;
    draft.special_tokens(&hf, &generation_config)?;

    sentence::add(&mut draft, &path, sentence)?;
    let configured = draft.own_head.then_some(false).or(hf.bool(&["tie_word_embeddings"])?);
    let tie = draft.headless || configured.unwrap_or(draft.tied);
    sentence::rank_by_answer(&mut draft, &hf, tokenizer_json.as_deref(), tie)?;
    let mut recipes: Vec<Recipe> = draft.made.drain(..).map(Recipe::plain).collect();
    let tensors = projected::join(&path, ternary::join(&path, &hf, tensors)?)?;
    let (tensors, factors) = nvfp4::join(&path, tensors)?;
    let tie = tie && (draft.headless || !stores_own_head(&draft, &tensors));
    let layers = draft.count_draft_layer(&tensors)?;
    let by_name: HashMap<&str, &Tensor> = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let mut unused = Vec::new();
    for tensor in &tensors {
        let translated = draft.naming.translate(&tensor.name);
        // If the head is tied, a stored head only repeats the embedding. Further layers belong to
        // further draft heads, or to one that is not whole.
        let wanted = |name: &str| {
            !(tie && name == "output.weight") && layer_and_name(name).is_none_or(|(layer, _)| layer < layers)
        };
        let before = recipes.len();
        for (name, transform) in translated.into_iter().filter(|(name, _)| wanted(name)) {
            let scales = match &transform {
                Transform::Mxfp4(_) => Some((*scales_of(&path, tensor, &by_name)?).clone()),
                _ => None,
            };
            if let Some(factor) = factors.get(&tensor.name) {
                let [name, _] = factor_names(&name);
                let data = Bytes::new(factor.to_le_bytes());
                recipes.push(Recipe::plain(Tensor { name, ty: TensorType::F32, shape: vec![1], data }));
            }
            recipes.push(Recipe { tensor: Tensor { name, ..tensor.clone() }, scales, transform });
        }
        let scale =
            || tensor.name.strip_suffix("_scales").is_some_and(|it| by_name.contains_key(&*format!("{it}_blocks")));
        if recipes.len() == before && !scale() {
            unused.push(tensor.clone());
        }
    }
    if !tie && !recipes.iter().any(|recipe| recipe.tensor.name == "output.weight") {
        let location = Location::Key("tie_word_embeddings".to_owned());
        return Err(Error::malformed(&path, location, "true, because the file has no `lm_head.weight`", "false"));
    }
    let tokenizer = match tokenizer_json {
        Some(tokenizer_json) => TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config },
        None => TokenizerSource::Metadata,
    };
    Ok(Import { metadata: draft.keys, tokenizer, recipes, unused })
}

/// True if the folder stores a head that differs from the embedding. The model then uses this head,
/// even if the configuration ties it.
fn stores_own_head(draft: &Draft, tensors: &[Tensor]) -> bool {
    let called = |gguf: &str| {
        let is = |tensor: &&Tensor| draft.naming.translate(&tensor.name).iter().any(|(name, _)| name == gguf);
        tensors.iter().find(is)
    };
    let (Some(head), Some(embedding)) = (called("output.weight"), called("token_embd.weight")) else { return false };
    (head.ty, &head.shape) == (embedding.ty, &embedding.shape) && head.data[..] != embedding.data[..]
}

/// Returns the scales of MXFP4 blocks: `x_scales` beside `x_blocks`.
fn scales_of<'a>(path: &Path, blocks: &Tensor, by_name: &HashMap<&str, &'a Tensor>) -> Result<&'a Tensor> {
    let name = format!("{}_scales", blocks.name.strip_suffix("_blocks").unwrap_or(&blocks.name));
    by_name.get(name.as_str()).copied().ok_or_else(|| {
        let expected = format!("the scales of `{}`", blocks.name);
        Error::malformed(path, Location::Tensor(name), expected, "nothing: the tensor is missing")
    })
}

/// Translates `folder` into a checkpoint that can be run.
pub(super) fn checkpoint(folder: HfFolder) -> Result<Checkpoint> {
    let path = folder.path.clone();
    let (files, weights) = (MappedFiles::of(&folder.tensors), folder.weights.clone());
    let Import { metadata, tokenizer, recipes, unused } = import(folder)?;
    let tensors = recipes.iter().map(|recipe| recipe.make(&path)).collect::<Result<Vec<_>>>();
    files.check()?;
    let tensors = tensors?;
    let mut checkpoint = Checkpoint::new(path, Container::HuggingFace, metadata, tokenizer, tensors)?;
    checkpoint.add_unused(unused);
    checkpoint.weights = weights;
    Ok(checkpoint)
}
