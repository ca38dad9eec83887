//! A pass of several sequences computes the same for each as a pass of its own. Tested for every
//! architecture on the CPU, on a GPU and on both; a software driver replaces a missing GPU.
#![allow(clippy::unwrap_used)]

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
};

use thermocline_engine::{
    Error,
    device::GpuLoad,
    hybrid::HybridProcessor,
    model::{LoadOptions, Model},
    placement::Placement,
    runtime::{Forward, KvCache, KvType, Outputs, Sparsity},
};
use thermocline_tests::{
    golden::{self, CPU_ONLY, MODELS, QUANTISED, RECURRENT, Setup, argmax, max_diff},
    gpu::{FULL, forward, idle_cpu, shared},
};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn model(name: &str) -> Arc<Model> {
    Arc::new(Model::open(&here("fixtures/models").join(name), &LoadOptions::default()).unwrap())
}

/// Returns prompts of different lengths. Long prompts exceed windows and span several ranges of
/// keys.
fn prompts(model: &Model, n: usize, longest: usize) -> Vec<Vec<u32>> {
    let id = |sequence: usize, at: usize| ((at * at * 31 + at * 97 + sequence * 53 + 11) % model.config.n_vocab) as u32;
    (0..n).map(|of| (0..1 + (of * 7 + 3) % longest).map(|at| id(of, at)).collect()).collect()
}

/// Fills caches with the prompts without their last tokens. Returns each cache with that token.
fn filled(forward: &mut Forward, prompts: &[Vec<u32>], room: usize) -> Vec<(KvCache, u32)> {
    let fill = |prompt: &Vec<u32>| {
        let mut kv = forward.kv_cache(prompt.len() + room, KvType::F32).unwrap();
        let (last, before) = prompt.split_last().unwrap();
        if !before.is_empty() {
            forward.run(before, &mut kv, Outputs::None, &mut ()).unwrap();
        }
        (kv, *last)
    };
    prompts.iter().map(fill).collect()
}

/// Returns the logits of `steps` greedy tokens of each prompt, `[step][sequence]`. The first result
/// is computed one by one, the second in batches of the same tokens.
fn both_ways(forward: &mut Forward, prompts: &[Vec<u32>], steps: usize) -> [Vec<Vec<Vec<f32>>>; 2] {
    let mut alone = filled(forward, prompts, steps);
    let mut together = filled(forward, prompts, steps);
    let n_vocab = forward.model().config.n_vocab;
    let mut logits = [Vec::new(), Vec::new()];
    for _ in 0..steps {
        let mut batch: Vec<(&mut KvCache, &[u32])> =
            together.iter_mut().map(|(kv, token)| (kv, std::slice::from_ref(token))).collect();
        let batched = forward.run_batch(&mut batch, &mut ()).unwrap();
        logits[1].push(batched.chunks_exact(n_vocab).map(<[f32]>::to_vec).collect::<Vec<_>>());
        let mut each = Vec::new();
        for (kv, token) in &mut alone {
            each.push(forward.run(&[*token], kv, Outputs::Last, &mut ()).unwrap().to_vec());
        }
        for ((alone, together), logits) in alone.iter_mut().zip(&mut together).zip(&each) {
            (alone.1, together.1) = (argmax(logits), argmax(logits));
        }
        logits[0].push(each);
    }
    logits
}

/// Returns the largest difference that another order of sums may make. Weights of few bits and
/// norms behind squares magnify rounding.
fn tolerance(name: &str) -> f32 {
    if name == "bitnet" || name.ends_with("mxfp4") { 2e-2 } else { 1e-3 }
}

/// Returns the largest difference of two logits. It is relative to the largest logit of the row if
/// that is above 1.
fn distance([alone, together]: &[Vec<Vec<Vec<f32>>>; 2]) -> f32 {
    let steps = alone.iter().zip(together);
    let rows = steps.flat_map(|(alone, together)| alone.iter().zip(together));
    let largest = |row: &[f32]| row.iter().fold(1.0f32, |largest, logit| largest.max(logit.abs()));
    rows.map(|(alone, together)| max_diff(alone, together) / largest(alone)).fold(0.0, f32::max)
}

#[test]
fn batched_tokens_equal_single_ones_in_every_model_on_the_cpu() {
    for name in MODELS.into_iter().chain(RECURRENT).chain(QUANTISED).chain(CPU_ONLY) {
        let model = model(name);
        for sequences in [2, 5, 8, 11] {
            let mut forward = golden::forward(&model, Setup::default());
            let prompts = prompts(&model, sequences, 23);
            let off = distance(&both_ways(&mut forward, &prompts, 4));
            // Up to eight tokens use the kernels of one token.
            let most = if sequences <= 8 && model.config.experts.is_none() { 1e-5 } else { tolerance(name) };
            assert!(off <= most, "{name}, {sequences} sequences: {off}");
        }
    }
}

