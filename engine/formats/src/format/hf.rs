//! A Hugging Face folder: `config.json`, weights as safetensors (one file, or shards that an index
//! names), and the tokenizer's files, all unchanged. The importer gives the tensors GGUF's names.
//!
//! Only files directly in the folder, and in the folders of its modules, are opened. Names of
//! shards and modules come from JSON files, so any name that is not a plain file name is refused.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{ReadMode, SentenceModules, Tensor, mmap, safetensors};
use thermocline_base::error::{Error, FileAction, Location, Result};

const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const CHAT_TEMPLATE: &str = "chat_template.jinja";
const IMAGE_PROCESSOR: &str = "preprocessor_config.json";
const PROCESSOR: &str = "processor_config.json";
const WEIGHTS: &str = "model.safetensors";
const WEIGHTS_INDEX: &str = "model.safetensors.index.json";

/// Size limit of a JSON or text file, in bytes. The longest published tokenizers have about 40 MB.
const LARGEST_TEXT: u64 = 256 << 20;

/// The contents of a Hugging Face folder, under Hugging Face's names.
#[derive(Debug, Clone)]
pub struct HfFolder {
    /// Path of the folder.
    pub path: PathBuf,
    /// `config.json`, an object.
    pub config: Value,
    /// `generation_config.json`, or null.
    pub generation_config: Value,
    /// Text of `tokenizer.json`.
    pub tokenizer_json: Option<String>,
    /// `tokenizer_config.json`, or null. A `chat_template.jinja` beside it replaces its
    /// `chat_template`, as in transformers.
    pub tokenizer_config: Value,
    /// Settings of the image processor, or null: `preprocessor_config.json`, or else the
    /// `image_processor` of `processor_config.json`.
    pub processor_config: Value,
    /// Names of the weight files.
    pub weights: Vec<String>,
    /// Tensors of all weight files, under their own names, in file order.
    pub tensors: Vec<Tensor>,
    /// Pooling, linear maps and prompts of a model that embeds texts.
    pub sentence: SentenceModules,
}

/// Names of a folder's weight files, and their tensors.
type FolderWeights = (Vec<String>, Vec<Tensor>);

