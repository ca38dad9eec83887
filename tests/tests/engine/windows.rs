//! Layers with a window keep a ring of the last positions. All results equal those of a cache that
//! keeps all positions, to the bit.

#![allow(clippy::unwrap_used)]

use std::{path::Path, sync::Arc};

use thermocline_engine::{
    cpu::{
        Isa,
        ops::{AttentionWindow, HeadSizes},
    },
    error::Error,
    model::{LoadOptions, Model, ModelConfig},
    runtime::{CacheBytes, Forward, KvCache, KvType, LONGEST_PASS, Outputs},
    synth::{self, SynthOptions, SynthShape},
};
use thermocline_tests::{
    golden::{Setup, forward, max_diff},
    gpu,
};

const NAMES: [&str; 12] = [
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4-e2b",
    "gpt-oss",
    "mistral",
    "cohere2",
    "exaone4",
    "olmo3",
    "laguna",
    "smallthinker",
];
/// Window of all models here.
const WINDOW: usize = 8;
/// Longest pass of the rings here, which have room for 128 positions.
const PASS: usize = 24;
const CONTEXT: usize = 400;

fn open(name: &str) -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models").join(name);
    Arc::new(Model::open(&path, &LoadOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}")))
}

fn ids(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * i * 37 + i * 11 + 5) % 384).collect()
}

fn runner(model: &Arc<Model>) -> Forward {
    forward(model, Setup { chunk: PASS, isa: None, ..Setup::default() })
}

/// Returns a cache with rings, and a cache that keeps all positions.
fn caches(model: &Model, ty: KvType) -> [KvCache; 2] {
    [PASS, CONTEXT].map(|pass| KvCache::for_passes(&model.config, CONTEXT, ty, pass).unwrap())
}

/// Returns the logits of every token of `ids`, in passes whose lengths alternate as in `passes`.
fn logits(forward: &mut Forward, kv: &mut KvCache, ids: &[u32], passes: &[usize]) -> Vec<f32> {
    let (mut all, mut rest) = (Vec::new(), ids);
    for pass in passes.iter().cycle() {
        let (now, later) = rest.split_at(rest.len().min(*pass));
        if now.is_empty() {
            break;
        }
        all.extend_from_slice(forward.run(now, kv, Outputs::All, &mut ()).unwrap());
        rest = later;
    }
    all
}

#[test]
fn rings_give_every_bit_of_a_cache_that_keeps_all() {
    let ids = ids(CONTEXT);
    for name in NAMES {
        let model = open(name);
        let mut forward = runner(&model);
        for (ty, passes) in [
            (KvType::F32, &[PASS][..]),
            (KvType::F16, &[1, 5, WINDOW - 1, WINDOW, WINDOW + 1, PASS]),
            (KvType::Q8_0, &[PASS, 1, 1, 1, 13]),
        ] {
            let [mut ring, mut all] = caches(&model, ty);
            assert!(ring.bytes() < all.bytes(), "{name}: {} bytes with rings", ring.bytes());
            let [got, wanted] = [&mut ring, &mut all].map(|kv| logits(&mut forward, kv, &ids, passes));
            assert!(got == wanted, "{name} {ty}, passes of {passes:?}");
        }
    }
}

#[test]
fn a_cache_goes_back_as_far_as_its_windows_and_else_to_the_beginning() {
    let ids = ids(300);
    for name in ["gemma3", "gpt-oss", "gemma4-e2b"] {
        let model = open(name);
        let mut forward = runner(&model);
        for back in [1, PASS, 100, 112, 140, 260] {
            let [mut ring, mut all] = caches(&model, KvType::F16);
            forward.run(&ids[..270], &mut ring, Outputs::None, &mut ()).unwrap();
            ring.truncate(270 - back);
            // The ring has 128 positions. The window before the next token takes 7 of them.
            let held = if back <= 121 { 270 - back } else { 0 };
            assert_eq!(ring.len(), held, "{name}: {back} back");
            let got = logits(&mut forward, &mut ring, &ids[held..], &[PASS]);
            forward.run(&ids[..270], &mut all, Outputs::None, &mut ()).unwrap();
            all.truncate(held);
            let wanted = logits(&mut forward, &mut all, &ids[held..], &[PASS]);
            assert!(got == wanted, "{name}: {back} back");
        }
    }
}

