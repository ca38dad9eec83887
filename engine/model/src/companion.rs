//! Files that accompany a model but are not models: towers that turn pictures or sound into
//! embeddings, drafters, adapters, and statistics for quantising. They are GGUF files like models.
//! Their metadata or their names identify them.

use std::{fmt, path::Path};

use super::{assistant, load::layer_and_name};
use thermocline_base::error::Error;
use thermocline_formats::format::{Checkpoint, Metadata};

/// Prefixes of the file names of drafters.
const DRAFTER_FILES: [&str; 4] = ["mtp-", "dflash-", "dspark-", "eagle3-"];

/// Architectures of drafters: the whole name or its last part.
const DRAFTERS: [&str; 6] = ["assistant", "eagle", "eagle3", "dflash", "dspark", "mtp"];

/// Architectures of towers for pictures and sound: the whole name or its last part.
const TOWERS: [&str; 5] = ["clip", "mmproj", "vision", "vision-model", "siglip"];

/// Kind of a file that accompanies a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Companion {
    /// Projector of pictures or sound into a model's embeddings.
    VisionTower,
    /// Small network that proposes tokens to a model, with the name of this model if the file gives
    /// it.
    Drafter(Option<String>),
    /// A drafter that [`Model::drafting_for`](super::Model::drafting_for) opens, with the name of
    /// its model.
    Assistant(String),
    /// Changes to a model's weights.
    Adapter,
    /// Importance matrix: statistics for quantising a model.
    Statistics,
}

impl Companion {
    /// Returns the kind that the name of a file or folder indicates.
    pub fn of_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        if name.contains("mmproj") {
            Some(Companion::VisionTower)
        } else if DRAFTER_FILES.iter().any(|beginning| name.starts_with(beginning)) {
            Some(Companion::Drafter(None))
        } else {
            name.starts_with("imatrix").then_some(Companion::Statistics)
        }
    }

    /// Returns the kind that the contents of a file indicate; `None` for a model.
    pub fn of(checkpoint: &Checkpoint) -> Option<Self> {
        let text = |key: &str| checkpoint.metadata.str(key).ok().flatten();
        match text("general.type") {
            Some("mmproj") => return Some(Companion::VisionTower),
            Some("adapter") => return Some(Companion::Adapter),
            Some("imatrix") => return Some(Companion::Statistics),
            _ => {}
        }
        let arch = text("general.architecture")?;
        let named = Self::of_architecture(arch, &checkpoint.metadata);
        // The tail of a model may be a file of its own, with the model's architecture but without
        // layer 0.
        let layers = || checkpoint.tensors().iter().filter_map(|tensor| layer_and_name(&tensor.name));
        let tail_alone =
            || layers().any(|(_, name)| name.starts_with("nextn.")) && !layers().any(|(layer, _)| layer == 0);
        named.or_else(|| tail_alone().then(|| Companion::drafter_of(&checkpoint.metadata, Some(arch))))
    }

    /// Returns the kind that the name of an architecture or model type indicates.
    pub(super) fn of_architecture(name: &str, metadata: &Metadata) -> Option<Self> {
        let name = name.replace('_', "-");
        let is = |of: &str| name.strip_suffix(of).is_some_and(|rest| rest.is_empty() || rest.ends_with('-'));
        if TOWERS.into_iter().any(is) {
            return Some(Companion::VisionTower);
        }
        if name == assistant::ARCHITECTURE {
            return Some(Companion::Assistant(base_name(metadata).unwrap_or(assistant::BASE).to_owned()));
        }
        let base = DRAFTERS.into_iter().find(|drafter| is(drafter)).map(|drafter| name.strip_suffix(drafter))?;
        let base = base.map(|base| base.trim_end_matches('-')).filter(|base| !base.is_empty());
        Some(Companion::drafter_of(metadata, base))
    }

    /// Returns a drafter of the model that `metadata` names, or else of the model `base`.
    fn drafter_of(metadata: &Metadata, base: Option<&str>) -> Self {
        Companion::Drafter(base_name(metadata).or(base).map(str::to_owned))
    }

    /// Returns the error for opening this file as a model.
    pub(super) fn refusal(&self, path: &Path) -> Error {
        Error::Companion { path: path.to_owned(), got: self.to_string() }
    }
}

