//! A Hugging Face folder: `config.json`, weights as safetensors (one file, or shards named by an index), and the
//! tokenizer's files, all as they lie there. Giving the tensors GGUF's names is the importer's work.
//!
//! Nothing is opened that is not directly in the folder: shard names come from a JSON file, so a name that is anything
//! but a plain file name is refused.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{ReadMode, Tensor, mmap, safetensors};
use crate::error::{Error, Location, Result};

const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const CHAT_TEMPLATE: &str = "chat_template.jinja";
const WEIGHTS: &str = "model.safetensors";
const WEIGHTS_INDEX: &str = "model.safetensors.index.json";

/// Largest JSON or text file read, in bytes; the longest published tokenizers have about 40 MB.
const LARGEST_TEXT: u64 = 256 << 20;

/// The contents of a Hugging Face folder, under that world's names.
#[derive(Debug, Clone)]
pub struct HfFolder {
    /// The folder.
    pub path: PathBuf,
    /// `config.json`, an object.
    pub config: Value,
    /// `generation_config.json`, or null.
    pub generation_config: Value,
    /// Text of `tokenizer.json`.
    pub tokenizer_json: Option<String>,
    /// `tokenizer_config.json`, or null. A `chat_template.jinja` beside it is its `chat_template`, as transformers
    /// has it.
    pub tokenizer_config: Value,
    /// Tensors of all files, under their own names, each in its file's order.
    pub tensors: Vec<Tensor>,
}

impl HfFolder {
    /// Reads the folder at `path`.
    pub(super) fn open(path: &Path, mode: ReadMode) -> Result<Self> {
        let Some(config) = json(path, CONFIG)? else {
            let got = match file_with(path, "gguf") {
                Some(name) => format!("no such file (but there is `{name}`: open that)"),
                None => "no such file".to_owned(),
            };
            return Err(Error::malformed(path, Location::File, "a folder with `config.json`", got));
        };
        if !config.is_object() {
            return Err(Error::malformed(path.join(CONFIG), Location::File, "a JSON object", kind(&config)));
        }
        if let Some(method) = config.get("quantization_config").filter(|method| !method.is_null()) {
            let got = method.get("quant_method").and_then(Value::as_str).unwrap_or("unnamed").to_owned();
            let supported = "none: use the unquantised model, or a GGUF file of it".to_owned();
            return Err(Error::Unsupported { what: "quantization_config", got, supported });
        }

        let mut tokenizer_config = json(path, TOKENIZER_CONFIG)?.unwrap_or(Value::Null);
        if let Some(template) = text(path, CHAT_TEMPLATE)? {
            if tokenizer_config.is_null() {
                tokenizer_config = Value::Object(serde_json::Map::new());
            }
            if let Some(fields) = tokenizer_config.as_object_mut() {
                fields.insert("chat_template".to_owned(), Value::String(template));
            }
        }
        Ok(HfFolder {
            path: path.to_path_buf(),
            generation_config: json(path, GENERATION_CONFIG)?.unwrap_or(Value::Null),
            tokenizer_json: text(path, TOKENIZER)?,
            tokenizer_config,
            tensors: tensors(path, mode)?,
            config,
        })
    }
}

fn tensors(folder: &Path, mode: ReadMode) -> Result<Vec<Tensor>> {
    let single = folder.join(WEIGHTS);
    if single.exists() {
        return safetensors::read(&single, &mmap::load(&single, mode)?);
    }
    let Some(index) = json(folder, WEIGHTS_INDEX)? else {
        let got = match file_with(folder, "bin").or_else(|| file_with(folder, "pt")) {
            Some(name) => format!("only `{name}`, a pickle, which can run code when it is read"),
            None => "neither".to_owned(),
        };
        let expected = format!("`{WEIGHTS}` or `{WEIGHTS_INDEX}` in the folder");
        return Err(Error::malformed(folder, Location::File, expected, got));
    };
    shards(folder, &folder.join(WEIGHTS_INDEX), &index, mode)
}

/// Tensors of the files that `index` names; each tensor it lists must be in the file it lists it for.
fn shards(folder: &Path, index_path: &Path, index: &Value, mode: ReadMode) -> Result<Vec<Tensor>> {
    let refuse =
        |key: String, expected: &str, got: String| Error::malformed(index_path, Location::Key(key), expected, got);
    let map = index.get("weight_map").and_then(Value::as_object).ok_or_else(|| {
        refuse("weight_map".to_owned(), "an object from tensor to file", kind(&index["weight_map"]).to_owned())
    })?;
    let mut by_file = BTreeMap::<&str, Vec<&str>>::new();
    for (tensor, file) in map {
        let file = file.as_str().filter(|name| is_plain_file_name(name)).ok_or_else(|| {
            refuse(format!("weight_map.{tensor}"), "the name of a file in the folder", file.to_string())
        })?;
        by_file.entry(file).or_default().push(tensor);
    }
    let mut tensors = Vec::with_capacity(map.len());
    for (file, listed) in by_file {
        let path = folder.join(file);
        if !path.exists() {
            let key = format!("weight_map.{}", listed[0]);
            return Err(refuse(key, "a file in the folder", format!("`{file}`, which is not there")));
        }
        let mut there = safetensors::read(&path, &mmap::load(&path, mode)?)?;
        let wanted = listed.iter().copied().collect::<std::collections::HashSet<_>>();
        there.retain(|tensor| wanted.contains(tensor.name.as_str()));
        if there.len() != listed.len() {
            let names = there.iter().map(|tensor| (tensor.name.as_str(), ())).collect::<HashMap<_, _>>();
            let missing = listed.into_iter().find(|name| !names.contains_key(name)).unwrap_or_default();
            let location = Location::Tensor(missing.to_owned());
            return Err(Error::malformed(path, location, format!("the tensor, as `{WEIGHTS_INDEX}` says"), "none"));
        }
        tensors.append(&mut there);
    }
    Ok(tensors)
}

/// Whether `name` names a file in a folder on every system: no separator, no drive, no parent.
fn is_plain_file_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\\', ':', '\0'])
}

/// The text of `name` in `folder`; `None` if there is no such file.
fn text(folder: &Path, name: &str) -> Result<Option<String>> {
    let path = folder.join(name);
    match fs::metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::io("open", path, source)),
        Ok(found) if found.len() > LARGEST_TEXT => {
            let expected = format!("at most {LARGEST_TEXT} bytes");
            return Err(Error::malformed(path, Location::File, expected, found.len()));
        }
        Ok(_) => {}
    }
    let bytes = mmap::load(&path, ReadMode::Read)?;
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        Error::malformed(&path, Location::Offset(error.valid_up_to() as u64), "UTF-8 text", "another byte")
    })?;
    Ok(Some(text.to_owned()))
}

/// `name` in `folder`, parsed; `None` if there is no such file.
fn json(folder: &Path, name: &str) -> Result<Option<Value>> {
    let Some(text) = text(folder, name)? else { return Ok(None) };
    let parsed = serde_json::from_str(&text);
    parsed.map(Some).map_err(|error| Error::malformed(folder.join(name), Location::File, "JSON", error))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a bool",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The first file in `folder`, by name, that ends in `.extension`.
fn file_with(folder: &Path, extension: &str) -> Option<String> {
    let names = fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| Path::new(name).extension().is_some_and(|found| found == extension)).min()
}
