//! Routed experts that work in a latent (Nemotron 3 Super). The latent of the test model is its
//! residual stream in another order, with additional elements of no effect. Its logits equal those
//! of the model without a latent.

use std::{borrow::Cow, collections::HashMap, fs};

use half::bf16;
use safetensors::{Dtype, SafeTensors, View};
use tempfile::TempDir;
use thermocline_engine::model::{convert, traits};
use thermocline_engine::quant::TensorType;
use thermocline_tests::golden::{greedy, prompt};

use super::*;

const NAME: &str = "fixtures/models/nemotron-3-nano";
const WIDTH: usize = 64;
const LATENT: usize = 80;

/// A BF16 tensor, or a copied tensor of any type.
struct Written {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

impl View for &Written {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.data)
    }

    fn data_len(&self) -> usize {
        self.data.len()
    }
}

impl Written {
    /// Makes a BF16 tensor `[rows, cols]` from `value`.
    fn new([rows, cols]: [usize; 2], value: impl Fn(usize, usize) -> f32) -> Self {
        let elements = (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col)));
        let data = elements.flat_map(|(row, col)| bf16::from_f32(value(row, col)).to_le_bytes()).collect();
        Written { dtype: Dtype::BF16, shape: vec![rows, cols], data }
    }
}

/// Returns the element of the residual stream that is element `at` of the latent.
fn source(at: usize) -> Option<usize> {
    (at < WIDTH).then_some((at * 7 + 3) % WIDTH)
}

/// Returns any weight, for places without effect.
fn filler(a: usize, b: usize) -> f32 {
    ((a * 31 + b * 17) % 13) as f32 / 13.0 - 0.5
}

/// Writes the folder of the model with a latent. `change` alters its tensors.
fn folder(change: impl Fn(&mut HashMap<String, Written>)) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let from = here(NAME);
    // The configuration is edited as text, because Python writes infinities that JSON does not
    // have.
    let config = fs::read_to_string(from.join("config.json")).unwrap();
    let (key, size) = ("\"moe_intermediate_size\"", format!("\"moe_latent_size\": {LATENT}, "));
    assert_eq!(config.matches(key).count(), 1);
    fs::write(folder.path().join("config.json"), config.replace(key, &format!("{size}{key}"))).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(from.join(name), folder.path().join(name)).unwrap();
    }
    let bytes = fs::read(from.join("model.safetensors")).unwrap();
    let mut tensors = HashMap::new();
    for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
        let numbers: Vec<f32> =
            tensor.data().chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).to_f32()).collect();
        let rows = tensor.shape()[0];
        let written = if name.contains(".mixer.experts.") && name.ends_with("up_proj.weight") {
            let of = |row: usize, at| source(at).map_or(filler(row, at), |col| numbers[row * WIDTH + col]);
            Written::new([rows, LATENT], of)
        } else if name.contains(".mixer.experts.") && name.ends_with("down_proj.weight") {
            let cols = tensor.shape()[1];
            let of = |at, col: usize| source(at).map_or(filler(at, col), |row| numbers[row * cols + col]);
            Written::new([LATENT, cols], of)
        } else {
            Written { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), data: tensor.data().to_vec() }
        };
        if let Some(layer) = name.strip_suffix("gate.weight") {
            let same = |at: usize, element: usize| f32::from(u8::from(source(at) == Some(element)));
            tensors.insert(format!("{layer}fc1_latent_proj.weight"), Written::new([LATENT, WIDTH], same));
            tensors.insert(format!("{layer}fc2_latent_proj.weight"), Written::new([WIDTH, LATENT], |a, b| same(b, a)));
        }
        tensors.insert(name, written);
    }
    change(&mut tensors);
    safetensors::serialize_to_file(&tensors, None, &folder.path().join("model.safetensors")).unwrap();
    folder
}

fn opened(folder: &Path) -> Arc<Model> {
    Arc::new(Model::open(folder, &LoadOptions::default()).unwrap())
}

#[test]
fn latent_experts_match_the_reference_on_the_cpu() {
    let folder = folder(|_| ());
    let expected = Expected::read(&here(NAME).join("expected.safetensors"));
    let (ids, logits, wanted) = (expected.ids("input_ids"), expected.f32("logits"), expected.ids("greedy_ids"));
    let file = folder.path().join("model.gguf");
    convert(folder.path(), &file, TensorType::F32, &mut |_, _| ()).unwrap();
    for model in [opened(folder.path()), opened(&file)] {
        assert!(traits(&model).iter().any(|line| line.starts_with("experts in a latent")), "{:?}", traits(&model));
        for isa in Isa::available() {
            for chunk in [1, 5, 24] {
                let setup = Setup { isa: Some(isa), chunk, ..Setup::default() };
                let error = max_diff(&prompt(&model, setup, &ids).logits, &logits);
                assert!(error <= 1e-3, "{setup:?}: logits differ by {error}");
                assert_eq!(greedy(&model, setup, &ids, wanted.len()), wanted, "{setup:?}");
            }
        }
    }
}

#[test]
fn placements_do_not_change_logits_of_latent_experts() {
    let folder = folder(|_| ());
    let model = opened(folder.path());
    let ids = ids(&model, 40);
    let setup = Setup { isa: Some(Isa::Scalar), activations: InputPrecision::Float, ..Setup::default() };
    let wanted = logits(&mut golden::forward(&model, setup), &ids, 6);
    for tier in Tier::ALL {
        for (what, placement) in placements(&model, 7) {
            for sparsity in [Sparsity::Dense, Sparsity::Exact] {
                let mut forward = hybrid(shared(tier), &model, &placement, 16);
                forward.set_sparsity(sparsity);
                let error = relative(&logits(&mut forward, &ids, 6), &wanted);
                assert!(error <= 1e-4, "{tier}, {what}, {sparsity}: {error}");
            }
        }
    }
}

#[test]
fn latent_of_another_size_is_refused() {
    const OUT: &str = "backbone.layers.1.mixer.fc2_latent_proj.weight";
    const UP: &str = "backbone.layers.4.mixer.experts.2.up_proj.weight";
    type Change = fn(&mut HashMap<String, Written>);
    let cases: [(Change, &str); 3] = [
        (|tensors| drop(tensors.remove(OUT)), "blk.1.ffn_latent_up.weight"),
        (
            |tensors| drop(tensors.insert(OUT.into(), Written::new([WIDTH, WIDTH], filler))),
            "blk.1.ffn_latent_up.weight",
        ),
        (|tensors| drop(tensors.insert(UP.into(), Written::new([32, WIDTH], filler))), "blk.4.ffn_up"),
    ];
    for (change, wanted) in cases {
        let folder = folder(change);
        let error = Model::open(folder.path(), &LoadOptions::default()).unwrap_err().to_string();
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
}
