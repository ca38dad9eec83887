//! Quantised GGUF files, PowerInfer files and the built-in model reproduce their references.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use thermocline_engine::{
    Error,
    cpu::{InputPrecision, Isa},
    model::{LoadOptions, Model},
    runtime::{Forward, KvCache, KvType, Outputs},
};
use thermocline_tests::golden::{Expected, Setup, argmax, forward, greedy, max_diff, prompt, rms_diff};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn open(path: &Path) -> Arc<Model> {
    Arc::new(Model::open(path, &LoadOptions::default()).unwrap_or_else(|error| panic!("{error}")))
}

fn setups() -> Vec<Setup> {
    let each =
        |isa| [(1, 512), (2, 7)].map(|(threads, chunk)| Setup { isa: Some(isa), threads, chunk, ..Setup::default() });
    Isa::available().into_iter().flat_map(each).collect()
}

/// Checks a greedy continuation up to the first step whose margin is within the engine's own error.
fn check_greedy(what: &str, got: &[u32], wanted: &[u32], margins: &[f32], error: f32) {
    for (step, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        if margins[step] <= 2.0 * error {
            return;
        }
        assert_eq!(got, wanted, "{what}: step {step}");
    }
}

/// Type, and largest RMS difference from exact arithmetic. Float weights leave almost no error. The
/// bounds for 8-bit activations are a fifth above llama.cpp's errors (0.07 to 0.11).
const GGUF: [(&str, f32); 6] =
    [("F16", 1e-4), ("Q8_0", 0.085), ("Q4_0", 0.1), ("Q4_K_M", 0.13), ("Q5_K_M", 0.12), ("Q6_K", 0.13)];