impl HfFolder {
    /// Reads the folder at `path`.
    pub(super) fn open(path: &Path, mode: ReadMode) -> Result<Self> {
        let Some(config) = json(path, CONFIG)? else {
            let got = match files_with(path, "gguf").first() {
                Some(name) => format!("no such file (open `{name}` instead)"),
                None => "no such file".to_owned(),
            };
            return Err(Error::malformed(path, Location::File, "a folder with `config.json`", got));
        };
        if !config.is_object() {
            return Err(Error::malformed(path.join(CONFIG), Location::File, "a JSON object", kind(&config)));
        }
        if let Some(method) = config.get("quantization_config").filter(|method| !method.is_null()) {
            let field = |name: &str| method.get(name).and_then(Value::as_str);
            let (name, algorithm) = (field("quant_method"), field("quant_algo").or(field("format")));
            let known = match (name, algorithm) {
                (Some("mxfp4" | "bitnet"), _) | (Some("modelopt"), Some("NVFP4")) => true,
                (Some("compressed-tensors"), algorithm) => algorithm == Some("nvfp4-pack-quantized"),
                _ => false,
            };
            if !known {
                let got = [name.unwrap_or("unnamed"), algorithm.unwrap_or("")].join(" ").trim_end().to_owned();
                let supported = "mxfp4, bitnet, modelopt NVFP4, compressed-tensors nvfp4-pack-quantized, or none; use the unquantised \
                    model or its GGUF file";
                return Err(Error::unsupported("quantization_config", got, supported));
            }
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
        let processor_config = match json(path, IMAGE_PROCESSOR)? {
            Some(processor) => processor,
            None => json(path, PROCESSOR)?.and_then(|all| all.get("image_processor").cloned()).unwrap_or(Value::Null),
        };
        let (weights, tensors) = Self::weights(path, mode)?;
        Ok(HfFolder {
            path: path.to_path_buf(),
            generation_config: json(path, GENERATION_CONFIG)?.unwrap_or(Value::Null),
            tokenizer_json: text(path, TOKENIZER)?,
            tokenizer_config,
            processor_config,
            weights,
            tensors,
            sentence: SentenceModules::read(path, mode)?,
            config,
        })
    }

    /// Reads the files of the index if there is an index, otherwise the single weight file.
    fn weights(folder: &Path, mode: ReadMode) -> Result<FolderWeights> {
        if let Some(index) = json(folder, WEIGHTS_INDEX)? {
            return Self::weights_of_index(folder, &index, mode);
        }
        let single = folder.join(WEIGHTS);
        if single.exists() {
            let tensors = mmap::read_with(&single, mode, |bytes| safetensors::read(&single, bytes))?;
            return Ok((vec![WEIGHTS.to_owned()], tensors));
        }
        let others = files_with(folder, "safetensors");
        let got = match files_with(folder, "bin").into_iter().chain(files_with(folder, "pt")).next() {
            _ if !others.is_empty() => format!("only `{}`", others.join("`, `")),
            Some(name) => format!("only `{name}`, a pickle, which can run code when it is read"),
            None => "neither file".to_owned(),
        };
        let expected = format!("`{WEIGHTS}` or `{WEIGHTS_INDEX}` in the folder");
        Err(Error::malformed(folder, Location::File, expected, got))
    }

    /// Reads the tensors of the files in `index`. Each listed tensor must be in its listed file.
    fn weights_of_index(folder: &Path, index: &Value, mode: ReadMode) -> Result<FolderWeights> {
        let index_path = folder.join(WEIGHTS_INDEX);
        let refuse =
            |key: String, expected: &str, got: String| Error::malformed(&index_path, Location::Key(key), expected, got);
        let map = index.get("weight_map").and_then(Value::as_object).ok_or_else(|| {
            refuse(
                "weight_map".to_owned(),
                "an object that maps tensor names to file names",
                kind(&index["weight_map"]).to_owned(),
            )
        })?;
        let mut by_file = BTreeMap::<&str, Vec<&str>>::new();
        for (tensor, file) in map {
            let file = file.as_str().filter(|name| is_plain_file_name(name)).ok_or_else(|| {
                refuse(format!("weight_map.{tensor}"), "the name of a file in the folder", file.to_string())
            })?;
            by_file.entry(file).or_default().push(tensor);
        }
        let (mut files, mut tensors) = (Vec::with_capacity(by_file.len()), Vec::with_capacity(map.len()));
        for (file, listed) in by_file {
            let path = folder.join(file);
            if !path.exists() {
                let whole = match folder.join(WEIGHTS).exists() {
                    true => format!(" (remove the index to use `{WEIGHTS}` instead)"),
                    false => String::new(),
                };
                let key = format!("weight_map.{}", listed[0]);
                return Err(refuse(key, "a file in the folder", format!("`{file}`, which does not exist{whole}")));
            }
            tensors.append(&mut listed_tensors(&path, &listed, mode)?);
            files.push(file.to_owned());
        }
        Ok((files, tensors))
    }
}

/// Reads the tensors that the index lists for the file at `path`.
fn listed_tensors(path: &Path, listed: &[&str], mode: ReadMode) -> Result<Vec<Tensor>> {
    let mut there = mmap::read_with(path, mode, |bytes| safetensors::read(path, bytes))?;
    let wanted = listed.iter().copied().collect::<HashSet<_>>();
    there.retain(|tensor| wanted.contains(tensor.name.as_str()));
    if there.len() != listed.len() {
        let names = there.iter().map(|tensor| tensor.name.as_str()).collect::<HashSet<_>>();
        let missing = listed.iter().find(|name| !names.contains(*name)).copied().unwrap_or_default();
        let location = Location::Tensor(missing.to_owned());
        return Err(Error::malformed(
            path,
            location,
            format!("the tensor that `{WEIGHTS_INDEX}` lists"),
            "no such tensor",
        ));
    }
    Ok(there)
}

/// True if `name` is a plain file name on every system: no separator, no drive, no parent folder.
pub(super) fn is_plain_file_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\\', ':', '\0'])
}

