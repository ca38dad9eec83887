//! Logits of draft heads (multi-token prediction): those of the reference, on the CPU, on a device,
//! and where a part of the model is on a device. The heads of some folders are in files of their
//! own, which `tests/reference/numpy_heads.py` writes.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{fs, ops::ControlFlow, path::PathBuf, sync::Arc};

use safetensors::SafeTensors;
use serde_json::json;
use thermocline_engine::{
    cpu::Isa,
    device::GpuLoad,
    format::ReadMode,
    hybrid::HybridProcessor,
    model::{LoadOptions, Model},
    placement::Placement,
    runtime::{Forward, KvType, Outputs, Probe},
};
use thermocline_tests::{
    golden::{self, DRAFT_HEADS, Expected, Setup, max_diff},
    gpu::{FULL, forward, idle_cpu, shared},
};

use super::{draft_heads::rewritten, models::fixtures};

/// Collects hidden states.
#[derive(Default)]
struct StateCollector(Vec<f32>);

impl Probe for StateCollector {
    fn wants_states(&mut self) -> bool {
        true
    }

    fn states(&mut self, states: &[f32]) {
        self.0.extend_from_slice(states);
    }
}

/// The logits of a model and of its draft head.
struct HeadRun {
    logits: Vec<f32>,
    nextn: Vec<f32>,
}

/// Computes `ids` with a model and its head, in parts of `sizes` tokens.
fn run(model: &mut Forward, head: &mut Forward, ids: &[u32], sizes: &[usize]) -> HeadRun {
    let mut states = StateCollector::default();
    let mut kv = model.kv_cache(ids.len(), KvType::F32).unwrap();
    let (mut logits, mut rest) = (Vec::new(), ids);
    for size in sizes.iter().cycle() {
        let Some(part) = rest.split_off(..(*size).min(rest.len())).filter(|part| !part.is_empty()) else { break };
        logits.extend_from_slice(model.run(part, &mut kv, Outputs::All, &mut states).unwrap());
    }
    let d = model.model().config.d_model;
    assert_eq!(states.0.len(), ids.len() * d);
    let mut kv = head.kv_cache(ids.len(), KvType::F32).unwrap();
    let (mut nextn, mut at) = (Vec::new(), 0);
    for size in sizes.iter().cycle() {
        let end = (at + size).min(ids.len() - 1);
        if at == end {
            break;
        }
        let of_part = &states.0[at * d..end * d];
        nextn.extend_from_slice(head.run_head(&ids[at + 1..=end], of_part, &mut kv, Outputs::All, &mut ()).unwrap());
        at = end;
    }
    HeadRun { logits, nextn }
}

/// Folders whose heads are in `fixtures/draft_heads`.
const ADDED_HEADS: [&str; 2] = ["mimo-v2-flash", "step3"];
/// Name of the reference's logits of a head.
const NEXTN: &str = "nextn_logits";

/// All models with a head.
fn names() -> impl Iterator<Item = &'static str> {
    DRAFT_HEADS.into_iter().chain(ADDED_HEADS)
}

fn open(name: &str) -> Arc<Model> {
    let path = fixtures().join("models").join(name);
    let model = if ADDED_HEADS.contains(&name) {
        let folder = tempfile::tempdir().unwrap();
        rewritten(&path, folder.path(), |config, tensors| {
            if let Some(text) = config.get_mut("text_config") {
                text["num_nextn_predict_layers"] = 1.into();
                text["mtp_layer_types"] = json!(["sliding_attention"]);
            }
            let bytes = fs::read(head_file(name)).unwrap();
            let head = SafeTensors::deserialize(&bytes).unwrap();
            let stored = head.iter().filter(|(name, _)| *name != NEXTN);
            tensors
                .extend(stored.map(|(name, view)| {
                    (name.to_owned(), (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
                }));
        });
        let options = LoadOptions { read_mode: ReadMode::Read, ..LoadOptions::default() };
        Model::open(folder.path(), &options)
    } else {
        Model::open(&path, &LoadOptions::default())
    };
    Arc::new(model.unwrap_or_else(|error| panic!("{name}: {error}")))
}

/// The file with the logits of a head, and the head itself if it is not in the folder.
fn head_file(name: &str) -> PathBuf {
    match ADDED_HEADS.contains(&name) {
        true => fixtures().join("draft_heads").join(format!("{name}.safetensors")),
        false => fixtures().join("models").join(name).join("expected.safetensors"),
    }
}

fn head_of(model: &Model) -> Arc<Model> {
    model.draft_head.clone().expect("a draft head")
}

/// Compares the logits of `run` with the logits of the reference.
fn check(name: &str, what: &str, run: &HeadRun, tolerance: f32) {
    let expected = Expected::read(&fixtures().join("models").join(name).join("expected.safetensors"));
    let error = max_diff(&run.logits, &expected.f32("logits"));
    assert!(error <= tolerance, "{name}, {what}: logits differ by {error}");
    let nextn = Expected::read(&head_file(name)).f32(NEXTN);
    let error = max_diff(&run.nextn, &nextn[..run.nextn.len()]);
    assert!(error <= tolerance, "{name}, {what}: logits of the head differ by {error}");
}

fn ids(name: &str) -> Vec<u32> {
    Expected::read(&fixtures().join("models").join(name).join("expected.safetensors")).ids("input_ids")
}

#[test]
fn heads_match_the_reference_on_the_cpu() {
    for name in names() {
        let model = open(name);
        for (isa, sizes) in Isa::available().into_iter().zip([&[64][..], &[5, 1, 1, 3], &[1]].into_iter().cycle()) {
            let setup = Setup { isa: Some(isa), ..Setup::default() };
            let [mut model, mut head] =
                [Arc::clone(&model), head_of(&model)].map(|model| golden::forward(&model, setup));
            let run = run(&mut model, &mut head, &ids(name), sizes);
            check(name, &format!("{isa}, parts of {sizes:?}"), &run, 1e-3);
        }
    }
}

#[test]
fn heads_match_the_reference_on_a_device() {
    let gpu = shared(FULL);
    for name in names() {
        let model = open(name);
        let [mut model, mut head] = [Arc::clone(&model), head_of(&model)].map(|model| forward(gpu, &model, 32));
        for sizes in [&[64][..], &[7, 1, 2]] {
            check(name, &format!("device, parts of {sizes:?}"), &run(&mut model, &mut head, &ids(name), sizes), 2e-3);
        }
    }
}

/// Half of the model's layers are on the device, and of the head everything but the FFN.
#[test]
fn heads_match_the_reference_where_a_part_is_on_a_device() {
    let gpu = shared(FULL);
    for name in names() {
        let model = open(name);
        let forwards = [Arc::clone(&model), head_of(&model)].map(|model| {
            let n_layer = model.config.n_layer();
            let hot = (0..n_layer).map(|_| Vec::new()).collect();
            let placement = Placement { first_resident: n_layer / 2, hot, head: true };
            let load = GpuLoad { chunk: 32, ..GpuLoad::default() };
            let mut go_on = |_, _| ControlFlow::Continue(());
            let processor = HybridProcessor::load(gpu, idle_cpu(), &model, &placement, &load, &mut go_on).unwrap();
            Forward::on(Arc::clone(&model), Box::new(processor))
        });
        let [mut model, mut head] = forwards;
        check(name, "hybrid", &run(&mut model, &mut head, &ids(name), &[7, 1, 2]), 2e-3);
    }
}
