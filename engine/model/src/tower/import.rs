//! The tower of a Hugging Face folder, under llama.cpp's keys and tensor names.

use std::path::PathBuf;

use serde_json::Value as Json;

use super::projectors::{self, Projector};
use crate::import::{HfConfig, Naming, Recipe};
use thermocline_base::error::Result;
use thermocline_formats::format::{Array, Checkpoint, Container, HfFolder, Metadata, Tensor, TokenizerSource, Value};

/// The parts of a folder that describe its tower.
pub(super) struct TowerFolder<'a> {
    /// `vision_config` of `config.json`.
    pub(super) vision: HfConfig,
    /// `config.json`, with the keys of the text model.
    pub(super) text: HfConfig,
    /// Settings of the image processor; null if there are none.
    pub(super) processor: &'a Json,
    /// The folder, with the tensors of the text model.
    pub(super) folder: &'a HfFolder,
}

impl TowerFolder<'_> {
    /// Returns an unsigned number of the image processor, or of one of its objects.
    pub(super) fn processor_size(&self, path: &[&str]) -> Option<u64> {
        path.iter().try_fold(self.processor, |value, key| value.get(key))?.as_u64()
    }

    /// Returns the id of the added token `content`.
    pub(super) fn token_id(&self, content: &str) -> Option<usize> {
        let tokenizer: Json = serde_json::from_str(self.folder.tokenizer_json.as_deref()?).ok()?;
        let added = tokenizer.get("added_tokens")?.as_array()?;
        let token = added.iter().find(|token| token.get("content").and_then(Json::as_str) == Some(content))?;
        usize::try_from(token.get("id")?.as_u64()?).ok()
    }

    /// Returns one number per channel of the image processor.
    fn channels(&self, key: &str) -> Option<Vec<f32>> {
        let values = self.processor.get(key)?.as_array()?.iter();
        values.map(|value| value.as_f64().map(|value| value as f32)).collect()
    }
}

/// Keys and names of a tower, as a projector fills them in.
pub(super) struct TowerDraft {
    pub(super) keys: Metadata,
    pub(super) naming: Naming,
}

impl TowerDraft {
    /// Sets a key of the tower.
    pub(super) fn set(&mut self, suffix: &str, value: Value) {
        self.keys.set(format!("clip.vision.{suffix}"), value);
    }

    /// Sets a key of the tower to a number.
    pub(super) fn set_size(&mut self, suffix: &str, size: usize) {
        self.set(suffix, Value::U32(u32::try_from(size).unwrap_or(u32::MAX)));
    }
}

/// A translated tower whose tensors are not yet made.
pub(crate) struct ImportedTower {
    pub(crate) metadata: Metadata,
    pub(crate) recipes: Vec<Recipe>,
}

impl ImportedTower {
    /// Makes the tensors.
    pub(super) fn checkpoint(self, path: PathBuf) -> Result<Checkpoint> {
        let tensors = self.recipes.iter().map(|recipe| recipe.make(&path)).collect::<Result<_>>()?;
        Checkpoint::new(path, Container::HuggingFace, self.metadata, TokenizerSource::Metadata, tensors)
    }
}

/// Translates the tower of `folder`; `None` if the folder has no tower or one that no projector
/// reads.
///
/// # Errors
/// [`Error::Malformed`](thermocline_base::error::Error::Malformed) for a key of the wrong type.
pub(crate) fn import(folder: &HfFolder) -> Result<Option<ImportedTower>> {
    let HfFolder { path, config, processor_config, tensors, .. } = folder;
    let Some(vision) = config.get("vision_config").filter(|vision| vision.is_object()) else { return Ok(None) };
    let model_type = config.get("model_type").and_then(Json::as_str).unwrap_or_default();
    // Wrappers with any tower name its own type.
    let tower_type = vision.get("model_type").and_then(Json::as_str).unwrap_or_default();
    let projector = [model_type, tower_type].into_iter().find_map(projectors::of_model_type);
    let Some(projector) = projector else { return Ok(None) };
    // Text models that were cut from a vision model keep its configuration.
    let is_of_tower =
        |name: &str| ["visual.", "vision_tower.", "vision_embedder.", "vpm."].iter().any(|part| name.contains(part));
    if !tensors.iter().any(|tensor| is_of_tower(&tensor.name)) {
        return Ok(None);
    }
    let mut vision = vision.clone();
    // Some configurations leave out the type of the tower.
    vision["model_type"] = Json::String(format!("{model_type}_vision"));
    let from = TowerFolder {
        vision: HfConfig::new(path, vision)?,
        text: HfConfig::new(path, config.clone())?,
        processor: processor_config,
        folder,
    };
    let mut draft = TowerDraft { keys: Metadata::new(path), naming: Naming::default() };
    general_keys(&from, &mut draft, projector)?;
    (projector.import)(&from, &mut draft)?;
    let translated = tensors.iter().flat_map(|tensor| {
        let names = draft.naming.translate(&tensor.name).into_iter();
        names.map(move |(name, transform)| Recipe {
            tensor: Tensor { name, ..tensor.clone() },
            scales: None,
            transform,
        })
    });
    let recipes: Vec<Recipe> = translated.collect();
    Ok(Some(ImportedTower { metadata: draft.keys, recipes }))
}

/// Sets the keys that every tower has.
fn general_keys(from: &TowerFolder<'_>, draft: &mut TowerDraft, projector: &Projector) -> Result<()> {
    for (key, value) in
        [("general.architecture", "clip"), ("general.type", "mmproj"), ("clip.projector_type", projector.name)]
    {
        draft.keys.set(key, Value::String(value.to_owned()));
    }
    draft.keys.set("clip.has_vision_encoder", Value::Bool(true));
    draft.set_size("projection_dim", from.text.size(&["hidden_size"])?);
    for (key, default) in [("image_mean", projector.mean), ("image_std", projector.deviation)] {
        let channels = from.channels(key).unwrap_or_else(|| default.to_vec());
        draft.set(key, Value::Array(Array::F32(channels)));
    }
    Ok(())
}
