//! Preparing models. Counts equal those of another implementation, and every family gets what it
//! can use. A stopped preparation resumes with the same result, and no content of its folder makes
//! it fail.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod bundles;
mod inputs;
mod moe;
mod own;

#[cfg(unix)]
use std::process::Command;
use std::{
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
};

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use thermocline_engine::{
    Error,
    cpu::{Cpu, CpuOptions},
    format::ReadMode,
    model::{Down, Ffn, LoadOptions, Model},
    runtime::{Forward, KvType, LayerFiring, Outputs, Probe, Sparsity, predictor_scores},
    sparsity::{
        prepare::{PredictorChoice, PrepareCorpus, PrepareOptions, Prepared, run},
        profile::Profiler,
        sidecar::{SidecarAttachment, SidecarChoice, attach, path_beside},
    },
    tokenizer::{EncodeOptions, Tokenizer},
};
use thermocline_tests::held_out::{HeldOut, SEPARATOR};
#[cfg(unix)]
use thermocline_tests::{
    terminal::{command, thermocline},
    wait::eventually,
};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn open(path: &Path) -> Arc<Model> {
    Arc::new(Model::open(path, &LoadOptions::default()).unwrap())
}

fn fixture(name: &str) -> Arc<Model> {
    open(&here("fixtures").join(name))
}

fn cpu() -> Cpu {
    Cpu::new(&CpuOptions::default()).unwrap()
}

/// Returns `texts` texts of random tokens, each of up to `length` tokens.
fn texts(model: &Model, texts: usize, length: usize) -> Vec<Vec<u32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let vocabulary = model.config.n_vocab as u32;
    (0..texts).map(|n| (0..length - n % 3).map(|_| rng.next_u32() % vocabulary).collect()).collect()
}

/// Returns options with enough text to learn from, but little enough for a test.
fn options(folder: &Path, model: &Model) -> PrepareOptions {
    let texts = texts(model, 24, 40);
    let tokens = texts.iter().map(Vec::len).sum::<usize>() as u64;
    PrepareOptions {
        corpus: PrepareCorpus::Tokens(texts),
        tokens,
        length: 40,
        cpu: CpuOptions { threads: Some(2), ..CpuOptions::default() },
        ..PrepareOptions::new(folder.join("m.thermocline.gguf"))
    }
}

