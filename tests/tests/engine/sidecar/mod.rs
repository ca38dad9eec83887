//! Sidecars. A written sidecar is read again and attaches only to its own model. An error in a
//! sidecar names its place.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

mod bundles;
mod damage;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use thermocline_engine::{
    Error,
    cpu::{Cpu, CpuOptions},
    format::{Bytes, Checkpoint, Matrix, ReadMode, Value},
    model::{
        Activation, Down, Ffn, FfnWeights, InputCurves, InputFigures, InputSite, LayerWeights, LoadOptions, Model,
        PredictorInput, PredictorKind, PredictorQuality, SiteCurve,
    },
    quant::TensorType,
    runtime::{Forward, KvType, Outputs},
    sparsity::sidecar::{
        Identity, PreparedDown, PreparedExperts, PreparedLayer, PreparedPredictor, PreparedThreshold, Provenance,
        Sidecar, SidecarAttachment, SidecarChoice, attach, path_beside,
    },
};
use thermocline_tests::moe;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn open(path: &Path) -> Model {
    Model::open(path, &LoadOptions::default()).unwrap()
}

/// Models of every activation family, with and without gate and biases. Also MoE models without and
/// with a shared expert, and a file that already has predictors.
const MODELS: [&str; 8] = [
    "models/llama-relu",
    "models/opt",
    "models/falcon-new",
    "models/bamboo",
    "models/llama-silu-gqa",
    "models/mixtral",
    SHARED,
    "powerinfer/llama-relu-f16.powerinfer.gguf",
];

/// Name of a model that is made in memory and has no file.
const SHARED: &str = "an MoE model with a shared expert";

fn model(name: &str) -> Model {
    if name == SHARED { moe::wide() } else { open(&fixture(name)) }
}

/// Returns various numbers from -0.5 to 0.5.
fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 2_654_435_761 + seed) % 1000) as f32 / 1000.0 - 0.5).collect()
}

/// Returns the same numbers plus 0.5, as fractions from 0 to 1.
fn frequencies(n: usize, seed: usize) -> Vec<f32> {
    numbers(n, seed).into_iter().map(|value| value + 0.5).collect()
}

fn matrix(rows: usize, cols: usize, values: &[f32]) -> Matrix {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Matrix::new(TensorType::F32, rows, cols, Bytes::new(data)).unwrap()
}

/// Returns the neuron-major down projection in full precision.
fn neurons(ffn: &FfnWeights) -> Matrix {
    let Down::Outputs(down) = &ffn.down else {
        let Down::Neurons(down) = &ffn.down else { unreachable!() };
        return down.weight.clone();
    };
    let (d, n_ff) = (down.weight.rows(), down.weight.cols());
    let (mut row, mut transposed) = (vec![0.0; n_ff], vec![0.0; d * n_ff]);
    for output in 0..d {
        down.weight.dequantise_row(output, &mut row);
        (0..n_ff).for_each(|neuron| transposed[neuron * d + output] = row[neuron]);
    }
    matrix(n_ff, d, &transposed)
}

