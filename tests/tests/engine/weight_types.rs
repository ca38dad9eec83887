//! Weights of every type that a device stores in the size of the file. A model with them on the GPU
//! gives the logits of decoded weights, and takes as many bytes as in the file.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use thermocline_engine::{
    cpu::{InputPrecision, Isa},
    format::{Bytes, Checkpoint, Opened, ReadMode, Tensor, open as open_file},
    gpu::{GpuOptions, Purpose},
    model::{LoadOptions, Model, convert},
    quant::{QUANTISABLE, TensorType, encode_i2_s, quantise},
    runtime::KvType,
};
use thermocline_tests::{
    golden::{self, Setup, max_diff, observed},
    gpu::{FULL, forward, open},
};

fn fixture(path: &str) -> Checkpoint {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path);
    let Opened::Checkpoint(file) = open_file(&path, ReadMode::Map).unwrap() else { panic!("{}", path.display()) };
    file
}

/// Returns the values of a matrix's rows, row after row.
fn decoded(tensor: &Tensor) -> Vec<f32> {
    let matrix = tensor.matrix().unwrap();
    let mut values = vec![0.0; tensor.rows() * tensor.cols()];
    let rows = values.chunks_exact_mut(tensor.cols()).enumerate();
    rows.for_each(|(row, values)| matrix.dequantise_row(row, values));
    values
}

/// Returns true for matrices of layers whose rows are whole blocks of every type.
fn of_layer(tensor: &Tensor) -> bool {
    tensor.name.starts_with("blk.") && tensor.shape.len() == 2 && tensor.cols().is_multiple_of(256)
}

/// Returns the model of `file` after `change` of each matrix of its layers.
fn changed(file: &Checkpoint, change: impl Fn(&mut Tensor)) -> Arc<Model> {
    let Checkpoint { path, container, metadata, tokenizer, .. } = file.clone();
    let mut tensors = file.clone().into_tensors();
    tensors.iter_mut().filter(|tensor| of_layer(tensor)).for_each(change);
    let file = Checkpoint::new(path, container, metadata, tokenizer, tensors).unwrap();
    Arc::new(Model::from_checkpoint(file, &LoadOptions::default()).unwrap())
}

/// Converts `tensor` to `ty`. If the type cannot be written, the data are repeated blocks of the
/// reference's quantiser.
fn encode(tensor: &mut Tensor, ty: TensorType, blocks: &[Checkpoint; 2]) {
    let mut data = Vec::new();
    if QUANTISABLE.contains(&ty) {
        quantise(ty, &decoded(tensor), &mut data).unwrap();
    } else if ty == TensorType::I2_S {
        data = encode_i2_s(&decoded(tensor)).unwrap();
    } else {
        let reference = blocks.iter().find_map(|file| file.tensor(&format!("q.{ty}"))).unwrap();
        let bytes = tensor.rows() * ty.row_bytes(tensor.cols()).unwrap();
        data.extend(reference.data.iter().cycle().take(bytes));
    }
    (tensor.ty, tensor.data) = (ty, Bytes::new(data));
}

#[test]
fn models_of_every_weight_type_on_the_gpu_equal_their_decoded_weights_and_keep_their_size() {
    use TensorType::*;
    let blocks = ["quants/quants.gguf", "quants/blocks.gguf"].map(fixture);
    let file = fixture("gguf/llama-silu-gqa-256-F16.gguf");
    let ids: Vec<u32> = (0..9).map(|i| (i * i * 31 + i * 97 + 11) % 384).collect();
    for ty in [Q2_K, Q3_K, Q4_1, Q5_0, Q5_1, IQ4_NL, IQ4_XS, NVFP4, Q1_0, Q2_0, TQ1_0, TQ2_0, I2_S] {
        let typed = changed(&file, |tensor| encode(tensor, ty, &blocks));
        let floats = changed(&file, |tensor| {
            encode(tensor, ty, &blocks);
            let values: Vec<u8> = decoded(tensor).into_iter().flat_map(f32::to_le_bytes).collect();
            (tensor.ty, tensor.data) = (F32, Bytes::new(values));
        });
        let setup = Setup { isa: Some(Isa::Scalar), ..Setup::default() };
        let wanted = observed(&mut golden::forward(&floats, setup), KvType::F32, &ids).logits;
        let gpu = open(GpuOptions { tier: Some(FULL), ..GpuOptions::default() });
        let mut whole = forward(&gpu, &typed, 64);
        let error = max_diff(&observed(&mut whole, KvType::F32, &ids).logits, &wanted);
        let largest = wanted.iter().fold(0.0f32, |largest, logit| largest.max(logit.abs()));
        assert!(error <= 1e-3 * largest, "{ty}: logits up to {largest} differ by {error}");

        let in_layers = |tensor: &&Tensor| tensor.name.starts_with("blk.") && tensor.shape.len() == 2;
        let matrices = typed.checkpoint.tensors().iter().filter(in_layers);
        let (in_file, rows) =
            matrices.fold((0, 0), |(bytes, rows), tensor| (bytes + tensor.data.len(), rows + tensor.rows()));
        let on_device = gpu.arena().used_for(Purpose::Attention) + gpu.arena().used_for(Purpose::Ffn);
        // The device adds a factor per row, padding of rows to words, and padding of streams to a
        // binding's alignment.
        let most = in_file + in_file / 50 + 4 * rows + 16 * 256;
        assert!(on_device <= most as u64, "{ty}: {on_device} bytes, {in_file} in the file");
    }
}

