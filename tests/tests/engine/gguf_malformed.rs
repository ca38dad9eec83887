//! GGUF files with every defect that llama.cpp's own tests cover, and random files.

use std::path::Path;

use thermocline_engine::{
    Error, Location, Result,
    format::{
        Bytes, Checkpoint,
        gguf::{TensorInfo, from_bytes, to_bytes},
    },
};
use thermocline_tests::{
    random_files::{RANDOM_FILES, random_file},
    raw_gguf::{RawGguf, array, pair, tensor, text},
};

fn read(bytes: Vec<u8>) -> Result<Checkpoint> {
    from_bytes(Path::new("test.gguf"), Bytes::new(bytes))
}

/// Breaks one part of `tiny`. The reader must refuse it, and the error must name `field` and its
/// place.
#[track_caller]
fn refused(field: &str, spoil: impl FnOnce(&mut RawGguf)) {
    let mut file = RawGguf::tiny();
    spoil(&mut file);
    refused_bytes(field, file.to_bytes());
}

#[track_caller]
fn refused_bytes(field: &str, bytes: Vec<u8>) {
    let len = bytes.len() as u64;
    match read(bytes) {
        Err(Error::Malformed { path, location, .. }) => {
            assert_eq!(path, Path::new("test.gguf"));
            match location {
                Location::Field { name, offset } => {
                    assert!(name.contains(field), "{name}");
                    assert!(offset <= len, "{offset} of {len}");
                }
                Location::Key(name) | Location::Tensor(name) => assert!(name.contains(field), "{name}"),
                other => panic!("{field}: {other:?}"),
            }
        }
        other => panic!("{field}: {other:?}"),
    }
}

fn alignment(alignment: u32) -> thermocline_tests::raw_gguf::RawPair {
    pair("general.alignment", 4, &alignment.to_le_bytes())
}

#[test]
fn malformed_headers_are_refused() {
    refused("magic", |file| file.magic = *b"FUGG");
    refused("version", |file| file.version = 0);
    refused("version", |file| file.version = 1);
    refused("version", |file| file.version = 4);
    refused("version", |file| file.version = 3u32.swap_bytes());
    refused("tensor count", |file| file.tensor_count = Some(u64::MAX));
    refused("key-value count", |file| file.pair_count = Some(u64::MAX));
}

#[test]
fn malformed_key_value_pairs_are_refused() {
    refused("length of key 0", |file| file.pairs[0].key_len = Some(u64::MAX));
    refused("key 0", |file| file.pairs[0].key.clear());
    refused("key 0", |file| file.pairs[0].key = vec![b'k'; 65536]);
    refused("type of key `general.architecture`", |file| file.pairs[0].ty = 13);
    refused("key `t.f32`", |file| file.pairs.push(file.pairs[1].clone()));
    refused("value of key `t.bool`", |file| file.pairs[2].value = vec![2]);
    refused("length of string of key `t.s`", |file| {
        file.pairs.push(pair("t.s", 8, &u64::MAX.to_le_bytes()));
    });
    refused("element type of key `t.a`", |file| file.pairs.push(array("t.a", 13, 0, &[])));
    refused("length of array `t.a`", |file| file.pairs.push(array("t.a", 4, u64::MAX / 4 + 1, &[])));
    refused("element type of key `t.a`", |file| {
        let deep = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat().repeat(10_000);
        file.pairs.push(pair("t.a", 9, &deep));
    });
    refused("general.alignment", |file| file.pairs.push(alignment(13)));
    refused("general.alignment", |file| file.pairs.push(alignment(0)));
    refused("general.alignment", |file| file.pairs.push(alignment(1 << 31)));
    refused("general.alignment", |file| file.pairs.push(pair("general.alignment", 5, &32i32.to_le_bytes())));
    refused("split.count", |file| file.pairs.push(pair("split.count", 2, &2u16.to_le_bytes())));
}

#[test]
fn malformed_tensor_entries_are_refused() {
    refused("length of name of tensor 1", |file| file.tensors[1].name_len = Some(u64::MAX));
    refused("name of tensor 1", |file| file.tensors[1].name = vec![b'n'; 64]);
    refused("name of tensor 1", |file| file.tensors[1].name.clear());
    refused("number of dimensions of tensor `b.weight`", |file| file.tensors[1].dim_count = Some(5));
    refused("number of dimensions of tensor `b.weight`", |file| file.tensors[1].ne.clear());
    // Defects: rows that are not whole blocks, negative dimensions, elements and bytes beyond 2^64.
    refused("dimensions of tensor `b.weight`", |file| file.tensors[1].ne[0] = 33);
    refused("dimensions of tensor `b.weight`", |file| file.tensors[1].ne[1] = 0);
    refused("of tensor `b.weight`", |file| file.tensors[1].ne[1] = -1i64 as u64);
    refused("dimensions of tensor `b.weight`", |file| file.tensors[1].ne = vec![1 << 32, 1 << 32]);
    refused("dimensions of tensor `c.weight`", |file| {
        file.tensors[2].ne = vec![1 << 61];
        file.tensors[2].ty = 27;
    });
    refused("type of tensor `b.weight`", |file| file.tensors[1].ty = 9999);
    refused("type of tensor `b.weight`", |file| file.tensors[1].ty = 4);
    refused("offset of tensor `b.weight`", |file| file.tensors[1].offset += 4);
    refused("b.weight", |file| file.tensors[2].name = file.tensors[1].name.clone());
    // The file declares 4096, but its offsets are multiples of 32.
    refused("offset of tensor `b.weight`", |file| file.pairs.push(alignment(4096)));
    // The file declares no alignment, and its offsets are packed.
    refused("offset of tensor `b.weight`", |file| {
        file.tensors[1].offset = 24;
        file.tensors[2].offset = 24 + 36;
    });
}