/// Returns a sidecar with everything that a layer of `model` can have. Some layers lack a part.
fn sample(model: &Model) -> Sidecar {
    let layer = |(n, weights): (usize, &thermocline_engine::model::LayerWeights)| {
        let ffn = match &weights.ffn {
            Ffn::None => return PreparedLayer::default(),
            Ffn::Dense(ffn) => ffn,
            Ffn::Experts(moe) => {
                let (count, width) = (moe.experts.len(), moe.experts[0].up.weight.rows());
                let frequency = (0..count).map(|e| e as f32 / count as f32).collect();
                let experts = PreparedExperts {
                    width,
                    frequency: frequencies(count * width, n),
                    shared: moe.shared.iter().flat_map(|of| frequencies(of.ffn.up.weight.rows(), n + 7)).collect(),
                    downs: if n == 1 { Vec::new() } else { moe.ffns().map(neurons).collect() },
                    down_error: if n == 1 { 0.0 } else { 0.125 },
                };
                let activation_threshold = (n == 0).then_some(PreparedThreshold { value: 0.0625, density: 0.5 });
                let frequency = Some(frequency);
                return PreparedLayer {
                    frequency,
                    activation_threshold,
                    experts: Some(experts),
                    ..PreparedLayer::default()
                };
            }
        };
        let (n_ff, d) = (ffn.up.weight.rows(), ffn.up.weight.cols());
        let kind = match n % 2 {
            0 => {
                let (fc1, fc2) = (matrix(5, d, &numbers(5 * d, n)), matrix(n_ff, 5, &numbers(n_ff * 5, n)));
                PredictorKind::LowRank { fc1, fc2 }
            }
            _ => PredictorKind::Rows { rows: matrix(n_ff, d, &numbers(n_ff * d, n)), bias: None },
        };
        let quality = PredictorQuality { recall: 0.96, mass_recall: 0.99, precision: 0.5, density: 0.25 };
        PreparedLayer {
            frequency: Some(frequencies(n_ff, n)),
            predictor: (n != 2).then_some(PreparedPredictor {
                kind: if weights.predictor.is_some() { None } else { Some(kind) },
                input: if n % 2 == 0 { PredictorInput::Normed } else { PredictorInput::Residual },
                threshold: -0.125 * n as f32,
                quality,
            }),
            activation_threshold: (n == 0).then_some(PreparedThreshold { value: 0.0625, density: 0.5 }),
            gate_scales: (n == 0).then(|| frequencies(n_ff, n + 3)),
            down: (n != 1).then(|| PreparedDown { weight: neurons(ffn), error: 0.0 }),
            bundles: None,
            inputs: (n != 1).then(|| input_curves(weights, n)),
            experts: None,
        }
    };
    Sidecar {
        path: PathBuf::from("sample"),
        identity: Identity::of_model(model),
        provenance: Provenance {
            activation: model.config.activation,
            corpus: "numbers".to_owned(),
            tokens_profiled: 1 << 40,
            tokens_held_out: 77,
            target_recall: 0.95,
            target_mass_recall: 0.99,
        },
        layers: model.weights.layers.iter().enumerate().map(layer).collect(),
        input_figures: vec![InputFigures {
            level: 0.4,
            dense_perplexity: 3.5,
            perplexity: 3.75,
            kl: 0.0625,
            kl_error: 0.001,
            same_top: 0.9,
            read: 0.625,
            tokens: 500,
        }],
    }
}

/// Returns input thresholds at two levels for the sites of a layer. The last site of layer 0 has
/// none.
fn input_curves(weights: &LayerWeights, n: usize) -> InputCurves {
    let curve = |site: InputSite| {
        let inputs = site.inputs(weights);
        let curve = || SiteCurve {
            importance: numbers(inputs, n).iter().map(|x| x.abs()).collect(),
            thresholds: vec![0.125, 0.5 + n as f32],
        };
        (inputs > 0 && (n, site) != (0, InputSite::Hidden)).then(curve)
    };
    InputCurves { levels: vec![0.25, 0.5], sites: InputSite::ALL.map(curve) }
}

fn same_matrix(a: &Matrix, b: &Matrix) {
    assert_eq!((a.ty(), a.rows(), a.cols()), (b.ty(), b.rows(), b.cols()));
    assert_eq!(a.data(), b.data());
}

fn same_kind(a: &PredictorKind, b: &PredictorKind) {
    match (a, b) {
        (PredictorKind::LowRank { fc1: a1, fc2: a2 }, PredictorKind::LowRank { fc1: b1, fc2: b2 }) => {
            same_matrix(a1, b1);
            same_matrix(a2, b2);
        }
        (PredictorKind::Rows { rows: a, .. }, PredictorKind::Rows { rows: b, .. }) => same_matrix(a, b),
        _ => panic!("{a:?} {b:?}"),
    }
}

