//! The files beside a Hugging Face model that embeds texts, as sentence-transformers writes them:
//! pooling, linear maps after it, and prompts.

use std::path::Path;

use serde_json::Value;

use super::{
    ReadMode, Tensor,
    hf::{is_plain_file_name, json},
    mmap, safetensors,
};
use thermocline_base::error::{Error, Location, Result};

/// Modules after the transformer.
#[derive(Debug, Clone, Default)]
pub struct SentenceModules {
    /// `config.json` of the pooling; `None` without one.
    pub pooling: Option<Value>,
    /// Linear maps after the pooling.
    pub dense: Vec<DenseModule>,
    /// `config_sentence_transformers.json`, or null.
    pub config: Value,
}

/// A linear map after the pooling.
#[derive(Debug, Clone)]
pub struct DenseModule {
    /// `config.json`.
    pub config: Value,
    /// `linear.weight` and perhaps `linear.bias`.
    pub tensors: Vec<Tensor>,
}

const MODULES: &str = "modules.json";

impl SentenceModules {
    /// Reads the modules of `folder`; empty without `modules.json`.
    ///
    /// # Errors
    /// Errors of the files; [`Error::Unsupported`] for a module of another kind.
    pub(super) fn read(folder: &Path, mode: ReadMode) -> Result<Self> {
        let config = json(folder, "config_sentence_transformers.json")?.unwrap_or(Value::Null);
        let mut modules = SentenceModules { config, ..SentenceModules::default() };
        let Some(list) = json(folder, MODULES)? else { return Ok(modules) };
        let malformed =
            |expected: &str, got: &Value| Error::malformed(folder.join(MODULES), Location::File, expected, got);
        let list = list.as_array().ok_or_else(|| malformed("a list of modules", &list))?;
        for module in list {
            let (kind, path) = (module.get("type").and_then(Value::as_str), module.get("path").and_then(Value::as_str));
            let (Some(kind), Some(path)) = (kind, path) else {
                return Err(malformed("modules with type and path", module));
            };
            let kind = kind.rsplit('.').next().unwrap_or(kind);
            if matches!(kind, "Transformer" | "Normalize" | "LogitScore") {
                continue;
            }
            if !is_plain_file_name(path) {
                return Err(malformed("the name of a folder in the folder", module));
            }
            let folder = folder.join(path);
            let config = json(&folder, "config.json")?.unwrap_or(Value::Null);
            match kind {
                "Pooling" => modules.pooling = Some(config),
                "Dense" => {
                    let weights = folder.join("model.safetensors");
                    let tensors = mmap::read_with(&weights, mode, |bytes| safetensors::read(&weights, bytes))?;
                    modules.dense.push(DenseModule { config, tensors });
                }
                other => {
                    let supported = "Transformer, Pooling, Dense, Normalize";
                    return Err(Error::unsupported("module of sentence-transformers", other, supported));
                }
            }
        }
        Ok(modules)
    }
}
