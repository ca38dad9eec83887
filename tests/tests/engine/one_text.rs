//! A token's logits do not depend on how many tokens are computed with it. A prompt has the same
//! bits in chunks of any size, and so have separate tokens in every sparsity mode. Drafts, reused
//! prefixes and batches therefore change no greedy text. On AVX-512, whose tiles have another order
//! of sums, this holds for passes of up to eight tokens. With recurrent states it holds for passes
//! of up to five separate tokens, and not for the chunks of a prompt.
#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{path::Path, sync::Arc};

use thermocline_engine::{
    cpu::{InputPrecision, Isa},
    model::{InputCurves, InputSite, LayerWeights, LoadOptions, Model, SiteCurve},
    runtime::{Forward, KvType, Outputs, Sparsity},
};
use thermocline_tests::golden::{MODELS, QUANTISED, RECURRENT, Setup, forward};

use super::models::fixtures;

/// Returns the bits of the logits of `n` tokens, computed `setup.chunk` at a time.
fn logits(model: &Arc<Model>, setup: Setup, n: usize) -> Vec<u32> {
    let ids: Vec<u32> = (0..n).map(|at| (at * at * 31 + 17 * at + 3) as u32 % model.config.n_vocab as u32).collect();
    let mut forward = forward(model, setup);
    let mut kv = forward.kv_cache(n, setup.kv).unwrap();
    forward.run(&ids, &mut kv, Outputs::All, &mut ()).unwrap().iter().map(|logit| logit.to_bits()).collect()
}