#[test]
fn malformed_tensor_data_are_refused() {
    refused("offset of tensor `c.weight`", |file| file.data -= 1);
    refused("offset of tensor `a.weight`", |file| file.data = 0);
    refused("offset of tensor `b.weight`", |file| file.tensors[1].offset = u64::MAX - 31);
    refused("offset of tensor `b.weight`", |file| file.tensors[1].offset = 0);
    refused("offset of tensor `c.weight`", |file| file.tensors[2].offset = 64);
    // Padding this size to the alignment would wrap to zero.
    refused("of tensor `c.weight`", |file| file.tensors[2].ne = vec![u64::MAX - 5]);
    // Each of the two sizes fits, but their sum does not.
    refused("of tensor `a.weight`", |file| {
        for tensor in &mut file.tensors {
            (tensor.ty, tensor.ne) = (24, vec![0x7fff_ffff_ffff_ffc0]);
        }
    });
    // The declared alignment moves the beginning of the data past the end of the file.
    refused("offset of tensor `a.weight`", |file| {
        file.pairs.push(alignment(1 << 20));
        file.tensors.truncate(1);
    });
}

#[test]
fn valid_gguf_files_are_read() {
    let empty = read(RawGguf::empty().to_bytes()).unwrap();
    assert!(empty.metadata.is_empty() && empty.tensors().is_empty());
    let tiny = read(RawGguf::tiny().to_bytes()).unwrap();
    assert_eq!((tiny.metadata.len(), tiny.tensors().len()), (23, 3));
    assert_eq!(tiny.tensors()[1].shape, [2, 32]);
    assert!(tiny.tensors()[2].data.iter().copied().eq(96..101));
    assert!(read(RawGguf { tensors: Vec::new(), data: 0, ..RawGguf::tiny() }.to_bytes()).is_ok());
    assert!(read(RawGguf { pairs: Vec::new(), ..RawGguf::tiny() }.to_bytes()).is_ok());

    let mut packed = RawGguf { alignment: 1, ..RawGguf::tiny() };
    packed.pairs.push(alignment(1));
    packed.tensors[1].offset = 24;
    packed.tensors[2].offset = 24 + 36;
    packed.data = 24 + 36 + 5;
    assert!(read(packed.to_bytes()).unwrap().tensors()[2].data.iter().copied().eq(60..65));

    let mut wide = RawGguf { alignment: 256, ..RawGguf::tiny() };
    wide.pairs.push(alignment(256));
    wide.tensors[1].offset = 256;
    wide.tensors[2].offset = 512;
    wide.data = 512 + 5;
    assert!(read(wide.to_bytes()).is_ok());

    // PowerInfer's index is the only file that may have empty tensors: a layer without neurons on
    // the GPU.
    let mut index = RawGguf::empty();
    index.pairs.push(text("general.architecture", "generic.gpu_index"));
    index.tensors.push(tensor("blk.0.gpu_bucket", &[0], 26, 0));
    assert!(read(index.to_bytes()).unwrap().tensors()[0].is_empty());
}

/// Tensors may have any order and gaps between them.
#[test]
fn order_and_gaps_do_not_matter() {
    let mut file = RawGguf::tiny();
    file.tensors.swap(0, 2);
    file.tensors[1].offset = 160;
    file.data = 500;
    let read = read(file.to_bytes()).unwrap();
    assert!(read.tensor("b.weight").unwrap().data.iter().copied().eq(160..196));
    assert!(read.tensor("a.weight").unwrap().data.iter().copied().eq(0..24));
}

/// Random files, many of them nearly valid. The reader must not panic. The writer must reproduce
/// every accepted file unchanged.
#[test]
fn random_files_are_refused_or_come_back() {
    let mut accepted = 0;
    for seed in 0..RANDOM_FILES {
        if let Ok(file) = read(random_file(seed)) {
            accepted += 1;
            comes_back(&file);
        }
    }
    println!("{RANDOM_FILES} files, {accepted} of them good");
    assert!(accepted > RANDOM_FILES / 100 && accepted < RANDOM_FILES, "{accepted} of {RANDOM_FILES} accepted");
}

fn comes_back(file: &Checkpoint) {
    let write = |file: &Checkpoint| {
        let tensors = file.tensors().iter().map(|tensor| {
            let info = TensorInfo { name: tensor.name.clone(), ty: tensor.ty, shape: tensor.shape.clone() };
            (info, &tensor.data[..])
        });
        to_bytes(file.container, &file.metadata, &tensors.collect::<Vec<_>>()).expect("what was read can be written")
    };
    let written = write(file);
    let again = read(written.clone()).expect("what was written is read");
    assert_eq!(write(&again), written);
    assert_eq!(again.metadata.len(), file.metadata.len());
    for (before, after) in file.tensors().iter().zip(again.tensors()) {
        assert_eq!((&before.name, before.ty, &before.shape), (&after.name, after.ty, &after.shape));
        assert_eq!(before.data[..], after.data[..]);
    }
}
