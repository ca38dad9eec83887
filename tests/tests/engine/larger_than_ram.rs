//! Models that are larger than their RAM budget. They compute the same bits, and no more bytes of
//! their files than the budget stay in memory.

// Other systems leave it to themselves which weights are in RAM.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{fs, hint::black_box, ops::ControlFlow, path::Path, sync::Arc};

use thermocline_engine::{
    Error,
    cpu::{Cpu, CpuOptions},
    format::{Pager, ReadMode, survive_lost_files},
    model::{Ffn, LoadOptions, Model},
    quant::TensorType,
    runtime::{Forward, KvType, Outputs, Sparsity},
    session::{
        AdapterChoice, ContextPolicy, DeviceChoice, DeviceStatus, Engine, EngineOptions, Event, GpuOptions, Prompt,
        Request, Sampling, SessionOptions, SparsityChoice, SpeculationMode,
    },
    sparsity::{
        prepare::{PredictorChoice, PrepareCorpus, PrepareOptions, run},
        sidecar::{PreparedLayer, SidecarChoice, attach, path_beside},
    },
    synth::{SynthOptions, SynthShape, generate},
};
use thermocline_tests::wait::{eventually, until};

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
                let figures = model.keep_within(budget).unwrap().figures();
                assert!(figures.present <= budget && figures.read == 0, "{shape}: {figures:?}");
                assert!(logits(&model, *mode) == wanted, "{shape} {mode}: other bits with {budget} bytes");
                let figures = model.pager().unwrap().figures();
                assert_eq!(figures.budget, budget);
                assert!(figures.present <= budget, "{shape} {mode}: {figures:?}");
                assert!(figures.read > bytes / 2, "{shape} {mode}: {figures:?} of {bytes}");
            }
        }
    }
}

/// Tokens of three answers that are computed in one batch.
fn batch(engine: &Engine, speculation: SpeculationMode) -> Vec<Vec<u32>> {
    let sessions: Vec<_> = (0..3).map(|_| engine.session(SessionOptions::default()).unwrap()).collect();
    let answers = sessions.iter().zip(5..).map(|(session, first)| {
        session.generate(Request {
            sampling: Sampling::greedy(),
            max_tokens: Some(40),
            ignore_eos: true,
            speculation,
            ..Request::new(Prompt::Tokens((first..first + 9).collect()))
        })
    });
    let answers: Vec<_> = answers.collect();
    let ids = |event: Event| match event {
        Event::Token { id, .. } => Some(id),
        Event::Error(error) => panic!("{error}"),
        _ => None,
    };
    answers.iter().map(|events| events.iter().filter_map(ids).collect()).collect()
}

/// A model with a sidecar that contains predictors and neuron-major down projections, or instead of
/// these `bundles`.
fn prepared(path: &Path, bundles: bool) {
    let shape = SynthShape::named("tiny-relu-llama").unwrap();
    let options = SynthOptions { ty: TensorType::Q4_0, predictor: false, ..SynthOptions::new(shape, path) };
    generate(&options, &mut |_| {}).unwrap();
    prepare(path, PrepareOptions { bundles, ..PrepareOptions::new(path_beside(path)) });
}

/// Writes a sidecar of the model at `path`.
fn prepare(path: &Path, options: PrepareOptions) {
    let model = Arc::new(Model::open(path, &LoadOptions::default()).unwrap());
    let text = |of: u32| (0..40).map(|at| (of * 911 + at * 37) % 2000).collect();
    let options = PrepareOptions {
        corpus: PrepareCorpus::Tokens((0..24).map(text).collect()),
        tokens: 960,
        length: 40,
        cpu: CpuOptions { threads: Some(2), ..CpuOptions::default() },
        ..options
    };
    run(&model, &options, &mut |_| ControlFlow::Continue(())).unwrap();
}

/// A folder on a disk. The folder for temporary files may be in RAM, which no page leaves.
fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Bytes of the pages that answers may leave in memory beside the budget: pages at the borders of
/// tensors, and reads in flight.
const SLACK: u64 = 256 << 10;

/// The system has dropped all pages beyond the budget when a pass begins, and `pager` counts the
/// others. During a pass the system may read pages around a late access, as its settings say.
fn check_pages(pager: &Pager) {
    let budget = pager.figures().budget;
    eventually("the pages that are not kept leave RAM", || {
        pager.note_other_reads();
        pager.begin_pass(true);
        pager.resident_bytes().unwrap() <= budget + SLACK
    });
    let figures = pager.figures();
    assert!(figures.present > budget / 2 && figures.present <= budget, "{figures:?}");
}