fn open(path: &Path) -> Arc<Model> {
    let model = Model::open(path, &LoadOptions::default());
    Arc::new(model.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// Returns where logits of a prompt in chunks first differ from logits token by token; `None` if
/// they are the same.
fn first_difference(path: &Path, model: &Arc<Model>, setup: Setup, n: usize, chunks: &[usize]) -> Option<String> {
    let name = path.file_name()?.display();
    let alone = logits(model, Setup { chunk: 1, ..setup }, n);
    chunks.iter().find_map(|chunk| {
        let together = logits(model, Setup { chunk: *chunk, ..setup }, n);
        let at = alone.iter().zip(&together).position(|(a, b)| a != b)?;
        let apart = alone.iter().zip(&together).filter(|(a, b)| a != b).count();
        let (token, of) = (at / model.config.n_vocab, alone.len());
        Some(format!("{name} {:?}: chunks of {chunk}: token {token}, {apart} of {of} logits", setup.isa))
    })
}

/// Returns setups of this machine's instruction sets, with the chunk sizes whose logits are the
/// same.
fn setups() -> Vec<(Setup, &'static [usize])> {
    let chunks = |isa: Isa| -> &'static [usize] { if isa == Isa::Avx512 { &[2, 5, 8] } else { &[5, 9, 16, 300] } };
    Isa::available().into_iter().map(|isa| (Setup { isa: Some(isa), ..Setup::default() }, chunks(isa))).collect()
}

#[test]
fn chunks_of_any_size_give_the_same_logits_in_every_quantised_family() {
    let mut paths = Vec::new();
    for folder in ["gguf", "gguf2026"] {
        let files = fixtures().join(folder).read_dir().unwrap().map(|entry| entry.unwrap().path());
        paths.extend(files.filter(|path| path.extension().is_some_and(|ending| ending == "gguf")));
    }
    paths.retain(|path| !path.to_string_lossy().ends_with("F16.gguf"));
    paths.sort();
    // Recurrent states advance several tokens at a time, with another order of sums.
    let models: Vec<_> =
        paths.iter().map(|path| (path, open(path))).filter(|(_, model)| !model.config.is_recurrent()).collect();
    assert!(models.len() >= 10, "{}", models.len());
    let mut different = Vec::new();
    for (setup, chunks) in setups().into_iter().filter(|(setup, _)| setup.isa != Some(Isa::Scalar)) {
        different.extend(models.iter().filter_map(|(path, model)| first_difference(path, model, setup, 40, chunks)));
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn chunks_of_any_size_give_the_same_logits_over_long_contexts() {
    for (ty, kv) in [("Q8_0", KvType::F16), ("Q4_K_M", KvType::Q8_0)] {
        let path = fixtures().join(format!("gguf/llama-silu-gqa-256-{ty}.gguf"));
        let model = open(&path);
        for (setup, chunks) in setups() {
            let n = if setup.isa == Some(Isa::Scalar) { 40 } else { 600 };
            let setup = Setup { kv, threads: 2, ..setup };
            assert_eq!(first_difference(&path, &model, setup, n, chunks), None, "{setup:?}");
        }
    }
}

/// Conditions of a pass.
#[derive(Debug, Clone, Copy)]
struct Conditions {
    isa: Isa,
    activations: InputPrecision,
    mode: Sparsity,
}

/// Returns every instruction set of this machine, and every precision and mode on the best one.
fn conditions() -> Vec<Conditions> {
    let (activations, mode) = (InputPrecision::Int8, Sparsity::Dense);
    let mut all: Vec<_> = Isa::available().into_iter().map(|isa| Conditions { isa, activations, mode }).collect();
    let best = all.iter().map(|it| it.isa).max().unwrap_or(Isa::Scalar);
    all.push(Conditions { isa: best, activations: InputPrecision::Float, mode });
    all.extend(Sparsity::ALL.into_iter().filter(|it| *it != mode).map(|mode| Conditions {
        isa: best,
        activations,
        mode,
    }));
    all
}

/// Returns the longest pass that
/// [`Forward::same_bits`](thermocline_engine::runtime::Forward::same_bits) promises. Also reports
/// the first pass whose logits differ from passes of one token.
fn broken_promise(path: &Path, model: &Arc<Model>, conditions: Conditions) -> (usize, Option<String>) {
    const TOKENS: usize = 18;
    let ids: Vec<u32> = (0..TOKENS).map(|at| (at * 53 + 11) as u32 % model.config.n_vocab as u32).collect();
    let Conditions { isa, activations, mode } = conditions;
    let setup = Setup { isa: Some(isa), activations, ..Setup::default() };
    let mut forward = forward(model, setup);
    forward.set_sparsity(mode);
    let promised = forward.same_bits();
    if promised == 1 {
        return (1, None);
    }
    let mut bits = |tokens: usize| -> Vec<u32> {
        let mut kv = forward.kv_cache(TOKENS, setup.kv).unwrap();
        let passes = ids.chunks(tokens).flat_map(|pass| {
            let logits = forward.run_batch(&mut [(&mut kv, pass)], &mut ()).unwrap();
            logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>()
        });
        passes.collect()
    };
    let alone = bits(1);
    let differs = [2, 3, 5, 8, 9, 13, 16, 17]
        .into_iter()
        .filter(|tokens| *tokens <= promised)
        .find(|tokens| bits(*tokens) != alone);
    let name = path.file_name().unwrap_or_default().display();
    (promised, differs.map(|tokens| format!("{name} {conditions:?}: passes of {tokens}, {promised} promised")))
}

/// Tests every weight type and family, on every instruction set of this machine, in every mode.
/// Passes up to the promised size have the bits of single tokens. Where this holds, drafts are on
/// by default.
#[test]
fn promised_passes_have_the_bits_of_single_tokens() {
    let names = MODELS.iter().chain(&QUANTISED).chain(&RECURRENT);
    let mut paths: Vec<_> = names.map(|name| fixtures().join("models").join(name)).collect();
    for folder in ["gguf", "gguf2026", "powerinfer"] {
        let files = fixtures().join(folder).read_dir().unwrap().map(|entry| entry.unwrap().path());
        paths.extend(files.filter(|path| path.extension().is_some_and(|ending| ending == "gguf")));
    }
    let folders = fixtures().join("models");
    let (mut broken, mut several) = (Vec::new(), 0);
    for (path, model) in paths.iter().map(|path| (path, open(path))) {
        // The scalar instruction set tests the files only.
        let skips = |it: &Conditions| it.isa == Isa::Scalar && path.starts_with(&folders);
        for conditions in conditions().into_iter().filter(|it| !skips(it)) {
            let (promised, differs) = broken_promise(path, &model, conditions);
            let wanted = if model.config.is_recurrent() { 5..=5 } else { 2..=usize::MAX };
            assert!(wanted.contains(&promised), "{} {conditions:?}: {promised}", path.display());
            several += usize::from(promised > 1);
            broken.extend(differs);
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(several > 150, "only {several} promises");
}

/// After a pass of a token and drafts, a cache goes back to any of its tokens. The logits after
/// that are those of passes without drafts, bit by bit, and no token is computed again.
#[test]
fn rejected_drafts_leave_no_trace_in_recurrent_states() {
    for name in RECURRENT {
        let model = open(&fixtures().join("models").join(name));
        let ids: Vec<u32> = (0..24).map(|at| (at * 53 + 11) % model.config.n_vocab as u32).collect();
        for isa in Isa::available() {
            let mut forward = forward(&model, Setup { isa: Some(isa), ..Setup::default() });
            let alone = logits_in_passes(&mut forward, &ids, &[1; 24]);
            for drafts in 1..forward.same_bits() {
                for kept in 1..=1 + drafts {
                    let mut kv = forward.kv_cache(64, KvType::F32).unwrap();
                    let mut bits = Vec::new();
                    while kv.len() + kept <= ids.len() {
                        let at = kv.len();
                        // Rejected drafts are other tokens than those that follow.
                        let pass: Vec<u32> =
                            ids[at..at + kept].iter().copied().chain(vec![3; 1 + drafts - kept]).collect();
                        let logits = forward.run_batch(&mut [(&mut kv, &pass[..])], &mut ()).unwrap();
                        bits.extend(logits[..kept * model.config.n_vocab].iter().map(|logit| logit.to_bits()));
                        kv.truncate(at + kept);
                        assert_eq!(kv.len(), at + kept, "{name} {isa}: {kept} tokens kept, {drafts} drafts");
                    }
                    assert!(bits == alone[..bits.len()], "{name} {isa}: {kept} tokens kept, {drafts} drafts");
                }
            }
        }
    }
}

/// Returns the bits of the logits of `ids` in separate passes of these sizes.
fn logits_in_passes(forward: &mut Forward, ids: &[u32], passes: &[usize]) -> Vec<u32> {
    let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
    let mut bits = Vec::new();
    for tokens in passes {
        let pass = &ids[kv.len()..kv.len() + tokens];
        bits.extend(forward.run_batch(&mut [(&mut kv, pass)], &mut ()).unwrap().iter().map(|logit| logit.to_bits()));
    }
    bits
}

/// Returns curves that skip about half of the layer's inputs, the small ones.
fn input_curves(layer: &LayerWeights) -> InputCurves {
    let curve = |(site, threshold): (InputSite, f32)| {
        let inputs = site.inputs(layer);
        (inputs > 0).then(|| SiteCurve { importance: vec![1.0; inputs], thresholds: vec![threshold] })
    };
    let sites =
        [(InputSite::Attention, 0.5), (InputSite::Heads, 0.05), (InputSite::Ffn, 0.5), (InputSite::Hidden, 0.01)];
    InputCurves { levels: vec![0.5], sites: sites.map(curve) }
}

/// Returns the bits of the logits of tokens, each in its own pass.
fn alone(model: &Arc<Model>, mode: Sparsity) -> Vec<u32> {
    let ids: Vec<u32> = (0..9).map(|at| (at * 53 + 11) % model.config.n_vocab as u32).collect();
    let mut forward = forward(model, Setup { chunk: 1, ..Setup::default() });
    forward.set_sparsity(mode);
    let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
    forward.run(&ids, &mut kv, Outputs::All, &mut ()).unwrap().iter().map(|logit| logit.to_bits()).collect()
}

/// Tokens that skip neurons below a threshold, or small inputs, have the same bits in passes of
/// several tokens, on every instruction set.
#[test]
fn tokens_that_skip_have_the_same_bits_alone_and_among_others() {
    let mut broken = Vec::new();
    for name in
        ["gguf/llama-silu-gqa-256-Q4_0.gguf", "gguf/llama-silu-gqa-256-Q4_K_M.gguf", "models/qwen3", "models/qwen3-moe"]
    {
        let path = fixtures().join(name);
        for inputs in [false, true] {
            let mut model = Model::open(&path, &LoadOptions::default()).unwrap();
            for layer in &mut model.weights.layers {
                layer.activation_threshold = Some(0.005);
                layer.input_curves = Some(input_curves(layer));
            }
            if inputs {
                model.skip_inputs(0.5).unwrap();
            }
            let model = Arc::new(model);
            assert_ne!(alone(&model, Sparsity::Threshold), alone(&model, Sparsity::Dense), "{name} skips nothing");
            for isa in Isa::available() {
                let conditions = Conditions { isa, activations: InputPrecision::Int8, mode: Sparsity::Threshold };
                let (promised, differs) = broken_promise(&path, &model, conditions);
                assert!(promised >= 8, "{name} {isa}: {promised} promised");
                broken.extend(differs.map(|differs| format!("{differs}, inputs skipped: {inputs}")));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
