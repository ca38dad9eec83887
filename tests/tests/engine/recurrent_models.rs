#![allow(clippy::unwrap_used)]
//! Families with recurrent layers. Experts with squared ReLU skip silent neurons, and inconsistent
//! files are refused.

use std::{path::PathBuf, sync::Arc};

use thermocline_engine::{
    Error,
    cpu::{Cpu, CpuOptions, InputPrecision, Isa},
    format::{Array, Checkpoint, ReadMode, Tensor, Value},
    model::{LoadOptions, Model, mask},
    runtime::{Forward, KvType, LayerFiring, Outputs, Probe, Sparsity},
};
use thermocline_tests::golden::{Expected, max_diff};

fn here(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path)
}

/// Firing masks per layer, `[T, words]`, and the bytes read.
#[derive(Default)]
struct Seen {
    fired: Vec<Vec<u32>>,
    bytes: u64,
}

impl Probe for Seen {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        self.fired.resize(self.fired.len().max(firing.layer + 1), Vec::new());
        self.fired[firing.layer].extend_from_slice(firing.fired);
        self.bytes += firing.cpu_bytes;
    }
}

fn run(model: &Arc<Model>, isa: Isa, mode: Sparsity, chunk: usize, ids: &[u32]) -> (Vec<f32>, Seen) {
    let cpu = Cpu::new(&CpuOptions { threads: Some(2), isa: Some(isa), activations: InputPrecision::Float }).unwrap();
    let mut forward = Forward::new(Arc::clone(model), cpu);
    forward.set_chunk(chunk);
    forward.set_sparsity(mode);
    let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
    let mut seen = Seen::default();
    (forward.run(ids, &mut kv, Outputs::All, &mut seen).unwrap().to_vec(), seen)
}

/// `exact` gives the logits and firings of `dense`. With neuron-major down projections it reads
/// fewer bytes, because it skips rows of silent neurons in experts and in FFNs without gates.
#[test]
fn exact_squared_relu_layers_equal_dense_ones_and_read_fewer_bytes() {
    for name in ["nemotron-h", "nemotron-3-nano", "bitnet"] {
        let path = here("models").join(name);
        let as_published = Arc::new(Model::open(&path, &LoadOptions::default()).unwrap());
        let ids = Expected::read(&path.join("expected.safetensors")).ids("input_ids");
        let model = Model::open(&path, &LoadOptions::default()).unwrap();
        let pool = Cpu::new(&CpuOptions::default()).unwrap();
        let go_on = &mut |_, _| std::ops::ControlFlow::Continue(());
        let model = Arc::new(model.neuron_major(pool.pool(), go_on).unwrap().0);
        for isa in Isa::available() {
            let (dense, all) = run(&as_published, isa, Sparsity::Dense, 1, &ids);
            let (exact, seen) = run(&model, isa, Sparsity::Exact, 1, &ids);
            let largest = dense.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            let error = max_diff(&dense, &exact);
            assert!(error <= 1e-4 * largest, "{name} {isa}: logits differ by {error} of {largest}");
            assert!(seen.fired == all.fired && seen.bytes < all.bytes, "{name} {isa}: {} of {}", seen.bytes, all.bytes);
        }
    }
}

/// The firing neurons of chosen experts and of the shared expert equal the reference, for single
/// tokens and chunks.
#[test]
fn firing_neurons_of_squared_relu_experts_match_the_reference() {
    let path = here("models/nemotron-3-nano");
    let model = Arc::new(Model::open(&path, &LoadOptions::default()).unwrap());
    let expected = Expected::read(&path.join("expected.safetensors"));
    let (ids, chosen) = (expected.ids("input_ids"), expected.ids("router_top"));
    let (routed, shared) = (expected.u8("expert_active").unwrap(), expected.u8("shared_active").unwrap());
    let (used, width, experts, shared_width) = (3, 32, 8, 96);
    for (chunk, mode) in [(1, Sparsity::Dense), (1, Sparsity::Exact), (5, Sparsity::Dense), (24, Sparsity::Exact)] {
        for isa in Isa::available() {
            let (_, seen) = run(&model, isa, mode, chunk, &ids);
            let layers = seen.fired.iter().filter(|fired| !fired.is_empty());
            for (layer, fired) in layers.enumerate() {
                for (t, fired) in fired.chunks(mask::words(experts * width + shared_width)).enumerate() {
                    let at = layer * ids.len() + t;
                    let mut wanted = vec![false; experts * width + shared_width];
                    for slot in 0..used {
                        let first = chosen[at * used + slot] as usize * width;
                        let active = &routed[(at * used + slot) * width..][..width];
                        (0..width).for_each(|i| wanted[first + i] = active[i] != 0);
                    }
                    let active = &shared[at * shared_width..][..shared_width];
                    (0..shared_width).for_each(|i| wanted[experts * width + i] = active[i] != 0);
                    let got: Vec<bool> = (0..wanted.len()).map(|i| mask::contains(fired, i)).collect();
                    assert_eq!(got, wanted, "{isa} {mode:?}, chunks of {chunk}: layer {layer}, token {t}");
                }
            }
            assert_eq!(seen.fired.iter().filter(|fired| !fired.is_empty()).count(), 2);
        }
    }
}

