//! Drafts change no text: many prompts, with every draft head, type of weights and instruction set.

use std::path::Path;

use thermocline_engine::{
    cpu::Isa,
    model::convert,
    quant::TensorType,
    runtime::Sparsity,
    session::{DraftSource, SparsityChoice},
};
use thermocline_tests::golden::DRAFT_HEADS;

use super::*;

/// Types of weights whose blocks fit the rows of the tiny models.
const TYPES: [TensorType; 4] = [TensorType::F32, TensorType::F16, TensorType::Q8_0, TensorType::Q4_0];
/// Types of files with rows of 256 columns and without a draft head.
const FILES: [&str; 4] = ["Q8_0", "Q4_0", "Q4_K_M", "Q6_K"];

/// Prompt number `at`: tokens in an irregular order, of which the last eight occurred before.
fn prompt(at: u32, n_vocab: u32) -> Vec<u32> {
    let irregular = |i: u32| (i * i * 31 + i * 97 + at * 13 + at * at * 7 + 11) % n_vocab;
    let first = 8 + at % 5;
    (0..first).chain(first - 8..first).map(irregular).collect()
}

/// Compares the answers to `prompts` prompts without drafts and with three drafts in every pass.
/// Returns the numbers of drafts of heads and of lookups.
fn drafts_of(path: &Path, options: EngineOptions, prompts: u32, what: &str) -> [usize; 2] {
    let engine = Engine::open(path, options).unwrap();
    let n_vocab = engine.model().config.n_vocab as u32;
    let mut drafts = [0; 2];
    for at in 0..prompts {
        let request = greedy(&prompt(at, n_vocab), 12);
        let without = Request { speculation: SpeculationMode::Off, ..request.clone() };
        let expected = generate(&session(&engine), without).ids;
        let answer = generate(&session(&engine), Request { drafts: Some(3), ..request });
        assert_eq!(answer.ids, expected, "{what}, prompt {at}");
        let of = [DraftSource::Head, DraftSource::Lookup].map(|source| answer.stats.drafts.of(source).drafted);
        drafts = std::array::from_fn(|i| drafts[i] + of[i]);
    }
    drafts
}

/// Options with the instruction set `isa`.
fn with_isa(isa: Isa) -> EngineOptions {
    let options = options();
    EngineOptions { cpu: CpuOptions { isa: Some(isa), ..options.cpu }, ..options }
}

fn heads_change_no_text(prompts: u32) {
    let folder = tempfile::tempdir().unwrap();
    for name in DRAFT_HEADS {
        for ty in TYPES {
            let file = folder.path().join(format!("{name}-{ty}.gguf"));
            convert(&model(name), &file, ty, &mut |_, _| ()).unwrap();
            for isa in Isa::available() {
                let what = format!("{name}, {ty}, {isa}");
                let [heads, _] = drafts_of(&file, with_isa(isa), prompts, &what);
                assert!(heads >= 3 * prompts as usize, "{what}: {heads} drafts");
            }
        }
    }
}

fn lookups_change_no_text(prompts: u32) {
    let fixtures = model("..");
    let files = FILES.map(|ty| format!("gguf/llama-silu-gqa-256-{ty}.gguf"));
    let modes = Sparsity::ALL.map(SparsityChoice::Mode);
    for isa in Isa::available() {
        let mut lookups = 0;
        for file in &files {
            let what = format!("{file}, {isa}");
            lookups += drafts_of(&fixtures.join(file), with_isa(isa), prompts, &what)[1];
        }
        for sparsity in modes {
            let options = EngineOptions { sparsity, adaptive: Some(false), ..with_isa(isa) };
            let file = fixtures.join("powerinfer/llama-relu-q4_0.powerinfer.gguf");
            lookups += drafts_of(&file, options, prompts, &format!("{sparsity}, {isa}"))[1];
        }
        assert!(lookups > 0, "{isa}");
    }
}

#[test]
fn drafts_of_heads_change_no_text_of_any_type_and_instruction_set() {
    heads_change_no_text(3);
}

#[test]
#[ignore = "second tier: two hundred prompts"]
fn drafts_of_heads_change_no_text_of_two_hundred_prompts() {
    heads_change_no_text(200);
}

#[test]
fn drafts_of_lookups_change_no_text_of_any_type_and_instruction_set() {
    lookups_change_no_text(3);
}

#[test]
#[ignore = "second tier: two hundred prompts"]
fn drafts_of_lookups_change_no_text_of_two_hundred_prompts() {
    lookups_change_no_text(200);
}
