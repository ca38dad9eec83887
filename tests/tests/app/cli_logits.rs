//! `logits` and `tokenize`, whose output is compared with other implementations.

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

fn bits(file: &SafeTensors<'_>, name: &str) -> (Vec<usize>, Vec<bool>) {
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), safetensors::Dtype::U8, "{name}");
    assert!(tensor.data().iter().all(|byte| *byte < 2), "{name}");
    (tensor.shape().to_vec(), tensor.data().iter().map(|byte| *byte == 1).collect())
}

/// Runs on the CPU, and with neurons on both the GPU and the CPU.
#[test]
fn logits_file_has_the_firing_mask_of_sparse_modes() {
    let model = fixture("powerinfer/llama-relu-f16.powerinfer.gguf");
    let reference = std::fs::read(fixture("powerinfer/expected.safetensors")).unwrap();
    let reference = SafeTensors::deserialize(&reference).unwrap();
    let tokens = ids(&reference, "input_ids").iter().map(i32::to_string).collect::<Vec<_>>().join(",");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("logits.safetensors");
    for device in [&["--device", "cpu"][..], &["--device", "0", "--vram", "5200000"]] {
        for (mode, logits) in [("exact", "f16.dense_logits"), ("predicted", "f16.masked_logits")] {
            let args = ["logits", "-m", model.to_str().unwrap(), "--tokens", &tokens, "--sparsity", mode, "--out"];
            thermocline(&[&args[..], &[out.to_str().unwrap()], device].concat()).ok();
            let file = std::fs::read(&out).unwrap();
            let file = SafeTensors::deserialize(&file).unwrap();
            let (shape, fired) = bits(&file, "ffn_active");
            let (wanted_shape, gates) = bits(&reference, "f16.dense_ffn_active");
            let (_, named) = bits(&reference, "f16.pred_mask");
            assert_eq!((&shape, shape.iter().product::<usize>()), (&wanted_shape, fired.len()));
            // Sums have another order here, so a gate near zero or a score near the threshold may
            // fall on the other side.
            let few = fired.len() / 500;
            let count = |is: &dyn Fn(usize) -> bool| (0..fired.len()).filter(|at| is(*at)).count();
            if mode == "exact" {
                assert!(count(&|at| fired[at] != gates[at]) <= few, "{device:?}");
            } else {
                assert!(count(&|at| fired[at] && !named[at]) <= few, "{device:?}");
                // Behind the first layer, gates depend on what predictors skipped.
                let first = fired.len() / shape[0];
                let wrong = (0..first).filter(|at| fired[*at] != (gates[*at] && named[*at])).count();
                assert!(wrong <= few, "{device:?}: {wrong}");
                assert!(count(&|at| fired[at]) < count(&|at| gates[at]), "{device:?}: nothing was skipped");
            }
            let (got, expected) = (floats(&file, "logits"), floats(&reference, logits));
            let range =
                expected.iter().copied().fold(f32::MIN, f32::max) - expected.iter().copied().fold(f32::MAX, f32::min);
            let error = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(error <= 2e-3 * range, "{mode} {device:?}: largest error {error} of a range of {range}");
        }
    }
}

#[test]
fn logits_refuses_invalid_options() {
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
fn tokenize_round_trips_text_and_ids() {
    let text = "Once upon a time, Ünïcödé 🐶\n\ttabs";
    let json = thermocline(&["tokenize", text, "--json"]).json();
    assert_eq!(json["text"], text);
    let ids: Vec<String> = json["ids"].as_array().unwrap().iter().map(|id| id.to_string()).collect();
    assert_eq!(json["pieces"].as_array().unwrap().len(), ids.len());
    let back = thermocline(&["tokenize", "--ids", &ids.join(","), "--json"]).json();
    assert_eq!(back["text"], text);

    // `tokenize` reads a file and a pipe to the last byte.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text");
    std::fs::write(&file, "Once\n").unwrap();
    let of_file = thermocline(&["tokenize", "--file", file.to_str().unwrap(), "--json"]).json();
    assert_eq!((of_file["text"].as_str(), of_file["pieces"][1].as_str()), (Some("Once\n"), Some("\n")));
    assert_eq!(with_input(&["tokenize", "--json"], b"Once\n").json(), of_file);
    assert_eq!(thermocline(&["tokenize", ""]).ok(), "");
    let special = thermocline(&["tokenize", "<|user|>Hi", "--special", "--bos", "--json"]).json();
    assert_eq!((special["ids"][0].as_u64(), special["ids"][1].as_u64()), (Some(0), Some(2)));
    assert!(thermocline(&["tokenize", "--ids", "2048"]).refusal().contains("2047"));
    assert!(with_input(&["tokenize"], b"\xff\xfe").refusal().contains("UTF-8"));
}
