//! Conversion of any model that opens into a GGUF file of another type. All cores encode matrices
//! row by row while the file streams out. Memory holds a few megabytes for any model size, or one
//! whole tensor if its rows change order. [`types`] chooses the type of each tensor. Experts that
//! older files and Hugging Face keep in separate tensors are stacked. Gates and ups in one tensor
//! are split, because llama.cpp expects two tensors.

mod encode;
mod plan;
mod tower;
mod types;

pub use tower::ConvertedTower;

use std::{collections::BTreeMap, fs, path::Path};

use super::{
    LoadOptions, Model,
    import::{self, Import, Recipe},
    load::{factor_names, factors},
};
use thermocline_base::error::{Error, FileAction, Result};
use thermocline_formats::{
    format,
    format::{Checkpoint, Container, Metadata, Opened, ReadMode, TokenizerSource, Value, gguf},
    quant::TensorType,
};
use thermocline_text as tokenizer;

/// Result of [`convert`].
#[derive(Debug, Clone, PartialEq)]
pub struct ConvertReport {
    /// Architecture of the model.
    pub architecture: String,
    /// Bytes of all tensors in the source.
    pub source_bytes: u64,
    /// Size of the file written, in bytes.
    pub file_bytes: u64,
    /// Elements of all tensors.
    pub parameters: u64,
    /// Tensors written, by type.
    pub types: BTreeMap<TensorType, usize>,
    /// Tensors whose rows are not whole blocks of the wanted type.
    pub fallbacks: Vec<TypeFallback>,
    /// The file of the model's vision tower, if the source is a folder with one.
    pub tower: Option<ConvertedTower>,
}

/// A tensor written in a larger type, because its rows are not whole blocks of the wanted type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeFallback {
    /// GGUF name.
    pub tensor: String,
    /// Number of elements per row.
    pub cols: usize,
    /// Type that the rows do not fit.
    pub wanted: TensorType,
    /// Type of the written tensor.
    pub ty: TensorType,
}

/// Types that a file can be converted to.
pub const CONVERT_TYPES: [TensorType; 8] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
    TensorType::Q8_0,
    TensorType::Q4_0,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
];

