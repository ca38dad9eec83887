//! [`Checkpoint`]: metadata and tensors of a file, independent of its container.

use std::{collections::HashMap, path::PathBuf, sync::Arc};

use super::{MappedFile, Metadata, Pager, Tensor};
use thermocline_base::error::{Error, Location, Result};

/// The container of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// GGUF of this version.
    Gguf(u32),
    /// PowerInfer's GGUF (magic `PWRI`).
    PowerInfer(u32),
    /// A Hugging Face folder (`config.json`, safetensors).
    HuggingFace,
}

/// Source of a checkpoint's tokenizer.
#[derive(Debug, Clone)]
pub enum TokenizerSource {
    /// The metadata, under `tokenizer.*`.
    Metadata,
    /// The files of a Hugging Face folder.
    HuggingFace {
        /// Text of `tokenizer.json`.
        tokenizer_json: String,
        /// Parsed `tokenizer_config.json`, or null.
        tokenizer_config: serde_json::Value,
    },
}

/// Metadata under GGUF's key names and tensors under GGUF's tensor names, for any container.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// The file (the first shard of a split checkpoint) or the folder.
    pub path: PathBuf,
    /// The container that the checkpoint was read from.
    pub container: Container,
    /// Key-value pairs.
    pub metadata: Metadata,
    /// Source of its tokenizer.
    pub tokenizer: TokenizerSource,
    /// For a Hugging Face folder, the names of the weight files.
    pub weights: Vec<String>,
    tensors: Vec<Tensor>,
    unused: Vec<Tensor>,
    index: HashMap<String, usize>,
    files: MappedFiles,
}

/// The mapped files that contain tensors, without duplicates.
#[derive(Debug, Clone, Default)]
pub struct MappedFiles(Vec<Arc<MappedFile>>);

impl MappedFiles {
    /// The files of `tensors`.
    pub fn of<'t>(tensors: impl IntoIterator<Item = &'t Tensor>) -> Self {
        let mut files = MappedFiles::default();
        tensors.into_iter().filter_map(|tensor| tensor.data.file()).for_each(|file| files.add(file));
        files
    }

    /// Decides which pages of the files are in memory. `None` if all of them may be.
    pub fn pager(&self) -> Option<&Pager> {
        self.0.iter().find_map(|file| file.pager())
    }

    fn add(&mut self, file: &Arc<MappedFile>) {
        // The tensors of a file are consecutive.
        if !self.0.iter().rev().any(|known| Arc::ptr_eq(known, file)) {
            self.0.push(Arc::clone(file));
        }
    }

    /// Checks that no file is lost.
    ///
    /// # Errors
    /// [`Error::FileLost`] for the first lost file.
    pub fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(|file| file.check())
    }
}

impl Checkpoint {
    /// Creates a checkpoint from its parts. A duplicate tensor name is an error.
    pub fn new(
        path: PathBuf,
        container: Container,
        metadata: Metadata,
        tokenizer: TokenizerSource,
        tensors: Vec<Tensor>,
    ) -> Result<Self> {
        let index = index(&tensors).map_err(|twice| {
            Error::malformed(&path, Location::Tensor(twice), "a unique tensor name", "two tensors with this name")
        })?;
        let files = MappedFiles::of(&tensors);
        let (weights, unused) = (Vec::new(), Vec::new());
        Ok(Checkpoint { path, container, metadata, tokenizer, weights, tensors, unused, index, files })
    }

    /// The mapped files of its tensors, and of tensors that were added to a model later.
    pub fn files(&self) -> &MappedFiles {
        &self.files
    }

    /// The file that contains the weights, or one of several.
    pub fn weights_file(&self) -> PathBuf {
        self.weights.first().map_or_else(|| self.path.clone(), |name| self.path.join(name))
    }

    /// Adds a file of a sidecar to [`Checkpoint::files`].
    pub fn add_file(&mut self, file: &Arc<MappedFile>) {
        self.files.add(file);
    }

    /// Adds `tensors` to the unused tensors, under their names in the file.
    pub fn add_unused(&mut self, tensors: impl IntoIterator<Item = Tensor>) {
        self.unused.extend(tensors);
    }

    /// Moves the tensors whose names `is_used` rejects to the unused tensors.
    pub fn set_aside(&mut self, is_used: impl Fn(&str) -> bool) {
        let (used, unused) = std::mem::take(&mut self.tensors).into_iter().partition(|tensor| is_used(&tensor.name));
        self.tensors = used;
        self.unused.extend::<Vec<Tensor>>(unused);
        self.index = index(&self.tensors).unwrap_or_default();
    }

    /// Tensors of the file that the model does not use, in file order. Before a model is created
    /// from the checkpoint, these are only a folder's tensors without a GGUF name.
    pub fn unused(&self) -> &[Tensor] {
        &self.unused
    }

    /// The tensors in file order, without unused ones.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensor with the name `name`.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.index.get(name).map(|&at| &self.tensors[at])
    }

    /// The tensors in file order, without unused ones.
    pub fn into_tensors(self) -> Vec<Tensor> {
        self.tensors
    }

    /// Bytes of all tensors, without unused ones.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.data.len() as u64).sum()
    }
}

/// Indices of tensors by name. The error is a duplicate name.
fn index(tensors: &[Tensor]) -> Result<HashMap<String, usize>, String> {
    let mut index = HashMap::with_capacity(tensors.len());
    for (at, tensor) in tensors.iter().enumerate() {
        if index.insert(tensor.name.clone(), at).is_some() {
            return Err(tensor.name.clone());
        }
    }
    Ok(index)
}
