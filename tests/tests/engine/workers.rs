//! Number of threads that compute. The test has its own process, so that all threads belong to this
//! engine. Linux reports their names.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::{fs, path::Path};

use thermocline_engine::{
    cpu::CpuOptions,
    format::powerinfer::GpuIndex,
    gpu::{AdapterChoice, GpuOptions},
    session::{DeviceChoice, DeviceStatus, Engine, EngineOptions, Prompt, Request, SessionOptions},
};
use thermocline_tests::{events, own_process, wait};

/// Returns the number of threads of pools. The calling threads also work, but have other names.
fn pool_threads() -> usize {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let names = threads.filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("comm")).ok());
    names.filter(|name| name.starts_with("cpu-")).count()
}

/// Message of the process after all checks have passed.
const SIGN: &str = "one pool was counted";

#[test]
fn split_model_has_one_thread_pool() {
    if own_process::part().is_some() {
        count_threads();
        return eprintln!("{SIGN}");
    }
    let counted = own_process::start("workers::split_model_has_one_thread_pool", "count").output().unwrap();
    let said = String::from_utf8_lossy(&counted.stderr);
    assert!(counted.status.success() && said.contains(SIGN), "{said}{}", String::from_utf8_lossy(&counted.stdout));
}

fn count_threads() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/powerinfer/llama-relu-f16.powerinfer.gguf");
    assert_eq!(pool_threads(), 0);
    let gpu = GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() };
    let options = EngineOptions {
        context: Some(64),
        cpu: CpuOptions { threads: Some(4), ..CpuOptions::default() },
        device: DeviceChoice::Gpu(gpu),
        // The split leaves neurons to the CPU.
        split: Some(GpuIndex::path_beside(&model)),
        ..EngineOptions::default()
    };
    let engine = Engine::open(&model, options).unwrap();
    let status = engine.wait_for_device(wait::LONGEST);
    assert!(matches!(status, DeviceStatus::Gpu(_)), "{status:?}");
    let session = engine.session(SessionOptions::default()).unwrap();
    // A random model may sample the end token, so the request ignores it.
    let request = Request { max_tokens: Some(4), ignore_eos: true, ..Request::new(Prompt::Tokens((3..20).collect())) };
    assert_eq!((events::tokens(&session, request).len(), pool_threads()), (4, 3));
    engine.set_device(&DeviceChoice::Cpu).unwrap();
    drop((session, engine));
    assert_eq!(pool_threads(), 0, "they end with the engine");
}
