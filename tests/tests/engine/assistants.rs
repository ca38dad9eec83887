//! Assistants of Gemma 4: files of their own, which draft tokens from the keys and values of a
//! model.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
};

use thermocline_engine::{
    cpu::Isa,
    device::GpuLoad,
    format::{
        Array, Checkpoint, Container, Metadata, ReadMode, Value,
        gguf::{TensorInfo, to_bytes},
    },
    hybrid::HybridProcessor,
    model::{AssistantBase, Linear, LoadOptions, Model},
    placement::Placement,
    quant::TensorType,
    runtime::{Forward, KvCache, KvType, Outputs, Probe},
};
use thermocline_tests::{
    golden::{self, Expected, Setup, argmax, max_diff},
    gpu::{FULL, idle_cpu, shared},
};

use super::models::{fixtures, open};

/// Models with an assistant.
const MODELS: [&str; 2] = ["gemma4", "gemma4-e2b"];
/// Drafts of the reference after each context.
const DRAFTS: usize = 3;

fn folder(name: &str) -> PathBuf {
    fixtures().join("assistants").join(name)
}

fn checkpoint(name: &str) -> Checkpoint {
    Model::open_checkpoint(&folder(name), ReadMode::Map).unwrap()
}

fn assistant(target: &Model, file: Checkpoint) -> Arc<Model> {
    Arc::new(Model::drafting_for(target, file, &LoadOptions::default()).unwrap())
}

/// The hidden state of the last token of a pass.
#[derive(Default)]
struct LatestState(Vec<f32>);

impl Probe for LatestState {
    fn wants_states(&mut self) -> bool {
        true
    }

    fn states(&mut self, states: &[f32]) {
        self.0 = states.to_vec();
    }
}

/// `matrix x`, in the order of the rows.
fn product(linear: &Linear, x: &[f32]) -> Vec<f32> {
    let mut row = vec![0.0; x.len()];
    let dot = |at: usize| {
        linear.weight.dequantise_row(at, &mut row);
        row.iter().zip(x).map(|(a, b)| a * b).sum()
    };
    (0..linear.weight.rows()).map(dot).collect()
}

/// The layers of the other model that an assistant reads.
fn read_layers(assistant: &Model) -> Vec<usize> {
    let mut read: Vec<_> =
        assistant.config.layers.iter().filter_map(|layer| layer.attention.as_ref()?.kv_from).collect();
    read.dedup();
    read
}

/// Computes the logits of three drafts after the first `held` of `ids`, `[DRAFTS, n_vocab]`. Every
/// draft continues from the token with the largest of the logits `wanted`.
fn logits(forwards: &mut [Forward; 2], ids: &[u32], held: usize, wanted: &[f32]) -> Vec<f32> {
    let [model, forward] = forwards;
    let [target, assistant] = [&*model, &*forward].map(|forward| Arc::clone(forward.model()));
    let (n_vocab, width) = (target.config.n_vocab, target.config.d_model);
    let weights = assistant.weights.assistant.as_ref().unwrap();
    let (mut kv, mut state) = (model.kv_cache(ids.len(), KvType::F32).unwrap(), LatestState::default());
    let read = read_layers(&assistant);
    let copy_to_ram = |model: &mut Forward, kv: &mut KvCache| {
        model.residency().map(|(_, residency)| residency.copy_to_ram(&read, kv)).transpose().unwrap();
    };
    // The copies in RAM have to forget rejected tokens, and get the tokens that take their place.
    let before = held / 2;
    if before > 0 {
        model.run(&ids[..before], &mut kv, Outputs::None, &mut ()).unwrap();
        copy_to_ram(model, &mut kv);
        model.run_batch(&mut [(&mut kv, &[7, 3])], &mut ()).unwrap();
        copy_to_ram(model, &mut kv);
        kv.truncate(before);
    }
    model.run(&ids[before..held], &mut kv, Outputs::None, &mut state).unwrap();
    copy_to_ram(model, &mut kv);
    let mut hidden = state.0.split_off(state.0.len() - width);
    let own = forward.kv_cache(ids.len(), KvType::F32).unwrap();
    let (mut token, mut all) = (ids[held], Vec::new());
    for wanted in wanted.chunks_exact(n_vocab) {
        let mut input = vec![0.0; width];
        target.weights.token_embedding.dequantise_row(token as usize, &mut input);
        input.iter_mut().for_each(|x| *x *= target.config.embedding_scale);
        input.extend_from_slice(&hidden);
        let input = product(&weights.input, &input);
        let logits = forward.run_assistant(&input, &own, &mut kv, Outputs::Last, &mut state).unwrap();
        all.extend_from_slice(logits);
        hidden = product(&weights.state, &state.0);
        token = argmax(wanted);
    }
    assert_eq!(kv.len(), held);
    all
}

