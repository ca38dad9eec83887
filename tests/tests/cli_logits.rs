//! `logits` and `tokenize`: what other implementations are compared with.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use thermocline_tests::terminal::{thermocline, with_input};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn ids(file: &SafeTensors<'_>, name: &str) -> Vec<i32> {
    let bytes = file.tensor(name).unwrap();
    bytes.data().as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect()
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let bytes = file.tensor(name).unwrap();
    bytes.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn logits_of_a_folder_match_the_reference() {
    let model = fixture("models/llama-relu");
    let expected = std::fs::read(model.join("expected.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&expected).unwrap();
    let tokens = ids(&expected, "input_ids").iter().map(i32::to_string).collect::<Vec<_>>().join(",");
    let greedy = ids(&expected, "greedy_ids");

    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("logits.safetensors");
    let (count, path) = (greedy.len().to_string(), out.to_str().unwrap());
    let args = ["logits", "-m", model.to_str().unwrap(), "--tokens", &tokens, "--greedy", &count, "--out", path];
    let explicit = [&args[..], &["--device", "cpu", "--vram", "0", "--sparsity", "dense"]].concat();
    assert_eq!(thermocline(&explicit).ok(), "");

    let got = std::fs::read(&out).unwrap();
    let got = SafeTensors::deserialize(&got).unwrap();
    assert_eq!(got.tensor("logits").unwrap().shape(), expected.tensor("logits").unwrap().shape());
    assert_eq!(ids(&got, "greedy_ids"), greedy);
    let (got, expected) = (floats(&got, "logits"), floats(&expected, "logits"));
    let range = expected.iter().copied().fold(f32::MIN, f32::max) - expected.iter().copied().fold(f32::MAX, f32::min);
    let error = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(error <= 1e-3 * range, "largest error {error} of a range of {range}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a temporary file is left");
}

#[test]
fn what_logits_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("logits.safetensors");
    let out = out.to_str().unwrap();
    for (flags, word) in [
        (&["--device", "no such card"][..], "no such card"),
        (&["--device", "cpu", "--vram", "1GiB"], "--vram"),
        (&["--sparsity", "most"], "sparsity"),
        (&["--tokens", "2048"], "2047"),
        (&["--tokens", ""], "at least one"),
    ] {
        let tokens = if flags[0] == "--tokens" { &[][..] } else { &["--tokens", "1"] };
        let error = thermocline(&[&["logits", "--out", out], tokens, flags].concat()).refusal();
        assert!(error.contains(word), "{error}");
    }
    thermocline(&["logits", "--tokens", "1", "--out", "/nowhere/at/all.safetensors"]).failure(1);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn tokens_there_and_back() {
    let text = "Once upon a time, Ünïcödé 🐶\n\ttabs";
    let json = thermocline(&["tokenize", text, "--json"]).json();
    assert_eq!(json["text"], text);
    let ids: Vec<String> = json["ids"].as_array().unwrap().iter().map(|id| id.to_string()).collect();
    assert_eq!(json["pieces"].as_array().unwrap().len(), ids.len());
    let back = thermocline(&["tokenize", "--ids", &ids.join(","), "--json"]).json();
    assert_eq!(back["text"], text);

    assert_eq!(with_input(&["tokenize"], b"Once\n").ok().lines().count(), 1);
    assert_eq!(thermocline(&["tokenize", ""]).ok(), "");
    let special = thermocline(&["tokenize", "<|user|>Hi", "--special", "--bos", "--json"]).json();
    assert_eq!((special["ids"][0].as_u64(), special["ids"][1].as_u64()), (Some(0), Some(2)));
    assert!(thermocline(&["tokenize", "--ids", "2048"]).refusal().contains("2047"));
    assert!(with_input(&["tokenize"], b"\xff\xfe").refusal().contains("UTF-8"));
}
