//! A token's logits on a device do not depend on how many tokens are computed with it. Passes up to
//! the size that the processor promises have the bits of single tokens, for every weight type and
//! every kind of model. A software driver replaces a missing GPU.
#![allow(clippy::unwrap_used)]

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use thermocline_engine::{
    gpu::{Gpu, GpuOptions, Tier},
    model::{LoadOptions, Model},
    runtime::{Forward, KvType},
};
use thermocline_tests::{
    golden::{MODELS, QUANTISED, RECURRENT},
    gpu::{FULL, forward, open, shared},
};

use super::models::fixtures;

/// Tokens of a prompt, and tokens after it that are computed in passes of several sizes. The prompt
/// ends before the keys of attention are divided for the first time.
const PROMPT: usize = 58;
const SEPARATE: usize = 16;

fn model(path: &Path) -> Arc<Model> {
    let model = Model::open(path, &LoadOptions::default());
    Arc::new(model.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// Returns every folder of a model and every file of weights.
fn paths() -> Vec<PathBuf> {
    let names = MODELS.iter().chain(&QUANTISED).chain(&RECURRENT);
    let mut paths: Vec<_> = names.map(|name| fixtures().join("models").join(name)).collect();
    paths.extend(files());
    paths
}

/// Returns the files of weights: all types, in few architectures.
fn files() -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for folder in ["gguf", "gguf2026", "powerinfer"] {
        let files = fixtures().join(folder).read_dir().unwrap().map(|entry| entry.unwrap().path());
        paths.extend(files.filter(|path| path.extension().is_some_and(|ending| ending == "gguf")));
    }
    paths.sort();
    paths
}

/// Returns the longest pass that the processor promises, and the sizes of passes whose logits
/// differ from passes of one token, with the first token that differs.
pub(super) fn broken_promises(forward: &mut Forward) -> (usize, Vec<String>) {
    let promised = forward.same_bits();
    let n_vocab = forward.model().config.n_vocab;
    // Learned positions may be fewer.
    let positions = forward.model().weights.position_embedding.as_ref().map_or(usize::MAX, |table| table.rows() - 2);
    let prompt = PROMPT.min(positions - SEPARATE);
    let ids: Vec<u32> = (0..prompt + SEPARATE).map(|at| (at * 53 + 11) as u32 % n_vocab as u32).collect();
    let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
    // The prompt has passes of a fixed length, because their length would otherwise depend on the
    // device's pace.
    for pass in ids[..prompt].chunks(promised) {
        forward.run_batch(&mut [(&mut kv, pass)], &mut ()).unwrap();
    }
    kv.take_snapshot();
    let mut bits = |tokens: usize| -> Vec<u32> {
        kv.truncate(prompt);
        assert_eq!(kv.len(), prompt);
        let passes = ids[prompt..].chunks(tokens).flat_map(|pass| {
            let logits = forward.run_batch(&mut [(&mut kv, pass)], &mut ()).unwrap();
            logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>()
        });
        passes.collect()
    };
    let alone = bits(1);
    let differs = (2..=promised).filter_map(|tokens| {
        let together = bits(tokens);
        let at = alone.iter().zip(&together).position(|(a, b)| a != b)?;
        let differ = alone.iter().zip(&together).filter(|(a, b)| a != b).count();
        Some(format!("passes of {tokens}: token {}, {differ} of {} logits", at / n_vocab, alone.len()))
    });
    (promised, differs.collect())
}

/// Checks models that are all on `gpu`.
fn check_whole(gpu: &Gpu, paths: &[PathBuf]) {
    let mut broken = Vec::new();
    for path in paths {
        let model = model(path);
        let mut forward = forward(gpu, &model, 64);
        let (promised, differs) = broken_promises(&mut forward);
        let wanted = if model.config.is_recurrent() { 5 } else { 8 };
        assert_eq!(promised, wanted, "{}", path.display());
        let name = path.file_name().unwrap().display();
        broken.extend(differs.iter().map(|differs| format!("{name}: {differs}")));
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn passes_have_the_bits_of_single_tokens_in_every_model_on_the_gpu() {
    check_whole(shared(FULL), &paths());
}

#[test]
fn passes_have_the_bits_of_single_tokens_in_the_portable_tier() {
    check_whole(shared(Tier::PORTABLE), &files());
}

#[test]
fn passes_have_the_bits_of_single_tokens_in_products_of_integers() {
    check_whole(&open(GpuOptions { packed_dot: Some(true), ..GpuOptions::default() }), &files());
}