#[test]
fn a_cache_goes_back_to_copies_of_its_windows_and_gives_them_to_others() {
    let ids = ids(300);
    for name in NAMES {
        let model = open(name);
        let mut forward = runner(&model);
        for ty in [KvType::F32, KvType::F16, KvType::Q8_0] {
            let [mut ring, mut all] = caches(&model, ty);
            let [mut other, _] = caches(&model, ty);
            forward.run(&ids[..100], &mut ring, Outputs::None, &mut ()).unwrap();
            let bytes = ring.bytes();
            ring.take_snapshot();
            assert!(ring.bytes() > bytes, "{name} {ty}");
            forward.run(&ids[100..270], &mut ring, Outputs::None, &mut ()).unwrap();
            assert_eq!(forward.copy_prefix(&ring, &mut other, 140).unwrap(), 100, "{name} {ty}");
            ring.truncate(140);
            assert_eq!(ring.len(), 100, "{name} {ty}");
            forward.run(&ids[..100], &mut all, Outputs::None, &mut ()).unwrap();
            let wanted = logits(&mut forward, &mut all, &ids[100..], &[PASS, 1]);
            for kv in [&mut ring, &mut other] {
                assert!(logits(&mut forward, kv, &ids[100..], &[PASS, 1]) == wanted, "{name} {ty}");
            }
            // A second step back returns to the same copy of the windows, and no further.
            ring.truncate(101);
            assert_eq!(ring.len(), 100, "{name} {ty}");
            ring.truncate(99);
            assert_eq!(ring.len(), 0, "{name} {ty}");
        }
    }
}

#[test]
fn a_shift_leaves_rings_with_what_a_cache_that_keeps_all_has() {
    let ids = ids(350);
    for name in ["gemma3", "gpt-oss", "cohere2", "laguna"] {
        let model = open(name);
        let mut forward = runner(&model);
        for (keep, discard) in [(4, 100), (0, 250), (16, 177)] {
            let [mut ring, mut all] = caches(&model, KvType::F16);
            let [got, wanted] = [&mut ring, &mut all].map(|kv| {
                forward.run(&ids[..300], kv, Outputs::None, &mut ()).unwrap();
                kv.shift(forward.isa(), keep, discard).unwrap();
                // The second shift shifts rows that were already shifted.
                let mut got = logits(&mut forward, kv, &ids[300..], &[PASS, 1]);
                kv.shift(forward.isa(), 2, 30).unwrap();
                got.extend(logits(&mut forward, kv, &ids[..60], &[PASS, 1]));
                got
            });
            assert!(got == wanted, "{name}: {discard} behind {keep}");
        }
        // The window would need tokens before the gap, which are lost.
        let [mut ring, _] = caches(&model, KvType::F16);
        forward.run(&ids[..200], &mut ring, Outputs::None, &mut ()).unwrap();
        let refused = ring.shift(Isa::Scalar, 60, 138);
        assert!(
            matches!(&refused, Err(Error::Unsupported { got, .. }) if got.contains("window")),
            "{name}: {refused:?}"
        );
        assert_eq!(ring.len(), 200);
    }
}

#[test]
fn a_prefix_is_copied_between_rings_where_they_hold_it() {
    let ids = ids(300);
    for name in ["gemma3", "gemma4-e2b", "gpt-oss"] {
        let model = open(name);
        let mut forward = runner(&model);
        for (held, tokens, copied) in [(0, 250, 250), (20, 200, 200), (240, 250, 250), (0, 120, 0), (30, 120, 30)] {
            let [mut from, _] = caches(&model, KvType::F16);
            let [mut to, mut all] = caches(&model, KvType::F16);
            forward.run(&ids[..270], &mut from, Outputs::None, &mut ()).unwrap();
            forward.run(&ids[..250], &mut all, Outputs::None, &mut ()).unwrap();
            if held > 0 {
                forward.run(&ids[..held], &mut to, Outputs::None, &mut ()).unwrap();
            }
            let now = forward.copy_prefix(&from, &mut to, tokens).unwrap();
            assert_eq!((now, to.len()), (copied, copied), "{name}: {held} held, {tokens} wanted");
            all.truncate(copied);
            // The rows were computed in passes that began at other tokens, which changes rounding.
            let [got, wanted] = [&mut to, &mut all].map(|kv| logits(&mut forward, kv, &ids[copied..], &[PASS]));
            let off = max_diff(&got, &wanted);
            assert!(off < 1e-2, "{name}: {held} held, {tokens} wanted: {off}");
        }
    }
}

/// Returns the configuration of Gemma 3 4B.
fn gemma3() -> ModelConfig {
    let mut config = open("gemma3").config.clone();
    let [windowed, all] = [true, false].map(|has| {
        let alike = |layer: &&_| windowed_layer(layer) == has;
        config.layers.iter().find(alike).unwrap().clone()
    });
    config.layers = (0..34).map(|n| if n % 6 == 5 { all.clone() } else { windowed.clone() }).collect();
    for attention in config.attentions_mut() {
        attention.heads = HeadSizes { n_head: 8, n_kv_head: 4, head_dim: 256, value_dim: 256 };
        attention.window = attention.window.map(|_| AttentionWindow::sliding(1024));
    }
    config
}

