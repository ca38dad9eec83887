//! Damaged sidecars.

use proptest::prelude::*;
use thermocline_engine::format::{Array, Metadata, gguf};

use super::*;

/// Key-value pairs and tensors of a sidecar, for changing them.
pub(super) struct Parts {
    pub pairs: Vec<(String, Value)>,
    pub tensors: Vec<(gguf::TensorInfo, Vec<u8>)>,
}

impl Parts {
    pub fn of(sidecar: &Sidecar) -> Self {
        let bytes = Bytes::new(sidecar.to_bytes().unwrap());
        let file = gguf::from_bytes(Path::new("sample"), bytes).unwrap();
        let pairs = file.metadata.iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
        let tensor = |tensor: &thermocline_engine::format::Tensor| {
            let info = gguf::TensorInfo { name: tensor.name.clone(), ty: tensor.ty, shape: tensor.shape.clone() };
            (info, tensor.data.to_vec())
        };
        Parts { pairs, tensors: file.tensors().iter().map(tensor).collect() }
    }

    pub fn read(&self) -> Result<Sidecar, Error> {
        let mut metadata = Metadata::new("sample");
        self.pairs.iter().for_each(|(key, value)| drop(metadata.set(key.clone(), value.clone())));
        let tensors: Vec<_> = self.tensors.iter().map(|(info, data)| (info.clone(), data.as_slice())).collect();
        let bytes = gguf::to_bytes(thermocline_engine::format::Container::Gguf(3), &metadata, &tensors).unwrap();
        Sidecar::from_bytes(Path::new("sample"), Bytes::new(bytes))
    }
}

/// Returns a wrong value of the same type.
fn spoilt(key: &str, value: &Value) -> Value {
    match value {
        Value::Array(Array::F32(values)) => {
            let mut values = values.clone();
            values[0] = if key.ends_with("threshold") { f32::INFINITY } else { -7.0 };
            Value::Array(Array::F32(values))
        }
        Value::Array(Array::String(values)) => {
            let mut values = values.clone();
            values[0] = "something".to_owned();
            Value::Array(Array::String(values))
        }
        Value::F32(_) => Value::F32(1.5),
        other => panic!("{key}: {other:?}"),
    }
}

#[test]
fn errors_name_the_key() {
    let whole = Parts::of(&sample(&open(&fixture("models/llama-relu"))));
    whole.read().unwrap();
    for at in 0..whole.pairs.len() {
        let key = whole.pairs[at].0.clone();
        let check = |parts: &Parts, what: &str| {
            let error = parts.read().expect_err(&format!("{key} {what}")).to_string();
            assert!(error.contains(&key), "{key} {what}: {error}");
        };
        let mut parts = Parts { pairs: whole.pairs.clone(), tensors: whole.tensors.clone() };
        parts.pairs[at].1 = Value::Array(Array::U8(vec![1]));
        check(&parts, "of another type");
        parts.pairs[at].1 = whole.pairs[at].1.clone();
        if let value @ (Value::Array(_) | Value::F32(_)) = &whole.pairs[at].1 {
            parts.pairs[at].1 = spoilt(&key, value);
            check(&parts, "out of range");
        }
        if let Value::Array(array) = &whole.pairs[at].1 {
            parts.pairs[at].1 = Value::Array(match array {
                Array::F32(values) => Array::F32(values[1..].to_vec()),
                Array::String(values) => Array::String(values[1..].to_vec()),
                other => panic!("{other:?}"),
            });
            check(&parts, "too short");
        }
        parts.pairs.remove(at);
        check(&parts, "absent");
    }
    let mut parts = Parts { pairs: whole.pairs.clone(), tensors: whole.tensors.clone() };
    let version = parts.pairs.iter_mut().find(|(key, _)| key == "thermocline.format_version").unwrap();
    assert_eq!(version.1, Value::U32(2), "a sidecar with scales of gates");
    version.1 = Value::U32(4);
    assert!(matches!(parts.read(), Err(Error::Unsupported { .. })));
}

