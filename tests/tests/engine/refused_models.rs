//! Invalid files are refused with the name of the wrong key or tensor, before anything is computed
//! from them.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use thermocline_engine::{
    Error, Location,
    device::device_support,
    format::{Array, Bytes, Checkpoint, Opened, ReadMode, Tensor, Value, open as open_file},
    model::{LoadOptions, Model},
    quant::TensorType,
};

use super::models::fixtures;

#[test]
fn model_open_refuses_malformed_files_by_key_or_tensor() {
    let folder = fixtures().join("malformed");
    let index = std::fs::read(folder.join("index.json")).unwrap();
    let index: Vec<serde_json::Value> = serde_json::from_slice(&index).unwrap();
    for case in index {
        let text = |key: &str| case[key].as_str().unwrap().to_owned();
        let opened = Model::open(&folder.join(text("file")), &LoadOptions::default());
        match text("expect").as_str() {
            "ok" => assert!(opened.is_ok(), "{:?}", opened.err()),
            _ => {
                let error = opened.err().unwrap_or_else(|| panic!("{} was accepted", text("file")));
                println!("{error}");
                if text("stage") == "model" {
                    let Error::Malformed { location, .. } = &error else { panic!("{error:?}") };
                    assert!(matches!(location, Location::Key(_) | Location::Tensor(_)), "{error}");
                }
            }
        }
    }
}

/// Returns `control` with one key changed.
fn altered(control: &Checkpoint, key: &str, value: Value) -> Checkpoint {
    let mut checkpoint = control.clone();
    checkpoint.metadata.set(key, value);
    checkpoint
}

/// Impossible numbers give an error that names the key or the tensor that contradicts it. Nothing
/// is computed from them.
#[test]
fn absurd_hyperparameters_are_refused() {
    let path = fixtures().join("malformed/valid-control.gguf");
    let Opened::Checkpoint(control) = open_file(&path, ReadMode::Map).unwrap() else { panic!() };
    let refuse = |key: &str, value: Value| {
        let shown = format!("{key} = {value:?}");
        match Model::from_checkpoint(altered(&control, key, value), &LoadOptions::default()) {
            Err(Error::Malformed { location: Location::Key(_) | Location::Tensor(_), .. }) => {}
            Err(Error::Unsupported { .. }) if key.ends_with("type") => {}
            other => panic!("{shown}: {:?}", other.err()),
        }
    };
    for (key, values) in [
        ("llama.embedding_length", &[0, 33, 64, u64::MAX][..]),
        ("llama.block_count", &[0, 2, 1_000_000_000, u64::MAX]),
        ("llama.attention.head_count", &[0, 3, 4, 1 << 40]),
        ("llama.attention.head_count_kv", &[0, 1, 3, 1 << 40]),
        ("llama.attention.key_length", &[0, 8, 24, 1 << 40]),
        ("llama.attention.value_length", &[0, 8, 1 << 40]),
        ("llama.rope.dimension_count", &[0, 1, 15, 18, 1 << 40]),
        ("llama.context_length", &[0, 1 << 40, u64::MAX]),
        ("llama.feed_forward_length", &[0, 63, 128, u64::MAX]),
        ("llama.expert_count", &[4, 1 << 40]),
        ("llama.rope.scaling.original_context_length", &[0, 1 << 40]),
    ] {
        values.iter().for_each(|&value| refuse(key, Value::U64(value)));
        refuse(key, Value::I64(-1));
        refuse(key, Value::F32(2.0));
        refuse(key, Value::String("2".to_owned()));
    }
    for key in ["llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base", "llama.attention.scale"] {
        for value in [f32::NAN, f32::INFINITY, -1.0] {
            refuse(key, Value::F32(value));
        }
        refuse(key, Value::Bool(true));
    }
    refuse("llama.rope.freq_base", Value::F32(0.0));
    refuse("llama.rope.scaling.type", Value::String("sideways".to_owned()));
    // The same key is refused if the file has its own rope factors.
    let Checkpoint { path, container, metadata, tokenizer, .. } =
        altered(&control, "llama.rope.scaling.type", Value::String("sideways".to_owned()));
    let factors = Tensor {
        name: "rope_freqs.weight".to_owned(),
        ty: TensorType::F32,
        shape: vec![8],
        data: Bytes::new(1.0_f32.to_le_bytes().repeat(8)),
    };
    let tensors = control.tensors().iter().cloned().chain([factors]).collect();
    let stretched = Checkpoint::new(path, container, metadata, tokenizer, tensors).unwrap();
    let error = Model::from_checkpoint(stretched.clone(), &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("rope scaling `sideways` is not supported"), "{error}");
    let named = altered(&stretched, "llama.rope.scaling.type", Value::String("none".to_owned()));
    Model::from_checkpoint(named, &LoadOptions::default()).unwrap();

    let mut experts = altered(&control, "llama.expert_count", Value::U32(4));
    for used in [0, 5] {
        experts.metadata.set("llama.expert_used_count", Value::U32(used));
        let error = Model::from_checkpoint(experts.clone(), &LoadOptions::default()).unwrap_err().to_string();
        assert!(error.contains("expert_used_count"), "{error}");
    }
    let unknown = altered(&control, "general.architecture", Value::String("rwkv7".to_owned()));
    let error = Model::from_checkpoint(unknown, &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("`rwkv7`") && error.contains("qwen3moe"), "{error}");
    Model::from_checkpoint(control, &LoadOptions::default()).unwrap();
}