/// Answers with half of the weights of `path` in RAM are those with all of them in RAM. After them,
/// the other half leaves RAM.
fn check_residency(path: &Path, sparsity: Sparsity, speculation: SpeculationMode) {
    let cpu = CpuOptions { threads: Some(2), ..CpuOptions::default() };
    let options =
        EngineOptions { cpu, context: Some(128), sparsity: SparsityChoice::Mode(sparsity), ..EngineOptions::default() };
    let whole = Engine::open(path, options.clone()).unwrap();
    assert!(whole.model().pager().is_none());
    let (wanted, bytes) = (batch(&whole, speculation), whole.model().checkpoint.tensor_bytes());
    drop(whole);
    for file in fs::read_dir(path.parent().unwrap()).unwrap().map(|file| file.unwrap().path()) {
        // The system cannot drop pages that it has not written yet.
        fs::File::open(&file).and_then(|file| file.sync_all()).unwrap();
        fs::read(file).unwrap();
    }
    // Half of the RAM is for weights in any case.
    let engine = Engine::open(path, EngineOptions { ram: Some(bytes), ..options }).unwrap();
    let pager = engine.model().pager().unwrap();
    assert_eq!(pager.figures().budget, bytes / 2);
    let kept = || pager.resident_bytes().unwrap();
    // Reads all weights without an announcement, as a copy to a GPU does, so that there is
    // something to release.
    let tensors = engine.model().checkpoint.tensors().iter();
    tensors.flat_map(|tensor| tensor.data.chunks(4096)).for_each(|page| _ = black_box(page[0]));
    assert!(kept() >= bytes, "{}: only {} of {bytes} bytes are in memory", path.display(), kept());
    assert!(batch(&engine, speculation) == wanted, "{}: other tokens", path.display());
    check_pages(pager);
}

#[test]
fn pages_of_a_dense_model_leave_ram() {
    let folder = on_disk();
    let path = folder.path().join("dense.gguf");
    write("tiny-llama", &path);
    check_residency(&path, Sparsity::Dense, SpeculationMode::Off);
}

#[test]
fn pages_of_a_draft_head_leave_ram() {
    let folder = on_disk();
    let path = folder.path().join("head.gguf");
    let shape = SynthShape::named("tiny-qwen3.5").unwrap();
    let options =
        SynthOptions { ty: TensorType::Q4_0, layers: Some(8), agreement: Some(0.7), ..SynthOptions::new(shape, &path) };
    generate(&options, &mut |_| {}).unwrap();
    check_residency(&path, Sparsity::Dense, SpeculationMode::SameBits);
}

#[test]
fn pages_of_a_sidecar_leave_ram() {
    let folder = on_disk();
    let path = folder.path().join("prepared.gguf");
    for bundles in [false, true] {
        prepared(&path, bundles);
        for mode in [Sparsity::Exact, Sparsity::Predicted] {
            check_residency(&path, mode, SpeculationMode::Off);
        }
    }
}

/// Computes a prompt and then single tokens. Returns the logits of these, and the read requests for
/// them.
fn decoded(model: &Arc<Model>, mode: Sparsity) -> (Vec<f32>, u64) {
    let cpu = Cpu::new(&CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap();
    let mut forward = Forward::new(Arc::clone(model), cpu);
    forward.set_sparsity(mode);
    let mut kv = forward.kv_cache(128, KvType::F32).unwrap();
    forward.run(&(5..15).collect::<Vec<u32>>(), &mut kv, Outputs::Last, &mut ()).unwrap();
    let requests = || model.pager().map_or(0, |pager| pager.figures().requests);
    let (before, mut all) = (requests(), Vec::new());
    for token in 20..84 {
        all.extend_from_slice(forward.run(&[token], &mut kv, Outputs::Last, &mut ()).unwrap());
    }
    (all, requests() - before)
}

#[test]
fn bundles_need_fewer_reads_and_give_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let shape = SynthShape::named("tiny-relu-llama").unwrap();
    let options = SynthOptions { ty: TensorType::F32, predictor: false, ..SynthOptions::new(shape, &path) };
    generate(&options, &mut |_| {}).unwrap();
    let sidecars = [false, true].map(|bundles| {
        let out = folder.path().join(format!("{bundles}.thermocline.gguf"));
        let predictors = PredictorChoice::Rows;
        prepare(&path, PrepareOptions { bundles, predictors, ..PrepareOptions::new(&out) });
        out
    });
    let open = |sidecar: &Path| {
        let mut model = Model::open(&path, &LoadOptions::default()).unwrap();
        attach(&mut model, &SidecarChoice::File(sidecar.to_owned()), ReadMode::Map).unwrap();
        Arc::new(model)
    };
    let bytes = open(&sidecars[0]).checkpoint.tensor_bytes();
    for mode in [Sparsity::Dense, Sparsity::Exact, Sparsity::Predicted] {
        let (wanted, none) = decoded(&open(&sidecars[0]), mode);
        assert!(decoded(&open(&sidecars[1]), mode) == (wanted.clone(), none), "{mode}: other bits in RAM");
        for budget in [bytes / 2, bytes / 4, 0] {
            let [apart, bundled] = sidecars.each_ref().map(|sidecar| {
                let model = open(sidecar);
                model.keep_within(budget).unwrap();
                let (logits, requests) = decoded(&model, mode);
                assert!(logits == wanted, "{mode}: other bits with {budget} bytes, {}", sidecar.display());
                let figures = model.pager().unwrap().figures();
                assert!(figures.present <= budget && figures.requests <= figures.read / 4096, "{figures:?}");
                requests
            });
            println!("{mode} with {budget} bytes: {apart} requests, {bundled} with bundles");
            if mode == Sparsity::Predicted && budget > 0 {
                assert!(bundled * 4 < apart * 3, "{mode} with {budget} bytes: {bundled} of {apart} requests");
            }
        }
    }
}