#[test]
fn sidecar_round_trips_through_its_file() {
    let folder = tempfile::tempdir().unwrap();
    for name in MODELS {
        let model = model(name);
        let (written, path) = (sample(&model), folder.path().join("s.thermocline.gguf"));
        written.write(&path).unwrap();
        let read = Sidecar::open(&path, ReadMode::Map).unwrap();
        assert_eq!((&read.identity, &read.provenance), (&written.identity, &written.provenance));
        assert_eq!(read.layers.len(), model.config.n_layer());
        if written.layers.iter().any(|layer| layer.inputs.is_some()) {
            assert_eq!(read.input_figures, written.input_figures);
        }
        assert_eq!(fs::read(&path).unwrap(), written.to_bytes().unwrap(), "{name}");
        for ((read, written), weights) in read.layers.iter().zip(&written.layers).zip(&model.weights.layers) {
            assert_eq!(
                (&read.frequency, read.activation_threshold, &read.gate_scales),
                (&written.frequency, written.activation_threshold, &written.gate_scales),
                "{name}"
            );
            assert_eq!((read.density(), read.skew(0.8)), (written.density(), written.skew(0.8)), "{name}");
            assert_eq!(read.inputs, written.inputs, "{name}");
            match (&read.experts, &written.experts) {
                (Some(a), Some(b)) => {
                    assert_eq!((a.width, &a.frequency, &a.shared), (b.width, &b.frequency, &b.shared), "{name}");
                    assert_eq!((a.downs.len(), a.down_error), (b.downs.len(), b.down_error), "{name}");
                    let Ffn::Experts(moe) = &weights.ffn else { panic!("{name}: not an MoE layer") };
                    let shared = moe.shared.as_ref().map_or(0, |shared| shared.ffn.up.weight.rows());
                    assert_eq!((a.shared.len(), shared > 0), (shared, name == SHARED), "{name}");
                    assert!(a.downs.is_empty() || a.downs.len() == moe.ffns().count(), "{name}");
                    a.downs.iter().zip(&b.downs).for_each(|(a, b)| same_matrix(a, b));
                }
                (a, b) => assert!(a.is_none() && b.is_none(), "{name}"),
            }
            match (&read.down, &written.down) {
                (Some(a), Some(b)) => {
                    assert_eq!(a.error, b.error);
                    same_matrix(&a.weight, &b.weight);
                }
                (a, b) => assert!(a.is_none() && b.is_none(), "{name}"),
            }
            match (&read.predictor, &written.predictor) {
                (Some(a), Some(b)) => {
                    assert_eq!((a.input, a.threshold, a.quality), (b.input, b.threshold, b.quality), "{name}");
                    match (&a.kind, &b.kind) {
                        (Some(a), Some(b)) => same_kind(a, b),
                        (a, b) => assert!(a.is_none() && b.is_none(), "{name}"),
                    }
                }
                (a, b) => assert!(a.is_none() && b.is_none(), "{name}"),
            }
        }
    }
}

fn logits(model: Model) -> Vec<f32> {
    let mut forward = Forward::new(Arc::new(model), Cpu::new(&CpuOptions::default()).unwrap());
    let mut kv = forward.kv_cache(8, KvType::F32).unwrap();
    forward.run(&[3, 1, 4, 1, 5], &mut kv, Outputs::All, &mut ()).unwrap().to_vec()
}