fn windowed_layer(layer: &thermocline_engine::model::LayerConfig) -> bool {
    layer.attention.as_ref().is_some_and(|attention| attention.window.is_some())
}

fn shape(name: &str) -> ModelConfig {
    let outline = synth::outline(&SynthOptions::new(SynthShape::named(name).unwrap(), name)).unwrap();
    Model::from_checkpoint(outline.checkpoint, &LoadOptions::default()).unwrap().config.clone()
}

/// Bytes of F16 caches for 32,768 tokens, computed by hand. Each layer has 4 bytes for each element
/// of its keys, times the positions that it keeps.
#[test]
fn published_shapes_keep_windows_and_not_the_whole_context() {
    const TOKENS: usize = 32_768;
    let ring = |window: u64| window + LONGEST_PASS as u64 + 64;
    let all = TOKENS as u64;
    for (name, config, before, after) in [
        ("Gemma 3 4B", gemma3(), 34 * 4096 * all, (5 * all + 29 * ring(1024)) * 4096),
        // 24 layers have their own cache. Four of them see all positions, with heads of twice the
        // width.
        ("Gemma 4 E4B", shape("gemma4-e4b"), (20 + 4 * 2) * 2048 * all, (4 * 2 * all + 20 * ring(512)) * 2048),
        ("gpt-oss 20B", shape("gpt-oss-20b"), 24 * 2048 * all, 12 * (all + ring(128)) * 2048),
        ("Qwen 3.5 4B", shape("qwen3.5-4b"), 8 * 4096 * all, 8 * 4096 * all),
    ] {
        let own = config.attentions().filter(|of| of.kv_from.is_none());
        let every: u64 = own.map(|of| of.cached_bytes(|len| 2 * len) * all).sum();
        let kept = CacheBytes::of(&config, TOKENS, KvType::F16).rows;
        println!("{name}: {:.0} MiB, before {:.0}", kept as f64 / 1048576.0, every as f64 / 1048576.0);
        assert_eq!((every, kept), (before, after), "{name}");
    }
}

/// Rings in a device's memory, in RAM, and moved between both. The logits equal those of a cache in
/// RAM that keeps all positions, within rounding.
#[test]
fn rings_on_a_device_give_the_logits_of_a_cache_that_keeps_all() {
    let ids = ids(300);
    for (name, ty, tolerance) in [
        ("gemma3", KvType::F32, 1e-3),
        ("gemma4-e2b", KvType::F32, 1e-3),
        ("gpt-oss", KvType::F16, 0.02),
        ("mistral", KvType::F32, 1e-3),
    ] {
        let model = open(name);
        let (mut cpu, mut device) = (runner(&model), gpu::forward(gpu::shared(gpu::FULL), &model, PASS));
        let [mut ring, mut all] = caches(&model, ty);
        let wanted = logits(&mut cpu, &mut all, &ids, &[PASS]);
        let n_vocab = model.config.n_vocab;
        let mut other = KvCache::for_passes(&model.config, CONTEXT, ty, PASS).unwrap();
        // The device computes prompts and single tokens. The CPU computes a part in between.
        for (part, on_device, passes) in [
            (0..170, true, &[PASS][..]),
            (170..180, true, &[1]),
            (180..200, false, &[PASS]),
            (200..260, true, &[PASS, 3]),
            (260..270, true, &[1]),
        ] {
            let forward = if on_device {
                let (model, residency) = device.residency().unwrap();
                residency.take_kv(model, &mut ring).unwrap();
                residency.take_kv(model, &mut other).unwrap();
                &mut device
            } else {
                device.residency().unwrap().1.return_kv(&mut ring).unwrap();
                assert!(ring.on_host() && cpu.holds(&ring), "{name}");
                &mut cpu
            };
            let got = logits(forward, &mut ring, &ids[part.clone()], passes);
            let off = max_diff(&got, &wanted[part.start * n_vocab..part.end * n_vocab]);
            assert!(off <= tolerance, "{name} {ty}, tokens {part:?}: {off}");
        }
        // The cache is copied to another conversation on the device, which continues from it.
        assert_eq!(device.copy_prefix(&ring, &mut other, 265).unwrap(), 265, "{name}");
        ring.truncate(250);
        assert_eq!(ring.len(), 250, "{name}");
        for kv in [&mut ring, &mut other] {
            let held = kv.len();
            let got = logits(&mut device, kv, &ids[held..], &[PASS]);
            let off = max_diff(&got, &wanted[held * n_vocab..]);
            assert!(off <= tolerance, "{name} {ty}, from token {held}: {off}");
        }
    }
}