#[test]
fn batched_tokens_of_sparse_modes_equal_single_ones() {
    for (name, mode) in [
        ("llama-relu", Sparsity::Exact),
        ("llama-relu-256", Sparsity::Exact),
        ("bamboo", Sparsity::Exact),
        ("opt", Sparsity::Exact),
        ("nemotron", Sparsity::Exact),
        ("smallthinker", Sparsity::Exact),
        ("bitnet", Sparsity::Exact),
    ] {
        let model = model(name);
        let mut forward = golden::forward(&model, Setup::default());
        forward.set_sparsity(mode);
        for sequences in [2, 4, 8, 12] {
            let prompts = prompts(&model, sequences, 19);
            let off = distance(&both_ways(&mut forward, &prompts, 4));
            assert!(off <= tolerance(name), "{name} {mode}, {sequences} sequences: {off}");
        }
    }
}

#[test]
fn batched_tokens_equal_single_ones_in_every_model_on_the_gpu() {
    let gpu = shared(FULL);
    for name in MODELS.into_iter().chain(RECURRENT).chain(QUANTISED) {
        let model = model(name);
        let mut forward = forward(gpu, &model, 32);
        for sequences in [3, 9] {
            let prompts = prompts(&model, sequences, 14);
            let off = distance(&both_ways(&mut forward, &prompts, 2));
            assert!(off <= 1e-3, "{name}, {sequences} sequences: {off}");
        }
    }
}

/// Loads the layers from `first_resident` on, without neurons, on the shared device.
fn forward_from(model: &Arc<Model>, first_resident: usize, head: bool) -> Forward {
    let hot = (0..model.config.n_layer()).map(|_| Vec::new()).collect();
    let placement = Placement { first_resident, hot, head };
    let load = GpuLoad { chunk: 32, ..GpuLoad::default() };
    let mut go_on = |_, _| ControlFlow::Continue(());
    let processor = HybridProcessor::load(shared(FULL), idle_cpu(), model, &placement, &load, &mut go_on).unwrap();
    Forward::on(Arc::clone(model), Box::new(processor))
}

/// After a pass of a token and drafts, recurrent states on a device, or partly on one, go back to
/// any of its tokens. The tokens that were rejected change no bit of the logits after that.
#[test]
fn rejected_drafts_leave_no_trace_on_a_device() {
    for name in RECURRENT {
        let model = model(name);
        let ids = prompts(&model, 3, 24).pop().unwrap();
        let (before, after) = ids.split_at(ids.len() / 2);
        let places = [forward(shared(FULL), &model, 32), forward_from(&model, model.config.n_layer() / 2, true)];
        for (at, mut forward) in places.into_iter().enumerate() {
            let mut kv = forward.kv_cache(40, KvType::F32).unwrap();
            let plain = forward.run(&ids, &mut kv, Outputs::Last, &mut ()).unwrap().to_vec();
            for kept in 1..=4 {
                let mut with_rejected = |rejected: u32| {
                    kv.truncate(0);
                    forward.run(before, &mut kv, Outputs::None, &mut ()).unwrap();
                    let pass: Vec<u32> = after[..kept].iter().copied().chain(vec![rejected; 5 - kept]).collect();
                    forward.run_batch(&mut [(&mut kv, &pass[..])], &mut ()).unwrap();
                    kv.truncate(before.len() + kept);
                    assert_eq!(kv.len(), before.len() + kept, "{name}, place {at}");
                    forward.run(&after[kept..], &mut kv, Outputs::Last, &mut ()).unwrap().to_vec()
                };
                let logits = with_rejected(3);
                assert!(logits == with_rejected(17), "{name}, place {at}: {kept} tokens kept");
                let off = max_diff(&logits, &plain);
                assert!(off <= tolerance(name), "{name}, place {at}, {kept} tokens kept: {off}");
            }
        }
    }
}

#[test]
fn batched_tokens_equal_single_ones_where_a_part_is_on_the_gpu() {
    for name in ["llama-relu", "gemma2", "qwen3-moe", "nemotron-h", "qwen3-next", "gemma3n", "gemma4-e2b"] {
        let model = model(name);
        let n_layer = model.config.n_layer();
        for (first_resident, head) in [(n_layer / 2, true), (n_layer - 1, false)] {
            let mut forward = forward_from(&model, first_resident, head);
            let prompts = prompts(&model, 4, 14);
            let off = distance(&both_ways(&mut forward, &prompts, 2));
            assert!(off <= 1e-3, "{name} from layer {first_resident}: {off}");
        }
    }
}