#[test]
fn sidecar_becomes_part_of_its_model() {
    for name in MODELS {
        let (mut model, plain) = (model(name), model(name));
        let bytes = sample(&model).to_bytes().unwrap();
        let sidecar = Sidecar::from_bytes(Path::new("sample"), Bytes::new(bytes)).unwrap();
        sidecar.attach(&mut model).unwrap();
        for ((weights, prepared), before) in model.weights.layers.iter().zip(&sidecar.layers).zip(&plain.weights.layers)
        {
            assert_eq!(weights.frequency, prepared.frequency, "{name}");
            assert_eq!(
                weights.activation_threshold,
                prepared.activation_threshold.map(|threshold| threshold.value),
                "{name}"
            );
            if let (Ffn::Experts(moe), Some(experts)) = (&weights.ffn, &prepared.experts) {
                assert_eq!(weights.neuron_frequency.as_ref().unwrap(), &experts.frequencies().collect::<Vec<f32>>());
                let attached = moe.downs().filter_map(|down| match down {
                    Down::Neurons(down) => Some(&down.weight),
                    Down::Outputs(_) => None,
                });
                let attached: Vec<&Matrix> = attached.collect();
                assert_eq!(attached.len(), experts.downs.len(), "{name}");
                attached.iter().zip(&experts.downs).for_each(|(a, b)| same_matrix(a, b));
                let kept = if experts.downs.is_empty() { 0 } else { moe.experts.len() };
                assert_eq!(moe.file_down.len(), kept, "{name}");
            }
            let (Ffn::Dense(ffn), Ffn::Dense(old)) = (&weights.ffn, &before.ffn) else { continue };
            assert_eq!(ffn.gate_scales.as_deref(), prepared.gate_scales.as_deref(), "{name}");
            if let Some(down) = &prepared.down {
                let Down::Neurons(attached) = &ffn.down else { panic!("{name}: not neuron-major") };
                same_matrix(&attached.weight, &down.weight);
                assert_eq!(attached.bias, old.down.linear().bias, "{name}");
            }
            let Some(prepared) = &prepared.predictor else {
                assert_eq!(weights.predictor.is_some(), before.predictor.is_some(), "{name}");
                continue;
            };
            let predictor = weights.predictor.as_ref().unwrap();
            assert_eq!((predictor.input, predictor.threshold), (prepared.input, prepared.threshold), "{name}");
            assert_eq!(predictor.quality, Some(prepared.quality), "{name}");
            same_kind(
                &predictor.kind,
                prepared.kind.as_ref().unwrap_or_else(|| &before.predictor.as_ref().unwrap().kind),
            );
            if let PredictorKind::Rows { bias, .. } = &predictor.kind {
                assert_eq!(*bias, old.gate.as_ref().unwrap_or(&old.up).bias, "{name}: the firing rows' bias");
            }
        }
        for (a, b) in logits(model).iter().zip(logits(plain)) {
            assert!((a - b).abs() <= 1e-3 * b.abs().max(1.0), "{name}: {a} {b}");
        }
    }
}

/// Returns a folder with a copy of a model.
fn copied(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::copy(fixture(name), &path).unwrap();
    (folder, path)
}

const Q4: &str = "gguf/llama-silu-gqa-256-Q4_0.gguf";
const Q8: &str = "gguf/llama-silu-gqa-256-Q8_0.gguf";

#[test]
fn sidecar_attaches_to_its_own_model_only() {
    let (_folder, path) = copied(Q4);
    let beside = path_beside(&path);
    let find = |path: &Path, choice: &SidecarChoice| attach(&mut open(path), choice, ReadMode::Map);
    assert!(matches!(find(&path, &SidecarChoice::Beside).unwrap(), SidecarAttachment::None));

    sample(&open(&path)).write(&beside).unwrap();
    let found = find(&path, &SidecarChoice::Beside).unwrap();
    assert_eq!(found.sidecar().unwrap().path, beside);
    // The dropped value has mapped the file, which is overwritten below.
    drop(found);
    assert!(matches!(find(&path, &SidecarChoice::Without).unwrap(), SidecarAttachment::None));
    assert!(find(&path, &SidecarChoice::File(beside.clone())).unwrap().sidecar().is_some());
    let memory = SidecarChoice::Memory("memory".into(), Bytes::new(fs::read(&beside).unwrap()));
    assert!(find(&path, &memory).unwrap().sidecar().is_some());

    // The cases are the same model in another type, the same type with other weights, another
    // model, and another activation.
    let ignored = |reason: &str| {
        let SidecarAttachment::Ignored { path: at, reason: got } = find(&path, &SidecarChoice::Beside).unwrap() else {
            panic!("{reason}: attached")
        };
        assert!(at == beside && got.contains(reason), "{got}");
        let error = find(&path, &SidecarChoice::File(beside.clone())).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    };
    fs::copy(fixture(Q8), &path).unwrap();
    ignored("other tensors or tensor types");
    let mut bytes = fs::read(fixture(Q4)).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();
    ignored("other weights");
    fs::copy(fixture("powerinfer/llama-relu-f16.powerinfer.gguf"), &path).unwrap();
    ignored("another model");
    fs::copy(fixture(Q4), &path).unwrap();
    assert!(find(&path, &SidecarChoice::Beside).unwrap().sidecar().is_some());
    let options = LoadOptions { activation: Some(Activation::Relu), ..LoadOptions::default() };
    let mut other = Model::open(&path, &options).unwrap();
    let SidecarAttachment::Ignored { reason, .. } = attach(&mut other, &SidecarChoice::Beside, ReadMode::Map).unwrap()
    else {
        panic!("attached")
    };
    assert!(reason.contains("silu") && reason.contains("relu"), "{reason}");
    fs::write(&beside, b"not a GGUF").unwrap();
    ignored("GGUF");
    fs::copy(fixture(Q4), &beside).unwrap();
    ignored("a sidecar");
    assert!(matches!(find(&path, &SidecarChoice::File("absent".into())), Err(Error::Io { .. })));
}