/// Returns which tokens are candidates of a draft. The reference gives all other tokens the same
/// logit, which is below those of the candidates.
fn candidates(logits: &[f32]) -> Vec<bool> {
    let least = logits.iter().copied().fold(f32::INFINITY, f32::min);
    let others = logits.iter().filter(|logit| **logit == least).count();
    logits.iter().map(|logit| others == 1 || *logit > least).collect()
}

#[test]
fn logits_match_the_reference_on_every_instruction_set() {
    for name in MODELS {
        let target = Arc::new(open(&format!("models/{name}")));
        let assistant = assistant(&target, checkpoint(name));
        for isa in Isa::available() {
            let setup = Setup { isa: Some(isa), ..Setup::default() };
            let mut forwards = [&target, &assistant].map(|model| golden::forward(model, setup));
            check(&mut forwards, name, &isa.to_string());
        }
    }
}

/// Compares the logits after every context of the reference.
fn check(forwards: &mut [Forward; 2], name: &str, what: &str) {
    let n_vocab = forwards[0].model().config.n_vocab;
    let expected = Expected::read(&folder(name).join("expected.safetensors"));
    let (ids, all) = (expected.ids("input_ids"), expected.f32("logits"));
    let contexts = expected.ids("contexts");
    assert!(contexts.iter().any(|held| *held > 8), "{name}: no context is longer than the window");
    for (held, wanted) in contexts.iter().zip(all.chunks(DRAFTS * n_vocab)) {
        let found = logits(forwards, &ids, *held as usize, wanted);
        for (found, wanted) in found.chunks(n_vocab).zip(wanted.chunks(n_vocab)) {
            let kept = candidates(wanted);
            let [found, wanted]: [Vec<f32>; 2] = [found, wanted]
                .map(|of| of.iter().enumerate().filter(|(at, _)| kept[*at]).map(|(_, logit)| *logit).collect());
            let error = max_diff(&found, &wanted);
            // The largest logits are near 30.
            assert!(error <= 5e-3, "{name}, {what}, {held} tokens: logits differ by {error}");
        }
    }
}

/// The assistant is on the CPU and reads copies of keys and values that are on the device: all of
/// them, or those of the last layers.
#[test]
fn logits_match_the_reference_where_the_model_is_on_a_device() {
    let gpu = shared(FULL);
    for name in MODELS {
        let target = Arc::new(open(&format!("models/{name}")));
        let assistant = assistant(&target, checkpoint(name));
        let read = read_layers(&assistant);
        let (first, last) = (*read.iter().min().unwrap(), *read.iter().max().unwrap());
        for first_resident in [0, first + 1, last] {
            let hot = (0..target.config.n_layer()).map(|_| Vec::new()).collect();
            let placement = Placement { first_resident, hot, head: true };
            let load = GpuLoad { chunk: 32, ..GpuLoad::default() };
            let mut go_on = |_, _| ControlFlow::Continue(());
            let processor = HybridProcessor::load(gpu, idle_cpu(), &target, &placement, &load, &mut go_on).unwrap();
            let model = Forward::on(Arc::clone(&target), Box::new(processor));
            let mut forwards = [model, golden::forward(&assistant, Setup::default())];
            check(&mut forwards, name, &format!("layers from {first_resident} on the device"));
        }
    }
}

