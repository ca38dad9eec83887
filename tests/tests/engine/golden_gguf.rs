//! GGUF files of architectures from 2025 and 2026 reproduce their references on the CPU and on the
//! GPU.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use thermocline_engine::{
    cpu::{InputPrecision, Isa},
    model::{LoadOptions, Model},
    runtime::KvType,
};
use thermocline_tests::{
    golden::{Expected, Setup, argmax, continued, max_diff, observed, prompt, rms_diff},
    gpu::{FULL, forward, shared},
};

/// File, tensor of its reference, and largest RMS difference with 8-bit activations. A reference
/// that begins with `/` is the `logits` tensor of a folder of `fixtures/models`.
const FILES: &[(&str, &str, f32)] = &[
    // Rounding to 8-bit activations sometimes changes a choice of experts. llama.cpp's difference
    // is 0.19.
    ("gpt-oss-mxfp4-MXFP4-F16.gguf", "transformers.gpt-oss-mxfp4", 0.4),
    ("gemma4-e2b-F16.gguf", "/gemma4-e2b", 1e-3),
    ("gemma4-e2b-Q8_0.gguf", "exact.gemma4-e2b-Q8_0.gguf", 0.2),
    ("gemma4-moe-F16.gguf", "/gemma4-moe", 1e-3),
    ("gemma4-moe-Q8_0.gguf", "exact.gemma4-moe-Q8_0.gguf", 1.1),
    ("glm4-moe-F16.gguf", "/glm4-moe", 1e-3),
    ("glm4-moe-Q8_0.gguf", "exact.glm4-moe-Q8_0.gguf", 0.9),
    ("glm4-moe-lite-F16.gguf", "/glm4-moe-lite", 1e-3),
    ("glm4-moe-lite-Q8_0.gguf", "exact.glm4-moe-lite-Q8_0.gguf", 0.9),
    ("granite-4-h-F16.gguf", "/granite-4-h", 1e-3),
    ("granite-4-h-Q8_0.gguf", "exact.granite-4-h-Q8_0.gguf", 0.9),
    ("lfm2-F16.gguf", "/lfm2", 1e-3),
    ("lfm2-Q8_0.gguf", "exact.lfm2-Q8_0.gguf", 0.2),
    ("nemotron-3-nano-F16.gguf", "/nemotron-3-nano", 1e-3),
    ("nemotron-3-nano-Q8_0.gguf", "exact.nemotron-3-nano-Q8_0.gguf", 1.1),
    ("qwen3_5-F16.gguf", "/qwen3_5", 1e-3),
    ("qwen3_5-Q8_0.gguf", "exact.qwen3_5-Q8_0.gguf", 0.2),
    ("qwen3_5-moe-F16.gguf", "/qwen3_5-moe", 1e-3),
    ("qwen3_5-moe-Q8_0.gguf", "exact.qwen3_5-moe-Q8_0.gguf", 1.1),
    ("qwen3-next-F16.gguf", "/qwen3-next", 1e-3),
    ("qwen3-next-Q8_0.gguf", "exact.qwen3-next-Q8_0.gguf", 1.1),
    ("smallthinker-F16.gguf", "transformers.smallthinker", 1e-3),
    ("smallthinker-Q8_0.gguf", "exact.smallthinker-Q8_0.gguf", 0.9),
];

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path)
}

/// Calls `check` with model, prompt and logits of every file.
fn each(check: impl Fn(&str, &Arc<Model>, &[u32], &[f32], f32)) {
    let expected = Expected::read(&here("gguf2026/expected.safetensors"));
    let json = std::fs::read_to_string(here("gguf2026/expected.json")).expect("the fixture");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    for &(name, reference, tolerance) in FILES {
        let model = Model::open(&here("gguf2026").join(name), &LoadOptions::default());
        let model = Arc::new(model.unwrap_or_else(|error| panic!("{error}")));
        let ids = json["files"][name]["prompt_ids"].as_array().expect("ids");
        let ids: Vec<u32> = ids.iter().map(|id| id.as_u64().expect("an id") as u32).collect();
        let logits = match reference.strip_prefix('/') {
            Some(folder) => Expected::read(&here("models").join(folder).join("expected.safetensors")).f32("logits"),
            None => expected.f32(reference),
        };
        check(name, &model, &ids, &logits, tolerance);
    }
}

#[test]
fn files_of_2026_on_the_cpu() {
    each(|name, model, ids, logits, tolerance| {
        for isa in Isa::available() {
            for chunk in [1, 5, 24] {
                let setup = Setup { isa: Some(isa), chunk, ..Setup::default() };
                let float = Setup { activations: InputPrecision::Float, ..setup };
                let error = max_diff(&prompt(model, float, ids).logits, logits);
                assert!(error <= 2e-3, "{name} {setup:?}: logits differ by {error}");
                let error = rms_diff(&prompt(model, setup, ids).logits, logits);
                assert!(error <= tolerance, "{name} {setup:?}: RMS difference {error}");
            }
        }
    });
}

#[test]
fn files_of_2026_on_the_gpu() {
    each(|name, model, ids, logits, _| {
        let mut forward = forward(shared(FULL), model, 64);
        for chunk in [1, 5, 24] {
            forward.set_chunk(chunk);
            let error = max_diff(&observed(&mut forward, KvType::F32, ids).logits, logits);
            assert!(error <= 2e-3, "{name}, chunks of {chunk}: logits differ by {error}");
        }
        let first = argmax(&logits[logits.len() - model.config.n_vocab..]);
        assert_eq!(continued(&mut forward, KvType::F32, ids, 1), [first], "{name}");
    });
}
