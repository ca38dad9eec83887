//! Opens files of every container as a user would.

use std::path::{Path, PathBuf};

use thermocline_engine::{
    format::{Checkpoint, Container, Opened, ReadMode, open, powerinfer::GpuIndex},
    quant::TensorType,
};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn checkpoint(path: &Path, mode: ReadMode) -> Checkpoint {
    match open(path, mode) {
        Ok(Opened::Checkpoint(checkpoint)) => checkpoint,
        other => panic!("{}: {other:?}", path.display()),
    }
}

/// Opens files whose defect only a model can detect. Opening the container succeeds.
#[test]
fn malformed_files_are_refused() {
    let folder = fixtures().join("malformed");
    let index = std::fs::read(folder.join("index.json")).unwrap();
    let index: Vec<serde_json::Value> = serde_json::from_slice(&index).unwrap();
    assert_eq!(index.len(), 19);
    for case in index {
        let text = |key: &str| case[key].as_str().unwrap().to_owned();
        let path = folder.join(text("file"));
        for mode in [ReadMode::Map, ReadMode::Read] {
            let opened = open(&path, mode);
            if text("expect") == "ok" || text("stage") == "model" {
                assert!(matches!(opened, Ok(Opened::Checkpoint(_))), "{}: {opened:?}", text("file"));
            } else {
                let message = opened.expect_err(&text("file")).to_string();
                println!("{message}");
                assert!(message.contains(&text("file")) && message.contains("expected"), "{message}");
            }
        }
    }
}

#[test]
fn every_tensor_type_opens() {
    for mode in [ReadMode::Map, ReadMode::Read] {
        let files = ["quants", "blocks"].map(|name| checkpoint(&fixtures().join(format!("quants/{name}.gguf")), mode));
        for file in &files {
            assert_eq!(file.container, Container::Gguf(3));
            assert_eq!(file.metadata.str("general.architecture").unwrap(), Some("quant-fixture"));
        }
        let types = TensorType::ALL.into_iter().filter(|ty| ty.is_weight());
        for ty in types {
            let tensor = files.iter().find_map(|file| file.tensor(&format!("q.{ty}"))).unwrap();
            assert_eq!((tensor.ty, tensor.shape.as_slice()), (ty, &[8, 512][..]));
            assert_eq!(tensor.data.len(), 8 * ty.row_bytes(512).unwrap() + ty.trailer_bytes());
        }
    }
}

/// The index beside each PowerInfer file has the reference values.
#[test]
fn powerinfer_files_open_with_their_index() {
    let folder = fixtures().join("powerinfer");
    let expected = std::fs::read(folder.join("expected.safetensors")).unwrap();
    let expected = safetensors::SafeTensors::deserialize(&expected).unwrap();
    let numbers = |name: String| -> Vec<i32> {
        let data = expected.tensor(&name).unwrap().data();
        data.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect()
    };
    for ty in ["f16", "q4_0"] {
        let path = folder.join(format!("llama-relu-{ty}.powerinfer.gguf"));
        let file = checkpoint(&path, ReadMode::Map);
        assert_eq!(file.container, Container::PowerInfer(3));
        assert_eq!(file.metadata.f32("powerinfer.sparse_threshold").unwrap(), Some(0.25));
        assert_eq!(file.tensor("blk.0.ffn_down_t.weight").unwrap().shape, [768, 64]);
        assert_eq!(file.tensor("blk.1.fc1.weight").unwrap().shape, [64, 64]);

        let index = GpuIndex::open(&GpuIndex::path_beside(&path)).unwrap();
        assert_eq!(index.layers.len(), 2);
        assert!(index.vram_capacity.is_some());
        for (at, layer) in index.layers.iter().enumerate() {
            let on_gpu = layer.on_gpu.iter().map(|&on| i32::from(on)).collect::<Vec<_>>();
            let bucket = layer.bucket.iter().map(|&neuron| neuron as i32).collect::<Vec<_>>();
            assert_eq!(on_gpu, numbers(format!("{ty}.gpu_idx.{at}")));
            assert_eq!(bucket, numbers(format!("{ty}.gpu_bucket.{at}")));
        }
    }
    let error = GpuIndex::open(&folder.join("llama-relu-f16.powerinfer.gguf")).unwrap_err().to_string();
    assert!(error.contains("generic.gpu_index"), "{error}");
}