/// Replaces the tensors of `file` that `matrices` selects by NVFP4, each with its factors. Returns
/// that model and a model with the same values as floats.
fn with_factors(file: &Checkpoint, matrices: impl Fn(&Tensor) -> bool, suffix: &str) -> [Arc<Model>; 2] {
    let blocks = ["quants/quants.gguf", "quants/blocks.gguf"].map(fixture);
    let Checkpoint { path, container, metadata, tokenizer, .. } = file.clone();
    let [mut typed, mut floats] = [file.clone().into_tensors(), file.clone().into_tensors()];
    let mut scales = Vec::new();
    let changed = typed.iter_mut().zip(&mut floats).filter(|(tensor, _)| matrices(tensor));
    for (at, (typed, floats)) in changed.enumerate() {
        encode(typed, TensorType::NVFP4, &blocks);
        let count = if typed.shape.len() == 3 { typed.shape[0] } else { 1 };
        let factors: Vec<f32> = (0..count).map(|expert| 0.01 * (1 + (at + 3 * expert) % 7) as f32).collect();
        let mut values = decoded(typed);
        let of_factor = values.len() / count;
        let scaled = values.chunks_exact_mut(of_factor).zip(&factors);
        scaled.for_each(|(values, factor)| values.iter_mut().for_each(|value| *value *= factor));
        floats.ty = TensorType::F32;
        floats.data = Bytes::new(values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>());
        let stem = typed.name.strip_suffix(".weight").unwrap();
        let data = Bytes::new(factors.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>());
        scales.push(Tensor { name: format!("{stem}{suffix}"), ty: TensorType::F32, shape: vec![count], data });
    }
    assert!(!scales.is_empty());
    typed.extend(scales);
    [typed, floats].map(|tensors| {
        let file = Checkpoint::new(path.clone(), container, metadata.clone(), tokenizer.clone(), tensors).unwrap();
        Arc::new(Model::from_checkpoint(file, &LoadOptions::default()).unwrap())
    })
}

#[test]
fn nvfp4_factors_of_tensors_and_experts_scale_products_on_both_processors() {
    let whole = |tensor: &Tensor| tensor.name.starts_with("blk.") && tensor.shape.len() >= 2;
    let blocks =
        |tensor: &Tensor| whole(tensor) && tensor.cols().is_multiple_of(64) && !tensor.name.contains("gate_inp");
    let files = [("gguf/llama-silu-gqa-256-F16.gguf", ".scale"), ("gguf2026/glm4-moe-F16.gguf", ".weight.scale")];
    for (name, suffix) in files {
        let [typed, floats] = with_factors(&fixture(name), blocks, suffix);
        let ids: Vec<u32> = (0..9).map(|i| (i * i * 31 + i * 97 + 11) % 384).collect();
        let setup = Setup { activations: InputPrecision::Float, ..Setup::default() };
        let wanted = observed(&mut golden::forward(&floats, setup), KvType::F32, &ids).logits;
        let largest = wanted.iter().fold(0.0f32, |largest, logit| largest.max(logit.abs()));
        for isa in Isa::available() {
            for chunk in [1, 9] {
                let setup = Setup { isa: Some(isa), chunk, ..setup };
                let error = max_diff(&observed(&mut golden::forward(&typed, setup), KvType::F32, &ids).logits, &wanted);
                assert!(error <= 1e-3 * largest, "{name} {setup:?}: logits up to {largest} differ by {error}");
            }
        }
        let gpu = open(GpuOptions { tier: Some(FULL), ..GpuOptions::default() });
        let got = observed(&mut forward(&gpu, &typed, 64), KvType::F32, &ids).logits;
        let error = max_diff(&got, &wanted);
        assert!(error <= 1e-3 * largest, "{name} on the GPU: logits up to {largest} differ by {error}");
    }
}

