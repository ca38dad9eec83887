//! Sidecars with bundles: the rows of each neuron, side by side.

use thermocline_engine::{
    format::{Array, Tensor, gguf},
    sparsity::sidecar::PreparedBundles,
};

use super::{damage::Parts, *};

/// Models with gates.
const GATED: [&str; 3] = ["models/llama-relu", "models/bamboo", "powerinfer/llama-relu-f16.powerinfer.gguf"];
const TYPES: &str = "thermocline.bundle.types";

/// Returns the sample of `model`, in which all layers with a down projection have bundles.
fn bundled(model: &Model) -> Sidecar {
    let mut sidecar = sample(model);
    for (layer, weights) in sidecar.layers.iter_mut().zip(&model.weights.layers) {
        let (Ffn::Dense(ffn), Some(down)) = (&weights.ffn, &layer.down) else { continue };
        layer.bundles = PreparedBundles::of(ffn, &down.weight, layer.predictor.is_some());
        assert!(layer.bundles.is_some());
    }
    sidecar
}

fn same_rows(a: &Matrix, b: &Matrix) {
    assert_eq!((a.ty(), a.rows(), a.cols()), (b.ty(), b.rows(), b.cols()));
    (0..a.rows()).for_each(|row| assert_eq!(a.row(row), b.row(row), "{row}"));
}

#[test]
fn bundles_round_trip_through_their_file() {
    let folder = tempfile::tempdir().unwrap();
    for name in GATED {
        let model = model(name);
        let (written, path) = (bundled(&model), folder.path().join("s.thermocline.gguf"));
        written.write(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), written.to_bytes().unwrap(), "{name}");
        let file = Model::open_checkpoint(&path, ReadMode::Map).unwrap();
        assert_eq!(file.metadata.get("thermocline.format_version"), Some(&Value::U32(3)));
        let read = Sidecar::open(&path, ReadMode::Map).unwrap();
        for (n, (read, written)) in read.layers.iter().zip(&written.layers).enumerate() {
            let tensor = |name: &str| file.tensor(&format!("blk.{n}.{name}")).map(Tensor::rows);
            assert_eq!((read.bundle_bytes(), read.bytes()), (written.bundle_bytes(), written.bytes()), "{name}");
            let Some(bundles) = &read.bundles else {
                assert!(written.bundles.is_none() && tensor("ffn_bundles").is_none(), "{name}");
                continue;
            };
            let (down, wanted) = (&read.down.as_ref().unwrap().weight, written.bundles.as_ref().unwrap());
            assert_eq!((tensor("ffn_bundles"), tensor("ffn_down_t.weight")), (Some(down.rows()), None), "{name}");
            same_rows(&bundles.up, &wanted.up);
            same_rows(down, &written.down.as_ref().unwrap().weight);
            assert_eq!(bundles.gate.is_some(), written.predictor.is_some(), "{name}");
            bundles.gate.iter().zip(&wanted.gate).for_each(|(a, b)| same_rows(a, b));
            let record = read.bundle_bytes().unwrap();
            let [first, second] = [0, 1].map(|row| bundles.up.row(row).as_ptr().addr());
            assert_eq!((first % 4096, second - first), (0, record), "{name}: records begin at a page");
            assert_eq!(down.row(0).as_ptr().addr() - first, bundles.up.row_bytes().next_multiple_of(32), "{name}");
        }
    }
}

#[test]
fn bundles_take_the_place_of_the_models_rows() {
    for name in GATED {
        let attached = |sidecar: Sidecar| {
            let (mut model, bytes) = (model(name), sidecar.to_bytes().unwrap());
            let sidecar = Sidecar::from_bytes(Path::new("sample"), Bytes::new(bytes)).unwrap();
            sidecar.attach(&mut model).unwrap();
            model
        };
        let [with, without] = [attached(bundled(&model(name))), attached(sample(&model(name)))];
        for (with, without) in with.weights.layers.iter().zip(&without.weights.layers) {
            let (Ffn::Dense(with), Ffn::Dense(without)) = (&with.ffn, &without.ffn) else { panic!("{name}") };
            with.linears().zip(without.linears()).for_each(|(a, b)| same_rows(&a.weight, &b.weight));
            let Some(gate) = &with.bundled_gate else { continue };
            let own = without.gate.as_ref().unwrap();
            same_rows(&gate.weight, &own.weight);
            assert_eq!((&gate.bias, gate.weight.is_contiguous()), (&own.bias, false), "{name}");
            assert!(with.gate.as_ref().unwrap().weight.is_contiguous(), "{name}: exact modes read only gates");
        }
        assert_eq!(logits(with), logits(without), "{name}");
    }
}

