//! Models that are larger than their RAM budget. They compute the same bits, and the pager counts
//! no more bytes in RAM than the budget.

// Other systems leave it to themselves which weights are in RAM.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{fs, path::Path, sync::Arc};

use thermocline_engine::{
    Error,
    cpu::{Cpu, CpuOptions},
    format::survive_lost_files,
    model::{LoadOptions, Model},
    quant::TensorType,
    runtime::{Forward, KvType, Outputs, Sparsity},
    session::{ContextPolicy, Engine, EngineOptions, Event, Prompt, Request, Sampling, SessionOptions},
    synth::{SynthOptions, SynthShape, generate},
};

fn write(shape: &str, to: &Path) {
    let shape = SynthShape::named(shape).unwrap();
    generate(&SynthOptions { ty: TensorType::Q4_0, ..SynthOptions::new(shape, to) }, &mut |_| {}).unwrap();
}

/// Computes a prompt of ten tokens and then single tokens. Returns all logits.
fn logits(model: &Arc<Model>, mode: Sparsity) -> Vec<f32> {
    let cpu = Cpu::new(&CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap();
    let mut forward = Forward::new(Arc::clone(model), cpu);
    forward.set_sparsity(mode);
    let mut kv = forward.kv_cache(64, KvType::F32).unwrap();
    let prompt: Vec<u32> = (5..15).collect();
    let mut all = forward.run(&prompt, &mut kv, Outputs::All, &mut ()).unwrap().to_vec();
    for token in 20..50 {
        all.extend_from_slice(forward.run(&[token], &mut kv, Outputs::Last, &mut ()).unwrap());
    }
    all
}

#[test]
fn part_of_a_model_in_ram_gives_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    for (shape, modes) in [
        ("tiny-llama", &[Sparsity::Dense][..]),
        ("tiny-relu-llama", &[Sparsity::Dense, Sparsity::Exact, Sparsity::Predicted]),
        ("tiny-turbosparse-mixtral", &[Sparsity::Dense, Sparsity::Exact]),
        ("tiny-qwen3.5-moe", &[Sparsity::Dense]),
    ] {
        let path = folder.path().join(shape);
        write(shape, &path);
        let open = || Arc::new(Model::open(&path, &LoadOptions::default()).unwrap());
        let whole = open();
        let bytes = whole.checkpoint.tensor_bytes();
        assert!(whole.keep_within(bytes).is_none() && whole.pager().is_none(), "{shape}: a model that fits");
        for mode in modes {
            let wanted = logits(&whole, *mode);
            for budget in [bytes / 2, 0] {
                let model = open();
                assert_eq!(model.keep_within(budget).unwrap().figures().present, 0);
                assert!(logits(&model, *mode) == wanted, "{shape} {mode}: other bits with {budget} bytes");
                let figures = model.pager().unwrap().figures();
                assert_eq!(figures.budget, budget);
                assert!(figures.present <= budget, "{shape} {mode}: {figures:?}");
                assert!(figures.read > bytes / 2, "{shape} {mode}: {figures:?} of {bytes}");
            }
        }
    }
}

#[test]
fn answer_of_a_part_of_a_model_ends_with_an_error_if_the_file_is_truncated() {
    survive_lost_files();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lost.gguf");
    write("tiny-llama", &path);
    let engine = Engine::open(&path, EngineOptions { ram: Some(0), ..EngineOptions::default() }).unwrap();
    assert!(engine.model().pager().is_some());
    let session = engine.session(SessionOptions::default()).unwrap();
    let events = session.generate(Request {
        sampling: Sampling::greedy(),
        ignore_eos: true,
        on_full: ContextPolicy::Shift { keep: 1 },
        ..Request::new(Prompt::Tokens((3..40).collect()))
    });
    while !matches!(events.recv().unwrap(), Event::Token { .. }) {}
    fs::File::options().write(true).open(&path).and_then(|file| file.set_len(4096)).unwrap();
    let end = events.iter().find_map(|event| if let Event::Error(error) = event { Some(error) } else { None });
    assert!(matches!(&end, Some(Error::FileLost { path: lost }) if *lost == path), "{end:?}");
}
