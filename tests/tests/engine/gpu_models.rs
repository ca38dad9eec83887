//! Every fixture model on the GPU, or on a software driver if there is no GPU. In every tier,
//! logits, hidden states, firing neurons, routing and continuations equal the references and the
//! scalar CPU.
#![allow(clippy::unwrap_used)]

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use thermocline_engine::{
    cpu::Isa,
    device::GpuLoad,
    gpu::{Gpu, GpuOptions, Tier},
    model::{LoadOptions, Model},
    runtime::{Forward, KvType, MAX_SHORTLIST, Outputs},
};
use thermocline_tests::{
    golden::{self, Expected, MODELS, QUANTISED, RECURRENT, Setup, by_token, continued, max_diff, observed},
    gpu::{FULL, forward, forward_with, open, paced, shared},
};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn model(path: &Path) -> Arc<Model> {
    Arc::new(Model::open(path, &LoadOptions::default()).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

fn load(name: &str) -> (Arc<Model>, Expected) {
    let folder = here("fixtures/models").join(name);
    (model(&folder), Expected::read(&folder.join("expected.safetensors")))
}

/// Returns `model` on the scalar CPU.
fn scalar(model: &Arc<Model>) -> Forward {
    golden::forward(model, Setup { isa: Some(Isa::Scalar), ..Setup::default() })
}

/// Returns `n` pseudo-random token ids.
fn ids(model: &Model, n: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i * 31 + i * 97 + 11) % model.config.n_vocab) as u32).collect()
}

/// Compares every fixture with its reference.
fn every_model(tier: Tier) {
    let gpu = shared(tier);
    for name in MODELS.into_iter().chain(QUANTISED).chain(RECURRENT) {
        let (model, expected) = load(name);
        let ids = expected.ids("input_ids");
        let mut forward = forward(gpu, &model, 64);
        let run = observed(&mut forward, KvType::F32, &ids);
        let error = max_diff(&run.hidden.concat(), &expected.f32("hidden"));
        assert!(error <= 1e-3, "{name} {tier}: hidden states differ by {error}");
        let error = max_diff(&run.logits, &expected.f32("logits"));
        assert!(error <= 1e-3, "{name} {tier}: logits differ by {error}");
        if let Some(wanted) = expected.u8("ffn_active") {
            let near = expected.i32("ffn_near_zero").unwrap_or_default();
            let near: HashSet<usize> = near.into_iter().map(|i| i as usize).collect();
            let active = run.active.concat();
            assert_eq!(active.len(), wanted.len(), "{name} {tier}");
            for i in (0..wanted.len()).filter(|i| !near.contains(i)) {
                assert_eq!(active[i], wanted[i] != 0, "{name} {tier}: neuron at {i}");
            }
        }
        if let Some(experts) = model.config.experts {
            let chosen: Vec<u32> = run.router.concat().into_iter().map(|e| e as u32).collect();
            let wanted = by_token(&expected.ids("router_top"), experts.used);
            assert_eq!(by_token(&chosen, experts.used), wanted, "{name} {tier}");
        }
        let wanted = expected.ids("greedy_ids");
        assert_eq!(continued(&mut forward, KvType::F32, &ids, wanted.len()), wanted, "{name} {tier}");
    }
}

/// Types of files. Activations stay floats here, so only the order of sums differs from exact
/// arithmetic. Q5_K_M has matrices of Q5_1.
const GGUF: [&str; 6] = ["F16", "Q8_0", "Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K"];