#[test]
fn sequences_of_a_batch_may_have_several_tokens() {
    for name in ["llama-silu-gqa", "gemma2", "nemotron-h", "qwen3-moe"] {
        let model = model(name);
        let mut forward = golden::forward(&model, Setup::default());
        let prompts = prompts(&model, 4, 12);
        let caches = |forward: &mut Forward| -> Vec<KvCache> {
            prompts.iter().map(|prompt| forward.kv_cache(prompt.len(), KvType::F32).unwrap()).collect()
        };
        let mut together = caches(&mut forward);
        let mut batch: Vec<(&mut KvCache, &[u32])> =
            together.iter_mut().zip(prompts.iter().map(|it| &it[..])).collect();
        let logits = forward.run_batch(&mut batch, &mut ()).unwrap().to_vec();
        let mut alone = Vec::new();
        for (kv, prompt) in caches(&mut forward).iter_mut().zip(&prompts) {
            alone.extend_from_slice(forward.run(prompt, kv, Outputs::All, &mut ()).unwrap());
        }
        let off = max_diff(&logits, &alone);
        assert!(logits.len() == alone.len() && off <= 2e-4, "{name}: {off}");
        assert!(together.iter().zip(&prompts).all(|(kv, prompt)| kv.len() == prompt.len()));
    }
}

#[test]
fn wrong_batches_are_refused_and_change_nothing() {
    let model = model("llama-relu");
    let mut forward = golden::forward(&model, Setup::default());
    forward.set_chunk(4);
    assert!(matches!(forward.run_batch(&mut [], &mut ()), Err(Error::Invalid { .. })));
    let mut caches: Vec<KvCache> = (0..5).map(|_| forward.kv_cache(2, KvType::F32).unwrap()).collect();
    let mut all: Vec<(&mut KvCache, &[u32])> = caches.iter_mut().map(|kv| (kv, &[1][..])).collect();
    assert!(matches!(forward.run_batch(&mut all, &mut ()), Err(Error::Invalid { .. })));
    all.truncate(2);
    all[1].1 = &[1, 2, 3];
    assert!(matches!(forward.run_batch(&mut all, &mut ()), Err(Error::ContextFull { wanted: 3, available: 2, .. })));
    all[1].1 = &[u32::MAX];
    assert!(matches!(forward.run_batch(&mut all, &mut ()), Err(Error::Invalid { .. })));
    assert!(caches.iter().all(KvCache::is_empty));
}

#[test]
fn copied_prefixes_are_what_computing_them_gives() {
    for name in ["llama-silu-gqa", "gemma3", "deepseek-v2-lite", "nemotron-h", "gemma3n"] {
        let model = model(name);
        let cpu = golden::forward(&model, Setup::default());
        for mut forward in [cpu, forward(shared(FULL), &model, 32)] {
            let prompt = &prompts(&model, 1, 8)[0].repeat(6);
            let mut from = forward.kv_cache(40, KvType::F32).unwrap();
            forward.run(&prompt[..15], &mut from, Outputs::None, &mut ()).unwrap();
            from.take_snapshot();
            forward.run(&prompt[15..], &mut from, Outputs::None, &mut ()).unwrap();
            let mut to = forward.kv_cache(60, KvType::F32).unwrap();
            forward.run(&prompt[..3], &mut to, Outputs::None, &mut ()).unwrap();
            let held = forward.copy_prefix(&from, &mut to, 20).unwrap();
            assert_eq!(held, if model.config.is_recurrent() { 15 } else { 20 }, "{name}");
            let copied = forward.run(&prompt[held..], &mut to, Outputs::Last, &mut ()).unwrap().to_vec();
            let mut alone = forward.kv_cache(40, KvType::F32).unwrap();
            forward.run(&prompt[..held], &mut alone, Outputs::None, &mut ()).unwrap();
            let wanted = forward.run(&prompt[held..], &mut alone, Outputs::Last, &mut ()).unwrap();
            let off = max_diff(&copied, wanted);
            assert!(off <= 1e-4, "{name}: {off}");
            // A prefix of another KV type is not copied.
            let mut other = forward.kv_cache(60, KvType::F16).unwrap();
            assert_eq!(forward.copy_prefix(&from, &mut other, 20).unwrap(), 0);
        }
    }
}
