//! Projectors, one file each: the names of llama.cpp and Hugging Face, and the functions that read
//! and import a tower.

mod gemma3;
mod gemma4uv;
mod gemma4v;
mod minicpmv;
mod minicpmv46;
mod parts;
mod pixtral;
mod qwen25vl;
mod qwen3vl;

use super::{
    TowerConfig, TowerWeights,
    config::projector_name,
    import::{TowerDraft, TowerFolder},
};
use crate::load::Loader;
use thermocline_base::error::{Error, Result};

/// One projector: its names, its two functions, and defaults.
pub(super) struct Projector {
    /// llama.cpp's `clip.projector_type`.
    pub(super) name: &'static str,
    /// Hugging Face's `model_type` values of models with such a tower.
    pub(super) model_types: &'static [&'static str],
    /// Architectures of the text models.
    pub(super) texts: &'static [&'static str],
    /// Mean of each channel, for folders without settings of an image processor.
    pub(super) mean: [f32; 3],
    /// Standard deviation of each channel, for folders without settings of an image processor.
    pub(super) deviation: [f32; 3],
    /// Reads configuration and weights from GGUF keys and tensors.
    pub(super) load: fn(&Loader<'_>) -> Result<(TowerConfig, TowerWeights)>,
    /// Fills in GGUF keys from a folder, and the names of its tensors.
    pub(super) import: fn(&TowerFolder<'_>, &mut TowerDraft) -> Result<()>,
}

/// Every projector that this engine runs.
const PROJECTORS: &[&Projector] = &[
    &qwen3vl::PROJECTOR,
    &qwen25vl::PROJECTOR,
    &gemma3::PROJECTOR,
    &gemma4v::PROJECTOR,
    &gemma4uv::PROJECTOR,
    &pixtral::PROJECTOR,
    &minicpmv::PROJECTOR,
    &minicpmv46::PROJECTOR,
];

/// Returns the projector of a file.
///
/// # Errors
/// [`Error::Unsupported`] for a projector that the engine does not run.
pub(super) fn of_file(loader: &Loader<'_>) -> Result<&'static Projector> {
    let name = projector_name(loader)?;
    PROJECTORS.iter().copied().find(|projector| projector.name == name).ok_or_else(|| {
        let supported: Vec<&str> = PROJECTORS.iter().map(|projector| projector.name).collect();
        Error::unsupported("projector of pictures", name, supported.join(", "))
    })
}

/// Returns the projector of the models of a Hugging Face `model_type`.
pub(super) fn of_model_type(name: &str) -> Option<&'static Projector> {
    PROJECTORS.iter().copied().find(|projector| projector.model_types.contains(&name))
}

/// The error for a folder of a `model_type` whose tower the engine does not run, or whose tensors
/// are missing.
pub(super) fn unknown_folder(model_type: &str) -> Error {
    let supported: Vec<&str> = PROJECTORS.iter().flat_map(|projector| projector.model_types).copied().collect();
    Error::unsupported("vision tower of a folder", format!("model_type {model_type}"), supported.join(", "))
}