#[test]
fn errors_name_the_tensor() {
    let model = open(&fixture("models/llama-relu"));
    let whole = Parts::of(&sample(&model));
    for at in 0..whole.tensors.len() {
        let name = whole.tensors[at].0.name.clone();
        let mut parts = Parts { pairs: whole.pairs.clone(), tensors: whole.tensors.clone() };
        let (info, data) = &mut parts.tensors[at];
        info.shape[0] += 1;
        data.resize(info.shape.iter().product::<usize>() * 4, 0);
        let layer = name.trim_end_matches(|c: char| c != '.').trim_end_matches("fc1.weight.");
        // Only the model determines the number of a site's inputs and of scales, so the error comes
        // from attaching.
        let attached = || parts.read()?.attach(&mut open(&fixture("models/llama-relu")));
        let error = match name.ends_with("importance") || name.ends_with("gate_scales") {
            true => attached().expect_err(&name),
            false => parts.read().expect_err(&name),
        };
        let error = error.to_string();
        // `fc1` determines the rank, so a wrong `fc1` gives an error for `fc2`.
        assert!(error.contains(&name) || error.contains(&name.replace("fc1", "fc2")), "{layer}: {error}");

        let mut parts = Parts { pairs: whole.pairs.clone(), tensors: whole.tensors.clone() };
        parts.tensors[at].0.ty = TensorType::I32;
        let error = parts.read().expect_err(&name).to_string();
        assert!(error.contains(&name), "{error}");

        if name.contains("fc") || name.contains("gate_low") {
            let mut parts = Parts { pairs: whole.pairs.clone(), tensors: whole.tensors.clone() };
            parts.tensors.remove(at);
            let error = parts.read().expect_err(&name).to_string();
            assert!(error.contains(&name) || name.contains("fc1"), "{error}");
        }
        if name.contains("freq") || name.contains("scales") {
            let mut parts = Parts { pairs: whole.pairs.clone(), tensors: whole.tensors.clone() };
            parts.tensors[at].1[..4].copy_from_slice(&f32::NAN.to_le_bytes());
            let error = parts.read().expect_err(&name).to_string();
            assert!(error.contains(&name) && error.contains("NaN"), "{error}");
        }
    }
}

#[test]
fn truncated_file_is_an_error_wherever_it_ends() {
    let mut sidecar = sample(&open(&fixture("models/llama-relu")));
    // The sidecar is small enough to try many lengths.
    sidecar.layers.iter_mut().for_each(|layer| layer.down = None);
    let bytes = sidecar.to_bytes().unwrap();
    let read = |bytes: &[u8]| Sidecar::from_bytes(Path::new("truncated"), Bytes::new(bytes.to_vec()));
    read(&bytes).unwrap();
    let data = bytes.len() - 64;
    for len in (0..4096.min(data)).chain((4096..data).step_by(97)) {
        assert!(read(&bytes[..len]).is_err(), "{len} of {} bytes", bytes.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Reading fails, or gives a sidecar that a model accepts or refuses.
    #[test]
    fn damage_does_not_panic(seed in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12)) {
        use std::sync::LazyLock;
        static WHOLE: LazyLock<(Vec<u8>, usize)> = LazyLock::new(|| {
            let bytes = sample(&open(&fixture("models/llama-relu"))).to_bytes().unwrap();
            // The damage is in the part before the data, where bytes have a meaning.
            let head = bytes.windows(10).rposition(|window| window == b"gate_low.w").unwrap() + 64;
            (bytes, head)
        });
        let (bytes, head) = &*WHOLE;
        let mut bytes = bytes.clone();
        for (at, value) in seed {
            bytes[at.index(*head)] = value;
        }
        if let Ok(sidecar) = Sidecar::from_bytes(Path::new("damaged"), Bytes::new(bytes)) {
            let mut model = open(&fixture("models/llama-relu"));
            if sidecar.foreign(&model).is_none() && sidecar.attach(&mut model).is_ok() {
                prop_assert_eq!(model.weights.layers.len(), sidecar.layers.len());
            }
        }
    }
}
