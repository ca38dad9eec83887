//! Draft heads and draft models: their drafts change no text, on the CPU and on a device.

use thermocline_engine::{
    gpu::{AdapterChoice, GpuOptions},
    session::{DeviceChoice, DeviceStatus, DraftSource},
};
use thermocline_tests::golden::DRAFT_HEADS;

use super::*;

/// Returns prompts that a head drafts after: no tokens occur twice, so a lookup finds nothing.
fn prompts(name: &str) -> Vec<Request> {
    let ids = expected(name, "input_ids");
    let drawn_from_few = |seed| Sampling { top_k: 2, temperature: 1.0, seed: Some(seed), ..Sampling::default() };
    let mut requests = vec![greedy(&ids, 60), greedy(&ids[..1], 40)];
    requests.extend((0..6).map(|seed| Request { sampling: drawn_from_few(seed), ..greedy(&ids, 60) }));
    requests
}

/// Compares answers with and without drafts. Returns the number of tokens that `source` drafted.
fn drafted_by(source: DraftSource, engine: &Engine, name: &str, mode: SpeculationMode) -> usize {
    drafted_in(&prompts(name), source, engine, name, mode)
}

/// Does the same as [`drafted_by`] with other prompts.
fn drafted_in(prompts: &[Request], source: DraftSource, engine: &Engine, name: &str, mode: SpeculationMode) -> usize {
    let mut drafted = 0;
    for (at, request) in prompts.iter().enumerate() {
        let plain = generate(&session(engine), Request { speculation: SpeculationMode::Off, ..request.clone() });
        let session = session(engine);
        for again in 0..2 {
            let answer =
                generate(&session, Request { speculation: mode, drafts: (again > 0).then_some(3), ..request.clone() });
            assert_eq!(answer.ids, plain.ids, "{name}, request {at}, answer {again}");
            let counts = answer.stats.drafts.of(source);
            assert!(counts.accepted <= counts.drafted, "{name}, request {at}: {counts:?}");
            drafted += counts.drafted;
        }
        assert_eq!(plain.stats.drafts.total().drafted, 0, "{name}, request {at}");
    }
    drafted
}

#[test]
fn heads_draft_on_the_cpu_and_change_no_text() {
    for name in DRAFT_HEADS {
        let engine = Engine::open(&model(name), options()).unwrap();
        let drafted = drafted_by(DraftSource::Head, &engine, name, SpeculationMode::SameBits);
        assert!(drafted > 20, "{name}: {drafted}");
    }
}

/// The head is on the device with the model, until the budget is too small for both.
#[test]
fn heads_draft_on_a_device_and_change_no_text() {
    for name in ["glm4-moe-mtp", "qwen3_5-mtp"] {
        let device = DeviceChoice::Gpu(GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() });
        let engine = Engine::open(&model(name), EngineOptions { device, ..options() }).unwrap();
        let held = || match engine.device() {
            DeviceStatus::Gpu(memory) => Some(memory.accounted),
            _ => None,
        };
        eventually("a device", || held().is_some());
        assert!(drafted_by(DraftSource::Head, &engine, name, SpeculationMode::Always) > 20, "{name}");
        let all = held().unwrap();
        let bytes = all * 3 / 4;
        engine.set_vram_budget(bytes).unwrap();
        eventually("a smaller budget", || held().is_some_and(|held| held <= bytes));
        assert!(drafted_by(DraftSource::Head, &engine, name, SpeculationMode::Always) > 20, "{name}");
        assert!(held().is_some_and(|held| held <= bytes), "{name}");
    }
}

#[test]
fn assistants_draft_on_the_cpu_and_change_no_text() {
    for name in ["gemma4", "gemma4-e2b"] {
        let draft = Some(model(name).parent().unwrap().with_file_name("assistants").join(name));
        for kv_type in [KvType::F32, KvType::F16, KvType::Q8_0] {
            let engine =
                Engine::open(&model(name), EngineOptions { draft: draft.clone(), kv_type, ..options() }).unwrap();
            let drafted = drafted_by(DraftSource::Model, &engine, name, SpeculationMode::SameBits);
            assert!(drafted > 20, "{name} {kv_type:?}: {drafted}");
        }
    }
}

/// The assistant reads copies of the keys and values on the device. Smaller budgets move some or
/// all of them to RAM.
#[test]
fn assistants_draft_beside_a_device_and_change_no_text() {
    for name in ["gemma4", "gemma4-e2b"] {
        let draft = Some(model(name).parent().unwrap().with_file_name("assistants").join(name));
        let device = DeviceChoice::Gpu(GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() });
        let engine = Engine::open(&model(name), EngineOptions { device, draft, ..options() }).unwrap();
        let held = || match engine.device() {
            DeviceStatus::Gpu(memory) => Some(memory.accounted),
            _ => None,
        };
        eventually("a device", || held().is_some());
        let all = held().unwrap();
        for budget in [all, all * 9 / 10, all] {
            engine.set_vram_budget(budget).unwrap();
            eventually("the budget", || held().is_some_and(|held| held <= budget));
            let some = &prompts(name)[1..3];
            let drafted = drafted_in(some, DraftSource::Model, &engine, name, SpeculationMode::Always);
            assert!(drafted > 20, "{name}, {budget} bytes: {drafted}");
        }
    }
}

/// The states of the draft model are on the device, and so are their planes.
#[test]
fn recurrent_draft_models_draft_on_a_device_and_change_no_text() {
    for (name, draft) in [("qwen3", "qwen3_5"), ("nemotron-3-nano", "nemotron-h"), ("lfm2", "lfm2")] {
        let device = DeviceChoice::Gpu(GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() });
        let options = EngineOptions { device, draft: Some(model(draft)), ..options() };
        let engine = Engine::open(&model(name), options).unwrap();
        eventually("a device", || matches!(engine.device(), DeviceStatus::Gpu(_)));
        let drafted = drafted_by(DraftSource::Model, &engine, name, SpeculationMode::Always);
        assert!(drafted > 20, "{name} with {draft}: {drafted}");
    }
}

/// A draft model that is the model itself drafts what the model draws.
#[test]
fn draft_models_draft_and_change_no_text() {
    for (name, draft) in [
        ("llama-relu", "llama-relu"),
        ("llama-relu", "llama-silu-gqa"),
        ("glm4-moe-mtp", "qwen3"),
        ("qwen3", "qwen3_5"),
        ("qwen3_5", "qwen3_5"),
        ("lfm2", "lfm2"),
        ("granite-4-h", "granite-4-h"),
        ("nemotron-3-nano", "nemotron-h"),
    ] {
        let draft_model = Some(model(draft));
        let engine = Engine::open(&model(name), EngineOptions { draft: draft_model, ..options() }).unwrap();
        let (mut drafted, mut accepted) = (0, 0);
        for (at, request) in prompts(name).into_iter().enumerate() {
            let plain = generate(&session(&engine), Request { speculation: SpeculationMode::Off, ..request.clone() });
            let session = session(&engine);
            for again in 0..2 {
                let request = Request { drafts: (again > 0).then_some(3), ..request.clone() };
                let answer = generate(&session, request);
                assert_eq!(answer.ids, plain.ids, "{name} with {draft}, request {at}, answer {again}");
                let of_model = answer.stats.drafts.of(DraftSource::Model);
                (drafted, accepted) = (drafted + of_model.drafted, accepted + of_model.accepted);
            }
        }
        assert!(drafted > 20, "{name} with {draft}: {drafted}");
        // Answers that are drawn at random differ from the drafts.
        assert!(name != draft || accepted > drafted / 3, "{name} with {draft}: {accepted} of {drafted}");
    }
}
