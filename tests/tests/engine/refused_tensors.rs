//! Removes or shortens every kind of tensor of every fixture model. The model must be refused with
//! an error that names the tensor. The lists below have the optional tensors.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{collections::BTreeMap, path::PathBuf};

use thermocline_engine::{
    Result,
    format::{Checkpoint, ReadMode, Tensor},
    model::{LoadOptions, Model},
};
use thermocline_tests::golden::DRAFT_HEADS;

use super::models::fixtures;

/// Optional tensors: heads that equal the embedding, biases of the last norm and of the head,
/// factors of positions.
const OPTIONAL: [&str; 5] =
    ["output.weight", "output.bias", "output_norm.bias", "rope_factors_long.weight", "rope_freqs.weight"];

/// Tensors in layers that share the keys and values of another layer. The files of these models
/// have them but do not need them.
const UNUSED: [&str; 3] = ["blk.attn_k.weight", "blk.attn_k_norm.weight", "blk.attn_v.weight"];
const SHARING: [&str; 3] = ["gemma4-e2b-F16.gguf", "gemma4-e2b", "gemma3n"];

/// Kinds of tensors, and another name that an error about them may have. The error then names the
/// tensor that the model would need instead, or whose size contradicts it.
const STANDS_FOR: [(&str, &str); 8] = [
    ("attn_qkv", "attn_q"),
    ("attn_kv_b", "attn_k_b"),
    ("ssm_ba", "ssm_alpha"),
    ("ffn_gate_up_exps", "ffn_up_exps"),
    ("ffn_up_shexp", "ffn_gate_shexp"),
    ("ffn_up_shexp", "ffn_down_shexp"),
    ("token_embd_norm", "output_norm"),
    ("token_embd", "vocab_size"),
];

/// Returns paths of fixture models: folders of safetensors, and GGUF files whose weights are not
/// quantised. A model opens without its draft head if the head's tensors are wrong, so models with
/// heads are left out.
fn paths() -> Vec<PathBuf> {
    let list = |folder: &str| std::fs::read_dir(fixtures().join(folder)).unwrap().map(|it| it.unwrap().path());
    let has_head = |path: &PathBuf| DRAFT_HEADS.iter().any(|name| path.ends_with(name));
    let folders = list("models").filter(|path| path.join("config.json").is_file() && !has_head(path));
    let files = list("gguf2026").filter(|path| path.to_string_lossy().ends_with("-F16.gguf"));
    let mut paths: Vec<PathBuf> = folders.chain(files).collect();
    paths.sort();
    assert!(paths.len() > 40, "only {} models found", paths.len());
    paths
}

/// Removes the numbers of layer and expert from a name: `blk.2.ffn_up.5.weight` becomes
/// `blk.ffn_up.weight`.
fn kind(name: &str) -> String {
    let words = name.split('.').filter(|word| word.parse::<usize>().is_err());
    words.collect::<Vec<_>>().join(".")
}

/// Opens the model of `file` with `tensors`.
fn model(file: &Checkpoint, tensors: Vec<Tensor>) -> Result<Model> {
    let (path, metadata, tokenizer) = (file.path.clone(), file.metadata.clone(), file.tokenizer.clone());
    let checkpoint = Checkpoint::new(path, file.container, metadata, tokenizer, tensors)?;
    Model::from_checkpoint(checkpoint, &LoadOptions::default())
}

/// Changes the last tensor of each kind of each model. Returns the kinds that opened, with their
/// models, and the errors that name another tensor.
fn changed(change: impl Fn(&mut Vec<Tensor>, usize) -> bool) -> (BTreeMap<String, Vec<String>>, Vec<String>) {
    let (mut opened, mut unnamed): (BTreeMap<_, Vec<String>>, _) = (BTreeMap::new(), Vec::new());
    for path in paths() {
        let file = Model::open_checkpoint(&path, ReadMode::Map).unwrap();
        let mut last: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for (index, tensor) in file.tensors().iter().enumerate() {
            let (count, last) = last.entry(kind(&tensor.name)).or_default();
            (*count, *last) = (*count + 1, index);
        }
        let shown = path.file_name().unwrap().to_string_lossy().into_owned();
        for (kind, (count, index)) in last {
            let mut tensors = file.tensors().to_vec();
            let name = tensors[index].name.clone();
            if !change(&mut tensors, index) {
                continue;
            }
            match model(&file, tensors) {
                Ok(_) if UNUSED.contains(&kind.as_str()) && SHARING.contains(&shown.as_str()) => {}
                // Gemma 4's layers without a window may use their keys as values, and this model
                // has one such layer.
                Ok(_) if kind == "blk.attn_v.weight" && shown == "gemma4" => {}
                // With only one attention layer, no other layer shows whether the model has norms
                // of heads.
                Ok(_) if count == 1 && kind.starts_with("blk.attn_") => {}
                Ok(_) => opened.entry(kind).or_default().push(shown.clone()),
                Err(error) => {
                    let error = error.to_string();
                    let stem = name.trim_end_matches(".weight").trim_end_matches(".bias");
                    let mut others =
                        STANDS_FOR.iter().filter(|(missing, _)| stem.split('.').any(|word| word == *missing));
                    if !error.contains("expected")
                        || !error.contains(stem) && !others.any(|(_, other)| error.contains(other))
                    {
                        unnamed.push(format!("{shown}: {name}: {error}"));
                    }
                }
            }
        }
    }
    (opened, unnamed)
}

#[test]
fn every_missing_tensor_is_named_or_optional() {
    let (opened, unnamed) = changed(|tensors, index| {
        tensors.remove(index);
        true
    });
    assert!(unnamed.is_empty(), "{unnamed:#?}");
    let opened: BTreeMap<_, _> = opened.into_iter().filter(|(kind, _)| !OPTIONAL.contains(&kind.as_str())).collect();
    assert!(opened.is_empty(), "{opened:#?}");
}

#[test]
fn every_tensor_with_a_row_too_few_is_named() {
    let (opened, unnamed) = changed(|tensors, index| {
        let tensor = &mut tensors[index];
        let rows = tensor.shape[0];
        if rows < 2 {
            return false;
        }
        let bytes = tensor.data.len() / rows * (rows - 1);
        (tensor.shape[0], tensor.data) = (rows - 1, tensor.data.slice(0..bytes).unwrap());
        true
    });
    assert!(unnamed.is_empty(), "{unnamed:#?}");
    // OPT's last position is beyond its context.
    let opened: Vec<String> = opened.into_keys().collect();
    assert_eq!(opened, ["position_embd.weight"], "others than positions opened");
}
