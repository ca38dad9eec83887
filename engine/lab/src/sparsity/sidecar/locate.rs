//! Finds a model's sidecar.

use std::path::{Path, PathBuf};

use super::{Identity, Sidecar};
use thermocline_base::error::{Error, Result};
use thermocline_formats::format::{Bytes, ReadMode};
use thermocline_model::Model;

/// Sidecar to attach to a model.
#[derive(Debug, Clone, Default)]
pub enum SidecarChoice {
    /// The sidecar beside the model ([`path_beside`]), if it exists.
    #[default]
    Beside,
    /// No sidecar.
    Without,
    /// The sidecar in this file, which must belong to the model.
    File(PathBuf),
    /// A sidecar in memory, with a name for errors. It must belong to the model.
    Memory(PathBuf, Bytes),
}

/// Result of attaching a [`SidecarChoice`].
#[derive(Debug, Clone, Default)]
pub enum SidecarAttachment {
    /// No sidecar exists, or none was requested.
    #[default]
    None,
    /// The sidecar is part of the model.
    Attached(Box<Sidecar>),
    /// The sidecar cannot be used; the model is unchanged.
    Ignored {
        /// Path of the sidecar.
        path: PathBuf,
        /// Reason, for users.
        reason: String,
    },
}

impl SidecarAttachment {
    /// Returns the attached sidecar.
    pub fn sidecar(&self) -> Option<&Sidecar> {
        match self {
            SidecarAttachment::Attached(sidecar) => Some(sidecar),
            _ => None,
        }
    }
}

/// Returns the path of `model`'s sidecar: `model.thermocline.gguf` beside `model.gguf`, or inside a
/// model folder.
pub fn path_beside(model: &Path) -> PathBuf {
    if model.is_dir() {
        return model.join("model.thermocline.gguf");
    }
    let is_gguf = model.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    let mut path = if is_gguf { model.with_extension("") } else { model.to_path_buf() }.into_os_string();
    path.push(".thermocline.gguf");
    path.into()
}

/// Attaches the sidecar of `choice` to `model`.
///
/// # Errors
/// For a sidecar chosen by name: errors of the file, or [`Error::Invalid`] if it belongs to another
/// model. A sidecar found beside the model is ignored instead.
pub fn attach(model: &mut Model, choice: &SidecarChoice, mode: ReadMode) -> Result<SidecarAttachment> {
    let read = match choice {
        SidecarChoice::Without => return Ok(SidecarAttachment::None),
        SidecarChoice::File(path) => Sidecar::open(path, mode)?,
        SidecarChoice::Memory(name, bytes) => Sidecar::from_bytes(name, bytes.clone())?,
        SidecarChoice::Beside => {
            let path = path_beside(&model.checkpoint.path);
            if !path.exists() {
                return Ok(SidecarAttachment::None);
            }
            return Ok(match Sidecar::open(&path, mode).and_then(|sidecar| sidecar.attach_if_it_matches(model)) {
                Ok(sidecar) => SidecarAttachment::Attached(Box::new(sidecar)),
                Err(Error::Invalid { got, .. }) => SidecarAttachment::Ignored { path, reason: got },
                Err(error) => SidecarAttachment::Ignored { path, reason: error.to_string() },
            });
        }
    };
    Ok(SidecarAttachment::Attached(Box::new(read.attach_if_it_matches(model)?)))
}

impl Sidecar {
    /// Returns why the sidecar does not belong to `model`; `None` if it does.
    pub fn foreign(&self, model: &Model) -> Option<String> {
        let ran = self.provenance.activation;
        self.identity.difference(&Identity::of_model(model)).or_else(|| {
            let activation = model.config.activation;
            (ran != activation)
                .then(|| format!("it was prepared with the activation {ran}, but the model runs with {activation}"))
        })
    }

    fn attach_if_it_matches(self, model: &mut Model) -> Result<Self> {
        match self.foreign(model) {
            Some(reason) => Err(Error::invalid("sidecar", "a sidecar of this model", reason)),
            None => self.attach(model).map(|()| self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sidecar_paths_are_beside_files_and_inside_folders() {
        let folder = tempfile::tempdir().unwrap();
        for (model, sidecar) in [
            ("a/m.gguf", "a/m.thermocline.gguf"),
            ("m.Q4_0.GGUF", "m.Q4_0.thermocline.gguf"),
            ("m.bin", "m.bin.thermocline.gguf"),
        ] {
            assert_eq!(path_beside(Path::new(model)), Path::new(sidecar));
        }
        assert_eq!(path_beside(folder.path()), folder.path().join("model.thermocline.gguf"));
    }
}
