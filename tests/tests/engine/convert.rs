//! Conversion: the written model computes the same as the source, and a failed conversion leaves no
//! file.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use safetensors::SafeTensors;
use thermocline_engine::{
    cpu::{Cpu, CpuOptions},
    format::{
        ReadMode,
        gguf::{TensorInfo, to_bytes},
    },
    model::{CONVERT_TYPES, LoadOptions, Model, convert},
    quant::TensorType,
    runtime::{Forward, KvCache, KvType, Outputs},
};
use thermocline_tests::golden::{CPU_ONLY, MODELS, QUANTISED, RECURRENT};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn logits(path: &Path, ids: &[u32]) -> Vec<f32> {
    let model = Model::open(path, &LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let mut kv = KvCache::new(&model.config, ids.len(), KvType::F32).unwrap();
    let mut forward = Forward::new(Arc::new(model), Cpu::new(&CpuOptions::default()).unwrap());
    forward.run(ids, &mut kv, Outputs::All, &mut ()).unwrap().to_vec()
}

/// Returns `input_ids` and `logits` of a fixture's `expected.safetensors`.
fn expected(path: &Path, logits: &str) -> (Vec<u32>, Vec<f32>) {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str| file.tensor(name).unwrap().data().as_chunks::<4>().0.to_vec();
    let ids = words("input_ids").into_iter().map(u32::from_le_bytes).collect();
    (ids, words(logits).into_iter().map(f32::from_le_bytes).collect())
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).fold(0.0, |largest, (a, b)| largest.max((a - b).abs()))
}

fn relative_rms(a: &[f32], b: &[f32]) -> f32 {
    let error: f32 = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum();
    (error / b.iter().map(|b| b * b).sum::<f32>()).sqrt()
}

#[test]
fn converted_hugging_face_folders_keep_their_logits() {
    let scratch = tempfile::tempdir().unwrap();
    for name in MODELS.into_iter().chain(RECURRENT).chain(QUANTISED).chain(CPU_ONLY) {
        let folder = fixtures().join("models").join(name);
        let target = scratch.path().join(format!("{name}.gguf"));
        let (ids, wanted) = expected(&folder.join("expected.safetensors"), "logits");
        let mut seen = Vec::new();
        let report = convert(&folder, &target, TensorType::F32, &mut |done, all| seen.push((done, all))).unwrap();
        assert_eq!(report.file_bytes, fs::metadata(&target).unwrap().len());
        assert_eq!((seen[0].0, seen.last().unwrap().0), (0, report.parameters), "{name}: progress");
        let error = difference(&logits(&target, &ids), &wanted);
        assert!(error < 1e-3, "{name}: {error}");
    }
}

/// Converts folders and GGUF files to every type. Narrower types have larger errors, within a bound
/// for each type.
#[test]
fn every_type_stays_close_to_the_source() {
    let scratch = tempfile::tempdir().unwrap();
    for name in ["llama-relu-256", "qwen2", "gemma2", "phi3", "falcon-new", "opt"] {
        let folder = fixtures().join("models").join(name);
        let (ids, wanted) = expected(&folder.join("expected.safetensors"), "logits");
        // The name must not equal a type's name, because some file systems ignore case.
        let f16 = scratch.path().join("source.gguf");
        convert(&folder, &f16, TensorType::F16, &mut |_, _| ()).unwrap();
        for ty in CONVERT_TYPES {
            // The bound is for the RMS error of the logits over their RMS. Random weights
            // exaggerate the error, and kernels of quantised types also round activations to 8
            // bits.
            let bound = match ty {
                TensorType::F32 | TensorType::F16 => 0.002,
                TensorType::BF16 => 0.02,
                TensorType::Q8_0 => 0.1,
                TensorType::Q6_K => 0.15,
                TensorType::Q5_K => 0.3,
                _ => 0.8,
            };
            for source in [&folder, &f16] {
                let target = scratch.path().join(format!("{ty}.gguf"));
                convert(source, &target, ty, &mut |_, _| ()).unwrap();
                let error = relative_rms(&logits(&target, &ids), &wanted);
                println!("{name} {ty} {error}");
                assert!(error < bound, "{name} {ty} from {}: {error}", source.display());
            }
        }
    }
}

#[test]
fn powerinfer_files_keep_their_predictors() {
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("out.powerinfer.gguf");
    let folder = fixtures().join("powerinfer");
    let (ids, wanted) = expected(&folder.join("expected.safetensors"), "f16.dense_logits");
    convert(&folder.join("llama-relu-f16.powerinfer.gguf"), &target, TensorType::F32, &mut |_, _| ()).unwrap();
    assert!(fs::read(&target).unwrap().starts_with(b"PWRI"));
    assert!(Model::open(&target, &LoadOptions::default()).unwrap().weights.layers[1].predictor.is_some());
    let error = difference(&logits(&target, &ids), &wanted);
    assert!(error < 1e-3, "{error}");
}

