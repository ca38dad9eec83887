//! Small folders, each with a setting that published models of its family change or omit. The
//! engine computes the folder as the reference does, or refuses it by the key's name. The reference
//! is transformers 5.24.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use thermocline_engine::{
    cpu::Isa,
    model::{LoadOptions, Model, convert},
    quant::TensorType,
    runtime::KvType,
};
use thermocline_tests::{
    golden::{self, Expected, Run, Setup, greedy, max_diff, observed_in},
    gpu::{FULL, forward, shared},
};

/// Folders that the engine computes.
const RIGHT: [&str; 41] = [
    "bitnet-tie-absent",
    "cohere-norms-of-heads",
    "cohere2_moe-dense-by-type",
    "dynamic-beyond-trained",
    "exaone4-pattern-number",
    "exaone4-window-all-full",
    "falcon-rw",
    "gemma3-attn-softcap",
    "gemma3n-sparsity-half",
    "gemma4-saved-by-5.24",
    "gemma4-yarn-by-kind",
    "glm4_moe-no-rotary-factor",
    "gpt_oss-no-rope_scaling",
    "granitemoehybrid-heads-auto",
    "granitemoehybrid-saved-by-5.24",
    "latent-norm-eps",
    "lfm2-tie-embedding",
    "llama4-own-theta",
    "longrope-factor",
    "mimo2-stretched-rotates-all",
    "ministral3-temperature-without-yarn",
    "ministral3-yarn-below-a-turn",
    "nemotron_h-least-step",
    "nemotron_h-own-head",
    "nemotron_h-saved-by-5.24",
    "olmo3-sliding-base",
    "opt-350m",
    "opt-norms-without-weights",
    "qwen2_moe-window",
    "qwen3_moe-window",
    "silu-only-deepseek_v3",
    "silu-only-ernie4_5",
    "silu-only-ernie4_5_moe",
    "silu-only-glm4_moe",
    "silu-only-laguna",
    "silu-only-minimax_m2",
    "smollm3-window",
    "stablelm-2-12b",
    "stablelm-parallel",
    "yarn-attention-factor-latent",
    "yarn-mscale-all-dim-alone",
];

/// Refused folders, and the key that the error names. No published model has such a setting, or the
/// engine has no such layer.
const REFUSED: [(&str, &str); 4] = [
    ("gpt_oss-swiglu-alpha", "swiglu_alpha"),
    ("phimoe-two-magnitudes", "rope.long_mscale = 1.2"),
    ("recurrent-act-granitemoehybrid", "hidden_act = gelu"),
    ("recurrent-act-qwen3_5", "hidden_act = gelu"),
];

/// Folders that devices refuse. Devices have no layer norms of heads, no windows of chunks and no
/// biases by position.
const CPU_ALONE: [&str; 4] = ["cohere-norms-of-heads", "falcon-rw", "llama4-own-theta", "stablelm-2-12b"];

/// Tokens that the reference had seen before it computed the folder whose rope frequencies depend
/// on their number.
const DYNAMIC_LENGTH: usize = 30;

/// Returns the context length in which a prompt is computed.
fn context(name: &str, ids: &[u32]) -> usize {
    if name == "dynamic-beyond-trained" { DYNAMIC_LENGTH } else { ids.len() }
}

fn prompt(name: &str, model: &Arc<Model>, setup: Setup, ids: &[u32]) -> Run {
    observed_in(&mut golden::forward(model, setup), setup.kv, context(name, ids), ids)
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/variants").join(name)
}

fn open(path: &Path) -> Arc<Model> {
    Arc::new(Model::open(path, &LoadOptions::default()).unwrap_or_else(|error| panic!("{error}")))
}

fn load(name: &str) -> (Arc<Model>, Expected) {
    (open(&folder(name)), Expected::read(&folder(name).join("expected.safetensors")))
}

/// Fails if `error` exceeds what the order of sums explains.
fn check(what: &str, error: f32) {
    assert!(error <= 1e-3, "{what}: off by {error}");
}