/// Returns the name of the model that a file accompanies, if `metadata` has it.
fn base_name(metadata: &Metadata) -> Option<&str> {
    metadata.str("general.base_model.0.name").ok().flatten().filter(|name| !name.is_empty())
}

impl fmt::Display for Companion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Companion::VisionTower => {
                f.write_str("a vision tower: it turns pictures or sound into embeddings of a model")?
            }
            Companion::Drafter(Some(base)) => write!(f, "a drafter of {base}: it proposes tokens to that model")?,
            Companion::Drafter(None) => f.write_str("a drafter: it proposes tokens to a model")?,
            Companion::Assistant(base) => write!(f, "an assistant of {base}: it proposes tokens to that model")?,
            Companion::Adapter => f.write_str("an adapter: it changes the weights of a model")?,
            Companion::Statistics => f.write_str("an importance matrix: statistics for quantising a model")?,
        }
        f.write_str(", and is not a model by itself")?;
        match self {
            Companion::Assistant(_) => f.write_str("; open that model, with this file as its draft model (--draft)"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LoadOptions, Model};
    use thermocline_formats::{
        format::{Bytes, Container, Tensor, TokenizerSource, Value},
        quant::TensorType,
    };

    fn file(path: &str, keys: &[(&str, &str)], tensors: &[&str]) -> Checkpoint {
        let mut metadata = Metadata::new(path);
        keys.iter().for_each(|(key, value)| drop(metadata.set(*key, Value::String((*value).to_owned()))));
        let tensor = |name: &&str| Tensor {
            name: (*name).to_owned(),
            ty: TensorType::F32,
            shape: vec![1],
            data: Bytes::new(vec![0; 4]),
        };
        let tensors = tensors.iter().map(tensor).collect();
        Checkpoint::new(path.into(), Container::Gguf(3), metadata, TokenizerSource::Metadata, tensors).unwrap()
    }

    #[test]
    fn companions_are_named_by_what_they_hold() {
        let arch = "general.architecture";
        for (keys, tensors, said) in [
            (&[(arch, "clip")][..], &["v.patch_embd.weight"][..], "a vision tower"),
            (&[(arch, "llama"), ("general.type", "mmproj")], &[], "a vision tower"),
            (&[(arch, "gemma4-assistant")], &[], "an assistant of gemma4:"),
            (&[(arch, "gemma5-assistant")], &[], "a drafter of gemma5:"),
            (&[(arch, "eagle3"), ("general.base_model.0.name", "Qwen3 8B")], &[], "a drafter of Qwen3 8B:"),
            (&[(arch, "dflash")], &[], "a drafter: it"),
            (&[(arch, "qwen35")], &["blk.64.nextn.eh_proj.weight", "token_embd.weight"], "a drafter of qwen35:"),
            (&[(arch, "llama"), ("general.type", "adapter")], &["blk.0.attn_q.weight.lora_a"], "an adapter"),
        ] {
            let error = Model::from_checkpoint(file("x.gguf", keys, tensors), &LoadOptions::default()).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(said) && text.contains("not a model by itself"), "{keys:?}: {text}");
            assert_eq!(text.contains("as its draft model (--draft)"), said.contains("assistant"), "{text}");
        }
        for (keys, tensors) in [
            (&[(arch, "qwen35")][..], &["blk.0.attn_norm.weight", "blk.1.nextn.enorm.weight"][..]),
            (&[(arch, "llama")], &["blk.0.attn_q.weight"]),
        ] {
            assert_eq!(Companion::of(&file("mtp-x.gguf", keys, tensors)), None);
        }
        let unknown = Model::from_checkpoint(file("dspark-x.gguf", &[(arch, "new")], &[]), &LoadOptions::default());
        assert!(unknown.unwrap_err().to_string().contains("a drafter: it proposes"));
    }

    #[test]
    fn companions_are_named_by_their_files() {
        for (name, kind) in [
            ("mmproj-F16.gguf", Some(Companion::VisionTower)),
            ("Qwen3-VL-mmproj-f16.gguf", Some(Companion::VisionTower)),
            ("MTP-x-Q4_0.gguf", Some(Companion::Drafter(None))),
            ("imatrix_unsloth.gguf", Some(Companion::Statistics)),
            ("Qwen3.6-27B-MTP-Q4_K_M.gguf", None),
            ("model.gguf", None),
        ] {
            assert_eq!(Companion::of_name(name), kind, "{name}");
        }
    }
}
