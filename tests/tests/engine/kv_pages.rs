//! Caches that are longer than a binding of the device, so that each layer's cache is in several
//! buffers. The logits stay the same after every operation.
#![allow(clippy::unwrap_used)]

use std::{path::Path, sync::Arc};

use thermocline_engine::{
    Error,
    gpu::{Gpu, GpuOptions},
    model::{LoadOptions, Model},
    runtime::{KvType, Outputs},
};
use thermocline_tests::{
    golden::{self, Setup, max_diff},
    gpu::{forward, open},
};

/// Bytes of a binding, the smallest size that the models' matrices allow.
const BINDING: u64 = 64 << 10;

fn narrow() -> Gpu {
    open(GpuOptions { max_binding: Some(BINDING), ..GpuOptions::default() })
}

/// Returns a model with a number of positions. In at least one layer without a window, all keys
/// exceed a binding, but the keys of one head fit.
fn paged(name: &str, ty: KvType) -> (Arc<Model>, usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models").join(name);
    let model = Arc::new(Model::open(&path, &LoadOptions::default()).unwrap());
    let bytes = if ty == KvType::F32 { 4 } else { 2 };
    let widest = model.config.attentions().map(|of| of.heads.longest().next_multiple_of(4)).max().unwrap();
    let room = BINDING as usize / (widest * bytes);
    let in_one = |heads: usize| (heads * widest * bytes * room) as u64 <= BINDING;
    assert!(
        in_one(1) && model.config.attentions().any(|of| of.window.is_none() && !in_one(of.heads.n_kv_head)),
        "{name}"
    );
    (model, room)
}

fn ids(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + 11) % 200).collect()
}

#[test]
fn caches_in_pages_give_the_same_logits() {
    let gpu = narrow();
    // The models have grouped heads, a head per query, layers that read another layer's cache,
    // values of another width with sinks, and windows.
    for name in ["llama-silu-gqa", "llama-relu-256", "jais2", "gemma3n", "mimo-v2-flash", "gpt-oss"] {
        for ty in [KvType::F32, KvType::F16] {
            let (model, room) = paged(name, ty);
            let ids = ids(70);
            let mut cpu = golden::forward(&model, Setup::default());
            let mut kv = cpu.kv_cache(70, ty).unwrap();
            let wanted = cpu.run(&ids, &mut kv, Outputs::All, &mut ()).unwrap();
            let mut forward = forward(&gpu, &model, 64);
            let mut kv = forward.kv_cache(room, ty).unwrap();
            let logits = forward.run(&ids, &mut kv, Outputs::All, &mut ()).unwrap();
            let off = max_diff(logits, wanted);
            assert!(off <= 0.01, "{name} {ty}: {off}");
            // Other kernels compute one token or a few tokens.
            for first in [69, 66] {
                kv.truncate(first);
                let logits = forward.run(&ids[first..], &mut kv, Outputs::All, &mut ()).unwrap();
                let off = max_diff(logits, &wanted[first * model.config.n_vocab..]);
                assert!(off <= 0.01, "{name} {ty} from {first}: {off}");
            }
        }
    }
}

/// The caches have different capacities and therefore pages of different sizes.
#[test]
fn copied_prefixes_in_pages_are_what_computing_them_gives() {
    let gpu = narrow();
    for name in ["llama-silu-gqa", "jais2", "gemma3n", "mimo-v2-flash"] {
        let (model, room) = paged(name, KvType::F32);
        let mut forward = forward(&gpu, &model, 32);
        let ids = ids(48);
        let mut from = forward.kv_cache(room, KvType::F32).unwrap();
        forward.run(&ids, &mut from, Outputs::None, &mut ()).unwrap();
        for room in [48, room * 2 / 3] {
            let mut to = forward.kv_cache(room, KvType::F32).unwrap();
            assert_eq!(forward.copy_prefix(&from, &mut to, 20).unwrap(), 20, "{name}");
            let copied = forward.run(&ids[20..], &mut to, Outputs::Last, &mut ()).unwrap().to_vec();
            let mut alone = forward.kv_cache(48, KvType::F32).unwrap();
            let wanted = forward.run(&ids, &mut alone, Outputs::Last, &mut ()).unwrap();
            let off = max_diff(&copied, wanted);
            assert!(off <= 1e-4, "{name} {room}: {off}");
        }
    }
}

#[test]
fn cache_of_a_head_that_is_longer_than_a_binding_is_refused() {
    let (model, room) = paged("llama-silu-gqa", KvType::F32);
    let mut forward = forward(&narrow(), &model, 32);
    let error = forward.kv_cache(room + 1, KvType::F32).unwrap_err();
    assert!(matches!(error, Error::Memory { what: "KV cache of one head", .. }), "{error}");
}
