//! Property of the GGUF reader, on raw bytes and on files of random structure. It must not panic,
//! hang or allocate more than the file's size warrants. The writer must reproduce every accepted
//! file unchanged.

use std::path::Path;

use arbitrary::Unstructured;
use thermocline_engine::format::{
    Bytes, Checkpoint,
    gguf::{TensorInfo, from_bytes, to_bytes},
};

use crate::raw_gguf;

/// Checks the property on one input.
pub fn check(input: &[u8]) {
    let bytes = match input.split_first() {
        Some((b'S', seed)) => raw_gguf::arbitrary_file(&mut Unstructured::new(seed)),
        _ => Ok(input.to_vec()),
    };
    let Ok(file) = bytes.map(read) else { return };
    if let Some(file) = file {
        let written = write(&file);
        let again = read(written.clone()).expect("what was written is read");
        assert!(write(&again) == written);
    }
}

fn read(bytes: Vec<u8>) -> Option<Checkpoint> {
    from_bytes(Path::new("fuzz.gguf"), Bytes::new(bytes)).ok()
}

fn write(file: &Checkpoint) -> Vec<u8> {
    let tensors = file.tensors().iter().map(|tensor| {
        let info = TensorInfo { name: tensor.name.clone(), ty: tensor.ty, shape: tensor.shape.clone() };
        (info, &tensor.data[..])
    });
    to_bytes(file.container, &file.metadata, &tensors.collect::<Vec<_>>()).expect("what was read can be written")
}