#[test]
fn metadata_and_the_order_of_tensors_do_not_matter() {
    let model = open(&fixture(Q4));
    let rebuilt = |reverse: bool| {
        let mut file = model.checkpoint.clone();
        file.metadata.set("general.name", Value::String("renamed".to_owned()));
        let (metadata, container) = (file.metadata.clone(), file.container);
        let (path, tokenizer) = (file.path.clone(), file.tokenizer.clone());
        let mut tensors = file.into_tensors();
        if reverse {
            tensors.reverse();
        }
        let file = Checkpoint::new(path, container, metadata, tokenizer, tensors).unwrap();
        Identity::of_model(&Model::from_checkpoint(file, &LoadOptions::default()).unwrap())
    };
    assert_eq!(rebuilt(false), Identity::of_model(&model));
    assert_eq!(rebuilt(true), Identity::of_model(&model));
}

#[test]
fn mismatched_sidecar_leaves_the_model_unchanged() {
    let relu = open(&fixture("models/llama-relu"));
    for other in ["models/mixtral", "models/llama-relu-256"] {
        let (mut model, plain) = (open(&fixture(other)), open(&fixture(other)));
        if sample(&relu).attach(&mut model).is_ok() {
            panic!("{other} took a sidecar of another shape");
        }
        assert_eq!(logits(model), logits(plain), "{other}");
    }
    // The sidecar refers to the model's own predictor, but the model has none.
    let mut model = open(&fixture("models/llama-relu"));
    let mut sidecar = sample(&relu);
    sidecar.layers[0].predictor.as_mut().unwrap().kind = None;
    let error = sidecar.attach(&mut model).unwrap_err().to_string();
    assert!(error.contains("predictor.kind") && error.contains("has none"), "{error}");
    // The sidecar has fewer layers than the model.
    sidecar.layers.pop();
    assert!(sidecar.attach(&mut model).unwrap_err().to_string().contains("block_count"));
}

/// The built-in model's sidecar is committed with the keys of format version 1.
#[test]
fn committed_sidecar_of_format_1_attaches_to_its_model() {
    let file = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/storyteller").join(name);
    let sidecar = Sidecar::open(&file("storyteller-F16.thermocline.gguf"), ReadMode::Map).unwrap();
    assert_eq!((sidecar.layers.len(), sidecar.provenance.activation), (6, Activation::Relu));
    let n_ff = sidecar.identity.n_ff;
    for layer in &sidecar.layers {
        assert_eq!(layer.frequency.as_ref().map(Vec::len), Some(n_ff));
        let predictor = layer.predictor.as_ref().unwrap();
        assert!(matches!(predictor.kind, Some(PredictorKind::Rows { .. })) && predictor.quality.recall > 0.9);
        assert!(layer.activation_threshold.is_none());
    }
    let mut model = open(&file("storyteller-F16.gguf"));
    let choice = SidecarChoice::File(file("storyteller-F16.thermocline.gguf"));
    assert!(matches!(attach(&mut model, &choice, ReadMode::Map).unwrap(), SidecarAttachment::Attached(_)));
    assert!(model.weights.layers.iter().all(|layer| layer.predictor.is_some() && layer.frequency.is_some()));
}