/// Sizes of recurrent states that contradict each other or the tensors. The error names them before
/// anything is allocated.
#[test]
fn absurd_recurrent_sizes_are_refused() {
    let path = fixtures().join("gguf2026/qwen3_5-F16.gguf");
    let Opened::Checkpoint(control) = open_file(&path, ReadMode::Map).unwrap() else { panic!() };
    let refuse = |key: &str, value: Value| {
        let shown = format!("{key} = {value:?}");
        match Model::from_checkpoint(altered(&control, key, value), &LoadOptions::default()) {
            Err(Error::Malformed { location: Location::Key(_) | Location::Tensor(_), .. }) => {}
            other => panic!("{shown}: {:?}", other.err()),
        }
    };
    for (key, values) in [
        ("qwen35.ssm.conv_kernel", &[0, 3, 5, 1 << 40][..]),
        ("qwen35.ssm.state_size", &[0, 15, 32, 1 << 40]),
        ("qwen35.ssm.group_count", &[0, 1, 3, 8, 1 << 40]),
        ("qwen35.ssm.time_step_rank", &[0, 2, 3, 8, 1 << 40]),
        ("qwen35.ssm.inner_size", &[0, 63, 128, 1 << 40]),
    ] {
        values.iter().for_each(|&value| refuse(key, Value::U64(value)));
        refuse(key, Value::String("4".to_owned()));
    }
    for flags in [vec![true; 3], vec![false; 4], vec![true; 4]] {
        refuse("qwen35.attention.recurrent_layers", Value::Array(Array::Bool(flags)));
    }
    Model::from_checkpoint(control, &LoadOptions::default()).unwrap();
}

