//! The vision tower of a folder as a file of its own, as llama.cpp expects it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{encode::TensorEncoder, types};
use crate::{
    import::Recipe,
    tower::{ImportedTower, Tower},
};
use thermocline_base::error::{Error, FileAction, Result};
use thermocline_formats::{
    format::{
        Checkpoint, Container, TokenizerSource, Value,
        gguf::{TensorInfo, Writer},
    },
    quant::TensorType,
};

/// Beginning of the names of files with a tower.
const PREFIX: &str = "mmproj-";

/// The file of a tower that a conversion wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConvertedTower {
    /// The file.
    pub path: PathBuf,
    /// Its size, in bytes.
    pub file_bytes: u64,
}

/// A file whose tensors are written but which does not have its name yet.
pub(super) struct TowerFile {
    path: PathBuf,
    writer: Writer,
}

impl TowerFile {
    /// Writes `tower` of the folder `source` beside `model`, the file of the model. Matrices become
    /// `ty`, or F16 if `ty` has fewer than 8 bits.
    ///
    /// # Errors
    /// Errors of the tower's sizes and tensors; [`Error::Io`] if the file cannot be written.
    pub(super) fn write(source: &Path, model: &Path, mut tower: ImportedTower, ty: TensorType) -> Result<Self> {
        let untransformed = tower.recipes.iter().map(Recipe::untransformed).collect::<Result<_>>()?;
        let (metadata, tokenizer) = (tower.metadata.clone(), TokenizerSource::Metadata);
        let container = Container::HuggingFace;
        Tower::from_checkpoint(Checkpoint::new(source.to_owned(), container, metadata, tokenizer, untransformed)?)?;

        let ty = match ty {
            TensorType::F32 | TensorType::F16 | TensorType::BF16 | TensorType::Q8_0 => ty,
            _ => TensorType::F16,
        };
        tower.metadata.set("general.file_type", Value::U32(types::file_type(ty)));
        tower.metadata.set("general.quantization_version", Value::U32(2));
        let infos: Vec<TensorInfo> = tower.recipes.iter().map(|recipe| info(recipe, ty)).collect();
        let name = model.file_name().unwrap_or_default().to_string_lossy();
        let path = model.with_file_name(format!("{PREFIX}{name}"));
        let mut writer = Writer::create(&path, Container::Gguf(3), &tower.metadata, &infos)?;
        let encoder = TensorEncoder::new();
        for (recipe, info) in tower.recipes.iter().zip(&infos) {
            let tensor = recipe.make(source)?;
            encoder.encode(source, &tensor, &[], info.ty, &mut |rows| writer.tensor_data(rows), &mut |_| {})?;
        }
        Ok(TowerFile { path, writer })
    }

    /// Gives the file its name.
    pub(super) fn finish(self) -> Result<ConvertedTower> {
        let TowerFile { path, writer } = self;
        writer.finish()?;
        let read = fs::metadata(&path).map_err(|error| Error::io(FileAction::Read, &path, error))?;
        Ok(ConvertedTower { path, file_bytes: read.len() })
    }
}

/// Name, type and shape of a written tensor. Vectors, position tables, convolutions of patches and
/// embeddings of tokens stay F32, because llama.cpp adds and convolves only floats of this type.
fn info(recipe: &Recipe, ty: TensorType) -> TensorInfo {
    let (name, shape) = (recipe.tensor.name.clone(), recipe.shape());
    let float =
        shape.len() != 2 || name.ends_with(".bias") || name.contains("position_embd") || name.contains("token_embd");
    let fits = |ty: TensorType| shape.last().is_some_and(|cols| cols.is_multiple_of(ty.block_len()));
    let ty = match ty {
        _ if float => TensorType::F32,
        ty if fits(ty) => ty,
        _ => TensorType::F16,
    };
    TensorInfo { name, ty, shape }
}
