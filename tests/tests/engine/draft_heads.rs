//! Files with a draft head (multi-token prediction). Folders name its tensors in several ways.
//! Opened and converted, they have GGUF's names: those of a layer after the last one.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use safetensors::{Dtype, SafeTensors, serialize_to_file, tensor::TensorView};
use serde_json::{Value as Json, json};
use thermocline_engine::{
    format::{Array, Checkpoint, ReadMode, Value},
    model::{LoadOptions, Model, convert},
    quant::{TensorType, dequantise},
};
use thermocline_tests::golden::{DRAFT_HEADS, Expected, Setup, max_diff, prompt};

use super::models::fixtures;

fn checkpoint(path: &Path) -> Checkpoint {
    Model::open_checkpoint(path, ReadMode::Map).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the value of a key of the architecture.
fn value(file: &Checkpoint, suffix: &str) -> Option<Value> {
    let arch = file.metadata.str("general.architecture").unwrap().unwrap();
    file.metadata.get(&format!("{arch}.{suffix}")).cloned()
}

/// Returns the number of the layer of the head, and the names and shapes of its tensors.
fn layer_of_head(file: &Checkpoint) -> (usize, BTreeMap<String, Vec<usize>>) {
    assert_eq!(value(file, "nextn_predict_layers"), Some(Value::U32(1)));
    let Some(Value::U32(blocks)) = value(file, "block_count") else { panic!("block_count") };
    let layer = blocks as usize - 1;
    let prefix = format!("blk.{layer}.");
    let tensors = file.tensors().iter().filter_map(|tensor| {
        let name = tensor.name.strip_prefix(&prefix)?;
        Some((name.to_owned(), tensor.shape.clone()))
    });
    (layer, tensors.collect())
}

/// Tensors of every head: those of a head, and the norm and output of its attention.
fn of_every_head(d: usize) -> Vec<(&'static str, Vec<usize>)> {
    vec![
        ("nextn.eh_proj.weight", vec![d, 2 * d]),
        ("nextn.enorm.weight", vec![d]),
        ("nextn.hnorm.weight", vec![d]),
        ("nextn.shared_head_norm.weight", vec![d]),
        ("attn_norm.weight", vec![d]),
    ]
}

#[test]
fn heads_of_folders_have_the_names_and_shapes_of_gguf() {
    for (name, n_layer, further) in [
        (
            "deepseek-v3-mtp",
            2,
            vec![
                ("nextn.embed_tokens.weight", vec![384, 64]),
                ("nextn.shared_head_head.weight", vec![384, 64]),
                ("attn_kv_a_mqa.weight", vec![40, 64]),
                ("ffn_norm.weight", vec![64]),
                ("exp_probs_b.bias", vec![8]),
                ("ffn_down.7.weight", vec![64, 32]),
            ],
        ),
        (
            "glm4-moe-mtp",
            2,
            vec![
                ("attn_q.weight", vec![64, 64]),
                ("post_attention_norm.weight", vec![64]),
                ("exp_probs_b.bias", vec![6]),
                ("ffn_down_shexp.weight", vec![64, 32]),
            ],
        ),
        (
            "hy-v3-mtp",
            2,
            vec![
                ("attn_k_norm.weight", vec![16]),
                ("ffn_norm.weight", vec![64]),
                ("exp_probs_b.bias", vec![6]),
                ("ffn_down_shexp.weight", vec![64, 32]),
            ],
        ),
        (
            "nemotron-3-mtp",
            3,
            vec![
                ("attn_q.weight", vec![128, 64]),
                ("post_attention_norm.weight", vec![64]),
                ("ffn_gate_inp.weight", vec![6, 64]),
                ("ffn_up_shexp.weight", vec![64, 64]),
            ],
        ),
        (
            "qwen3_5-moe-mtp",
            2,
            vec![
                ("attn_q.weight", vec![256, 64]),
                ("attn_q_norm.weight", vec![32]),
                ("ffn_gate_inp_shexp.weight", vec![64]),
                ("ffn_up.5.weight", vec![32, 64]),
            ],
        ),
        (
            "qwen3_5-mtp",
            2,
            vec![
                ("attn_q.weight", vec![256, 64]),
                ("post_attention_norm.weight", vec![64]),
                ("ffn_down.weight", vec![64, 96]),
            ],
        ),
    ] {
        let file = checkpoint(&fixtures().join("models").join(name));
        let (layer, tensors) = layer_of_head(&file);
        assert_eq!(layer, n_layer, "{name}");
        for (stem, shape) in of_every_head(64).into_iter().chain(further) {
            assert_eq!(tensors.get(stem), Some(&shape), "{name} {stem}: {tensors:?}");
        }
        assert!(!tensors.keys().any(|stem| stem.starts_with("ssm_")), "{name}");
        assert!(file.unused().is_empty(), "{name}");
    }
}

/// Arrays with an element per layer have one for the head, whose layer always has attention.
#[test]
fn arrays_count_the_layer_of_the_head() {
    let of = |name: &str, key: &str| value(&checkpoint(&fixtures().join("models").join(name)), key);
    let flags = Some(Value::Array(Array::Bool(vec![true, false, false])));
    for name in ["qwen3_5-mtp", "qwen3_5-moe-mtp"] {
        assert_eq!(of(name, "attention.recurrent_layers"), flags, "{name}");
    }
    let sizes = |sizes: &[u32]| Some(Value::Array(Array::U32(sizes.to_vec())));
    assert_eq!(of("nemotron-3-mtp", "attention.head_count_kv"), sizes(&[0, 0, 2, 2]));
    assert_eq!(of("nemotron-3-mtp", "feed_forward_length"), sizes(&[0, 32, 0, 32]));
}

#[test]
fn models_with_heads_match_the_reference() {
    for name in DRAFT_HEADS {
        let folder = fixtures().join("models").join(name);
        let expected = Expected::read(&folder.join("expected.safetensors"));
        let model = Model::open(&folder, &LoadOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let run = prompt(&model.into(), Setup::default(), &expected.ids("input_ids"));
        let error = max_diff(&run.logits, &expected.f32("logits"));
        assert!(error <= 1e-3, "{name}: logits differ by {error}");
        let error = max_diff(&run.hidden.concat(), &expected.f32("hidden"));
        assert!(error <= 1e-3, "{name}: hidden states differ by {error}");
    }
}

/// Returns the values of a tensor.
fn values(file: &Checkpoint, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap_or_else(|| panic!("{name}"));
    let mut values = vec![0.0; tensor.len()];
    dequantise(tensor.ty, &tensor.data, &mut values);
    values
}

#[test]
fn conversion_keeps_heads() {
    let scratch = tempfile::tempdir().unwrap();
    for name in DRAFT_HEADS {
        let folder = fixtures().join("models").join(name);
        let source = checkpoint(&folder);
        let (layer, tensors) = layer_of_head(&source);
        let [plain, quantised, again] =
            ["plain", "q8", "again"].map(|it| scratch.path().join(format!("{name}-{it}.gguf")));
        convert(&folder, &plain, TensorType::F32, &mut |_, _| ()).unwrap();
        convert(&folder, &quantised, TensorType::Q8_0, &mut |_, _| ()).unwrap();
        convert(&plain, &again, TensorType::Q8_0, &mut |_, _| ()).unwrap();
        let (converted, quantised) = (checkpoint(&plain), checkpoint(&quantised));
        assert_eq!(layer_of_head(&converted).0, layer, "{name}");
        // Separate experts become one tensor.
        let joined = |stem: &str| match stem.split('.').nth(1).is_some_and(|part| part.parse::<u32>().is_ok()) {
            true => format!("{}_exps.weight", stem.split('.').next().unwrap()),
            false => stem.to_owned(),
        };
        let expected: BTreeSet<String> = tensors.keys().map(|stem| joined(stem)).collect();
        assert_eq!(layer_of_head(&converted).1.into_keys().collect::<BTreeSet<_>>(), expected, "{name}");
        for stem in tensors.keys().filter(|stem| joined(stem) == **stem) {
            let tensor = format!("blk.{layer}.{stem}");
            assert_eq!(values(&converted, &tensor), values(&source, &tensor), "{name} {tensor}");
        }
        for (stem, ty) in [
            ("nextn.eh_proj", TensorType::Q8_0),
            ("attn_output", if name.starts_with("deepseek") { TensorType::F16 } else { TensorType::Q8_0 }),
            ("nextn.enorm", TensorType::F32),
            ("nextn.shared_head_norm", TensorType::F32),
        ] {
            let tensor = quantised.tensor(&format!("blk.{layer}.{stem}.weight")).unwrap();
            assert_eq!(tensor.ty, ty, "{name} {stem}");
        }
        assert_eq!(fs::read(&again).unwrap().len() as u64, fs::metadata(quantised.path).unwrap().len(), "{name}");
    }
}

/// Tensors of a folder by name: type, shape and bytes.
pub type StoredTensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// Makes a copy of the folder `source` in `target` with other keys and tensors.
pub fn rewritten(source: &Path, target: &Path, change: impl FnOnce(&mut Json, &mut StoredTensors)) {
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(source.join(file), target.join(file)).unwrap();
    }
    let mut config: Json = serde_json::from_str(&fs::read_to_string(source.join("config.json")).unwrap()).unwrap();
    let bytes = fs::read(source.join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = stored
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec())))
        .collect();
    change(&mut config, &mut tensors);
    fs::write(target.join("config.json"), config.to_string()).unwrap();
    let views =
        tensors.iter().map(|(name, (ty, shape, data))| (name, TensorView::new(*ty, shape.clone(), data).unwrap()));
    serialize_to_file(views, None, &target.join("model.safetensors")).unwrap();
}

