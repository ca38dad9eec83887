//! A vision tower from a file or folder.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{TowerConfig, TowerWeights, import, projectors};
use crate::{Companion, LoadOptions, Model, PictureGrid, load::Loader};
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
                    Error::malformed(path.join("config.json"), location, "the vision tower of a model", "nothing")
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

    /// Returns the tower that belongs to the model at `model`: the folder itself if it has one, or
    /// the file with `mmproj` in its name beside a GGUF file. If there are several, the first in
    /// alphabetical order.
    pub fn beside(model: &Path) -> Option<PathBuf> {
        if model.is_dir() {
            let config = fs::read_to_string(model.join("config.json")).unwrap_or_default();
            let gguf = first_mmproj(model);
            return config.contains("\"vision_config\"").then(|| model.to_owned()).or(gguf);
        }
        first_mmproj(model.parent()?)
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

    /// Returns the grid of tokens of a picture of this size, without computing it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the tower does not take such a picture.
    pub fn grid(&self, width: usize, height: usize) -> Result<PictureGrid> {
        let [width, height] = self.config.sizes.fit(width, height)?;
        let token = self.config.patch_size * self.config.merge;
        Ok(PictureGrid { rows: height / token, cols: width / token })
    }
}

/// Returns the first GGUF file in `folder` whose name says that it holds a tower.
fn first_mmproj(folder: &Path) -> Option<PathBuf> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries = fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let of_tower = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.to_ascii_lowercase().ends_with(".gguf") && Companion::of_name(&name) == Some(Companion::VisionTower)
    };
    entries.filter(of_tower).min()
}