/// The bytes of a model with bundles are those of its matrices in use. Rows that bundles replace do
/// not count.
#[test]
fn replaced_rows_take_no_room() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prepared.gguf");
    let weights = [false, true].map(|bundles| {
        prepared(&path, bundles);
        let mut model = Model::open(&path, &LoadOptions::default()).unwrap();
        let found = attach(&mut model, &SidecarChoice::Beside, ReadMode::Map).unwrap();
        let layers = &found.sidecar().unwrap().layers;
        let of =
            |layer: &PreparedLayer| layer.bundle_bytes().map(|bytes| bytes * layer.frequency.as_ref().unwrap().len());
        let records: usize = layers.iter().filter_map(of).sum();
        let replaced =
            model.weights.layers.iter().zip(layers).map(|(weights, layer)| match (&weights.ffn, &layer.bundles) {
                (Ffn::Dense(ffn), Some(_)) => ffn.up.weight.byte_len() + ffn.down.linear().weight.byte_len(),
                _ => 0,
            });
        let replaced: usize = replaced.sum();
        assert_eq!((records > replaced, replaced > 0), (bundles, bundles));
        let padding = records as u64 - replaced as u64;
        (model.keep_within(0).unwrap().figures().weights, padding)
    });
    let [(apart, _), (bundled, more)] = weights;
    // Gate rows and padding are added. The padding of the last record is in no matrix.
    assert!(bundled <= apart + more && bundled + 4096 > apart + more, "{bundled} of {apart} and {more} bytes");
}

/// Weights in a GPU's memory do not take the RAM of the others. The upload reads all of them, and
/// what is not kept leaves RAM after it.
#[test]
fn weights_in_gpu_memory_leave_ram_to_the_others() {
    let folder = on_disk();
    let path = folder.path().join("placed.gguf");
    write("tiny-llama", &path);
    fs::File::open(&path).and_then(|file| file.sync_all()).unwrap();
    let bytes = Model::open(&path, &LoadOptions::default()).unwrap().checkpoint.tensor_bytes();
    let open = |ram, budget| {
        let gpu = GpuOptions { adapter: AdapterChoice::Index(0), budget, ..GpuOptions::default() };
        let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
        let device = DeviceChoice::Gpu(gpu);
        Engine::open(&path, EngineOptions { cpu, context: Some(256), ram, device, ..EngineOptions::default() }).unwrap()
    };
    let whole = open(None, None);
    batch(&whole, SpeculationMode::Off);
    let accounted = until("the whole model is on the GPU", || match whole.device() {
        DeviceStatus::Gpu(memory) if !memory.moving => Some(memory.accounted),
        _ => None,
    });
    drop(whole);
    let engine = open(Some(bytes), Some(accounted - bytes / 4));
    let pager = engine.model().pager().unwrap();
    batch(&engine, SpeculationMode::Off);
    assert!(matches!(engine.device(), DeviceStatus::Gpu(_)), "{:?}", engine.device());
    let before = pager.figures();
    batch(&engine, SpeculationMode::Off);
    let read = pager.figures().read - before.read;
    assert!(read < bytes / 10, "{read} of {bytes} bytes were read again with {before:?}");
    check_pages(pager);
}

#[test]
fn answer_ends_with_an_error_if_the_sidecar_is_truncated() {
    survive_lost_files();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prepared.gguf");
    for bundles in [false, true] {
        prepared(&path, bundles);
        let engine = Engine::open(&path, EngineOptions { ram: Some(0), ..EngineOptions::default() }).unwrap();
        check_loss(&engine, &path_beside(&path));
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
    check_loss(&engine, &path);
}

/// Truncates `file` while `engine` answers. The answer ends with an error that names the file.
fn check_loss(engine: &Engine, file: &Path) {
    let session = engine.session(SessionOptions::default()).unwrap();
    let events = session.generate(Request {
        sampling: Sampling::greedy(),
        ignore_eos: true,
        on_full: ContextPolicy::Shift { keep: 1 },
        ..Request::new(Prompt::Tokens((3..40).collect()))
    });
    while !matches!(events.recv().unwrap(), Event::Token { .. }) {}
    fs::File::options().write(true).open(file).and_then(|file| file.set_len(4096)).unwrap();
    let end = events.iter().find_map(|event| if let Event::Error(error) = event { Some(error) } else { None });
    assert!(matches!(&end, Some(Error::FileLost { path: lost }) if lost == file), "{end:?}");
}
