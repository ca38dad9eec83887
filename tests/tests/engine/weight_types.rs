//! Weights of every type that a device reads in the file's own size: a model of them on the GPU computes what it computes with the same
//! weights decoded, and takes as many bytes.
#![allow(clippy::unwrap_used)]

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use thermocline_engine::{
    cpu::{InputPrecision, Isa},
    format::{Bytes, Checkpoint, Opened, ReadMode, Tensor, open as open_file},
    gpu::{GpuOptions, Purpose},
    model::{LoadOptions, Model},
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

/// The values of a matrix's rows, one after the other.
fn decoded(tensor: &Tensor) -> Vec<f32> {
    let matrix = tensor.matrix().unwrap();
    let mut values = vec![0.0; tensor.rows() * tensor.cols()];
    let rows = values.chunks_exact_mut(tensor.cols()).enumerate();
    rows.for_each(|(row, values)| matrix.dequantise_row(row, values));
    values
}

/// True for matrices of layers with whole blocks of every type.
fn of_layer(tensor: &Tensor) -> bool {
    tensor.name.starts_with("blk.") && tensor.shape.len() == 2 && tensor.cols().is_multiple_of(256)
}

/// The model of `file` with each matrix of its layers changed.
fn changed(file: &Checkpoint, change: impl Fn(&mut Tensor)) -> Arc<Model> {
    let Checkpoint { path, container, metadata, tokenizer, .. } = file.clone();
    let mut tensors = file.clone().into_tensors();
    tensors.iter_mut().filter(|tensor| of_layer(tensor)).for_each(change);
    let file = Checkpoint::new(path, container, metadata, tokenizer, tensors).unwrap();
    Arc::new(Model::from_checkpoint(file, &LoadOptions::default()).unwrap())
}

/// `tensor` in `ty`: its values where the type can be written, else blocks of the reference's quantiser in turn.
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
    for ty in [Q2_K, Q3_K, Q4_1, Q5_0, Q5_1, IQ4_NL, IQ4_XS, NVFP4, Q1_0, Q2_0, I2_S] {
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
        // A row's factor, rows of streams padded to words, and streams to the alignment of a binding.
        let most = in_file + in_file / 50 + 4 * rows + 16 * 256;
        assert!(on_device <= most as u64, "{ty}: {on_device} bytes, {in_file} in the file");
    }
}

/// Tensors of `file` with NVFP4 in place of `matrices`, each with its factors, and those matrices in floats.
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