/// Adds a head to `tensors` whose layer consists of copies. `parts` has the beginnings of names to
/// copy, and those of the copies.
fn add_head(tensors: &mut StoredTensors, parts: &[(&str, &str)], eh_proj: &str, norms: &[&str]) {
    for (from, to) in parts {
        let copies: Vec<_> = tensors
            .iter()
            .filter_map(|(name, tensor)| Some((format!("{to}{}", name.strip_prefix(from)?), tensor.clone())))
            .collect();
        assert!(!copies.is_empty(), "{from}");
        tensors.extend(copies);
    }
    let norm = tensors["model.norm.weight"].clone();
    let (ty, d) = (norm.0, norm.1[0]);
    let bytes = vec![0; 2 * d * norm.2.len()];
    tensors.insert(eh_proj.to_owned(), (ty, vec![d, 2 * d], bytes));
    tensors.extend(norms.iter().map(|name| ((*name).to_owned(), norm.clone())));
}

/// Names of families without a fixture of their own with a head.
#[test]
fn heads_of_further_families_have_the_names_of_gguf() {
    let open = |name: &str, change: &dyn Fn(&mut Json, &mut StoredTensors)| {
        let folder = tempfile::tempdir().unwrap();
        rewritten(&fixtures().join("models").join(name), folder.path(), change);
        checkpoint(folder.path())
    };
    let next = open("qwen3-next", &|_, tensors| {
        let layer = [("model.layers.3.", "mtp.layers.0.")];
        let norms = ["mtp.norm.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.pre_fc_norm_embedding.weight"];
        add_head(tensors, &layer, "mtp.fc.weight", &norms);
    });
    let step = open("step3", &|config, tensors| {
        let text = &mut config["text_config"];
        text["num_nextn_predict_layers"] = 1.into();
        text["mtp_layer_types"] = json!(["sliding_attention"]);
        let parts = [
            ("model.layers.1.self_attn.", "model.layers.4.self_attn."),
            ("model.layers.1.input_layernorm.", "model.layers.4.input_layernorm."),
            ("model.layers.0.mlp.", "model.layers.4.mlp."),
            ("model.layers.0.post_attention_layernorm.", "model.layers.4.post_attention_layernorm."),
            ("lm_head.", "model.layers.4.transformer.shared_head.output."),
        ];
        let norms = [
            "model.layers.4.enorm.weight",
            "model.layers.4.hnorm.weight",
            "model.layers.4.transformer.shared_head.norm.weight",
        ];
        add_head(tensors, &parts, "model.layers.4.eh_proj.weight", &norms);
    });
    let mimo = open("mimo-v2-flash", &|_, tensors| {
        let parts = [
            ("model.layers.1.self_attn.", "model.mtp.layers.0.self_attn."),
            ("model.layers.1.input_layernorm.", "model.mtp.layers.0.input_layernorm."),
            ("model.layers.0.mlp.", "model.mtp.layers.0.mlp."),
            ("model.layers.0.post_attention_layernorm.", "model.mtp.layers.0.pre_mlp_layernorm."),
        ];
        let norms = [
            "model.mtp.layers.0.enorm.weight",
            "model.mtp.layers.0.hnorm.weight",
            "model.mtp.layers.0.final_layernorm.weight",
        ];
        add_head(tensors, &parts, "model.mtp.layers.0.eh_proj.weight", &norms);
        // Further heads are not used.
        let eh_proj = tensors["model.mtp.layers.0.eh_proj.weight"].clone();
        tensors.insert("model.mtp.layers.1.eh_proj.weight".to_owned(), eh_proj);
    });
    let norm = "output_norm.weight";
    for (name, file, d, further) in [
        ("qwen3-next", &next, 64, vec![("attn_q.weight", vec![256, 64]), ("post_attention_norm.weight", vec![64])]),
        ("step3", &step, 48, vec![("attn_gate.weight", vec![6, 48]), ("nextn.shared_head_head.weight", vec![384, 48])]),
        ("mimo-v2-flash", &mimo, 48, vec![("attn_sinks.weight", vec![4]), ("ffn_norm.weight", vec![48])]),
    ] {
        let (layer, tensors) = layer_of_head(file);
        assert_eq!(layer, 4, "{name}");
        for (stem, shape) in of_every_head(d).into_iter().chain(further) {
            assert_eq!(tensors.get(stem), Some(&shape), "{name} {stem}: {tensors:?}");
        }
        // Norms of heads are stored as other norms of the family are.
        for stem in ["nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"] {
            assert_eq!(values(file, &format!("blk.4.{stem}.weight")), values(file, norm), "{name} {stem}");
        }
        Model::from_checkpoint(file.clone(), &LoadOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let slides = |last: bool| Some(Value::Array(Array::Bool(vec![false, true, true, false, last])));
    assert_eq!(value(&step, "attention.sliding_window_pattern"), slides(true));
    assert_eq!(value(&step, "attention.head_count"), Some(Value::Array(Array::U32(vec![4, 6, 6, 4, 6]))));
    assert_eq!(value(&mimo, "attention.sliding_window_pattern"), slides(true));
    assert_eq!(value(&mimo, "attention.head_count_kv"), Some(Value::Array(Array::U32(vec![2, 4, 4, 2, 4]))));
    let unused: Vec<&str> = mimo.unused().iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(unused, ["model.mtp.layers.1.eh_proj.weight"]);
}

/// A head without one of its tensors is not used, and the folder opens without it.
#[test]
fn folders_open_without_heads_that_are_not_whole() {
    let of = |missing: &str| {
        let folder = tempfile::tempdir().unwrap();
        rewritten(&fixtures().join("models/qwen3_5-mtp"), folder.path(), |_, tensors| {
            tensors.remove(missing).unwrap();
        });
        checkpoint(folder.path())
    };
    for missing in ["mtp.fc.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.layers.0.self_attn.o_proj.weight"] {
        let file = of(missing);
        assert_eq!(value(&file, "nextn_predict_layers"), None, "{missing}");
        assert_eq!(value(&file, "block_count"), Some(Value::U32(2)), "{missing}");
        let flags = Value::Array(Array::Bool(vec![true, false]));
        assert_eq!(value(&file, "attention.recurrent_layers"), Some(flags), "{missing}");
        assert!(file.unused().len() > 5 && file.unused().iter().all(|tensor| tensor.name.starts_with("mtp.")));
        Model::from_checkpoint(file, &LoadOptions::default()).unwrap_or_else(|error| panic!("{missing}: {error}"));
    }
}
