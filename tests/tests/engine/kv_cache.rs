//! Properties of a KV cache: it keeps prefixes, a pass can be stopped, and the context can be
//! shifted.

use std::{path::Path, sync::Arc};

use thermocline_engine::{
    Error,
    cpu::{
        Isa,
        ops::{KvRows, RopeRows},
    },
    model::{LoadOptions, Model},
    runtime::{KvCache, KvType, LONGEST_PASS, Outputs, Probe},
};
use thermocline_tests::golden::{Setup, forward, max_diff};

const TYPES: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Q8_0];

fn open(path: &str) -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path);
    Arc::new(Model::open(&path, &LoadOptions::default()).unwrap_or_else(|error| panic!("{error}")))
}

fn ids(n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * 37 + 11) % 384).collect()
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
fn truncated_kv_cache_gives_the_logits_of_a_fresh_one() {
    let model = open("models/mistral");
    for kv_type in TYPES {
        let setup = Setup { chunk: 16, ..Setup::default() };
        let mut forward = forward(&model, setup);
        let mut kv = KvCache::new(&model.config, 64, kv_type).unwrap();
        let ids = ids(40);
        let wanted = forward.run(&ids, &mut kv, Outputs::Last, &mut ()).unwrap().to_vec();
        // The test computes another continuation, then returns to the first.
        kv.truncate(32);
        forward.run(&[5, 6, 7], &mut kv, Outputs::None, &mut ()).unwrap();
        kv.truncate(32);
        let again = forward.run(&ids[32..], &mut kv, Outputs::Last, &mut ()).unwrap();
        assert_eq!(again, wanted, "{kv_type}");
        assert_eq!(kv.len(), 40);
    }
}

#[test]
fn cancelled_prompt_keeps_whole_chunks() {
    let model = open("models/qwen3");
    let mut forward = forward(&model, Setup { chunk: 8, ..Setup::default() });
    let ids = ids(30);
    let mut kv = KvCache::new(&model.config, 30, KvType::F16).unwrap();
    let wanted = forward.run(&ids, &mut kv, Outputs::Last, &mut ()).unwrap().to_vec();
    let layers = model.config.n_layer();
    for visits in [1, layers, layers + 2, 3 * layers] {
        let mut kv = KvCache::new(&model.config, 30, KvType::F16).unwrap();
        let stopped = forward.run(&ids, &mut kv, Outputs::Last, &mut StopAt(visits)).map(<[f32]>::len);
        assert!(matches!(stopped, Err(Error::Cancelled)), "{visits}");
        assert_eq!(kv.len(), (visits - 1) / layers * 8);
        let rest = ids[kv.len()..].to_vec();
        assert_eq!(forward.run(&rest, &mut kv, Outputs::Last, &mut ()).unwrap(), wanted);
    }
}

#[test]
fn full_context_is_an_error_and_changes_nothing() {
    let model = open("models/llama-relu");
    let mut forward = forward(&model, Setup::default());
    let mut kv = KvCache::new(&model.config, 10, KvType::F16).unwrap();
    forward.run(&ids(8), &mut kv, Outputs::None, &mut ()).unwrap();
    let full = forward.run(&ids(3), &mut kv, Outputs::Last, &mut ()).map(<[f32]>::len);
    assert!(matches!(full, Err(Error::ContextFull { wanted: 11, available: 10, .. })));
    assert_eq!(kv.len(), 8);
    forward.run(&ids(2), &mut kv, Outputs::Last, &mut ()).unwrap();
}

fn rows(rows: &KvRows, dim: usize) -> Vec<f32> {
    let mut all = vec![0.0; rows.len() * dim];
    all.chunks_mut(dim).enumerate().for_each(|(i, row)| rows.get(i, row));
    all
}

