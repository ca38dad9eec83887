//! Files with a tail: layers behind the last one that predict further tokens. The logits equal
//! those of the same file without a tail, bit for bit. This holds in every family, for any parts of
//! the tail.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{collections::BTreeMap, fs, sync::Arc};

use safetensors::{Dtype, SafeTensors, serialize_to_file, tensor::TensorView};
use thermocline_engine::{
    Error, Location,
    format::{
        Array, Bytes, Checkpoint, Metadata, ReadMode, Tensor, Value,
        gguf::{TensorInfo, to_bytes},
    },
    model::{LoadOptions, Model, convert},
    quant::TensorType,
};
use thermocline_tests::golden::{CPU_ONLY, MODELS, RECURRENT, Setup, prompt};

use super::models::fixtures;

/// Parts of a tail in a file.
#[derive(Debug, Clone, Copy)]
struct Tail {
    /// Value of `nextn_predict_layers`; `None` without the key.
    said: Option<u32>,
    /// Additional layers that `block_count` counts.
    counted: u32,
    /// True if the file has all tensors of the tail: those of a layer and those of a predicting
    /// layer.
    tensors: bool,
    /// True if arrays with an element per layer have an element for the tail.
    arrays: bool,
}

const TAILS: [Tail; 5] = [
    Tail { said: Some(1), counted: 1, tensors: true, arrays: true },
    Tail { said: Some(1), counted: 1, tensors: false, arrays: true },
    Tail { said: Some(1), counted: 1, tensors: true, arrays: false },
    Tail { said: None, counted: 1, tensors: true, arrays: true },
    Tail { said: Some(1), counted: 0, tensors: true, arrays: true },
];