/// A GGUF file has the keys of llama.cpp, which counts every layer as a predicting one, and the
/// tokens of centroids as floats.
#[test]
fn gguf_files_equal_folders() {
    let scratch = tempfile::tempdir().unwrap();
    for name in MODELS {
        let target = Arc::new(open(&format!("models/{name}")));
        let source = checkpoint(name);
        let mut metadata = Metadata::new(&source.path);
        source.metadata.iter().for_each(|(key, value)| drop(metadata.set(key, value.clone())));
        metadata.set("gemma4-assistant.nextn_predict_layers", Value::U32(4));
        let tokens = (0..384).map(|id| format!("<{id}>")).collect();
        metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
        let ordering = |bytes: &[u8]| -> Vec<u8> {
            let ids = bytes.chunks_exact(8).map(|id| i64::from_le_bytes(id.try_into().unwrap()) as f32);
            ids.flat_map(f32::to_le_bytes).collect()
        };
        let tensors: Vec<(TensorInfo, Vec<u8>)> = source
            .tensors()
            .iter()
            .map(|tensor| {
                let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
                match tensor.ty {
                    TensorType::I64 => (TensorInfo { name, ty: TensorType::F32, shape }, ordering(&tensor.data)),
                    ty => (TensorInfo { name, ty, shape }, tensor.data.to_vec()),
                }
            })
            .collect();
        let parts: Vec<(TensorInfo, &[u8])> = tensors.iter().map(|(info, data)| (info.clone(), &data[..])).collect();
        let path = scratch.path().join(format!("{name}.gguf"));
        std::fs::write(&path, to_bytes(Container::Gguf(3), &metadata, &parts).unwrap()).unwrap();
        let [plain, file] =
            [source, Model::open_checkpoint(&path, ReadMode::Map).unwrap()].map(|file| assistant(&target, file));
        assert_eq!(file.config.layers, plain.config.layers, "{name}");
        let of = |model: &Model| {
            let centroids = model.weights.assistant.as_ref().unwrap().centroids.clone();
            centroids.map(|centroids| (centroids.tokens, centroids.used))
        };
        assert_eq!(of(&file), of(&plain), "{name}");
        assert_eq!(of(&file).is_some(), name == "gemma4-e2b");
        let ids: Vec<u32> = (20..40).collect();
        let wanted = vec![0.0; DRAFTS * 384];
        let all = [&file, &plain].map(|assistant| {
            let mut forwards = [&target, assistant].map(|model| golden::forward(model, Setup::default()));
            logits(&mut forwards, &ids, 15, &wanted)
        });
        assert!(all[0] == all[1], "{name}");
    }
}

/// Copies the folder `from` of fixtures to `to`, with `config.json` as published for Gemma 4 12B.
fn unified(from: &str, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(fixtures().join(from)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    let path = to.join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ty = config["model_type"].as_str().unwrap().replace("gemma4", "gemma4_unified");
    config["model_type"] = ty.into();
    let text = config["text_config"].as_object_mut().unwrap();
    text["model_type"] = "gemma4_unified_text".into();
    text["use_bidirectional_attention"] = "vision".into();
    // The class of this type does not have these keys.
    for key in [
        "vocab_size_per_layer_input",
        "hidden_size_per_layer_input",
        "enable_moe_block",
        "num_experts",
        "top_k_experts",
        "moe_intermediate_size",
    ] {
        text.remove(key);
    }
    std::fs::write(path, serde_json::to_string(&config).unwrap()).unwrap();
}

#[test]
fn unified_models_and_their_assistants_open_as_the_others() {
    let scratch = tempfile::tempdir().unwrap();
    let [of_model, of_assistant] = ["models/gemma4", "assistants/gemma4"].map(|from| {
        let to = scratch.path().join(from);
        unified(from, &to);
        to
    });
    let plain = open("models/gemma4");
    let target = Model::open(&of_model, &LoadOptions::default()).unwrap();
    // Without a key, models whose layers have no inputs of their own read whole pictures.
    let without_pictures = |model: &Model| {
        let mut layers = model.config.layers.clone();
        let attentions = layers.iter_mut().filter_map(|layer| layer.attention.as_mut());
        attentions.for_each(|attention| attention.whole_pictures = false);
        layers
    };
    assert_eq!(without_pictures(&target), without_pictures(&plain));
    let file = Model::open_checkpoint(&of_assistant, ReadMode::Map).unwrap();
    let base = AssistantBase { architecture: "gemma4", d_model: target.config.d_model };
    assert_eq!((AssistantBase::of(&file), AssistantBase::of(&target.checkpoint)), (Some(base), None));
    let drafter = assistant(&target, file);
    assert_eq!(without_pictures(&drafter), without_pictures(&assistant(&plain, checkpoint("gemma4"))));
}

#[test]
fn assistants_of_other_models_are_refused() {
    let refusal = |target: &str, of: &str| {
        let target = open(&format!("models/{target}"));
        Model::drafting_for(&target, checkpoint(of), &LoadOptions::default()).unwrap_err().to_string()
    };
    let error = refusal("gemma4", "gemma4-e2b");
    assert!(error.contains("expected a model with keys of 1 x 16") && error.contains("got keys of 2 x 16"), "{error}");
    let error = refusal("qwen2", "gemma4");
    assert!(error.contains("for layer 0 of") && error.contains("got no keys in"), "{error}");
    let error = Model::open(&folder("gemma4"), &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("an assistant of gemma4") && error.contains("(--draft)"), "{error}");
}
