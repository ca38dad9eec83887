//! Properties of the GPU as a processor: how many objects and submissions a token costs, that the
//! budget holds, and that dropped objects leave nothing behind.
#![allow(clippy::unwrap_used)]

use std::{ops::ControlFlow, path::Path, sync::Arc};

use thermocline_engine::{
    Error,
    device::GpuLoad,
    gpu::{GpuOptions, Purpose},
    hybrid::HybridProcessor,
    model::{LoadOptions, Model},
    runtime::{KvType, Outputs, Probe},
};
use thermocline_tests::gpu::{forward, idle_cpu, open, paced};

fn fixture(path: &str) -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path);
    Arc::new(Model::open(&path, &LoadOptions::default()).unwrap_or_else(|error| panic!("{error}")))
}

fn ids(n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * 37 + 11) % 384).collect()
}

#[test]
fn token_is_one_pass_of_one_submission_and_creates_no_gpu_objects() {
    let gpu = paced(1);
    for path in ["models/gemma2", "models/falcon-mqa", "powerinfer/llama-relu-q4_0.powerinfer.gguf"] {
        let model = fixture(path);
        let mut forward = forward(&gpu, &model, 32);
        // The context is long enough to split the attention of one token.
        let mut kv = forward.kv_cache(200, KvType::F16).unwrap();
        forward.run(&ids(120), &mut kv, Outputs::None, &mut ()).unwrap();
        let counts = || (gpu.submits(), gpu.arena().made(), gpu.bind_groups());
        for token in 0..20 {
            let (before, passes) = (counts(), gpu.passes());
            if token % 2 == 0 {
                forward.run(&[token], &mut kv, Outputs::Last, &mut ()).unwrap();
            } else {
                forward.top(&[token], &mut kv, 40, &mut ()).unwrap();
            }
            assert_eq!(gpu.passes(), passes + 1, "{path}");
            assert_eq!(counts(), (before.0 + 1, before.1, before.2), "{path}: submits, buffers, bind groups");
        }
        // A short prompt that fits one chunk is also one submission.
        let before = counts();
        forward.run(&ids(30), &mut kv, Outputs::Last, &mut ()).unwrap();
        assert_eq!(counts(), (before.0 + 1, before.1, before.2), "{path}");
    }
}

/// Stops before this layer visit.
struct StopAt(usize);

impl Probe for StopAt {
    fn cancelled(&mut self) -> bool {
        self.0 = self.0.saturating_sub(1);
        self.0 == 0
    }
}

#[test]
fn cancelled_prompt_keeps_whole_chunks() {
    let gpu = open(GpuOptions::default());
    let model = fixture("models/qwen3");
    let mut forward = forward(&gpu, &model, 8);
    let ids = ids(30);
    let mut kv = forward.kv_cache(30, KvType::F16).unwrap();
    let wanted = forward.run(&ids, &mut kv, Outputs::Last, &mut ()).unwrap().to_vec();
    let layers = model.config.n_layer();
    // The loop has more passes than the upload ring has slots.
    for visits in [1, 2, 3, layers, layers + 2, 3 * layers, 2, 2] {
        let mut kv = forward.kv_cache(30, KvType::F16).unwrap();
        let stopped = forward.run(&ids, &mut kv, Outputs::Last, &mut StopAt(visits)).map(<[f32]>::len);
        assert!(matches!(stopped, Err(Error::Cancelled)), "{visits}");
        assert_eq!(kv.len(), (visits - 1) / layers * 8);
        let rest = ids[kv.len()..].to_vec();
        assert_eq!(forward.run(&rest, &mut kv, Outputs::Last, &mut ()).unwrap(), wanted);
    }
}