fn checkpoint(path: &str) -> Checkpoint {
    Model::open_checkpoint(&fixtures().join(path), ReadMode::Map).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn open(file: Checkpoint) -> Result<Model, Error> {
    Model::from_checkpoint(file, &LoadOptions::default())
}

/// Adds an element, the largest of the others. Sizes determine the kind of a layer, so the new
/// layer has every kind at once.
fn longer(value: &Value, layers: usize) -> Option<Value> {
    let Value::Array(array) = value else { return None };
    let more = match array {
        Array::Bool(flags) if flags.len() == layers => Array::Bool(flags.iter().copied().chain([false]).collect()),
        Array::U32(sizes) if sizes.len() == layers => {
            Array::U32(sizes.iter().copied().chain(sizes.iter().copied().max()).collect())
        }
        Array::I32(sizes) if sizes.len() == layers => {
            Array::I32(sizes.iter().copied().chain(sizes.iter().copied().max()).collect())
        }
        Array::F32(sizes) if sizes.len() == layers => Array::F32(sizes.iter().copied().chain([0.5]).collect()),
        _ => return None,
    };
    Some(Value::Array(more))
}

/// Returns `file` with a tail.
fn with_tail(file: &Checkpoint, tail: Tail) -> Checkpoint {
    let arch = file.metadata.str("general.architecture").unwrap().unwrap().to_owned();
    let layers = file.metadata.usize(&format!("{arch}.block_count")).unwrap().unwrap();
    let mut metadata = Metadata::new(&file.path);
    for (key, value) in file.metadata.iter() {
        // These are one per axis of positions, of which there are as many as layers in some files.
        let per_layer = key.starts_with(&format!("{arch}.")) && !key.ends_with(".dimension_sections");
        let of_layers = longer(value, layers).filter(|_| tail.arrays && per_layer);
        metadata.set(key, of_layers.unwrap_or_else(|| value.clone()));
    }
    metadata.set(format!("{arch}.block_count"), Value::U32(layers as u32 + tail.counted));
    if let Some(said) = tail.said {
        metadata.set(format!("{arch}.nextn_predict_layers"), Value::U32(said));
    }
    let mut tensors = file.tensors().to_vec();
    if tail.tensors {
        let mut of_layer: BTreeMap<String, Tensor> = BTreeMap::new();
        for tensor in file.tensors() {
            let Some((_, name)) = tensor.name.strip_prefix("blk.").and_then(|name| name.split_once('.')) else {
                continue;
            };
            let name = format!("blk.{layers}.{name}");
            of_layer.insert(name.clone(), Tensor { name, ..tensor.clone() });
        }
        let d = file.metadata.usize(&format!("{arch}.embedding_length")).unwrap().unwrap();
        for (name, shape) in [("eh_proj", vec![d, 2 * d]), ("enorm", vec![d]), ("hnorm", vec![d])] {
            let name = format!("blk.{layers}.nextn.{name}.weight");
            let data = Bytes::new(vec![0; 4 * shape.iter().product::<usize>()]);
            of_layer.insert(name.clone(), Tensor { name, ty: TensorType::F32, shape, data });
        }
        tensors.extend(of_layer.into_values());
    }
    let (path, tokenizer) = (file.path.clone(), file.tokenizer.clone());
    let mut checkpoint = Checkpoint::new(path, file.container, metadata, tokenizer, tensors).unwrap();
    checkpoint.add_unused(file.unused().iter().cloned());
    checkpoint
}

/// Returns the bits of the logits of a prompt.
fn logits(model: Model) -> Vec<u32> {
    let ids: Vec<u32> = (0..12).map(|at| 17 * at % model.config.n_vocab as u32).collect();
    prompt(&Arc::new(model), Setup::default(), &ids).logits.into_iter().map(f32::to_bits).collect()
}

#[test]
fn tails_change_no_logit_in_any_family() {
    let files = fs::read_dir(fixtures().join("gguf2026")).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "gguf"));
    let files = files.map(|path| format!("gguf2026/{}", path.file_name().unwrap().display()));
    let paths: Vec<String> =
        MODELS.iter().chain(&RECURRENT).chain(&CPU_ONLY).map(|name| format!("models/{name}")).chain(files).collect();
    assert!(paths.len() > 60, "{}", paths.len());
    for path in &paths {
        let file = checkpoint(path);
        let plain = open(file.clone()).unwrap();
        let (config, unused, tensors) =
            (plain.config.clone(), plain.checkpoint.unused().len(), plain.checkpoint.tensors().len());
        let expected = logits(plain);
        for tail in TAILS {
            let model = open(with_tail(&file, tail)).unwrap_or_else(|error| panic!("{path} {tail:?}: {error}"));
            assert_eq!(model.config, config, "{path} {tail:?}");
            // A whole tail is a draft head.
            let (used, left) = (model.checkpoint.tensors().len(), model.checkpoint.unused().len() > unused);
            assert_eq!(model.draft_head.is_some(), used > tensors, "{path} {tail:?}");
            assert_eq!(left || used > tensors, tail.tensors, "{path} {tail:?}");
            let again = open(model.checkpoint.clone()).unwrap_or_else(|error| panic!("{path} {tail:?}: {error}"));
            assert_eq!(again.config, config, "{path} {tail:?}: a model made of a model's checkpoint");
            assert_eq!(logits(model), expected, "{path} {tail:?}");
        }
    }
}

/// Writes a file with a tail, converts it and reads it again.
#[test]
fn tails_survive_files_and_conversion() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["nemotron-3-nano-F16", "qwen3_5-moe-F16"] {
        let file = checkpoint(&format!("gguf2026/{name}.gguf"));
        let mut converted = Vec::new();
        for (at, file) in [file.clone(), with_tail(&file, TAILS[0])].iter().enumerate() {
            let infos = file.tensors().iter().map(|tensor| {
                let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
                (TensorInfo { name, ty: tensor.ty, shape }, &tensor.data[..])
            });
            let bytes = to_bytes(file.container, &file.metadata, &infos.collect::<Vec<_>>()).unwrap();
            let [from, to] = ["from", "to"].map(|name| folder.path().join(format!("{name}{at}.gguf")));
            fs::write(&from, bytes).unwrap();
            let opened = Model::open(&from, &LoadOptions::default()).unwrap();
            convert(&from, &to, TensorType::Q8_0, &mut |_, _| ()).unwrap();
            converted.push((logits(opened), logits(Model::open(&to, &LoadOptions::default()).unwrap())));
        }
        assert!(converted[0] == converted[1], "{name}");
    }
}