/// Text of the file `name` in `folder`. `None` if the file does not exist.
fn text(folder: &Path, name: &str) -> Result<Option<String>> {
    let path = folder.join(name);
    match fs::metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::io(FileAction::Open, path, source)),
        Ok(found) if found.len() > LARGEST_TEXT => {
            let expected = format!("at most {LARGEST_TEXT} bytes");
            return Err(Error::malformed(path, Location::File, expected, found.len()));
        }
        Ok(_) => {}
    }
    let bytes = mmap::load(&path, ReadMode::Read)?;
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        Error::malformed(&path, Location::Offset(error.valid_up_to() as u64), "UTF-8 text", "a byte that is not UTF-8")
    })?;
    Ok(Some(text.to_owned()))
}

/// Parsed JSON of the file `name` in `folder`. `None` if the file does not exist.
pub(super) fn json(folder: &Path, name: &str) -> Result<Option<Value>> {
    let Some(text) = text(folder, name)? else { return Ok(None) };
    let parsed = match serde_json::from_str(&text) {
        Err(error) => serde_json::from_str(&quote_non_numbers(&text)).map_err(|_| error),
        parsed => parsed,
    };
    parsed.map(Some).map_err(|error| Error::malformed(folder.join(name), Location::File, "JSON", error))
}

/// Puts quotes around `Infinity`, `-Infinity` and `NaN` in `text`. Python writes them, but they are
/// not JSON.
fn quote_non_numbers(text: &str) -> String {
    let (mut quoted, mut in_string, mut escaped) = (String::with_capacity(text.len() + 16), false, false);
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = ["Infinity", "-Infinity", "NaN"].into_iter().find(|word| !in_string && rest.starts_with(word));
        let len = match word {
            Some(word) => {
                quoted.extend(["\"", word, "\""]);
                word.len()
            }
            None => {
                quoted.push(first);
                in_string ^= first == '"' && !escaped;
                escaped = first == '\\' && !escaped;
                first.len_utf8()
            }
        };
        rest = &rest[len..];
    }
    quoted
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