#[test]
fn layers_without_gates_have_no_bundles() {
    let opt = model("models/opt");
    let Ffn::Dense(ffn) = &opt.weights.layers[0].ffn else { panic!("not dense") };
    assert!(PreparedBundles::of(ffn, &neurons(ffn), true).is_none());
    let relu = model("models/llama-relu");
    let Ffn::Dense(ffn) = &relu.weights.layers[0].ffn else { panic!("not dense") };
    assert!(PreparedBundles::of(ffn, &neurons(ffn).with_factor(0.5), true).is_none(), "a factor is not stored");
}

#[test]
fn damaged_bundles_are_refused_with_their_name() {
    let whole = Parts::of(&bundled(&open(&fixture("models/llama-relu"))));
    let key = whole.pairs.iter().position(|(key, _)| key == TYPES).unwrap();
    let tensor = whole.tensors.iter().position(|(info, _)| info.name == "blk.0.ffn_bundles").unwrap();
    let Value::Array(Array::String(types)) = whole.pairs[key].1.clone() else { panic!("no types") };
    let refusal = |change: &dyn Fn(&mut Parts), name: &str| {
        let mut parts = Parts { pairs: whole.pairs.clone(), tensors: whole.tensors.clone() };
        change(&mut parts);
        let attached = parts.read().and_then(|sidecar| sidecar.attach(&mut open(&fixture("models/llama-relu"))));
        let error = attached.expect_err(name).to_string();
        assert!(error.contains(name), "{name}: {error}");
    };
    let types_are = |of_first: &str| {
        let all: Vec<String> = [of_first.to_owned()].into_iter().chain(types[1..].iter().cloned()).collect();
        move |parts: &mut Parts| parts.pairs[key].1 = Value::Array(Array::String(all.clone()))
    };
    for wrong in ["", "F32 F99 F32", "F32 I32 F32", "F32,F32,F32"] {
        refusal(&types_are(wrong), TYPES);
    }
    // Another number of rows has another record, and so have rows of other types.
    for wrong in ["F32", "F32 F32", "F32 F32 F32 F32", "F16 F16 F16"] {
        refusal(&types_are(wrong), "blk.0.ffn_bundles");
    }
    refusal(&|parts| parts.pairs[key].1 = Value::Array(Array::String(types[1..].to_vec())), TYPES);
    refusal(&|parts| parts.pairs[key].1 = Value::Array(Array::U8(vec![1])), TYPES);
    refusal(&|parts| drop(parts.pairs.remove(key)), "ffn_bundles");
    refusal(&|parts| drop(parts.tensors.remove(tensor)), "blk.0.ffn_bundles");
    let numbers = |parts: &mut Parts| {
        let (info, data) = &mut parts.tensors[tensor];
        info.ty = TensorType::I16;
        data.resize(2 * data.len(), 0);
    };
    refusal(&numbers, "blk.0.ffn_bundles");
    for at in [0, 1] {
        let enlarge = |parts: &mut Parts| {
            let (info, data) = &mut parts.tensors[tensor];
            info.shape[at] += 1;
            data.resize(info.shape.iter().product(), 0);
        };
        refusal(&enlarge, "blk.0.ffn_bundles");
    }
    let second_down = |parts: &mut Parts| {
        let model = open(&fixture("models/llama-relu"));
        let Ffn::Dense(ffn) = &model.weights.layers[0].ffn else { panic!("not dense") };
        let down = neurons(ffn);
        let name = "blk.0.ffn_down_t.weight".to_owned();
        let info = gguf::TensorInfo { name, ty: down.ty(), shape: vec![down.rows(), down.cols()] };
        parts.tensors.push((info, down.data().to_vec()));
    };
    refusal(&second_down, "blk.0.ffn_down_t.weight");
    // Rows of another type than the model's.
    let mut other = bundled(&open(&fixture("models/llama-relu")));
    let bundles = other.layers[0].bundles.as_mut().unwrap();
    let halves = Bytes::new(vec![0; bundles.up.byte_len() / 2]);
    bundles.up = Matrix::new(TensorType::F16, bundles.up.rows(), bundles.up.cols(), halves).unwrap();
    let error = other.attach(&mut open(&fixture("models/llama-relu"))).unwrap_err().to_string();
    assert!(error.contains("blk.0.ffn_bundles") && error.contains("F16"), "{error}");
}
