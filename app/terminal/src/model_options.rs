//! Options that name a model, shared by all commands with one.

use std::{io::Write, path::PathBuf};

use clap::Args;
use tempfile::NamedTempFile;
use thermocline_engine::{
    format::{self, Bytes, Checkpoint, ReadMode},
    model::{Activation, LoadOptions, Model},
    runtime::KvType,
    session::{EngineOptions, Sampling},
    sparsity::sidecar::{self, SidecarAttachment, SidecarChoice},
};

use crate::{
    failure::{Failure, Outcome, one_line},
    named::named,
    standard_error::say,
};
use thermocline_host::builtin;

/// Path of the model and how it is read.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelOptions {
    /// GGUF file (the first part of a split one), PowerInfer file or Hugging Face folder [default:
    /// the built-in storyteller]
    #[arg(short, long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// Activation of the FFN, if the file does not say that it is ReLU
    #[arg(long, value_name = "NAME", value_parser = named::<Activation>(Activation::ALL.map(Activation::name)))]
    pub activation: Option<Activation>,
    /// Read the file into memory instead of mapping it (slower start; safe if the file may change)
    #[arg(long)]
    pub no_mmap: bool,
    /// Sidecar that `thermocline prepare` wrote for the model, or none [default: the file
    /// beside the model]
    #[arg(long, value_name = "FILE|none")]
    pub sidecar: Option<PathBuf>,
}

/// A model as a file.
#[derive(Debug)]
pub struct ModelFile {
    /// Path of the file.
    pub path: PathBuf,
    /// The temporary copy of the built-in model, which dropping the field deletes.
    _temporary: Option<NamedTempFile>,
}

impl ModelOptions {
    /// Options of the loader.
    pub fn load_options(&self) -> LoadOptions {
        LoadOptions { read_mode: self.read_mode(), activation: self.activation }
    }

    /// Whether to map or read the file.
    pub fn read_mode(&self) -> ReadMode {
        if self.no_mmap { ReadMode::Read } else { ReadMode::Map }
    }

    /// Opens the container, its tokenizer and its tensors, without checking the architecture.
    pub fn open_checkpoint(&self) -> Outcome<Checkpoint> {
        Ok(match &self.model {
            Some(path) => Model::open_checkpoint(path, self.read_mode())?,
            None => format::gguf::from_bytes(builtin::path(), Bytes::new(builtin::file()))?,
        })
    }

    /// Opens the model with its sidecar. Reports on standard error a sidecar that cannot be used.
    pub fn open_model(&self) -> Outcome<Model> {
        let mut model = Model::from_checkpoint(self.open_checkpoint()?, &self.load_options())?;
        if let SidecarAttachment::Ignored { path, reason } = self.attach(&mut model)? {
            say(format_args!("[{} is not used: {}]", one_line(&path.display().to_string()), one_line(&reason)));
        }
        Ok(model)
    }

    /// Attaches the sidecar to `model`.
    pub fn attach(&self, model: &mut Model) -> Outcome<SidecarAttachment> {
        Ok(sidecar::attach(model, &self.sidecar_choice(), self.read_mode())?)
    }

    /// Returns the sidecar to attach.
    pub fn sidecar_choice(&self) -> SidecarChoice {
        match &self.sidecar {
            Some(path) if path.as_os_str() == "none" => SidecarChoice::Without,
            Some(path) => SidecarChoice::File(path.clone()),
            // With another activation, the built-in model no longer matches its sidecar.
            None if self.model.is_none() && self.activation.is_none() => builtin::sidecar(),
            None => SidecarChoice::Beside,
        }
    }

    /// Returns the model as a file. The built-in model is written to a temporary file, which lives
    /// as long as the result.
    pub fn file(&self) -> Outcome<ModelFile> {
        if let Some(path) = self.model.clone() {
            return Ok(ModelFile { path, _temporary: None });
        }
        let written = tempfile::Builder::new().prefix("storyteller-").suffix(".gguf").tempfile();
        let mut file = written.map_err(|error| Failure::write(&std::env::temp_dir(), error))?;
        file.write_all(builtin::file()).map_err(|error| Failure::write(file.path(), error))?;
        Ok(ModelFile { path: file.path().to_owned(), _temporary: Some(file) })
    }

    /// Default element type of the KV cache.
    pub fn kv_type(&self) -> KvType {
        if self.model.is_none() { builtin::KV_TYPE } else { EngineOptions::default().kv_type }
    }

    /// Returns the default sampling, without the user's options.
    pub fn sampling(&self) -> Sampling {
        if self.model.is_none() { builtin::sampling() } else { Sampling::default() }
    }
}