#[test]
fn tails_that_leave_no_layer_are_refused_by_their_key() {
    let file = checkpoint("gguf2026/qwen3_5-F16.gguf");
    let refusal = |key: &str, value: Value| {
        let mut file = with_tail(&file, TAILS[1]);
        file.metadata.set(key, value);
        match open(file).unwrap_err() {
            Error::Malformed { location: Location::Key(at), expected, got, .. } => (at, format!("{expected}; {got}")),
            other => panic!("{other}"),
        }
    };
    let key = "qwen35.nextn_predict_layers";
    for said in [5_u64, 6, u64::MAX] {
        assert_eq!(refusal(key, Value::U64(said)), (key.to_owned(), format!("a number from 0 to 4; {said}")));
    }
    assert_eq!(refusal(key, Value::I64(-1)).0, key);
    assert_eq!(refusal(key, Value::Bool(true)).0, key);
    let flags = "qwen35.attention.recurrent_layers";
    let two_more = Value::Array(Array::Bool(vec![true, true, true, false, false, false]));
    assert_eq!(refusal(flags, two_more), (flags.to_owned(), "4 flags, one per layer; 6".to_owned()));
}

/// Folders name a tail in several ways. Its tensors are beside the layers or in a layer behind the
/// last, and lists may have more elements.
#[test]
fn tails_of_folders_are_left_out() {
    for (name, key, list, tensor) in [
        ("qwen3_5", "mtp_num_hidden_layers", Some("layer_types"), "mtp.layers.0.self_attn.q_proj.weight"),
        (
            "nemotron-3-nano",
            "num_nextn_predict_layers",
            Some("hybrid_override_pattern"),
            "mtp.layers.0.mixer.q_proj.weight",
        ),
        ("glm4-moe", "num_nextn_predict_layers", None, "model.layers.3.self_attn.q_proj.weight"),
        ("hy-v3", "num_nextn_predict_layers", None, "model.layers.4.self_attn.q_proj.weight"),
        ("minimax-m2", "num_mtp_modules", None, "model.layers.3.self_attn.q_proj.weight"),
        ("qwen3-next", "num_nextn_predict_layers", None, "mtp.fc.weight"),
        (
            "step3",
            "num_nextn_predict_layers",
            Some("layer_types"),
            "model.layers.4.transformer.shared_head.norm.weight",
        ),
        ("mimo-v2-flash", "num_nextn_predict_layers", None, "model.mtp.layers.0.self_attn.q_proj.weight"),
    ] {
        let (source, folder) = (fixtures().join("models").join(name), tempfile::tempdir().unwrap());
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            fs::copy(source.join(file), folder.path().join(file)).unwrap();
        }
        // JSON does not have Python's infinite numbers.
        let text = fs::read_to_string(source.join("config.json")).unwrap().replace("Infinity", "1e30");
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        let inner = if config.get("text_config").is_some() { &mut config["text_config"] } else { &mut config };
        inner[key] = 1.into();
        match list.map(|list| &mut inner[list]) {
            Some(serde_json::Value::Array(list)) => list.push("full_attention".into()),
            Some(serde_json::Value::String(letters)) => letters.push('*'),
            _ => assert_eq!(list, None),
        }
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let weights = fs::read(source.join("model.safetensors")).unwrap();
        let mut tensors = SafeTensors::deserialize(&weights).unwrap().tensors();
        let further = vec![0; 64];
        tensors.push((tensor.to_owned(), TensorView::new(Dtype::F32, vec![4, 4], &further).unwrap()));
        serialize_to_file(tensors, None, &folder.path().join("model.safetensors")).unwrap();

        let model =
            Model::open(folder.path(), &LoadOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let unused: Vec<&str> = model.checkpoint.unused().iter().map(|tensor| tensor.name.as_str()).collect();
        assert!(unused.contains(&tensor), "{name}: {unused:?}");
        let plain = Model::open(&source, &LoadOptions::default()).unwrap();
        assert!(logits(model) == logits(plain), "{name}");
    }
}