#[test]
fn kv_caches_belong_to_their_processor() {
    let gpu = open(GpuOptions::default());
    let model = fixture("models/mistral");
    let (mut one, mut other) = (forward(&gpu, &model, 8), forward(&gpu, &model, 8));
    let mut kv = one.kv_cache(16, KvType::Q8_0).unwrap();
    // In RAM the cache would be Q8_0, but the device stores it as F16.
    assert_eq!((kv.ty(), kv.bytes()), (KvType::Q8_0, one.kv_cache(16, KvType::F16).unwrap().bytes()));
    assert!(!kv.on_host() && one.holds(&kv) && !other.holds(&kv));
    assert!(matches!(other.run(&[1], &mut kv, Outputs::None, &mut ()), Err(Error::Invalid { .. })));
    one.run(&[1, 2, 3], &mut kv, Outputs::None, &mut ()).unwrap();
    assert!(matches!(kv.shift(one.isa(), 1, 1), Err(Error::Unsupported { .. })));
    assert_eq!(kv.bytes(), gpu.arena().used_for(Purpose::Kv));
    let empty = one.kv_cache(0, KvType::F16).map(|kv| kv.capacity());
    assert!(matches!(empty, Err(Error::Invalid { .. })));
    // This model has no windows, so the cache would keep all rows.
    let mut whole = forward(&gpu, &fixture("models/llama-relu"), 8);
    let huge = whole.kv_cache(1 << 40, KvType::F16).map(|kv| kv.capacity());
    drop(whole);
    assert!(matches!(huge, Err(Error::Memory { wanted, available, .. }) if wanted > available));

    // The CPU continues at the position of the device.
    let wanted = one.run(&[4], &mut kv, Outputs::Last, &mut ()).unwrap().to_vec();
    let cpu = thermocline_engine::cpu::Cpu::new(&Default::default()).unwrap();
    one.replace(&model, Box::new(thermocline_engine::runtime::CpuProcessor::new(cpu)));
    assert!(!one.holds(&kv));
    drop(kv);
    assert_eq!(gpu.arena().used_for(Purpose::Kv), 0);
    let mut kv = one.kv_cache(16, KvType::F16).unwrap();
    let logits = one.run(&[1, 2, 3, 4], &mut kv, Outputs::Last, &mut ()).unwrap();
    assert!(thermocline_tests::golden::max_diff(logits, &wanted) < 0.02);
}

/// Bytes that the driver's allocator may reserve without use: blocks of a few MiB per kind of
/// memory.
const BLOCKS: u64 = 16 << 20;

/// For any budget, loading fits it or reports the bytes wanted, and frees all memory afterwards.
#[test]
fn loading_stays_within_any_budget_or_fails() {
    for path in ["models/llama-relu-256", "models/mixtral", "powerinfer/llama-relu-f16.powerinfer.gguf"] {
        let model = fixture(path);
        let load = GpuLoad { chunk: 32, ..GpuLoad::default() };
        let mut fitted = 0;
        let mut budget = 10 << 10;
        while fitted < 3 {
            let gpu = open(GpuOptions { budget: Some(budget), ..GpuOptions::default() });
            let empty = gpu.arena().used();
            match HybridProcessor::load_whole(&gpu, idle_cpu(), &model, &load, &mut |_, _| ControlFlow::Continue(())) {
                Ok(processor) => {
                    fitted += 1;
                    let mut forward = thermocline_engine::runtime::Forward::on(model.clone(), Box::new(processor));
                    let mut capacity = 1 << 14;
                    let mut kv = loop {
                        match forward.kv_cache(capacity, KvType::F16) {
                            Ok(kv) => break Some(kv),
                            Err(Error::Memory { wanted, available, .. }) if capacity > 1 => {
                                assert!(wanted > available && available <= gpu.arena().available());
                                capacity /= 2;
                            }
                            Err(error) => {
                                assert!(matches!(error, Error::Memory { .. }), "{error}");
                                break None;
                            }
                        }
                    };
                    if let Some(kv) = &mut kv {
                        let n = capacity.min(48) as u32;
                        forward.run(&ids(n), kv, Outputs::Last, &mut ()).unwrap();
                    }
                    assert!(gpu.arena().used() <= budget, "{path}: {} of {budget}", gpu.arena().used());
                    // Beyond the accounted bytes, the driver's allocator reserves at most the
                    // unused rest of a few small blocks.
                    let reserved = gpu.allocated().unwrap_or(0);
                    assert!(reserved <= gpu.arena().used() + BLOCKS, "{path}: {reserved} reserved in {budget}");
                    drop((forward, kv));
                }
                Err(Error::Memory { wanted, available, .. }) => {
                    assert!(wanted > available && available <= budget, "{path}: {wanted} of {available}, {budget}");
                }
                Err(error) => panic!("{path} in {budget}: {error}"),
            }
            assert_eq!(gpu.arena().used(), empty, "{path} in {budget}");
            budget = budget * 8 / 5;
        }
    }
}

#[test]
fn cancelled_load_frees_its_memory() {
    let gpu = open(GpuOptions::default());
    let model = fixture("models/llama-relu-256");
    let empty = gpu.arena().used();
    let load = |stop_at| {
        let mut calls = 0;
        let mut progress = |_, _| {
            calls += 1;
            if calls == stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let loaded = HybridProcessor::load_whole(&gpu, idle_cpu(), &model, &GpuLoad::default(), &mut progress);
        (loaded, calls)
    };
    let (loaded, all) = load(usize::MAX);
    drop(loaded.unwrap());
    assert_eq!(gpu.arena().used(), empty);
    for stop_at in [1, 2, all / 2, all] {
        let (stopped, calls) = load(stop_at);
        assert!(matches!(stopped, Err(Error::Cancelled)) && calls == stop_at);
        assert_eq!(gpu.arena().used(), empty);
    }
}