/// Name, type, shape and bytes of a tensor.
type Part = (String, Dtype, Vec<usize>, Vec<u8>);

/// Writes two folders of `source`'s model. In one, matrices of layers are NVFP4 in ModelOpt's
/// format; in the other, they are floats of the same values.
fn nvfp4_folders(source: &Path, [typed, floats]: [&Path; 2]) {
    const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let json = fs::read_to_string(source.join("config.json")).unwrap();
    let quantised = r#"{"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},"#;
    fs::write(typed.join("config.json"), json.replacen('{', quantised, 1)).unwrap();
    fs::write(floats.join("config.json"), &json).unwrap();
    let file = fs::read(source.join("model.safetensors")).unwrap();
    let mut parts: [Vec<Part>; 2] = Default::default();
    for (name, tensor) in SafeTensors::deserialize(&file).unwrap().tensors() {
        let shape = tensor.shape().to_vec();
        let Some(stem) = name.strip_suffix("_proj.weight") else {
            parts
                .iter_mut()
                .for_each(|it| it.push((name.clone(), tensor.dtype(), shape.clone(), tensor.data().to_vec())));
            continue;
        };
        let (rows, cols, seed) = (shape[0], shape[1], name.len());
        let codes: Vec<u8> = (0..rows * cols / 2).map(|at| ((at * at + at * 131 + seed) % 251) as u8).collect();
        let scales: Vec<u8> = (0..rows * cols / 16).map(|at| (0x20 + (at * 7 + seed) % 24) as u8).collect();
        let factor = 0.03f32 + seed as f32 / 1000.0;
        let value = |at: usize| {
            let (code, scale) = (codes[at / 2] >> (at % 2 * 4) & 15, scales[at / 16]);
            let scale = (1.0 + f32::from(scale & 7) / 8.0) * 2f32.powi(i32::from(scale >> 3) - 7);
            let magnitude = factor * (scale * E2M1[usize::from(code & 7)]);
            if code > 7 { -magnitude } else { magnitude }
        };
        let values = (0..rows * cols).flat_map(|at| value(at).to_le_bytes()).collect();
        let part = |of: &str, ty, shape: &[usize], data| (format!("{stem}_proj.{of}"), ty, shape.to_vec(), data);
        parts[1].push(part("weight", Dtype::F32, &shape, values));
        parts[0].push(part("weight_scale_2", Dtype::F32, &[], factor.to_le_bytes().to_vec()));
        parts[0].push(part("weight_scale", Dtype::F8_E4M3, &[rows, cols / 16], scales.clone()));
        parts[0].push(part("weight", Dtype::U8, &[rows, cols / 2], codes.clone()));
    }
    for (folder, parts) in [typed, floats].into_iter().zip(&parts) {
        let views =
            parts.iter().map(|(name, ty, shape, data)| (name, TensorView::new(*ty, shape.clone(), data).unwrap()));
        fs::write(folder.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    }
}

#[test]
fn nvfp4_folders_compute_and_convert_as_their_decoded_weights() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models/llama-relu-256");
    let scratch = tempfile::tempdir().unwrap();
    let folders = ["nvfp4", "floats"].map(|name| scratch.path().join(name));
    folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
    nvfp4_folders(&source, [&folders[0], &folders[1]]);
    let converted = scratch.path().join("converted.gguf");
    convert(&folders[0], &converted, TensorType::F32, &mut |_, _| ()).unwrap();
    let ids: Vec<u32> = (0..9).map(|i| (i * i * 31 + i * 97 + 11) % 384).collect();
    let logits = |path: &Path| {
        let model = Arc::new(Model::open(path, &LoadOptions::default()).unwrap());
        let setup = Setup { activations: InputPrecision::Float, ..Setup::default() };
        observed(&mut golden::forward(&model, setup), KvType::F32, &ids).logits
    };
    let wanted = logits(&folders[1]);
    let largest = wanted.iter().fold(0.0f32, |largest, logit| largest.max(logit.abs()));
    for path in [&folders[0], &converted] {
        let error = max_diff(&logits(path), &wanted);
        assert!(error <= 1e-4 * largest, "{}: logits up to {largest} differ by {error}", path.display());
    }
}