/// The first layer's keys and values depend only on a token and its position. After a shift they
/// must equal those of the remaining tokens, computed anew.
#[test]
fn shifted_keys_are_those_of_the_new_positions() {
    // The models have half rotations, rotated pairs, scaled frequencies, two kinds of layers, and a
    // head wider than a block.
    for name in ["models/llama-relu", "models/llama-silu-gqa", "gguf/llama-silu-gqa-256-F16.gguf", "models/gemma3"] {
        let model = open(name);
        let dim = model.config.attentions().next().unwrap().heads.head_dim;
        let mut forward = forward(&model, Setup::default());
        for (kv_type, tolerance) in TYPES.into_iter().zip([2e-5, 0.02, 0.12]) {
            let mut kv = KvCache::new(&model.config, 64, kv_type).unwrap();
            let mut fresh = KvCache::new(&model.config, 64, kv_type).unwrap();
            let ids = ids(50);
            forward.run(&ids, &mut kv, Outputs::None, &mut ()).unwrap();
            kv.shift(forward.isa(), 4, 20).unwrap();
            let left = [&ids[..4], &ids[24..]].concat();
            forward.run(&left, &mut fresh, Outputs::None, &mut ()).unwrap();
            assert_eq!(kv.len(), left.len());
            let (kv_layer, fresh_layer) = (kv.layer_mut(0).unwrap(), fresh.layer_mut(0).unwrap());
            for (a, b) in kv_layer.keys.iter().zip(&fresh_layer.keys) {
                let (a, b) = (rows(a, dim), rows(b, dim));
                let top = b.iter().fold(0f32, |top, x| top.max(x.abs()));
                assert!(max_diff(&a, &b) <= tolerance * top, "{name} {kv_type}: {} of {top}", max_diff(&a, &b));
            }
            for (a, b) in kv_layer.values.iter().zip(&fresh_layer.values) {
                assert_eq!(rows(a, dim), rows(b, dim), "{name} {kv_type}");
            }
            // Computation continues from the shifted cache.
            forward.run(&[1, 2, 3], &mut kv, Outputs::Last, &mut ()).unwrap();
            assert_eq!(kv.len(), left.len() + 3);
            assert!(matches!(kv.shift(forward.isa(), 0, 64), Err(Error::Invalid { .. })));
            assert!(matches!(kv.shift(forward.isa(), usize::MAX, 1), Err(Error::Invalid { .. })));
        }
    }
}

/// Every bit of the keys equals what the chosen instruction set computes. Other instruction sets
/// round differently.
#[test]
fn shifted_keys_are_rotated_by_the_chosen_instruction_set() {
    let model = open("models/llama-silu-gqa");
    let dim = model.config.attentions().next().unwrap().heads.head_dim;
    for isa in Isa::available() {
        let mut forward = forward(&model, Setup { isa: Some(isa), ..Setup::default() });
        let mut kv = KvCache::new(&model.config, 64, KvType::F32).unwrap();
        forward.run(&ids(50), &mut kv, Outputs::None, &mut ()).unwrap();
        let rotation = RopeRows::shift(&kv.rotary().unwrap().tables()[0], 20);
        let before: Vec<_> = kv.layer_mut(0).unwrap().keys.iter().map(|keys| rows(keys, dim)).collect();
        kv.shift(forward.isa(), 4, 20).unwrap();
        for (keys, mut wanted) in kv.layer_mut(0).unwrap().keys.iter().zip(before) {
            wanted.drain(4 * dim..24 * dim);
            wanted[4 * dim..].chunks_mut(dim).for_each(|key| rotation.rotate(isa, 0, key));
            assert_eq!(rows(keys, dim), wanted, "{isa}");
        }
    }
}

#[test]
fn learned_positions_cannot_be_shifted() {
    let model = open("models/opt");
    let mut kv = KvCache::new(&model.config, 16, KvType::F16).unwrap();
    assert!(matches!(kv.shift(Isa::Scalar, 0, 0), Err(Error::Unsupported { .. })));
}

/// A recurrent state can return only to snapshots. The cache reports the length that it returned to
/// and continues from there.
#[test]
fn recurrent_states_go_back_to_snapshots() {
    for name in ["models/qwen3_5", "models/qwen3-next"] {
        let model = open(name);
        let mut forward = forward(&model, Setup { chunk: 16, ..Setup::default() });
        let mut kv = forward.kv_cache(64, KvType::F32).unwrap();
        assert!(kv.is_recurrent() && kv.bytes() > model.config.state_bytes());
        let ids = ids(40);
        let wanted = forward.run(&ids, &mut kv, Outputs::Last, &mut ()).unwrap().to_vec();
        kv.truncate(0);
        forward.run(&ids[..20], &mut kv, Outputs::None, &mut ()).unwrap();
        let bytes = kv.bytes();
        kv.take_snapshot();
        assert_eq!(kv.bytes(), bytes + model.config.state_bytes());
        for given_up in [25, 21] {
            forward.run(&ids[20..39], &mut kv, Outputs::None, &mut ()).unwrap();
            kv.truncate(given_up);
            assert_eq!(kv.len(), 20, "{name}");
        }
        // If a chunk is stopped halfway, the cache keeps the snapshot's tokens, for any number of
        // layers that have computed.
        for layers in [1, 2, 3, 6] {
            let stopped = forward.run(&ids[20..], &mut kv, Outputs::None, &mut StopAt(layers));
            assert!(matches!(stopped, Err(Error::Cancelled)));
            assert_eq!(kv.len(), 20, "{name}: {layers}");
        }
        let got = forward.run(&ids[20..], &mut kv, Outputs::Last, &mut ()).unwrap();
        assert!(max_diff(got, &wanted) < 1e-4, "{name}: {}", max_diff(got, &wanted));
        kv.truncate(19);
        assert_eq!(kv.len(), 0);
        assert!(
            matches!(kv.shift(Isa::Scalar, 0, 0), Err(Error::Unsupported { got, .. }) if got == "recurrent states")
        );
    }
}