/// Sizes of latent attention that contradict each other or the tensors, and head matrices that are
/// missing or have a wrong count.
#[test]
fn latent_attention_of_absurd_sizes_is_refused() {
    let file = "gguf2026/glm4-moe-lite-F16.gguf";
    let Opened::Checkpoint(control) = open_file(&fixtures().join(file), ReadMode::Map).unwrap() else { panic!() };
    for (key, values) in [
        ("deepseek2.attention.kv_lora_rank", &[0, 31, 64, 1 << 40][..]),
        ("deepseek2.attention.q_lora_rank", &[31, 64, 1 << 40]),
        ("deepseek2.attention.key_length_mla", &[0, 15, 16, 41, 1 << 40]),
        ("deepseek2.attention.value_length_mla", &[0, 31, 1 << 40]),
        ("deepseek2.rope.dimension_count", &[0, 1, 15, 40, 1 << 40]),
        ("deepseek2.leading_dense_block_count", &[]),
        ("deepseek2.expert_used_count", &[0, 7]),
    ] {
        for value in values {
            match Model::from_checkpoint(altered(&control, key, Value::U64(*value)), &LoadOptions::default()) {
                Err(Error::Malformed { location: Location::Key(_) | Location::Tensor(_), .. }) => {}
                other => panic!("{key} = {value}: {:?}", other.err()),
            }
        }
    }
    for (name, expected) in [
        ("blk.0.attn_k_b.weight", "[4, 32, 24]"),
        ("blk.1.attn_v_b.weight", "[4, 32, 32]"),
        ("blk.2.attn_kv_a_norm.weight", "[32]"),
        ("blk.0.attn_kv_a_mqa.weight", "[48, 64]"),
        ("blk.1.attn_q_a.weight", "blk.1.attn_q_a.weight`: expected shape [32, 64]"),
        ("blk.1.attn_q_b.weight", "[160, 32]"),
    ] {
        let error = changed(file, |tensors| tensors.retain(|tensor| tensor.name != name)).unwrap_err().to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
    // The tensor lacks one head.
    let odd = changed(file, |tensors| {
        let tensor = tensors.iter_mut().find(|tensor| tensor.name == "blk.1.attn_k_b.weight").unwrap();
        let bytes = tensor.data.len() / 4 * 3;
        (tensor.shape[0], tensor.data) = (3, tensor.data.slice(0..bytes).unwrap());
    });
    let error = odd.unwrap_err().to_string();
    assert!(error.contains("blk.1.attn_k_b.weight") && error.contains("[4, 32, 24]"), "{error}");
    Model::from_checkpoint(control, &LoadOptions::default()).unwrap();
}

/// Folders of families without a GGUF fixture, whose tensors are missing or have another shape.
#[test]
fn folders_that_lack_tensors_or_contradict_their_sizes_are_refused() {
    for (folder, name, shape, expected) in [
        ("laguna", "blk.1.attn_gate.weight", None, "6 rows, one per head, or 96"),
        ("laguna", "blk.1.attn_gate.weight", Some([3, 96]), "6 rows, one per head, or 96"),
        ("laguna", "blk.2.ffn_gate.3.weight", None, "[32, 48]"),
        ("laguna", "blk.2.attn_q.weight", Some([48, 96]), "[96, 48]"),
        ("laguna", "blk.3.ffn_gate_inp.weight", Some([3, 96]), "[6, 48]"),
        ("bitnet", "blk.0.attn_sub_norm.weight", None, "[128]"),
        ("bitnet", "blk.1.ffn_sub_norm.weight", Some([1, 128]), "[256]"),
        ("bitnet", "blk.2.ffn_gate.weight", None, "[256, 128]"),
        ("plm", "blk.0.attn_kv_b.weight", Some([48, 48]), "[96, 24]"),
        ("plm", "blk.1.attn_kv_a_mqa.weight", None, "[32, 48]"),
        ("plm", "blk.2.ffn_up.weight", Some([80, 96]), "[160, 48]"),
        ("phimoe", "blk.0.ffn_gate_inp.weight", Some([3, 96]), "[6, 48]"),
        ("phimoe", "blk.2.ffn_up.5.weight", None, "[32, 48]"),
    ] {
        let path = format!("models/{folder}");
        let error = changed(&path, |tensors| match tensors.iter_mut().find(|tensor| tensor.name == name) {
            Some(tensor) => match shape {
                Some(shape) => tensor.shape = shape.to_vec(),
                None => tensors.retain(|tensor| tensor.name != name),
            },
            None => panic!("{folder} has no {name}"),
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(expected) && error.contains("expected"), "{folder}: {error}");
    }
}

#[test]
fn laguna_folders_of_other_forms_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixtures().join("models/laguna")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), scratch.path().join(entry.file_name())).unwrap();
    }
    let path = scratch.path().join("config.json");
    let original = std::fs::read_to_string(&path).unwrap();
    for (from, to, expected) in [
        (
            "\"num_attention_heads_per_layer\": [\n    4,",
            "\"num_attention_heads_per_layer\": [",
            "4 entries, one per layer",
        ),
        ("\"attention_bias\": false", "\"attention_bias\": true", "Laguna with biases"),
        ("\"gating\": true", "\"moe_router_logit_softcapping\": 30.0", "caps its router's logits"),
        ("\"partial_rotary_factor\": 1.0", "\"partial_rotary_factor\": 1.5", "a fraction from 0 to 1"),
        ("\"num_experts\": 6", "\"num_experts\": 7", "expected"),
    ] {
        assert!(original.contains(from), "{from}");
        std::fs::write(&path, original.replacen(from, to, 1)).unwrap();
        let error = Model::open(scratch.path(), &LoadOptions::default()).err();
        let error = error.unwrap_or_else(|| panic!("{to}")).to_string();
        assert!(error.contains(expected), "{to}: {error}");
    }
}