fn prepared(model: &Arc<Model>, options: &PrepareOptions) -> Prepared {
    run(model, options, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Compares how often every neuron of the built-in model fires in `stories` with the reference's
/// counts.
fn firing_counts(stories: &HeldOut) {
    let HeldOut { text, figures, firings } = stories;
    let model = open(&here("../assets/storyteller/storyteller-F16.gguf"));
    let tokenizer = Tokenizer::from_checkpoint(&model.checkpoint).unwrap();
    let (mut forward, counting) = (Forward::new(Arc::clone(&model), cpu()), cpu());
    let mut kv = forward.kv_cache(512, KvType::F32).unwrap();
    let mut profiler = Profiler::new(&counting, &model);
    for story in text.split(SEPARATOR).map(str::trim).filter(|story| !story.is_empty()) {
        let mut tokens = vec![tokenizer.bos().unwrap()];
        tokens.extend(tokenizer.encode(story, EncodeOptions::PLAIN).unwrap());
        tokens.truncate(512);
        kv.truncate(0);
        forward.run(&tokens, &mut kv, Outputs::None, &mut profiler).unwrap();
    }
    let profile = profiler.profile();
    assert_eq!(profile.tokens, figures["tokens"].as_u64().unwrap());
    assert_eq!(firings.len(), 6 * 1024);
    // With another order of sums, a gate near zero may fall on the other side.
    let (mut differing, mut all, mut worst) = (0, 0, 0);
    for (layer, wanted) in firings.chunks_exact(1024).enumerate() {
        for (count, wanted) in profile.counts[layer].iter().zip(wanted) {
            let wanted = u64::try_from(*wanted).unwrap();
            let off = count.abs_diff(wanted);
            (differing, all, worst) = (differing + off, all + wanted, worst.max(off));
        }
    }
    println!("{differing} of {all} firings differ, at most {worst} of one neuron");
    // For few firings, small differences are chance.
    let most = (all / 1_000_000).max(6);
    assert!(differing <= most && worst <= 2, "{differing} of {all}, at most {worst} of one neuron");
    // These figures follow from the reference's own counts.
    let (skew, silent) = (&figures["neurons_for_80_percent_of_firings_per_layer"], &figures["never_fired"]);
    for layer in 0..6 {
        assert!((profile.skew(layer, 0.8) - skew[layer].as_f64().unwrap()).abs() < 0.002, "layer {layer}");
        assert_eq!(profile.silent(layer) as u64, silent[layer].as_u64().unwrap(), "layer {layer}");
    }
}

#[test]
fn firing_counts_match_the_reference() {
    firing_counts(&HeldOut::first());
}

#[test]
#[ignore = "second tier: all held-out stories instead of the first eighth"]
fn firing_counts_of_all_held_out_stories_match_the_reference() {
    firing_counts(&HeldOut::all());
}

/// Counts the neurons that single tokens fire in exact mode.
#[derive(Default)]
struct Fired(Vec<Vec<u64>>);

impl Probe for Fired {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        self.0.resize(self.0.len().max(firing.layer + 1), Vec::new());
        let counts = &mut self.0[firing.layer];
        counts.resize(firing.fired.len() * 32 / firing.tokens, 0);
        counts.iter_mut().enumerate().for_each(|(i, count)| *count += u64::from(firing.fired[i / 32] >> (i % 32) & 1));
    }
}

#[test]
fn relu_models_get_predictors() {
    for name in ["models/llama-relu-256", "models/opt", "models/falcon-new", "models/bamboo"] {
        let (folder, model) = (tempfile::tempdir().unwrap(), fixture(name));
        let options = PrepareOptions { predictors: PredictorChoice::Rows, ..options(folder.path(), &model) };
        let made = prepared(&model, &options);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{name}: the workspace is gone");
        let PrepareCorpus::Tokens(texts) = &options.corpus else { unreachable!() };

        // The sidecar attaches, and the model with it gives the same logits.
        let mut attached = Model::open(&model.checkpoint.path, &LoadOptions::default()).unwrap();
        let choice = SidecarChoice::File(options.out.clone());
        assert!(
            matches!(attach(&mut attached, &choice, ReadMode::Map).unwrap(), SidecarAttachment::Attached(_)),
            "{name}"
        );
        let attached = Arc::new(attached);
        let (mut sparse, mut dense) =
            (Forward::new(Arc::clone(&attached), cpu()), Forward::new(Arc::clone(&model), cpu()));
        sparse.set_sparsity(Sparsity::Exact);
        let (mut kv, mut other) = (sparse.kv_cache(40, KvType::F32).unwrap(), dense.kv_cache(40, KvType::F32).unwrap());
        let mut fired = Fired::default();
        for text in texts {
            kv.truncate(0);
            for token in text {
                sparse.run(&[*token], &mut kv, Outputs::None, &mut fired).unwrap();
            }
        }
        // The recorded counts equal the counts of this test.
        let tokens = made.sidecar.provenance.tokens_profiled;
        assert_eq!(tokens, texts.iter().map(Vec::len).sum::<usize>() as u64);
        for (layer, counts) in made.sidecar.layers.iter().zip(&fired.0) {
            let frequency = layer.frequency.as_ref().unwrap();
            for (neuron, frequency) in frequency.iter().enumerate() {
                let off = (f64::from(*frequency) * tokens as f64 - counts[neuron] as f64).abs();
                assert!(off < 2.5, "{name}: neuron {neuron} fires {off} times more or less often");
            }
        }
        let text = &texts[0];
        kv.truncate(0);
        let reference = dense.run(text, &mut other, Outputs::Last, &mut ()).unwrap();
        let (last, before) = text.split_last().unwrap();
        sparse.run(before, &mut kv, Outputs::None, &mut ()).unwrap();
        let exact = sparse.run(&[*last], &mut kv, Outputs::Last, &mut ()).unwrap();
        for (a, b) in exact.iter().zip(reference) {
            assert!((a - b).abs() <= 1e-3 * b.abs().max(1.0), "{name}: {a} {b}");
        }
        for (layer, weights) in made.sidecar.layers.iter().zip(&attached.weights.layers) {
            let (predictor, down) = (layer.predictor.as_ref().unwrap(), layer.down.as_ref().unwrap());
            assert_eq!((predictor.kind_name(), down.error), ("rows", 0.0), "{name}");
            assert!(predictor.quality.recall > 0.85, "{name}: {:?}", predictor.quality);
            assert!(weights.predictor.is_some() && weights.frequency.is_some(), "{name}");
        }
    }
}

#[test]
fn silu_models_get_activation_thresholds() {
    let (folder, model) = (tempfile::tempdir().unwrap(), fixture("models/llama-silu-gqa"));
    let made = prepared(&model, &options(folder.path(), &model));
    for (report, layer) in made.layers.iter().zip(&made.sidecar.layers) {
        let threshold = layer.activation_threshold.unwrap();
        let scales = layer.gate_scales.as_ref().unwrap();
        assert!(scales.len() == model.config.n_ff && scales.iter().all(|scale| *scale > 0.0), "{scales:?}");
        assert!(
            (threshold.density - 0.5).abs() < 0.1 && threshold.value > 0.0 && layer.predictor.is_none(),
            "{threshold:?}"
        );
        // The strongest neurons with 99 % of the mass are more than half of all neurons, but not
        // all.
        assert!((0.5..1.0).contains(&report.density), "{report:?}");
    }
    assert_eq!(path_beside(&model.checkpoint.path), model.checkpoint.path.join("model.thermocline.gguf"));
}

#[test]
fn quantised_down_projections_are_transposed_with_little_loss() {
    let (folder, model) = (tempfile::tempdir().unwrap(), fixture("gguf/llama-silu-gqa-256-Q4_0.gguf"));
    let made = prepared(&model, &options(folder.path(), &model));
    for (layer, weights) in made.sidecar.layers.iter().zip(&model.weights.layers) {
        let (down, Ffn::Dense(ffn)) = (layer.down.as_ref().unwrap(), &weights.ffn) else { panic!("an MoE layer") };
        let Down::Outputs(own) = &ffn.down else { panic!("neuron-major") };
        assert_eq!((down.weight.rows(), down.weight.cols()), (own.weight.cols(), own.weight.rows()));
        assert!(down.error > 0.0 && down.error < 0.08, "{}", down.error);
        // The recorded error is the measured one.
        let mut row = vec![0.0; own.weight.cols()];
        let (mut error, mut square) = (0.0f64, 0.0f64);
        let mut transposed = vec![vec![0.0; own.weight.rows()]; own.weight.cols()];
        transposed.iter_mut().enumerate().for_each(|(n, row)| down.weight.dequantise_row(n, row));
        for output in 0..own.weight.rows() {
            own.weight.dequantise_row(output, &mut row);
            for (neuron, weight) in row.iter().enumerate() {
                error += f64::from(weight - transposed[neuron][output]).powi(2);
                square += f64::from(weight * weight);
            }
        }
        assert!(((error / square).sqrt() / f64::from(down.error) - 1.0).abs() < 1e-3);
    }
}

/// Stops after `patience` progress reports and starts again with more patience. Patience must grow
/// because an unfinished layer starts over.
fn in_pieces(
    model: &Arc<Model>,
    options: &PrepareOptions,
    patience: u32,
    between: &mut dyn FnMut(u32),
) -> (Prepared, u32) {
    for stops in 0.. {
        let mut left = patience + stops * stops;
        let mut tell = |_: &_| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        match run(model, options, &mut tell) {
            Ok(made) => return (made, stops),
            Err(Error::Cancelled) => {
                assert!(!options.out.exists() && options.workspace().is_dir());
                between(stops);
            }
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

#[test]
fn resumed_preparation_writes_the_same_file() {
    let (folder, model) = (tempfile::tempdir().unwrap(), fixture("models/llama-relu"));
    let whole = PrepareOptions { predictors: PredictorChoice::Trained, ..options(folder.path(), &model) };
    prepared(&model, &whole);
    let expected = fs::read(&whole.out).unwrap();
    for (at, patience) in [37, 150].into_iter().enumerate() {
        let options = PrepareOptions { out: folder.path().join(format!("{at}.gguf")), ..whole.clone() };
        let (_, stops) = in_pieces(&model, &options, patience, &mut |_| ());
        assert!(stops > 0, "never stopped");
        println!("stopped {stops} times");
        assert!(fs::read(&options.out).unwrap() == expected, "stopped every {patience} steps");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "workspaces are gone");
}

#[test]
fn damaged_workspace_files_are_recomputed() {
    let (folder, model) = (tempfile::tempdir().unwrap(), fixture("models/llama-relu"));
    let whole = PrepareOptions { predictors: PredictorChoice::Rows, ..options(folder.path(), &model) };
    prepared(&model, &whole);
    let expected = fs::read(&whole.out).unwrap();
    let options = PrepareOptions { out: folder.path().join("again.gguf"), ..whole };
    let work = options.workspace();
    let mut seen = Vec::new();
    let mut harm = |stops: u32| {
        let mut files: Vec<_> = fs::read_dir(&work).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let Some(file) = files.get(stops as usize % files.len()).filter(|_| stops < 12) else { return };
        seen.push(file.file_name().unwrap().to_owned());
        match stops % 3 {
            0 => fs::remove_file(file).unwrap(),
            1 => fs::write(file, b"{\"damaged\"").unwrap(),
            _ => {
                let length = file.metadata().unwrap().len();
                fs::OpenOptions::new().write(true).open(file).unwrap().set_len(length / 2).unwrap();
            }
        }
    };
    in_pieces(&model, &options, 9, &mut harm);
    assert!(fs::read(&options.out).unwrap() == expected);
    assert!(seen.len() > 3, "{seen:?}");
}

#[test]
fn concurrent_preparation_in_one_workspace_is_refused() {
    let (folder, model) = (tempfile::tempdir().unwrap(), fixture("models/llama-relu"));
    let options = PrepareOptions { predictors: PredictorChoice::None, ..options(folder.path(), &model) };
    let mut refused = false;
    run(&model, &options, &mut |_| {
        if !refused {
            let error = run(&model, &options, &mut |_| ControlFlow::Continue(())).unwrap_err();
            refused = error.to_string().contains("another preparation");
            assert!(refused, "{error}");
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(refused);
}

#[test]
fn disk_limit_reduces_the_recorded_tokens() {
    let (folder, model) = (tempfile::tempdir().unwrap(), fixture("models/llama-relu"));
    let whole = PrepareOptions { predictors: PredictorChoice::Rows, ..options(folder.path(), &model) };
    let (all, bytes) = (prepared(&model, &whole), 2 * (model.config.d_model * model.config.n_layer()) as u64);
    let mut largest = 0;
    let small = PrepareOptions { disk: 300 * bytes, ..whole.clone() };
    let some = run(&model, &small, &mut |_| {
        let entries = fs::read_dir(small.workspace()).into_iter().flatten().flatten();
        let recorded = entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "f16"));
        largest = largest.max(recorded.map(|entry| entry.metadata().map_or(0, |metadata| metadata.len())).sum());
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(some.sidecar.provenance.tokens_profiled, all.sidecar.provenance.tokens_profiled);
    assert!(some.sidecar.provenance.tokens_held_out < all.sidecar.provenance.tokens_held_out);
    assert!(largest > 0 && largest <= 300 * bytes, "{largest} of {}", 300 * bytes);
}

#[test]
fn invalid_prepare_options_are_refused() {
    let (folder, model) = (tempfile::tempdir().unwrap(), fixture("models/llama-relu"));
    let good = options(folder.path(), &model);
    let refused = |options: PrepareOptions, what: &str| {
        let error = run(&model, &options, &mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    refused(PrepareOptions { tokens: 0, ..good.clone() }, "tokens to read");
    refused(PrepareOptions { length: 1, ..good.clone() }, "tokens of a text");
    refused(PrepareOptions { corpus: PrepareCorpus::Tokens(Vec::new()), ..good.clone() }, "at least one token");
    refused(PrepareOptions { disk: 0, ..good.clone() }, "at least one token");
    refused(PrepareOptions { out: folder.path().join("no/such/folder/x.gguf"), ..good.clone() }, "no/such");
    let absent = PrepareCorpus::Files(vec![folder.path().join("absent.txt")]);
    refused(PrepareOptions { corpus: absent, ..good }, "absent.txt");
}

/// A story that did not train the model.
const STORY: &str = "Once upon a time, there was a little frog named Tim. Tim lived near a big pond with his mom. One day, he saw a \
    red ball in the water. \"Mom, look! A ball!\" he said. His mom smiled and said, \"You can play with it, but you must be careful.\" \
    Tim jumped into the water and swam to the ball. He was very happy. But then a big bird came and took the ball away. Tim was sad. \
    He cried and cried. A kind fish heard him. \"Why are you sad?\" asked the fish. \"The bird took my ball,\" said Tim. The fish \
    said, \"Let us ask the bird to share.\" They went to the bird and asked. The bird felt sorry and gave the ball back. They all \
    played together until the sun went down. Tim learned that it is good to share with friends.";

/// Inputs of dense FFNs and values of their gates for one chunk.
#[derive(Default)]
struct Gates(Vec<(Vec<f32>, Vec<f32>)>);

impl Probe for Gates {
    fn wants_ffn_input(&mut self) -> bool {
        true
    }

    fn ffn_input(&mut self, _: usize, _: usize, normed: &[f32], _: &[f32]) {
        self.0.push((normed.to_vec(), Vec::new()));
    }

    fn wants_ffn_hidden(&mut self) -> bool {
        true
    }

    fn ffn_hidden(&mut self, layer: usize, _: usize, gate: &[f32], _: &[f32]) {
        self.0[layer].1 = gate.to_vec();
    }
}

/// Returns the mean negative log probability of `tokens`, token by token.
fn loss(model: &Arc<Model>, mode: Sparsity, tokens: &[u32]) -> f64 {
    let mut forward = Forward::new(Arc::clone(model), cpu());
    forward.set_sparsity(mode);
    let mut kv = forward.kv_cache(tokens.len(), KvType::F32).unwrap();
    let losses = tokens.windows(2).map(|pair| {
        let logits = forward.run(&pair[..1], &mut kv, Outputs::Last, &mut ()).unwrap();
        let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        sum.ln() - f64::from(logits[pair[1] as usize])
    });
    losses.sum::<f64>() / (tokens.len() - 1) as f64
}

#[test]
fn built_in_sidecar_attaches_and_meets_its_recall() {
    let folder = here("../assets/storyteller");
    let mut model = Model::open(&folder.join("storyteller-F16.gguf"), &LoadOptions::default()).unwrap();
    // The sidecar file is beside the model. The program has the same file in memory.
    let SidecarAttachment::Attached(sidecar) = attach(&mut model, &SidecarChoice::Beside, ReadMode::Map).unwrap()
    else {
        panic!("the sidecar is not the model's: prepare it again (assets/storyteller/README.md)")
    };
    let target = sidecar.provenance.target_recall;
    assert!(sidecar.layers.iter().all(|layer| layer.predictor.as_ref().is_some_and(|p| p.quality.recall >= target)));

    let tokenizer = Tokenizer::from_checkpoint(&model.checkpoint).unwrap();
    let (model, cpu) = (Arc::new(model), cpu());
    let tokens = tokenizer.encode(STORY, EncodeOptions::TEXT).unwrap();
    let (mut gates, mut forward) = (Gates::default(), Forward::new(Arc::clone(&model), self::cpu()));
    let mut kv = forward.kv_cache(tokens.len(), KvType::F32).unwrap();
    forward.run(&tokens, &mut kv, Outputs::None, &mut gates).unwrap();
    for (layer, (x, gate)) in gates.0.iter().enumerate() {
        let predictor = model.weights.layers[layer].predictor.as_ref().unwrap();
        let (mut inner, mut scores) = (Vec::new(), vec![0.0; gate.len()]);
        predictor_scores(predictor, &cpu, x, tokens.len(), &mut inner, &mut scores).unwrap();
        let fired = gate.iter().filter(|gate| **gate > 0.0).count();
        let found = gate.iter().zip(&scores).filter(|(gate, score)| **gate > 0.0 && **score >= predictor.threshold);
        let recall = found.count() as f32 / fired as f32;
        println!("layer {layer}: {recall:.3}");
        // This is one short text, but the target is a mean over many.
        assert!(recall > target - 0.03, "layer {layer}: {recall}");
    }
    let (dense, predicted) = (loss(&model, Sparsity::Dense, &tokens), loss(&model, Sparsity::Predicted, &tokens));
    println!("perplexity {:.3} dense, {:.3} predicted", dense.exp(), predicted.exp());
    assert!((predicted - dense).exp() < 1.01, "{dense} {predicted}");
}

// Interrupts the command by a signal. On Windows, `tests/windows.sh` presses Ctrl-C in a terminal.
#[cfg(unix)]
#[test]
fn prepare_command_resumes_after_an_interrupt() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("s.thermocline.gguf");
    let file = out.to_str().unwrap();
    let args = ["prepare", "-m", "builtin", "--tokens", "600", "--predictors", "rows", "--out", file];
    // Ctrl-C arrives at some point of the run. At any point, the second run must succeed.
    let mut child = command(&args).spawn().unwrap();
    let work = folder.path().join(".s.thermocline.gguf.work");
    eventually("recorded inputs", || work.join("normed-5.f16").exists());
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let status = thermocline_tests::terminal::wait(&mut child);
    assert_eq!(status.code(), Some(130));
    assert!(!out.exists() && work.is_dir());

    let report = thermocline(&[&args[..], &["--json"]].concat()).json();
    assert!(!work.exists());
    let layers = report["layers"].as_array().unwrap();
    assert_eq!((layers.len(), report["details"].as_array().unwrap().len()), (6, 6));
    for layer in layers {
        assert_eq!(layer["predictor"]["kind"], "rows");
        assert!(layer["active"].as_f64().unwrap() < 0.3 && layer["skew"].as_f64().unwrap() > 0.1, "{layer}");
    }
    let shown = thermocline(&["inspect", file]).ok();
    assert!(shown.contains("| recall |") && shown.contains("written by the model itself"), "{shown}");
    assert_eq!(thermocline(&["inspect", file, "--json"]).json()["prepared"]["layers"], report["layers"]);
    let answer = thermocline(&["run", "--sidecar", file, "--raw", "-p", "Once", "-n", "4", "--json"]).json();
    assert_eq!(answer["tokens"].as_array().unwrap().len(), 4);
    let other = here("fixtures/models/llama-relu");
    let refused = thermocline(&["run", "-m", other.to_str().unwrap(), "--sidecar", file, "-p", "x"]).refusal();
    assert!(refused.contains("another model"), "{refused}");
}