/// Compares files with weights of every quantised type, and files with neuron-major down
/// projections.
fn every_file(tier: Tier) {
    let gpu = shared(tier);
    let expected = Expected::read(&here("fixtures/gguf/expected.safetensors"));
    let json = std::fs::read_to_string(here("fixtures/gguf/expected.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let prompt: Vec<u32> =
        json["prompt_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    for ty in GGUF {
        let model = model(&here("fixtures/gguf").join(format!("llama-silu-gqa-256-{ty}.gguf")));
        let mut forward = forward(gpu, &model, 64);
        let logits = observed(&mut forward, KvType::F32, &prompt).logits;
        let error = max_diff(&logits, &expected.f32(&format!("exact_logits.{ty}")));
        assert!(error <= 2e-3, "{ty} {tier}: logits differ by {error}");
        decoding_goes_on(&mut forward, &prompt, 2e-3, &format!("{ty} {tier}"));
    }
    let expected = Expected::read(&here("fixtures/powerinfer/expected.safetensors"));
    let ids = expected.ids("input_ids");
    for ty in ["f16", "q4_0"] {
        let model = model(&here(&format!("fixtures/powerinfer/llama-relu-{ty}.powerinfer.gguf")));
        let mut forward = forward(gpu, &model, 64);
        let run = observed(&mut forward, KvType::F32, &ids);
        let error = max_diff(&run.logits, &expected.f32(&format!("{ty}.dense_logits")));
        assert!(error <= 2e-3, "{ty} {tier}: logits differ by {error}");
        decoding_goes_on(&mut forward, &ids, 2e-3, &format!("{ty} {tier}"));
    }
}

/// Checks that decoding the last tokens from the cache gives the logits of a prompt.
fn decoding_goes_on(forward: &mut Forward, ids: &[u32], tolerance: f32, what: &str) {
    let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
    let whole = forward.run(ids, &mut kv, Outputs::All, &mut ()).unwrap().to_vec();
    let n_vocab = forward.model().config.n_vocab;
    let from = ids.len() - 4;
    kv.truncate(from);
    for at in from..ids.len() {
        let logits = forward.run(&ids[at..at + 1], &mut kv, Outputs::Last, &mut ()).unwrap();
        let error = max_diff(logits, &whole[at * n_vocab..(at + 1) * n_vocab]);
        assert!(error <= tolerance, "{what}: token {at} differs by {error}");
    }
}

#[test]
fn models_match_the_reference_in_the_portable_tier() {
    every_model(Tier::PORTABLE);
    every_file(Tier::PORTABLE);
}

#[test]
fn models_match_the_reference_with_f16() {
    every_model(Tier { subgroups: false, f16: true });
    every_file(Tier { subgroups: false, f16: true });
}

#[test]
fn models_match_the_reference_with_subgroups() {
    every_model(Tier { subgroups: true, f16: false });
    every_file(Tier { subgroups: true, f16: false });
}

#[test]
fn models_match_the_reference_with_subgroups_and_f16() {
    every_model(FULL);
    every_file(FULL);
}

/// Compares chunks of several sizes and caches of both types with the scalar CPU, in contexts of
/// `n` tokens, longer than a tile of keys.
fn any_chunk_and_cache_type(name: &str, n: usize) {
    let (model, _) = load(name);
    let ids = ids(&model, n);
    let n_vocab = model.config.n_vocab;
    let mut forward = forward(shared(FULL), &model, 64);
    // The tolerance for F16 allows a key that is rounded to the other neighbour.
    for (ty, chunks, tolerance) in [(KvType::F32, [64, 1], 1e-3), (KvType::F16, [64, 5], 0.01)] {
        let mut cpu = scalar(&model);
        let mut kv = cpu.kv_cache(n, ty).unwrap();
        let wanted = cpu.run(&ids, &mut kv, Outputs::All, &mut ()).unwrap();
        for chunk in chunks {
            forward.set_chunk(chunk);
            let mut kv = forward.kv_cache(n, ty).unwrap();
            let logits = forward.run(&ids, &mut kv, Outputs::All, &mut ()).unwrap();
            let error = max_diff(logits, wanted);
            assert!(error <= tolerance, "{name} {chunk} {ty}: logits differ by {error}");
            // Two prompts and then single tokens use a cache with remains of another conversation.
            kv.truncate(0);
            forward.run(&ids[..40], &mut kv, Outputs::None, &mut ()).unwrap();
            forward.run(&ids[40..n - 3], &mut kv, Outputs::None, &mut ()).unwrap();
            for at in n - 3..n {
                let logits = forward.run(&ids[at..at + 1], &mut kv, Outputs::Last, &mut ()).unwrap();
                let error = max_diff(logits, &wanted[at * n_vocab..(at + 1) * n_vocab]);
                assert!(error <= tolerance, "{name} {chunk} {ty}: token {at} differs by {error}");
            }
            assert_eq!(kv.len(), n);
        }
    }
}

#[test]
fn logits_of_windows_match_the_cpu_for_any_chunk_and_cache_type() {
    any_chunk_and_cache_type("gemma3", 180);
    any_chunk_and_cache_type("mistral", 200);
}

#[test]
fn logits_of_layers_with_and_without_windows_match_the_cpu_for_any_chunk_and_cache_type() {
    any_chunk_and_cache_type("gpt-oss", 150);
    any_chunk_and_cache_type("olmo3", 150);
}

#[test]
fn logits_of_shared_caches_match_the_cpu_for_any_chunk_and_cache_type() {
    any_chunk_and_cache_type("gemma4", 90);
    any_chunk_and_cache_type("gemma4-e2b", 90);
}

#[test]
fn logits_of_scaled_rotations_match_the_cpu_for_any_chunk_and_cache_type() {
    any_chunk_and_cache_type("phi3", 170);
    any_chunk_and_cache_type("ministral3", 150);
}

#[test]
fn logits_of_learned_and_absent_positions_match_the_cpu_for_any_chunk_and_cache_type() {
    any_chunk_and_cache_type("opt", 60);
    any_chunk_and_cache_type("smollm3", 90);
    any_chunk_and_cache_type("granite-4-dense", 70);
    any_chunk_and_cache_type("falcon-new", 150);
}

#[test]
fn logits_of_delta_nets_match_the_cpu_for_any_chunk_and_cache_type() {
    any_chunk_and_cache_type("qwen3_5", 150);
    any_chunk_and_cache_type("qwen3-next", 90);
}

#[test]
fn logits_of_other_recurrent_models_match_the_cpu_for_any_chunk_and_cache_type() {
    any_chunk_and_cache_type("granite-4-h", 150);
    any_chunk_and_cache_type("lfm2", 90);
}

/// With narrow bindings, matrices, the head and sums over neurons are split into parts, and chunks
/// are shorter.
#[test]
fn logits_match_the_cpu_with_narrow_bindings() {
    let wide = 64 << 10;
    // A unit of 64 neurons cannot be split.
    let narrow = 32 << 10;
    for (path, max_binding, shorter) in [
        ("models/llama-relu-256", wide, 16),
        ("models/qwen2", wide, 64),
        ("models/mixtral", wide, 64),
        ("powerinfer/llama-relu-f16.powerinfer.gguf", narrow, 16),
    ] {
        let gpu = open(GpuOptions { max_binding: Some(max_binding), ..GpuOptions::default() });
        let model = model(&here("fixtures").join(path));
        let ids = ids(&model, 70);
        let mut cpu = scalar(&model);
        let mut kv = cpu.kv_cache(70, KvType::F16).unwrap();
        let wanted = cpu.run(&ids, &mut kv, Outputs::All, &mut ()).unwrap();
        let mut forward = forward(&gpu, &model, 256);
        assert!(forward.chunk() < shorter, "{path}: {}", forward.chunk());
        let mut kv = forward.kv_cache(70, KvType::F16).unwrap();
        let logits = forward.run(&ids, &mut kv, Outputs::All, &mut ()).unwrap();
        let error = max_diff(logits, wanted);
        assert!(error <= 0.01, "{path}: logits differ by {error}");
        // Other kernels read the parts for one token.
        let n_vocab = model.config.n_vocab;
        kv.truncate(69);
        let logits = forward.run(&ids[69..], &mut kv, Outputs::Last, &mut ()).unwrap();
        let error = max_diff(logits, &wanted[69 * n_vocab..]);
        assert!(error <= 0.01, "{path}: the last token's logits differ by {error}");
    }
}

/// A shortlist from the device has the largest logits in order, for any chunk size.
#[test]
fn shortlist_on_the_device_holds_the_largest_logits() {
    let gpu = shared(FULL);
    for name in ["gemma2", "mistral"] {
        let (model, expected) = load(name);
        let ids = expected.ids("input_ids");
        let mut forward = forward(gpu, &model, 64);
        for chunk in [1, 64] {
            forward.set_chunk(chunk);
            let mut kv = forward.kv_cache(ids.len(), KvType::F16).unwrap();
            let logits = forward.run(&ids, &mut kv, Outputs::Last, &mut ()).unwrap().to_vec();
            let mut order: Vec<u32> = (0..logits.len() as u32).collect();
            order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
            for k in [1, 2, MAX_SHORTLIST] {
                kv.truncate(0);
                let top = forward.top(&ids, &mut kv, k, &mut ()).unwrap();
                assert_eq!(top.ids, &order[..k], "{name} {chunk}");
                assert!(top.ids.iter().zip(top.logits).all(|(id, logit)| logits[*id as usize] == *logit));
            }
        }
    }
}

/// The built-in model gives the same logits if its chunks are split into several submissions.
#[test]
fn built_in_model_logits_match_the_cpu_for_any_submission_size() {
    let model = model(&here("../assets/storyteller/storyteller-F16.gguf"));
    let ids = ids(&model, 100);
    let mut cpu = scalar(&model);
    let mut kv = cpu.kv_cache(100, KvType::F16).unwrap();
    let wanted = cpu.run(&ids, &mut kv, Outputs::All, &mut ()).unwrap();
    let mut runs = Vec::new();
    for submission in [GpuLoad::default().submission, 1 << 20] {
        // The artificial clock keeps chunk sizes constant on a busy machine.
        let gpu = paced(1);
        let mut forward = forward_with(&gpu, &model, &GpuLoad { submission, ..GpuLoad::default() });
        let mut kv = forward.kv_cache(100, KvType::F16).unwrap();
        runs.push(forward.run(&ids, &mut kv, Outputs::All, &mut ()).unwrap().to_vec());
    }
    assert_eq!(runs[0], runs[1]);
    let error = max_diff(&runs[0], wanted);
    assert!(error < 0.01, "logits differ by {error}");
}

/// A device with less than 10^9 multiply-adds per second has short chunks, and a token takes more
/// than one submission.
#[test]
fn built_in_model_logits_match_the_cpu_on_slow_devices() {
    let model = model(&here("../assets/storyteller/storyteller-F16.gguf"));
    let ids = ids(&model, 110);
    let (prompt, rest) = ids.split_at(100);
    let mut cpu = scalar(&model);
    let mut kv = cpu.kv_cache(110, KvType::F16).unwrap();
    let wanted = cpu.run(prompt, &mut kv, Outputs::All, &mut ()).unwrap().to_vec();
    let gpu = paced(1400);
    let mut forward = forward_with(&gpu, &model, &GpuLoad::default());
    let mut slow_kv = forward.kv_cache(110, KvType::F16).unwrap();
    let before = gpu.submits();
    let error = max_diff(forward.run(prompt, &mut slow_kv, Outputs::All, &mut ()).unwrap(), &wanted);
    assert!(error < 0.01, "logits differ by {error}");
    // The prompt has a hundred tokens of more than six million multiply-adds each.
    assert!(gpu.submits() - before >= 10, "{} submissions", gpu.submits() - before);
    for (at, id) in rest.iter().enumerate() {
        let wanted = cpu.run(&[*id], &mut kv, Outputs::Last, &mut ()).unwrap();
        let before = (gpu.submits(), gpu.arena().made(), gpu.bind_groups());
        let error = max_diff(forward.run(&[*id], &mut slow_kv, Outputs::Last, &mut ()).unwrap(), wanted);
        assert!(error < 0.01, "token {at}: logits differ by {error}");
        // The time of a token is unknown before the first token.
        let submits = if at == 0 { 1..=2 } else { 2..=2 };
        assert!(submits.contains(&(gpu.submits() - before.0)), "token {at}: {} submissions", gpu.submits() - before.0);
        assert_eq!((gpu.arena().made(), gpu.bind_groups()), (before.1, before.2), "nothing is made for a token");
    }
    let longest = gpu.pace().longest().unwrap();
    assert!(longest.seconds < 0.1 && longest.seconds > 0.03, "{longest:?}");
}

/// Attention of a prompt may be split into pieces, down to single rows. The logits equal those of
/// whole chunks.
#[test]
fn attention_in_pieces_gives_the_same_logits() {
    let (model, _) = load("llama-silu-gqa");
    let ids = ids(&model, 2400);
    let logits = |gpu: &Gpu| {
        let mut forward = forward(gpu, &model, 256);
        let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
        let before = gpu.submits();
        let logits = forward.run(&ids, &mut kv, Outputs::Last, &mut ()).unwrap().to_vec();
        (logits, gpu.submits() - before)
    };
    // Both runs use an artificial clock. On a busy machine, the real clock would also split
    // attention.
    let (wanted, few) = logits(&paced(1));
    let (got, many) = logits(&paced(30_000));
    let error = max_diff(&got, &wanted);
    assert!(error < 1e-3, "logits differ by {error}");
    assert!(many > few + 100, "{many} and {few} submissions");
}