#[test]
fn smallthinker_files_without_what_they_need_are_refused() {
    let file = "gguf2026/smallthinker-F16.gguf";
    let Opened::Checkpoint(control) = open_file(&fixtures().join(file), ReadMode::Map).unwrap() else { panic!() };
    for (key, value) in [
        ("smallthinker.expert_count", Value::U32(0)),
        ("smallthinker.expert_count", Value::U32(5)),
        ("smallthinker.expert_used_count", Value::U32(5)),
        ("smallthinker.attention.sliding_window_pattern", Value::Array(Array::Bool(vec![true; 4]))),
        ("smallthinker.rope.layer_pattern", Value::Array(Array::Bool(vec![true; 6]))),
    ] {
        match Model::from_checkpoint(altered(&control, key, value), &LoadOptions::default()) {
            Err(Error::Malformed { location: Location::Key(_) | Location::Tensor(_), .. }) => {}
            other => panic!("{key}: {:?}", other.err()),
        }
    }
    for name in ["blk.0.ffn_gate_inp.weight", "blk.3.ffn_gate_exps.weight"] {
        let error = changed(file, |tensors| tensors.retain(|tensor| tensor.name != name)).unwrap_err().to_string();
        assert!(error.contains("blk."), "{name}: {error}");
    }
    Model::from_checkpoint(control, &LoadOptions::default()).unwrap();
}

#[test]
fn absurd_config_json_is_refused() {
    use serde_json::json;
    let scratch = tempfile::tempdir().unwrap();
    for model in ["llama-silu-gqa", "qwen2", "gemma3", "falcon-new", "opt"] {
        let folder = scratch.path().join(model);
        std::fs::create_dir(&folder).unwrap();
        for entry in std::fs::read_dir(fixtures().join("models").join(model)).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
        }
        let path = folder.join("config.json");
        let original: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        for (key, value) in [
            ("num_attention_heads", json!(0)),
            ("num_attention_heads", json!(5)),
            ("hidden_size", json!(0)),
            ("hidden_size", json!(u64::MAX)),
            ("num_hidden_layers", json!(1_000_000_000)),
            ("num_hidden_layers", json!("3")),
            ("vocab_size", json!(1u64 << 40)),
            ("vocab_size", json!(383)),
            ("head_dim", json!(0)),
            ("head_dim", json!(1u64 << 60)),
            ("max_position_embeddings", json!(1u64 << 40)),
            ("partial_rotary_factor", json!(-3)),
            ("model_type", json!("mamba")),
            ("model_type", json!(7)),
            ("rope_parameters", json!({"rope_type": "sideways"})),
        ] {
            if model == "opt" && key.starts_with("rope") {
                continue;
            }
            let mut config = original.clone();
            config[key] = value.clone();
            std::fs::write(&path, config.to_string()).unwrap();
            let error = Model::open(&folder, &LoadOptions::default()).err();
            let error = error.unwrap_or_else(|| panic!("{model}: {key} = {value} was accepted")).to_string();
            assert!(error.contains("expected") || error.contains("not supported"), "{error}");
        }
    }
}

