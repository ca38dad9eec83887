//! Models whose published files have other keys than the reference's files. Both forms give the
//! same logits.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{fs, path::Path, sync::Arc};

use serde_json::{Map, Value as Json, json};
use thermocline_engine::{
    format::{Checkpoint, Metadata, ReadMode},
    model::{LoadOptions, Model},
};
use thermocline_tests::golden::{Setup, prompt};

use super::models::fixtures;

/// Returns the logits of a prompt.
fn logits(model: Model) -> Vec<f32> {
    let ids: Vec<u32> = (0..20).map(|at| 17 * at % model.config.n_vocab as u32).collect();
    prompt(&Arc::new(model), Setup::default(), &ids).logits
}

/// Returns the logits of the folder `name` after `change` has edited the keys of its language
/// model.
fn changed(name: &str, change: impl FnOnce(&mut Map<String, Json>)) -> Vec<f32> {
    let (source, folder) = (fixtures().join("models").join(name), tempfile::tempdir().unwrap());
    for file in ["tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
        fs::copy(source.join(file), folder.path().join(file)).unwrap();
    }
    let mut config: Json = serde_json::from_slice(&fs::read(source.join("config.json")).unwrap()).unwrap();
    let inner = config.get_mut("text_config").map(Json::take).unwrap_or(config);
    let Json::Object(mut inner) = inner else { panic!("{name}: no object") };
    change(&mut inner);
    fs::write(folder.path().join("config.json"), Json::Object(inner).to_string()).unwrap();
    logits(open(folder.path()))
}

fn open(path: &Path) -> Model {
    Model::open(path, &LoadOptions::default()).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn plain(name: &str) -> Vec<f32> {
    logits(open(&fixtures().join("models").join(name)))
}

fn rename(config: &mut Map<String, Json>, names: &[(&str, &str)]) {
    for (from, to) in names {
        let value = config.remove(*from).unwrap();
        config.insert((*to).to_owned(), value);
    }
}

/// Step 3.5 lists rope bases and rotated fractions layer by layer, including its tail.
#[test]
fn published_keys_of_step_are_understood() {
    let published = |config: &mut Map<String, Json>| {
        rename(
            config,
            &[
                ("num_key_value_heads", "num_attention_groups"),
                ("n_routed_experts", "moe_num_experts"),
                ("num_experts_per_tok", "moe_top_k"),
                ("share_expert_dim", "share_expert_dims"),
            ],
        );
        for key in ["per_layer_config", "num_sliding_attention_heads", "mlp_layer_types", "rope_parameters"] {
            config.remove(key).unwrap();
        }
        config.insert("attention_other_setting".to_owned(), json!({"num_attention_heads": 6}));
        config.insert("moe_layers_enum".to_owned(), "1,3".into());
        config.insert("num_nextn_predict_layers".to_owned(), 1.into());
        config.insert("rope_theta".to_owned(), json!([5e4, 1e4, 1e4, 5e4, 1e4]));
        config.insert("partial_rotary_factors".to_owned(), json!([0.5, 1.0, 1.0, 0.5, 1.0]));
        let rotations = json!({
            "rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 32.0,
            "original_max_position_embeddings": 64,
        });
        config.insert("rope_scaling".to_owned(), rotations);
        for (key, of_tail) in [("layer_types", json!("sliding_attention")), ("swiglu_limits", Json::Null)] {
            config[key].as_array_mut().unwrap().push(of_tail);
        }
    };
    assert!(changed("step3", published) == plain("step3"));
}

/// MiMo 2 marks layers with windows by numbers, and its windows do not count the query's own token.
#[test]
fn published_keys_of_mimo_are_understood() {
    let published = |config: &mut Map<String, Json>| {
        rename(config, &[("rms_norm_eps", "layernorm_epsilon"), ("sliding_window", "sliding_window_size")]);
        config.insert("sliding_window_size".to_owned(), 7.into());
        config.insert("sliding_window".to_owned(), 7.into());
        for key in ["layer_types", "mlp_layer_types", "rope_parameters"] {
            config.remove(key).unwrap();
        }
        config.insert("hybrid_layer_pattern".to_owned(), json!([0, 1, 1, 0]));
        config.insert("swa_num_key_value_heads".to_owned(), 4.into());
    };
    assert!(changed("mimo-v2-flash", published) == plain("mimo-v2-flash"));
}

/// Hy3 counts its dense layers, and its folders name their experts' width twice.
#[test]
fn published_keys_of_hy3_are_understood() {
    let published = |config: &mut Map<String, Json>| {
        config.remove("mlp_layer_types").unwrap();
        for (key, value) in [("first_k_dense_replace", 2), ("num_nextn_predict_layers", 1), ("expert_hidden_dim", 20)] {
            config.insert(key.to_owned(), value.into());
        }
        for key in ["qk_norm", "route_norm", "moe_router_use_sigmoid", "moe_router_enable_expert_bias"] {
            config.insert(key.to_owned(), true.into());
        }
    };
    assert!(changed("hy-v3", published) == plain("hy-v3"));
}

/// GGUF files of Hy3 name the bias for choosing experts without the usual suffix.
#[test]
fn hy3_has_selection_biases_without_a_suffix() {
    let file = Model::open_checkpoint(&fixtures().join("models/hy-v3"), ReadMode::Map).unwrap();
    let (mut tensors, mut renamed) = (file.tensors().to_vec(), 0);
    for tensor in &mut tensors {
        if let Some(stem) = tensor.name.strip_suffix("exp_probs_b.bias") {
            tensor.name = format!("{stem}exp_probs_b");
            renamed += 1;
        }
    }
    assert_eq!(renamed, 2);
    let (path, tokenizer) = (file.path.clone(), file.tokenizer.clone());
    let file = Checkpoint::new(path, file.container, file.metadata, tokenizer, tensors).unwrap();
    let model = Model::from_checkpoint(file, &LoadOptions::default()).unwrap();
    assert!(model.checkpoint.unused().is_empty());
    assert!(logits(model) == plain("hy-v3"));
}

/// Files of Step 3.5 omit the number of rotated elements. It is half of a head, or all of it in
/// layers with a window.
#[test]
fn rotated_elements_that_files_of_step_leave_out_are_half_a_head() {
    let path = fixtures().join("models/step3");
    let mut checkpoint = Model::open_checkpoint(&path, ReadMode::Map).unwrap();
    let (mut metadata, mut dropped) = (Metadata::new(&path), 0);
    for (key, value) in checkpoint.metadata.iter() {
        match key.starts_with("step35.rope.dimension_count") {
            true => dropped += 1,
            false => {
                metadata.set(key, value.clone());
            }
        }
    }
    assert_eq!(dropped, 2);
    checkpoint.metadata = metadata;
    let model = Model::from_checkpoint(checkpoint, &LoadOptions::default()).unwrap();
    assert!(logits(model) == plain("step3"));
}