/// Opens a changed GGUF file of the fixtures as a model.
fn changed(file: &str, change: impl FnOnce(&mut Checkpoint, &mut Vec<Tensor>)) -> Result<Model, Error> {
    let path = here("gguf2026").join(file);
    let mut file = Model::open_checkpoint(&path, ReadMode::Map)?;
    let mut tensors = file.tensors().to_vec();
    change(&mut file, &mut tensors);
    let checkpoint = Checkpoint::new(path, file.container, file.metadata, file.tokenizer, tensors)?;
    Model::from_checkpoint(checkpoint, &LoadOptions::default())
}

/// If sizes and tensors contradict each other, the error names them and the expected value.
#[test]
fn malformed_recurrent_files_are_refused() {
    let (nemotron, granite, lfm2) = ("nemotron-3-nano-F16.gguf", "granite-4-h-F16.gguf", "lfm2-F16.gguf");
    for file in [nemotron, granite, lfm2] {
        changed(file, |_, _| ()).unwrap();
    }
    let set = |file: &str, key: &str, value: Value| {
        changed(file, |of, _| {
            of.metadata.set(key, value);
        })
    };
    for (file, key, values) in [
        (nemotron, "nemotron_h_moe.ssm.state_size", &[0, 15, 32, 1 << 40][..]),
        (nemotron, "nemotron_h_moe.ssm.group_count", &[0, 1, 3, 1 << 40]),
        (nemotron, "nemotron_h_moe.ssm.time_step_rank", &[0, 4, 7, 16, 1 << 40]),
        (nemotron, "nemotron_h_moe.ssm.inner_size", &[0, 64, 100, 1 << 40]),
        (nemotron, "nemotron_h_moe.ssm.conv_kernel", &[0, 3, 1 << 40]),
        (nemotron, "nemotron_h_moe.expert_count", &[7, 9]),
        (granite, "granitehybrid.ssm.state_size", &[0, 8, 1 << 40]),
        (granite, "granitehybrid.expert_count", &[3, 1 << 40]),
        (lfm2, "lfm2.shortconv.l_cache", &[0, 2, 4, 1 << 40]),
    ] {
        for value in values {
            let error = set(file, key, Value::U64(*value)).err().unwrap_or_else(|| panic!("{key} = {value}"));
            assert!(matches!(error, Error::Malformed { .. }) && error.to_string().contains("expected"), "{error}");
        }
        assert!(set(file, key, Value::String("4".to_owned())).is_err(), "{key}");
    }
    // These lists give a layer another kind than its tensors have.
    let lists = [vec![0, 0, 0, 2, 0], vec![2, 0, 0, 2, 0, 0], vec![0, 2, 0, 2, 0, 0], vec![0; 6]];
    for heads in lists {
        let shown = format!("{heads:?}");
        let error = set(nemotron, "nemotron_h_moe.attention.head_count_kv", Value::Array(Array::U32(heads))).err();
        let error = error.unwrap_or_else(|| panic!("{shown}")).to_string();
        assert!(error.contains("expected"), "{shown}: {error}");
    }
    for (file, name, expected) in [
        (nemotron, "blk.0.ssm_d", "[8] or [8, 1]"),
        (nemotron, "blk.2.ssm_norm.weight", "[128] or [2, 64]"),
        (nemotron, "blk.5.ssm_in.weight", "[328, 64]"),
        (nemotron, "blk.1.ffn_gate_inp.weight", "[8, 64]"),
        (granite, "blk.1.ssm_dt.bias", "[8]"),
        (granite, "blk.3.ssm_conv1d.weight", "[160, 4]"),
        (lfm2, "blk.0.shortconv.in_proj.weight", "[192, 64]"),
        (lfm2, "token_embd_norm.weight", "[64]"),
    ] {
        let without = changed(file, |_, tensors| tensors.retain(|tensor| tensor.name != name));
        let error = without.err().unwrap_or_else(|| panic!("without {name}")).to_string();
        let name = if name == "token_embd_norm.weight" { "output_norm.weight" } else { name };
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
}

/// Tests invalid patterns of layers in a folder.
#[test]
fn malformed_layer_patterns_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(here("models/nemotron-3-nano")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), scratch.path().join(entry.file_name())).unwrap();
    }
    let path = scratch.path().join("config.json");
    let original = std::fs::read_to_string(&path).unwrap();
    assert!(original.contains("Infinity"));
    for (from, to, expected) in [
        ("MEM*EM", "MEM*EX", "letters of M (Mamba-2)"),
        ("MEM*EM", "MEM*E", "6 layers"),
        ("MEM*EM", "EEM*EM", "nothing"),
        ("\"mamba_num_heads\": 8", "\"mamba_num_heads\": 7", "expected"),
        ("Infinity", "-1.0", "two ascending numbers"),
        ("Infinity", "\"much\"", "two ascending numbers"),
    ] {
        std::fs::write(&path, original.replace(from, to)).unwrap();
        let error = Model::open(scratch.path(), &LoadOptions::default()).err();
        let error = error.unwrap_or_else(|| panic!("{to}")).to_string();
        assert!(error.contains(expected), "{to}: {error}");
    }
}