/// Opens a GGUF file of the fixtures with other tensors as a model.
fn changed(path: &str, change: impl Fn(&mut Vec<Tensor>)) -> thermocline_engine::Result<Model> {
    let path = fixtures().join(path);
    let file = Model::open_checkpoint(&path, ReadMode::Map)?;
    let mut tensors = file.tensors().to_vec();
    change(&mut tensors);
    let (metadata, tokenizer) = (file.metadata.clone(), file.tokenizer.clone());
    Model::from_checkpoint(
        Checkpoint::new(path, file.container, metadata, tokenizer, tensors)?,
        &LoadOptions::default(),
    )
}

#[test]
fn gpt_oss_files_without_what_they_need_are_refused() {
    let file = "gguf2026/gpt-oss-mxfp4-MXFP4-F16.gguf";
    assert!(changed(file, |_| ()).is_ok());
    let without = |name: &'static str| changed(file, move |tensors| tensors.retain(|tensor| tensor.name != name));
    for (name, expected) in [
        ("blk.2.attn_sinks.weight", "one logit per head, shape [8]"),
        ("blk.0.ffn_up_exps.weight", "[6, 64, 64]"),
        ("blk.3.post_attention_norm.weight", "[64]"),
    ] {
        let error = without(name).unwrap_err().to_string();
        let stem = name.trim_end_matches("_exps.weight");
        assert!(error.contains(stem) && error.contains(expected), "{error}");
    }
    // The tensor lacks one expert.
    let odd = changed(file, |tensors| {
        let tensor = tensors.iter_mut().find(|tensor| tensor.name == "blk.1.ffn_down_exps.weight").unwrap();
        let bytes = tensor.data.len() / 6 * 5;
        (tensor.shape[0], tensor.data) = (5, tensor.data.slice(0..bytes).unwrap());
    });
    let error = odd.unwrap_err().to_string();
    assert!(error.contains("blk.1.ffn_down_exps.weight") && error.contains("[6, 64, 64]"), "{error}");
    // The sinks lack some heads.
    let short = changed(file, |tensors| {
        let tensor = tensors.iter_mut().find(|tensor| tensor.name == "blk.0.attn_sinks.weight").unwrap();
        (tensor.shape, tensor.data) = (vec![4], tensor.data.slice(0..16).unwrap());
    });
    assert!(short.unwrap_err().to_string().contains("blk.0.attn_sinks.weight"));
}