/// Names of the files in `folder` that end in `.extension`, sorted.
fn files_with(folder: &Path, extension: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter(|name| Path::new(name).extension().is_some_and(|found| found == extension)).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use ::safetensors::{Dtype, serialize_to_file, tensor::TensorView};
    use serde_json::json;

    use super::*;
    use crate::quant::TensorType;

    /// Creates a folder with these files and a `config.json`.
    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(CONFIG), r#"{"architectures": ["TestModel"]}"#).unwrap();
        files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).unwrap());
        folder
    }

    /// Writes a safetensors file with tensors of two rows of this type.
    fn weights(folder: &Path, file: &str, tensors: &[(&str, Dtype)]) {
        let data = (0..64).collect::<Vec<u8>>();
        let views = tensors
            .iter()
            .map(|&(name, dtype)| (name, TensorView::new(dtype, vec![2, 2], &data[..dtype.bitsize() / 2]).unwrap()));
        serialize_to_file(views, None, &folder.join(file)).unwrap();
    }

    fn open(folder: &tempfile::TempDir) -> Result<HfFolder> {
        let read = HfFolder::open(folder.path(), ReadMode::Read).map_err(|error| error.to_string());
        let mapped = HfFolder::open(folder.path(), ReadMode::Map);
        assert_eq!(mapped.as_ref().map(|_| ()).map_err(Error::to_string), read.map(|_| ()));
        mapped
    }

    fn refused(folder: &tempfile::TempDir, what: &str) {
        let message = open(folder).unwrap_err().to_string();
        assert!(message.contains(what), "{message}");
    }

    #[test]
    fn open_reads_all_files_of_a_folder() {
        let files = [
            (TOKENIZER, "{}"),
            (TOKENIZER_CONFIG, r#"{"chat_template": "old", "bos_token": "<s>"}"#),
            (CHAT_TEMPLATE, "new"),
            (GENERATION_CONFIG, r#"{"eos_token_id": [1, 2]}"#),
        ];
        let folder = folder(&files);
        weights(folder.path(), WEIGHTS, &[("b", Dtype::F32), ("a", Dtype::BF16), ("c", Dtype::F16)]);
        let opened = open(&folder).unwrap();
        assert_eq!(opened.config["architectures"][0], "TestModel");
        assert_eq!(opened.tokenizer_json.as_deref(), Some("{}"));
        assert_eq!(opened.tokenizer_config, json!({"chat_template": "new", "bos_token": "<s>"}));
        assert_eq!(opened.generation_config["eos_token_id"][1], 2);
        let found = |name: &str| opened.tensors.iter().find(|tensor| tensor.name == name).unwrap();
        for (name, ty) in [("a", TensorType::BF16), ("b", TensorType::F32), ("c", TensorType::F16)] {
            assert_eq!((found(name).ty, &found(name).shape[..]), (ty, &[2, 2][..]));
            assert!(found(name).data.iter().copied().eq(0..4 * ty.block_bytes() as u8));
        }
    }

    #[test]
    fn configurations_may_hold_infinity_as_python_writes_it() {
        let text = r#"{"a": [0.0, Infinity], "b": "x\\\" Infinity NaN", "c": -Infinity, "d": [NaN]}"#;
        let folder = folder(&[(CONFIG, text)]);
        weights(folder.path(), WEIGHTS, &[("a", Dtype::F32)]);
        let config = open(&folder).unwrap().config;
        let wanted = json!({"a": [0.0, "Infinity"], "b": "x\\\" Infinity NaN", "c": "-Infinity", "d": ["NaN"]});
        assert_eq!(config, wanted);
        refused(&self::folder(&[(CONFIG, r#"{"a": Infinite}"#)]), "expected JSON");
    }

    #[test]
    fn open_tolerates_missing_optional_files() {
        let folder = folder(&[]);
        weights(folder.path(), WEIGHTS, &[("a", Dtype::F32)]);
        let opened = open(&folder).unwrap();
        assert!(opened.tokenizer_json.is_none() && opened.tokenizer_config.is_null());
        assert!(opened.generation_config.is_null());
        fs::write(folder.path().join(CHAT_TEMPLATE), "alone").unwrap();
        assert_eq!(open(&folder).unwrap().tokenizer_config, json!({"chat_template": "alone"}));
    }

    #[test]
    fn open_joins_shards() {
        let index = json!({"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "one.safetensors"}});
        let folder = folder(&[(WEIGHTS_INDEX, &index.to_string())]);
        weights(folder.path(), "one.safetensors", &[("a", Dtype::F32), ("c", Dtype::F32)]);
        refused(&folder, "`two.safetensors`, which does not exist");
        weights(folder.path(), "two.safetensors", &[("a", Dtype::F32)]);
        refused(&folder, "tensor `b`");
        weights(folder.path(), "two.safetensors", &[("a", Dtype::F32), ("b", Dtype::F32)]);
        let mut names = open(&folder).unwrap().tensors.into_iter().map(|tensor| tensor.name).collect::<Vec<_>>();
        names.sort();
        assert_eq!(names, ["a", "b", "c"]);
    }

    /// If weights exist twice, those of the index are read. Other files are named in the error.
    #[test]
    fn open_says_and_knows_which_weights_it_reads() {
        let index = json!({"weight_map": {"a": "one.safetensors"}});
        let both = folder(&[(WEIGHTS_INDEX, &index.to_string())]);
        weights(both.path(), WEIGHTS, &[("whole", Dtype::F32)]);
        refused(&both, "`one.safetensors`, which does not exist (remove the index to use `model.safetensors` instead)");
        weights(both.path(), "one.safetensors", &[("a", Dtype::F32)]);
        let read = open(&both).unwrap();
        assert_eq!((read.tensors[0].name.as_str(), &read.weights[..]), ("a", &["one.safetensors".to_owned()][..]));
        fs::remove_file(both.path().join(WEIGHTS_INDEX)).unwrap();
        let read = open(&both).unwrap();
        assert_eq!((read.tensors[0].name.as_str(), &read.weights[..]), ("whole", &[WEIGHTS.to_owned()][..]));
        fs::remove_file(both.path().join(WEIGHTS)).unwrap();
        weights(both.path(), "adapter.safetensors", &[("a", Dtype::F32)]);
        refused(&both, "got only `adapter.safetensors`, `one.safetensors`");
    }

    #[test]
    fn open_stays_within_the_folder() {
        let outside = tempfile::tempdir().unwrap();
        weights(outside.path(), WEIGHTS, &[("a", Dtype::F32)]);
        let absolute = outside.path().join(WEIGHTS).to_str().unwrap().to_owned();
        for name in ["../model.safetensors", &absolute, "sub/model.safetensors", "c:x", "..\\x", "..", "", "a\0"] {
            let index = json!({"weight_map": {"a": name}}).to_string();
            refused(&folder(&[(WEIGHTS_INDEX, &index)]), "the name of a file in the folder");
        }
    }

    #[test]
    fn open_refuses_broken_folders() {
        let empty = tempfile::tempdir().unwrap();
        refused(&empty, "a folder with `config.json`");
        fs::write(empty.path().join("m.gguf"), "").unwrap();
        refused(&empty, "open `m.gguf` instead");
        refused(&folder(&[]), "`model.safetensors` or `model.safetensors.index.json`");
        refused(&folder(&[("pytorch_model.bin", "")]), "`pytorch_model.bin`, a pickle");
        refused(&folder(&[(CONFIG, "{")]), "expected JSON");
        refused(&folder(&[(CONFIG, "[]")]), "expected a JSON object, got an array");
        refused(&folder(&[(CONFIG, r#"{"quantization_config": {"quant_method": "gptq"}}"#)]), "`gptq`");
        refused(&folder(&[(WEIGHTS_INDEX, "{}")]), "key `weight_map`");
        refused(&folder(&[(WEIGHTS_INDEX, r#"{"weight_map": {"a": 1}}"#)]), "key `weight_map.a`");
        refused(&folder(&[(WEIGHTS, "")]), "an empty file");
        refused(&folder(&[(WEIGHTS, "12345678{")]), "a safetensors header");
        refused(&folder(&[(WEIGHTS, "x")]), "a safetensors header");
        let typed = folder(&[]);
        weights(typed.path(), WEIGHTS, &[("a", Dtype::F8_E5M2)]);
        refused(&typed, "tensor `a`: expected elements of F32, F16, BF16");
        let empty_tensor = folder(&[]);
        let view = TensorView::new(Dtype::F32, vec![0, 2], &[]).unwrap();
        serialize_to_file([("a", view)], None, &empty_tensor.path().join(WEIGHTS)).unwrap();
        refused(&empty_tensor, "dimensions above 0");
    }

    #[test]
    fn open_refuses_files_that_are_no_text() {
        let folder = folder(&[]);
        fs::write(folder.path().join(TOKENIZER), b"{\xff}").unwrap();
        weights(folder.path(), WEIGHTS, &[("a", Dtype::F32)]);
        refused(&folder, "at byte 1: expected UTF-8 text");
    }
}
