//! A software driver that acts as a GPU with unified memory. The engine tests it before its first
//! use and waits for its results as for hardware, and its tokens equal the CPU's.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::path::Path;

use thermocline_engine::{
    cpu::CpuOptions,
    gpu::{AdapterChoice, AdapterKind, GpuOptions},
    session::{
        DeviceChoice, DeviceStatus, Engine, EngineOptions, LoadStage, Prompt, Request, Sampling, SessionOptions,
    },
    sparsity::sidecar::SidecarChoice,
};
use thermocline_tests::{events, wait::eventually};

/// Returns the tokens of the engine's answer.
fn answer(engine: &Engine) -> Vec<u32> {
    let request = Request {
        sampling: Sampling::greedy(),
        max_tokens: Some(24),
        ignore_eos: true,
        ..Request::new(Prompt::Tokens((5..29).collect()))
    };
    events::tokens(&engine.session(SessionOptions::default()).unwrap(), request)
}

#[test]
fn integrated_adapter_is_tested_and_answers_as_the_cpu() {
    let speeds = tempfile::tempdir().unwrap();
    let open = |device| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models/llama-relu");
        let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
        let (sidecar, speeds) = (SidecarChoice::Without, Some(speeds.path().to_owned()));
        Engine::open(&path, EngineOptions { cpu, device, sidecar, speeds, ..EngineOptions::default() }).unwrap()
    };
    let (adapter, pretended_kind) = (AdapterChoice::Index(0), Some(AdapterKind::Integrated));
    let engine = open(DeviceChoice::Gpu(GpuOptions { adapter, pretended_kind, ..GpuOptions::default() }));
    eventually("the self-test", || matches!(engine.device(), DeviceStatus::Loading(LoadStage::Testing)));
    eventually("the end of the load", || !matches!(engine.device(), DeviceStatus::Loading(_)));
    let words = answer(&engine);
    let DeviceStatus::Gpu(memory) = engine.device() else { panic!("{:?}", engine.device()) };
    assert!(memory.accounted > 0 && memory.fallbacks.is_empty(), "{memory:?}");
    assert_eq!(words, answer(&open(DeviceChoice::Cpu)));
}