/// Counts of shared layers, inputs of layers and head sizes that contradict each other or the tensors.
#[test]
fn gemma4_files_that_contradict_themselves_are_refused() {
    let file = "gguf2026/gemma4-e2b-F16.gguf";
    let Opened::Checkpoint(control) = open_file(&fixtures().join(file), ReadMode::Map).unwrap() else { panic!() };
    for (key, values) in [
        // With four sharing layers, one has no earlier layer of its kind.
        ("attention.shared_kv_layers", &[4, 6, 1 << 40][..]),
        ("embedding_length_per_layer_input", &[15, 32, 1 << 40]),
        ("attention.key_length_swa", &[0, 8, 64, 1 << 40]),
        ("attention.value_length_swa", &[0, 8]),
        ("rope.dimension_count_swa", &[0, 7, 32]),
        ("rope.dimension_count", &[0, 16, 64]),
    ] {
        for &value in values {
            let changed = altered(&control, &format!("gemma4.{key}"), Value::U64(value));
            match Model::from_checkpoint(changed, &LoadOptions::default()) {
                Err(Error::Malformed { location: Location::Key(_) | Location::Tensor(_), .. }) => {}
                other => panic!("{key} = {value}: {:?}", other.err()),
            }
        }
    }
    assert!(changed(file, |_| ()).is_ok());
    for (name, expected) in [
        ("per_layer_token_embd.weight", "[384, 96]"),
        ("per_layer_model_proj.weight", "[96, 64]"),
        ("per_layer_proj_norm.weight", "[16]"),
        ("blk.4.inp_gate.weight", "[16, 64]"),
        ("blk.2.post_norm.weight", "[64]"),
        ("blk.5.layer_output_scale.weight", "[1]"),
        ("blk.0.attn_v.weight", "values of a layer with a window, shape [16, 64]"),
    ] {
        let without = changed(file, |tensors| tensors.retain(|tensor| tensor.name != name));
        let error = without.unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
}

/// A mixture of experts without a tensor beside its experts, or with one expert too few.
#[test]
fn gemma4_moe_files_that_lack_parts_are_refused() {
    let file = "gguf2026/gemma4-moe-F16.gguf";
    assert!(changed(file, |_| ()).is_ok());
    for (name, expected) in [
        ("blk.0.ffn_gate_inp.weight", "shape [4, 64]"),
        ("blk.1.ffn_gate_inp.scale", "[64]"),
        ("blk.2.ffn_down_exps.scale", "[4]"),
        ("blk.3.ffn_gate.weight", "[64, 64]"),
        ("blk.3.pre_ffw_norm_2.weight", "[64]"),
        ("blk.2.attn_v.weight", "values of a layer with a window, shape [32, 64]"),
    ] {
        let without = changed(file, |tensors| tensors.retain(|tensor| tensor.name != name));
        let error = without.unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
    let odd = changed(file, |tensors| {
        let tensor = tensors.iter_mut().find(|tensor| tensor.name == "blk.1.ffn_gate_up_exps.weight").unwrap();
        let bytes = tensor.data.len() / 4 * 3;
        (tensor.shape[0], tensor.data) = (3, tensor.data.slice(0..bytes).unwrap());
    });
    let error = odd.unwrap_err().to_string();
    assert!(error.contains("blk.1.ffn_gate_up_exps.weight") && error.contains("[4, 64, 64]"), "{error}");
}

/// Chunked windows and weights on the inputs of experts have no kernels. A device refuses them by
/// name.
#[test]
fn parts_without_kernels_are_refused_by_the_device() {
    let mut model = changed("models/llama4", |_| ()).unwrap();
    let error = device_support(&model).unwrap_err().to_string();
    assert!(error.contains("chunks of 8"), "{error}");
    let windows = model.config.attentions_mut().filter_map(|attention| attention.window.as_mut());
    windows.for_each(|window| window.chunked = false);
    let error = device_support(&model).unwrap_err().to_string();
    assert!(error.contains("router weights on expert inputs"), "{error}");
}

/// Folders of several streams that lack a tensor or have another number of streams, and the reason
/// why the GPU does not compute them.
#[test]
fn gemma3n_folders_that_contradict_themselves_are_refused() {
    let folder = "models/gemma3n";
    let model = changed(folder, |_| ()).unwrap();
    device_support(&model).unwrap();
    for (name, expected) in [
        ("altup_proj.1.weight", "[48, 48]"),
        ("blk.3.altup_predict_coef.weight", "[16, 4]"),
        ("blk.0.altup_correct_scale.weight", "[48]"),
        ("blk.5.laurel_post_norm.weight", "[48]"),
        ("per_layer_token_embd.weight", "[384, 96]"),
    ] {
        let without = changed(folder, |tensors| tensors.retain(|tensor| tensor.name != name));
        let error = without.unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
    let control = Model::open_checkpoint(&fixtures().join(folder), ReadMode::Map).unwrap();
    for (key, value) in [
        ("altup.num_inputs", Value::U32(3)),
        ("altup.active_idx", Value::U32(1)),
        ("activation_sparsity_scale", Value::Array(Array::F32(vec![1.0; 5]))),
        ("activation_sparsity_scale", Value::Array(Array::F32(vec![f32::NAN; 6]))),
        ("attention.shared_kv_layers", Value::U32(6)),
    ] {
        let changed = altered(&control, &format!("gemma3n.{key}"), value);
        let error = Model::from_checkpoint(changed, &LoadOptions::default()).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
    }
}
