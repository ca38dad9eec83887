use std::{path::Path, sync::Arc};

use super::*;
use crate::runtime::{Forward, Outputs};
use thermocline_cpu::CpuOptions;
use thermocline_gpu::{AdapterChoice, FaultPoint, Faults, GpuOptions};
use thermocline_model::LoadOptions;

/// The device computes 5 * 10^9 multiply-adds a second, and its speed is unknown at first. No
/// submission exceeds its time limit by much, however many tokens came before. Keys and values of
/// earlier tokens are zeros, which does not change the work.
#[test]
fn submissions_of_attention_are_short_at_every_depth() {
    const TOKENS: usize = 64;
    const PICOSECONDS: u64 = 200;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/llama-silu-gqa");
    let model = Arc::new(Model::open(&path, &LoadOptions::default()).unwrap());
    let faults = Faults(Some((FaultPoint::WorkClock, PICOSECONDS)));
    let gpu = Gpu::open(&GpuOptions { adapter: AdapterChoice::Index(0), faults, ..GpuOptions::default() }).unwrap();
    let cpu = Cpu::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
    let mut go_on = |_, _| ControlFlow::Continue(());
    let processor = HybridProcessor::load_whole(&gpu, cpu, &model, &GpuLoad::default(), &mut go_on).unwrap();
    let mut forward = Forward::on(Arc::clone(&model), Box::new(processor));
    let ids: Vec<u32> = (0..TOKENS as u32).map(|at| (at * 37 + 11) % 384).collect();
    for context in [256 << 10, 1 << 10, 8 << 10, 64 << 10] {
        let depth = context - TOKENS;
        let mut kv = forward.kv_cache(context, KvType::F16).unwrap();
        Sequences::one(&mut kv, depth).advance();
        gpu.pace().forget_longest();
        let before = gpu.submits();
        let logits = forward.run(&ids, &mut kv, Outputs::Last, &mut ()).unwrap();
        assert!(logits.iter().all(|logit| logit.is_finite()) && kv.len() == context);
        let longest = gpu.pace().longest().unwrap();
        assert!(longest.seconds <= 0.1, "{context}: {longest:?}");
        // Eight query heads with keys and values of eight elements, in three layers.
        let seconds = (depth * TOKENS * 8 * 16 * 3) as f64 * PICOSECONDS as f64 * 1e-12;
        let submits = (gpu.submits() - before) as f64;
        assert!(submits >= seconds / 0.1 && submits <= 3.0 + 30.0 * seconds, "{context}: {submits} in {seconds} s");
    }
}