#[test]
fn failures_leave_nothing_behind() {
    let scratch = tempfile::tempdir().unwrap();
    let target = scratch.path().join("out.gguf");
    let folder = fixtures().join("models/qwen2");
    let source = fixtures().join("malformed/wrong-shape.gguf");
    assert!(convert(&source, &target, TensorType::F16, &mut |_, _| ()).is_err());
    assert!(convert(&folder, &target, TensorType::Q2_K, &mut |_, _| ()).is_err());
    assert!(convert(&folder, &scratch.path().join("no/folder.gguf"), TensorType::F16, &mut |_, _| ()).is_err());
    assert!(fs::read_dir(scratch.path()).unwrap().next().is_none());

    // A file is never converted onto itself, and an existing target survives a failure.
    convert(&folder, &target, TensorType::F16, &mut |_, _| ()).unwrap();
    let before = fs::read(&target).unwrap();
    let error = convert(&target, &target, TensorType::Q8_0, &mut |_, _| ()).unwrap_err().to_string();
    assert!(error.contains("a file other than the source"), "{error}");
    assert!(convert(&source, &target, TensorType::F16, &mut |_, _| ()).is_err());
    assert_eq!(fs::read(&target).unwrap(), before);
}

/// If F16 cannot hold a weight, the error names its tensor.
#[test]
fn values_out_of_range_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("model");
    fs::create_dir(&folder).unwrap();
    for entry in fs::read_dir(fixtures().join("models/qwen2")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    let weights = folder.join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let matrix = file.tensor("model.layers.1.mlp.up_proj.weight").unwrap();
    let start = matrix.data().as_ptr() as usize - bytes.as_ptr() as usize;
    bytes[start..start + 4].copy_from_slice(&1e9f32.to_le_bytes());
    fs::write(&weights, &bytes).unwrap();
    let target = scratch.path().join("out.gguf");
    let error = convert(&folder, &target, TensorType::F16, &mut |_, _| ()).unwrap_err().to_string();
    assert!(error.contains("blk.1.ffn_up.weight") && error.contains("1000000000"), "{error}");
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 1, "only the model's folder");
    convert(&folder, &target, TensorType::BF16, &mut |_, _| ()).unwrap();
}

/// Gates and ups of experts are read as one tensor or as two. They are written as two, except in a
/// family whose published files have one.
#[test]
fn gates_and_ups_of_experts_are_written_apart() {
    let scratch = tempfile::tempdir().unwrap();
    let names = |path: &Path| -> Vec<String> {
        let file = Model::open_checkpoint(path, ReadMode::Map).unwrap();
        let experts = file.tensors().iter().filter(|tensor| tensor.name.contains("_exps."));
        experts.map(|tensor| format!("{} {:?}", tensor.name, tensor.shape)).collect()
    };
    let apart = |experts: &[String]| {
        let has = |role: &str| experts.iter().any(|name| name.contains(&format!(".ffn_{role}_exps.")));
        has("gate") && has("up") && has("down") && !has("gate_up")
    };
    for name in ["llama4", "granitemoe", "granite-4-h", "qwen3_5-moe", "qwen3-vl-moe", "mistral4", "gemma4-moe"] {
        let folder = fixtures().join("models").join(name);
        let target = scratch.path().join(format!("{name}.gguf"));
        let report = convert(&folder, &target, TensorType::F32, &mut |_, _| ()).unwrap();
        let experts = names(&target);
        println!("{name}: {experts:?}");
        assert_eq!(apart(&experts), name != "gemma4-moe", "{name}: {experts:?}");
        let (ids, wanted) = expected(&folder.join("expected.safetensors"), "logits");
        let error = relative_rms(&logits(&target, &ids), &wanted);
        assert!(error < 1e-4, "{name}: {error}");
        let read = convert(&target, &scratch.path().join("again.gguf"), TensorType::F32, &mut |_, _| ()).unwrap();
        assert_eq!(read.parameters, report.parameters, "{name}");
    }
    // This file has them as one tensor, as earlier versions of `convert` wrote it.
    let file = Model::open_checkpoint(&scratch.path().join("llama4.gguf"), ReadMode::Map).unwrap();
    let mut tensors: Vec<(TensorInfo, Vec<u8>)> = Vec::new();
    for tensor in file.tensors() {
        let (name, mut shape, mut data) = (tensor.name.clone(), tensor.shape.clone(), tensor.data.to_vec());
        if name.contains(".ffn_up_exps.") {
            continue;
        }
        if name.contains(".ffn_gate_exps.") {
            let up = name.replace("gate", "up");
            let up = file.tensors().iter().find(|tensor| tensor.name == up).unwrap();
            let expert = data.len() / shape[0];
            data = data.chunks(expert).zip(up.data.chunks(expert)).flat_map(|(gate, up)| [gate, up].concat()).collect();
            shape[1] *= 2;
        }
        let info = TensorInfo { name: name.replace("ffn_gate_exps", "ffn_gate_up_exps"), ty: tensor.ty, shape };
        tensors.push((info, data));
    }
    let one = scratch.path().join("one.gguf");
    let contents: Vec<(TensorInfo, &[u8])> = tensors.iter().map(|(info, data)| (info.clone(), &data[..])).collect();
    fs::write(&one, to_bytes(file.container, &file.metadata, &contents).unwrap()).unwrap();
    assert!(!apart(&names(&one)));
    let two = scratch.path().join("two.gguf");
    let report = convert(&one, &two, TensorType::F32, &mut |_, _| ()).unwrap();
    let bytes: usize = tensors.iter().map(|(_, data)| data.len()).sum();
    assert_eq!((names(&two), report.source_bytes), (names(&scratch.path().join("llama4.gguf")), bytes as u64));
    let (ids, _) = expected(&fixtures().join("models/llama4/expected.safetensors"), "logits");
    assert_eq!(logits(&two, &ids), logits(&one, &ids));
}
