//! A vision tower from a file or folder.

use std::{
    cmp::Reverse,
    fs,
    path::{Path, PathBuf},
};

use super::{Merger, TowerConfig, TowerHead, TowerWeights, import, projectors};
use crate::{Companion, LoadOptions, Model, load::Loader};
use thermocline_base::error::{Error, Location, Result};
use thermocline_formats::format::{self, Checkpoint, Opened, ReadMode};

/// Beginning of the keys of a tower's sizes.
const KEYS: &str = "clip.vision";

/// A vision tower that can be run. It is immutable.
#[derive(Debug, Clone)]
pub struct Tower {
    /// Sizes and variants.
    pub config: TowerConfig,
    /// Weights by role, in their file types.
    pub weights: TowerWeights,
    /// File or folder that the weights were read from.
    pub checkpoint: Checkpoint,
}

impl Tower {
    /// Opens `mmproj-*.gguf`, or the tower of a Hugging Face folder.
    ///
    /// # Errors
    /// Errors of the file, with key or tensor; [`Error::Unsupported`] for a projector that the
    /// engine does not run; [`Error::Malformed`] for a file or folder without a tower.
    pub fn open(path: &Path, mode: ReadMode) -> Result<Self> {
        match format::open(path, mode)? {
            Opened::Checkpoint(checkpoint) => Tower::from_checkpoint(checkpoint),
            Opened::HuggingFace(folder) => {
                let path = folder.path.clone();
                let imported = import::import(&folder)?.ok_or_else(|| {
                    let location = Location::Key("vision_config".to_owned());
                    let nothing = "the vision tower of a model";
                    match folder.config.get("model_type").and_then(serde_json::Value::as_str) {
                        Some(of) if folder.config.get("vision_config").is_some() => projectors::unknown_folder(of),
                        _ => Error::malformed(path.join("config.json"), location, nothing, "nothing"),
                    }
                })?;
                Tower::from_checkpoint(imported.checkpoint(path)?)
            }
        }
    }

    /// Builds the tower in `checkpoint`, and checks every size against every tensor.
    ///
    /// # Errors
    /// As [`Tower::open`].
    pub fn from_checkpoint(mut checkpoint: Checkpoint) -> Result<Self> {
        if Companion::of(&checkpoint) != Some(Companion::VisionTower) {
            let arch = checkpoint.metadata.str("general.architecture")?.unwrap_or("nothing").to_owned();
            let location = Location::Key("general.architecture".to_owned());
            return Err(Error::malformed(&checkpoint.path, location, "clip, the architecture of vision towers", arch));
        }
        let options = LoadOptions::default();
        let loader = Loader::new(&checkpoint, KEYS, &options);
        let projector = projectors::of_file(&loader)?;
        let (config, weights) = (projector.load)(&loader)?;
        let used = loader.into_used();
        checkpoint.set_aside(|name| used.contains(name));
        Ok(Tower { config, weights, checkpoint })
    }

    /// Returns the towers that may belong to the model at `model`. A folder with a tower is one of
    /// them. The others are GGUF files with `mmproj` in their names, in the folder or beside the
    /// file. Files whose names share the longest beginning with the model's name come first.
    pub fn beside(model: &Path) -> Vec<PathBuf> {
        if !model.is_dir() {
            return model.parent().map_or(Vec::new(), |folder| mmproj_files(folder, &file_name(model)));
        }
        let config = fs::read_to_string(model.join("config.json")).unwrap_or_default();
        let own = config.contains("\"vision_config\"").then(|| model.to_owned());
        own.into_iter().chain(mmproj_files(model, "")).collect()
    }

    /// Checks that the tower belongs to `model`.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the expected and the found projector or length of embeddings.
    pub fn check_belongs(&self, model: &Model) -> Result<()> {
        let (config, path) = (&self.config, self.checkpoint.path.display());
        let (arch, d_model) = (model.config.architecture.as_str(), model.config.d_model);
        if !config.texts.contains(&arch) {
            let expected = format!("one of a model of architecture {arch}");
            let got = format!("projector `{}` of {} in {path}", config.projector, config.texts.join(", "));
            return Err(Error::invalid("vision tower", expected, got));
        }
        if config.d_model != d_model {
            let expected = format!("embeddings of length {d_model}, as {} has", model.checkpoint.path.display());
            return Err(Error::invalid("vision tower", expected, format!("length {} in {path}", config.d_model)));
        }
        Ok(())
    }

    /// Returns the tower of `model` at `path`, or the first one [beside](Tower::beside) the model
    /// that belongs to it.
    ///
    /// # Errors
    /// The errors of [`Tower::open`] and [`Tower::check_belongs`] for the tower at `path`. Towers
    /// beside the model that cannot be used are passed over.
    pub fn of_model(model: &Model, path: Option<&Path>, mode: ReadMode) -> Result<Option<Self>> {
        let open = |path: &Path| {
            let tower = Tower::open(path, mode)?;
            tower.check_belongs(model)?;
            Ok(tower)
        };
        if let Some(path) = path {
            return open(path).map(Some);
        }
        // The built-in model has no place on disk.
        let beside = Some(&model.checkpoint.path).filter(|path| path.exists()).map(|path| Tower::beside(path));
        for path in beside.into_iter().flatten() {
            match open(&path) {
                Ok(tower) => return Ok(Some(tower)),
                Err(error) => tracing::warn!(path = %path.display(), %error, "the vision tower is not used"),
            }
        }
        Ok(None)
    }

    /// Returns the head if it merges patches.
    pub fn merger(&self) -> Option<&Merger> {
        if let TowerHead::Merger(merger) = &self.weights.head { Some(merger) } else { None }
    }

    /// Makes pictures so small that each leaves about half of a context of `context` tokens to the
    /// chat.
    #[must_use]
    pub fn within(mut self, context: usize) -> Self {
        self.config.sizes.limit(context / 2);
        self
    }
}

/// The name of a file in lower-case letters.
fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase()
}

/// Returns the GGUF files in `folder` whose names say that they hold towers. Files whose names
/// share the longest beginning with the name `model`, apart from `mmproj`, come first.
fn mmproj_files(folder: &Path, model: &str) -> Vec<PathBuf> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let of_tower = |path: &PathBuf| {
        let name = file_name(path);
        name.ends_with(".gguf") && Companion::of_name(&name) == Some(Companion::VisionTower)
    };
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(of_tower).collect();
    let shared = |path: &PathBuf| {
        let name = file_name(path);
        let name = name.strip_prefix("mmproj-").unwrap_or(&name);
        name.bytes().zip(model.bytes()).take_while(|(a, b)| a == b).count()
    };
    files.sort_by_key(|path| (Reverse(shared(path)), path.clone()));
    files
}