#[test]
fn every_folder_is_right_or_refused() {
    let folders: BTreeSet<String> = fs::read_dir(folder("."))
        .expect("the folder of variants")
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    let known: BTreeSet<String> =
        RIGHT.into_iter().chain(REFUSED.into_iter().map(|(name, _)| name)).map(str::to_owned).collect();
    assert_eq!(folders, known);
}

#[test]
fn settings_that_no_layer_has_are_refused_by_name() {
    for (name, key) in REFUSED {
        let error = Model::open(&folder(name), &LoadOptions::default()).expect_err(name).to_string();
        assert!(error.contains(key), "{name}: {error}");
        println!("{name}: {error}");
    }
}

#[test]
fn logits_and_hidden_states_of_variants_match_the_reference() {
    let mut wrong = Vec::new();
    for name in RIGHT {
        let (model, expected) = load(name);
        let (ids, logits, hidden) = (expected.ids("input_ids"), expected.f32("logits"), expected.f32("hidden"));
        let isas = Isa::available().into_iter().map(|isa| Setup { isa: Some(isa), ..Setup::default() });
        let mut largest = 0f32;
        for setup in isas.chain([1, 5].map(|chunk| Setup { chunk, threads: 2, ..Setup::default() })) {
            let run = prompt(name, &model, setup, &ids);
            largest = largest
                .max(max_diff(&run.logits, &logits))
                .max(max_diff(same_hidden(name, &model, &run.hidden.concat()), same_hidden(name, &model, &hidden)));
        }
        println!("{name}: {largest:e}");
        if largest > 1e-3 {
            wrong.push((name, largest));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// The engine treats the last layer's norm of this folder as the model's final norm. The
/// reference's last hidden state therefore includes one more norm.
const LAST_NORM_IS_FINAL: &str = "opt-350m";

/// Returns the hidden states of `of`, `[layers, tokens, d]`, that are comparable with the
/// reference.
fn same_hidden<'a>(name: &str, model: &Model, of: &'a [f32]) -> &'a [f32] {
    let layers = model.config.n_layer();
    let same = if name == LAST_NORM_IS_FINAL { layers - 1 } else { layers };
    &of[..of.len() / layers * same]
}

/// Dynamic rope frequencies depend on the length of the context. A continuation would change it, so
/// folders with them are left out.
#[test]
fn greedy_continuations_of_variants_match_the_reference() {
    for name in RIGHT.into_iter().filter(|name| !name.starts_with("dynamic")) {
        let (model, expected) = load(name);
        let (ids, wanted) = (expected.ids("input_ids"), expected.ids("greedy_ids"));
        assert_eq!(greedy(&model, Setup::default(), &ids, wanted.len()), wanted, "{name}");
    }
}

#[test]
fn converted_variants_keep_their_logits() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    for name in RIGHT {
        let target = scratch.path().join(format!("{name}.gguf"));
        convert(&folder(name), &target, TensorType::F32, &mut |_, _| ()).unwrap_or_else(|error| panic!("{error}"));
        let (model, expected) = (open(&target), Expected::read(&folder(name).join("expected.safetensors")));
        let run = prompt(name, &model, Setup::default(), &expected.ids("input_ids"));
        check(name, max_diff(&run.logits, &expected.f32("logits")));
    }
}

#[test]
fn logits_of_variants_on_the_device_match_the_reference() {
    for name in RIGHT.into_iter().filter(|name| !CPU_ALONE.contains(name)) {
        let (model, expected) = load(name);
        let mut forward = forward(shared(FULL), &model, 64);
        let ids = expected.ids("input_ids");
        let run = observed_in(&mut forward, KvType::F32, context(name, &ids), &ids);
        check(name, max_diff(&run.logits, &expected.f32("logits")));
        let (hidden, wanted) = (run.hidden.concat(), expected.f32("hidden"));
        check(name, max_diff(same_hidden(name, &model, &hidden), same_hidden(name, &model, &wanted)));
    }
}