#[test]
fn quantised_files_match_the_reference() {
    let expected = Expected::read(&here("fixtures/gguf/expected.safetensors"));
    let json = std::fs::read_to_string(here("fixtures/gguf/expected.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let ids = |value: &serde_json::Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let prompt_ids = ids(&json["prompt_ids"]);
    for (ty, tolerance) in GGUF {
        let name = format!("llama-silu-gqa-256-{ty}.gguf");
        let model = open(&here("fixtures/gguf").join(&name));
        let exact = expected.f32(&format!("exact_logits.{ty}"));
        let record = &json["files"][&name];
        let margins: Vec<f32> =
            record["greedy_margin"].as_array().unwrap().iter().map(|m| m.as_f64().unwrap() as f32).collect();
        for setup in setups() {
            let logits = prompt(&model, setup, &prompt_ids).logits;
            let error = rms_diff(&logits, &exact);
            assert!(error <= tolerance, "{ty} {setup:?}: RMS difference {error}");
            let largest = max_diff(&logits, &exact);
            assert!(ty != "F16" || largest <= 1e-3, "{setup:?}: difference {largest}");
            let continued = greedy(&model, setup, &prompt_ids, margins.len());
            check_greedy(&name, &continued, &ids(&record["greedy_ids"]), &margins, largest.max(0.01));
        }
        for setup in setups() {
            let setup = Setup { activations: InputPrecision::Float, ..setup };
            let error = max_diff(&prompt(&model, setup, &prompt_ids).logits, &exact);
            assert!(error <= 1e-3, "{ty} {setup:?}: logits differ by {error}");
        }
    }
}

#[test]
fn powerinfer_files_match_the_reference() {
    let expected = Expected::read(&here("fixtures/powerinfer/expected.safetensors"));
    let ids = expected.ids("input_ids");
    // The quantised file is compared with exact arithmetic twice: with 8-bit and with float
    // activations.
    let (int8, float) = (InputPrecision::Int8, InputPrecision::Float);
    for (ty, activations, tolerance, flips) in
        [("f16", int8, 1e-3, 0.0), ("q4_0", int8, 0.6, 0.02), ("q4_0", float, 1e-3, 0.0)]
    {
        let model = open(&here(&format!("fixtures/powerinfer/llama-relu-{ty}.powerinfer.gguf")));
        let wanted = |name: &str| expected.f32(&format!("{ty}.dense_{name}"));
        let active = expected.u8(&format!("{ty}.dense_ffn_active")).unwrap();
        for setup in setups() {
            let setup = Setup { activations, ..setup };
            let run = prompt(&model, setup, &ids);
            let error = max_diff(&run.logits, &wanted("logits"));
            assert!(error <= tolerance, "{ty} {setup:?}: logits differ by {error}");
            let hidden = max_diff(&run.hidden.concat(), &wanted("hidden"));
            assert!(hidden <= tolerance, "{ty} {setup:?}: hidden states differ by {hidden}");
            let flipped = run.active.concat().iter().zip(&active).filter(|(a, b)| **a != (**b != 0)).count();
            let flipped = flipped as f32 / active.len() as f32;
            assert!(flipped <= flips, "{ty} {setup:?}: {flipped} of the neurons fire otherwise");
            let continued = greedy(&model, setup, &ids, 16);
            let greedy_ids = expected.ids(&format!("{ty}.dense_greedy_ids"));
            check_greedy(ty, &continued, &greedy_ids, &wanted("greedy_margin"), error);
        }
    }
}

/// Compares the published F16 weights with float64 arithmetic on the same weights.
#[test]
fn built_in_model_matches_the_reference() {
    let model = open(&here("../assets/storyteller/storyteller-F16.gguf"));
    let expected = Expected::read(&here("fixtures/storyteller/expected.safetensors"));
    let n_vocab = model.config.n_vocab;
    for k in 0..3 {
        let (ids, continued) = (expected.ids(&format!("{k}.prompt_ids")), expected.ids(&format!("{k}.greedy_ids")));
        let all = [ids.clone(), continued.clone()].concat();
        // The record has logits of every fourth position, the likeliest token of each position, and
        // a bit per neuron.
        let (logits, likeliest) = (expected.f32(&format!("{k}.logits")), expected.ids(&format!("{k}.likeliest")));
        let active = expected.u8(&format!("{k}.ffn_active")).unwrap();
        for isa in Isa::available() {
            let setup = Setup { isa: Some(isa), ..Setup::default() };
            let run = prompt(&model, setup, &all);
            let kept: Vec<f32> = run.logits.chunks(n_vocab).step_by(4).flatten().copied().collect();
            let error = max_diff(&kept, &logits);
            println!("prompt {k} on {isa}: logits differ by {error:e}");
            assert!(error <= 1e-4, "prompt {k} on {isa}: logits differ by {error}");
            let got: Vec<u32> = run.logits.chunks(n_vocab).map(argmax).collect();
            assert_eq!(got, likeliest, "prompt {k} on {isa}: likeliest tokens");
            let fires = run.active.concat();
            assert_eq!(fires.len(), 8 * active.len());
            let flipped =
                fires.iter().enumerate().filter(|&(i, fires)| *fires != (active[i / 8] >> (i % 8) & 1 != 0)).count();
            assert!(flipped <= 5, "prompt {k} on {isa}: {flipped} neurons fire otherwise");
        }
        assert_eq!(greedy(&model, Setup { threads: 2, ..Setup::default() }, &ids, continued.len()), continued);
    }
}

#[test]
fn forward_refuses_invalid_tokens_contexts_and_caches() {
    let model = open(&here("fixtures/models/opt"));
    let mut forward = forward(&model, Setup::default());
    let mut kv = KvCache::new(&model.config, 80, KvType::F16).unwrap();
    let run = |forward: &mut Forward, kv: &mut KvCache, ids: &[u32]| {
        forward.run(ids, kv, Outputs::Last, &mut ()).map(<[f32]>::len)
    };
    assert!(matches!(run(&mut forward, &mut kv, &[]), Err(Error::Invalid { .. })));
    assert!(matches!(run(&mut forward, &mut kv, &[3, 384]), Err(Error::Invalid { .. })));
    // The model has 64 learned positions, even if the cache is longer.
    assert_eq!(run(&mut forward, &mut kv, &[3; 64]).unwrap(), 384);
    assert!(matches!(run(&mut forward, &mut kv, &[3]), Err(Error::ContextFull { wanted: 65, available: 64, .. })));
    assert_eq!(kv.len(), 64);
    let other = open(&here("fixtures/models/qwen3"));
    let mut other = KvCache::new(&other.config, 8, KvType::F16).unwrap();
    assert!(matches!(run(&mut forward, &mut other, &[3]), Err(Error::Invalid { .. })));
}