/// Reads the model at `source` (a GGUF, a PowerInfer file or a Hugging Face folder) and writes it
/// to `target` with its matrices as `ty`. A folder's vision tower becomes a file beside `target`.
/// `progress` receives the elements done and the elements in total. PowerInfer files stay
/// PowerInfer files, with their predictors.
///
/// # Errors
/// Errors of opening the model; [`Error::Unsupported`] for a type outside [`CONVERT_TYPES`];
/// [`Error::Io`] if the target cannot be written. A failed conversion leaves nothing new at
/// `target`, and does not change a file that was there.
pub fn convert(
    source: &Path,
    target: &Path,
    ty: TensorType,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ConvertReport> {
    if !CONVERT_TYPES.contains(&ty) {
        return Err(Error::unsupported("type to convert to", ty, CONVERT_TYPES.map(TensorType::name).join(", ")));
    }
    if let (Ok(from), Ok(to)) = (fs::canonicalize(source), fs::canonicalize(target))
        && from == to
    {
        return Err(Error::invalid("file to write", "a file other than the source", target.display()));
    }
    let opened = format::open(source, ReadMode::Map)?;
    let files = opened.files();
    let tower = match &opened {
        Opened::HuggingFace(folder) => super::tower::import(folder)?,
        Opened::Checkpoint(_) => None,
    };
    let (container, Import { mut metadata, tokenizer, mut recipes, .. }) = match opened {
        Opened::HuggingFace(folder) => (Container::HuggingFace, import::import(folder)?),
        Opened::Checkpoint(checkpoint) => (checkpoint.container, from_checkpoint(checkpoint)),
    };
    let model = {
        // The model is checked by its sizes only, and transformations do not change sizes.
        let tensors = recipes.iter().map(Recipe::untransformed).collect::<Result<_>>()?;
        let checkpoint = Checkpoint::new(source.to_owned(), container, metadata.clone(), tokenizer.clone(), tensors)?;
        Model::from_checkpoint(checkpoint, &LoadOptions::default())?
    };
    let (config, factors) = (model.config, factors_of(&model.checkpoint)?);
    // The written types have no factors beside the matrices.
    recipes.retain(|recipe| !factors.keys().any(|weight| factor_names(weight).contains(&recipe.tensor.name)));
    let planned = plan::plan(source, recipes, &config, ty)?;

    finish_metadata(&mut metadata, &config, ty);
    if matches!(tokenizer, TokenizerSource::HuggingFace { .. }) {
        tokenizer::export_metadata(&tokenizer, config.n_vocab, &mut metadata)?;
    }
    let container = match container {
        Container::PowerInfer(_) => Container::PowerInfer(3),
        Container::Gguf(_) | Container::HuggingFace => Container::Gguf(3),
    };
    let tower = tower.map(|tower| tower::TowerFile::write(source, target, tower, ty)).transpose()?;
    let infos: Vec<_> = planned.iter().map(|tensor| tensor.info.clone()).collect();
    let mut writer = gguf::Writer::create(target, container, &metadata, &infos)?;
    let mut report = ConvertReport {
        architecture: config.architecture,
        source_bytes: 0,
        file_bytes: 0,
        parameters: infos.iter().map(|info| info.shape.iter().product::<usize>() as u64).sum(),
        types: BTreeMap::new(),
        fallbacks: planned.iter().filter_map(fallback).collect(),
        tower: None,
    };
    let encoder = encode::TensorEncoder::new();
    let mut done = 0;
    progress(0, report.parameters);
    for tensor in &planned {
        *report.types.entry(tensor.info.ty).or_default() += 1;
        report.source_bytes += tensor.source_bytes();
        for part in &tensor.parts {
            // The tensor is made here and dropped here, so that at most one reordered tensor is in
            // memory.
            let part = tensor.make(part, source)?;
            let factors = factors.get(&part.name).map_or(&[][..], |factors| factors);
            encoder.encode(
                source,
                &part,
                factors,
                tensor.info.ty,
                &mut |rows| writer.tensor_data(rows),
                &mut |elements| {
                    done += elements;
                    progress(done, report.parameters);
                },
            )?;
        }
    }
    files.check()?;
    writer.finish()?;
    report.tower = tower.map(tower::TowerFile::finish).transpose()?;
    report.file_bytes = fs::metadata(target).map_err(|error| Error::io(FileAction::Read, target, error))?.len();
    Ok(report)
}

fn fallback(tensor: &plan::PlannedTensor) -> Option<TypeFallback> {
    let gguf::TensorInfo { name, ty, shape } = &tensor.info;
    let (wanted, cols) = (tensor.unfit?, shape.last().copied().unwrap_or(0));
    Some(TypeFallback { tensor: name.clone(), cols, wanted, ty: *ty })
}

/// Returns the factors of all matrices with factors, by the name of the matrix.
fn factors_of(checkpoint: &Checkpoint) -> Result<BTreeMap<String, Vec<f32>>> {
    let mut all = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        let count = if tensor.shape.len() > 2 { tensor.shape[0] } else { 1 };
        if let Some(factors) = factors(checkpoint, tensor, count)? {
            all.insert(tensor.name.clone(), factors);
        }
    }
    Ok(all)
}

fn from_checkpoint(checkpoint: Checkpoint) -> Import {
    let recipes = checkpoint.tensors().iter().cloned().map(Recipe::plain).collect();
    let mut metadata = Metadata::new(checkpoint.metadata.path());
    for (key, value) in checkpoint.metadata.iter().filter(|(key, _)| !key.starts_with("split.")) {
        metadata.set(key, value.clone());
    }
    Import { metadata, tokenizer: checkpoint.tokenizer, recipes, unused: Vec::new() }
}

/// Sets the keys that follow from the conversion, and keys that older files lack.
fn finish_metadata(metadata: &mut Metadata, config: &super::ModelConfig, ty: TensorType) {
    let arch = &config.architecture;
    let activation = format!("{arch}.hidden_activation");
    if metadata.get(&activation).is_none() {
        metadata.set(activation, Value::String(config.activation.name().to_owned()));
    }
    metadata.set(format!("{arch}.vocab_size"), Value::U32(config.n_vocab as u32));
    metadata.set("general.file_type", Value::U32(types::file_type(ty)));
    metadata.set("general.quantization_version", Value::U32(2));
}