#[test]
fn kv_cache_counts_its_bytes_and_refuses_more_than_memory() {
    let model = open("models/gemma2");
    let config = &model.config;
    let rows = (2 * config.n_layer() * config.attentions().next().unwrap().heads.n_kv_head) as u64;
    // Heads of 24 are padded to 32, and the rows of every head start on a cache line.
    for (ty, row, slack) in [(KvType::F16, 64, 64), (KvType::F32, 128, 64), (KvType::Q8_0, 34, 128)] {
        let kv = KvCache::new(config, 100, ty).unwrap();
        assert_eq!(kv.bytes(), rows * (100 * row + slack), "{ty}");
    }
    let huge = KvCache::new(config, 1 << 50, KvType::F16).map(|kv| kv.capacity());
    // Every other layer has a window, whose rows do not grow with the context.
    let ring = (8 + LONGEST_PASS as u64).next_multiple_of(64) + 64;
    let all = rows / 2 * 64 * ((1 << 50) + ring);
    assert!(matches!(huge, Err(Error::Memory { wanted, .. }) if wanted == all), "{huge:?}, not {all}");
    assert!(matches!(KvCache::new(config, 0, KvType::F16), Err(Error::Invalid { .. })));
}

/// The model attends sparsely from a context length that its folder names. Longer contexts are
/// refused by name.
#[test]
fn contexts_of_sparse_attention_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models/minicpm");
    for entry in std::fs::read_dir(source).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), scratch.path().join(entry.file_name())).unwrap();
    }
    let path = scratch.path().join("config.json");
    let original = std::fs::read_to_string(&path).unwrap();
    let with = |sparse: &str| {
        std::fs::write(&path, original.replacen('{', &format!("{{\"sparse_config\": {sparse},"), 1)).unwrap();
        Model::open(scratch.path(), &LoadOptions::default())
    };
    let model = Arc::new(with("{\"dense_len\": 33, \"topk\": 64}").unwrap());
    assert_eq!((model.config.context_length, model.config.dense_context), (32, Some(32)));
    let mut forward = forward(&model, Setup::default());
    forward.kv_cache(32, KvType::F32).unwrap();
    let error = forward.kv_cache(33, KvType::F32).unwrap_err().to_string();
    assert!(error.contains("InfLLM-v2") && error.contains("33 tokens") && error.contains("up to 32"), "{error}");
    assert_eq!(with("{}").unwrap().config.dense_context, Some(8191), "the reference's default");
    assert_eq!(with("null").unwrap().config.dense_context, None);
    for wrong in ["7", "{\"dense_len\": 1}", "{\"dense_len\": \"x\"}"] {
        let error = with(wrong).unwrap_err().to_string();
        assert!(error.contains("sparse_config") && error.contains("dense_len"), "{error}");
    }
}

/// Such a norm's weights apply after the rotation and do not rotate with it. The keys are therefore
/// not shifted but computed again.
#[test]
fn keys_normed_behind_their_rotation_are_not_shifted() {
    let model = open("models/hunyuan-dense");
    let mut forward = forward(&model, Setup::default());
    let mut kv = KvCache::new(&model.config, 32, KvType::F32).unwrap();
    forward.run(&ids(20), &mut kv, Outputs::None, &mut ()).unwrap();
    let error = kv.shift(Isa::Scalar, 4, 3).unwrap_err().to_string();
    assert!(error.contains("key norms after the rotation"), "{error}");
    assert_eq!(kv.len(), 20);
}
