//! Writes GGUF files as a stream. The descriptions are known first, and the data arrive in pieces
//! of any size.

use std::{
    collections::HashSet,
    io::Write,
    path::{Path, PathBuf},
};

use super::{
    header::GgufHeader,
    reader::{GPU_INDEX_ARCHITECTURE, alignment},
    tensor_info::TensorInfo,
    value::write_pair,
};
use crate::format::{Container, Metadata, Value, byte_range::ByteRange};
use thermocline_base::{
    error::{Error, FileAction, Result},
    files::{Form, NewFile},
};

/// A new GGUF file that is being written for a path.
///
/// Like every [`NewFile`] it takes its name when it is finished, in [`Writer::finish`]. Readers map
/// it, so only a regular file is replaced.
#[derive(Debug)]
pub struct Writer {
    target: PathBuf,
    stream: Stream<NewFile>,
}

impl Writer {
    /// Starts a file at `path` and writes everything before the data.
    ///
    /// `container` gives magic and version (2 or 3). `general.alignment` in `metadata` sets the
    /// alignment, 32 by default. Names must be unique and shapes whole blocks. Otherwise the error
    /// is [`Error::Invalid`].
    pub fn create(path: &Path, container: Container, metadata: &Metadata, tensors: &[TensorInfo]) -> Result<Self> {
        let layout = GgufLayout::new(container, metadata, tensors)?;
        let stream = Stream::start(NewFile::create(path, Form::Random)?, layout);
        Ok(Writer {
            target: path.to_path_buf(),
            stream: stream.map_err(|source| Error::io(FileAction::Write, path, source))?,
        })
    }

    /// Appends data of the tensors in the order of their descriptions, in pieces of any size.
    pub fn tensor_data(&mut self, data: &[u8]) -> Result<()> {
        if data.len() as u64 > self.stream.missing() {
            let expected = format!("at most the {} bytes that remain to be written", self.stream.missing());
            return Err(Error::invalid("tensor data to write", expected, data.len()));
        }
        self.stream.append(data).map_err(|source| Error::io(FileAction::Write, &self.target, source))
    }

    /// Puts the file in its place. An error if data are missing.
    pub fn finish(self) -> Result<()> {
        let stream = self.stream;
        if stream.missing() > 0 {
            let got = format!("{} bytes too few", stream.missing());
            return Err(Error::invalid("tensor data to write", "all data of the described tensors", got));
        }
        stream.out.finish()
    }
}

/// Builds a whole GGUF in memory, from each description with its data.
pub fn to_bytes(container: Container, metadata: &Metadata, tensors: &[(TensorInfo, &[u8])]) -> Result<Vec<u8>> {
    let infos = tensors.iter().map(|(info, _)| info.clone()).collect::<Vec<_>>();
    let layout = GgufLayout::new(container, metadata, &infos)?;
    let failed = |source| Error::io(FileAction::Write, metadata.path(), source);
    let mut stream = Stream::start(Vec::new(), layout).map_err(failed)?;
    for (info, data) in tensors {
        if info.bytes()? != data.len() as u64 {
            let expected = format!("{} bytes for `{}`", info.bytes()?, info.name);
            return Err(Error::invalid("tensor data to write", expected, data.len()));
        }
        stream.append(data).map_err(failed)?;
    }
    Ok(stream.out)
}

/// Everything before the data, and the range of each tensor in the data section.
struct GgufLayout {
    head: Vec<u8>,
    ranges: Vec<ByteRange>,
    alignment: u64,
}

impl GgufLayout {
    fn new(container: Container, metadata: &Metadata, tensors: &[TensorInfo]) -> Result<Self> {
        let alignment = alignment(metadata)?;
        let mut head = Vec::new();
        let header = GgufHeader { container, tensors: tensors.len(), pairs: metadata.len() };
        header.write(&mut head).ok_or_else(|| {
            Error::invalid("container to write", "GGUF or PowerInfer, version 2 or 3", format!("{container:?}"))
        })?;
        metadata.iter().for_each(|(key, value)| write_pair(&mut head, key, value));

        let empty = metadata.get("general.architecture").and_then(Value::as_str) == Some(GPU_INDEX_ARCHITECTURE);
        let mut names = HashSet::new();
        let mut ranges = Vec::with_capacity(tensors.len());
        let mut end = 0u64;
        for info in tensors {
            if !names.insert(info.name.as_str()) {
                return Err(Error::invalid("tensors to write", "unique names", format!("`{}` twice", info.name)));
            }
            let bytes = info.bytes()?;
            if bytes == 0 && !empty {
                let got = format!("{:?} for `{}`", info.shape, info.name);
                return Err(Error::invalid("shape of a tensor to write", "dimensions above 0", got));
            }
            let range = end.checked_next_multiple_of(alignment).and_then(|start| ByteRange::new(start, bytes));
            let range = range.ok_or_else(|| Error::invalid("tensors to write", "at most 2^64 bytes", "more bytes"))?;
            info.write(&mut head, range.start());
            end = range.end();
            ranges.push(range);
        }
        pad(&mut head, alignment);
        Ok(GgufLayout { head, ranges, alignment })
    }
}

/// Appends zeros up to a multiple of `alignment`. `alignment` is at most the largest of
/// [`super::reader`].
fn pad(out: &mut Vec<u8>, alignment: u64) {
    if let Some(len) = (out.len() as u64).checked_next_multiple_of(alignment).and_then(|len| usize::try_from(len).ok())
    {
        out.resize(len, 0);
    }
}

/// The data section being written to `out`.
#[derive(Debug)]
struct Stream<W> {
    out: W,
    ranges: std::vec::IntoIter<ByteRange>,
    /// Bytes left of the current tensor.
    current: u64,
    /// Bytes of the tensors after it.
    later: u64,
    /// Bytes of zeros after the current tensor.
    padding: u64,
    alignment: u64,
}

impl<W: Write> Stream<W> {
    fn start(mut out: W, layout: GgufLayout) -> std::io::Result<Self> {
        out.write_all(&layout.head)?;
        let later = layout.ranges.iter().map(|range| range.len()).sum();
        let ranges = layout.ranges.into_iter();
        Ok(Stream { out, ranges, current: 0, later, padding: 0, alignment: layout.alignment })
    }

    /// Bytes of data that are not written yet.
    fn missing(&self) -> u64 {
        self.current + self.later
    }

    /// Appends at most [`Stream::missing`] bytes.
    fn append(&mut self, mut data: &[u8]) -> std::io::Result<()> {
        while !data.is_empty() {
            if self.current == 0 {
                let Some(range) = self.ranges.next() else { return Ok(()) };
                self.current = range.len();
                self.later -= range.len();
                self.padding = range.end().checked_next_multiple_of(self.alignment).map_or(0, |end| end - range.end());
                continue;
            }
            let take = usize::try_from(self.current).map_or(data.len(), |current| current.min(data.len()));
            let (now, rest) = data.split_at(take);
            self.out.write_all(now)?;
            self.current -= now.len() as u64;
            data = rest;
            if self.current == 0 {
                // Every tensor is padded, including the last, because some readers require it.
                std::io::copy(&mut std::io::Read::take(std::io::repeat(0), self.padding), &mut self.out)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{
        format::{Array, Bytes, Checkpoint, gguf::from_bytes},
        quant::TensorType,
    };

    fn metadata() -> Metadata {
        let mut metadata = Metadata::new("test");
        let values = [
            Value::U8(200),
            Value::I8(-100),
            Value::U16(60000),
            Value::I16(-30000),
            Value::U32(4_000_000_000),
            Value::I32(-2_000_000_000),
            Value::U64(u64::MAX),
            Value::I64(i64::MIN),
            Value::F32(1.5),
            Value::F64(-2.25),
            Value::Bool(true),
            Value::String("grüß 水".to_owned()),
            Value::Array(Array::U8(vec![1, 2, 3])),
            Value::Array(Array::I8(vec![-1])),
            Value::Array(Array::U16(vec![1, 2])),
            Value::Array(Array::I16(vec![-1, 2])),
            Value::Array(Array::U32(vec![])),
            Value::Array(Array::I32(vec![-5, 6])),
            Value::Array(Array::U64(vec![1 << 40])),
            Value::Array(Array::I64(vec![-(1 << 40)])),
            Value::Array(Array::F32(vec![0.5, -0.5])),
            Value::Array(Array::F64(vec![1e300])),
            Value::Array(Array::Bool(vec![true, false])),
            Value::Array(Array::String(vec![String::new(), "two".to_owned()])),
            Value::Array(Array::Bytes(vec![b"one".to_vec(), vec![0xf0, 0x9f]])),
            Value::Array(Array::Array(vec![Array::U8(vec![]), Array::String(vec!["x".to_owned()])])),
        ];
        metadata.set("general.architecture", Value::String("test".to_owned()));
        for (at, value) in values.into_iter().enumerate() {
            metadata.set(format!("test.{at}"), value);
        }
        metadata
    }

    fn tensors() -> [(TensorInfo, Vec<u8>); 3] {
        let info = |name: &str, ty, shape: &[usize]| TensorInfo { name: name.to_owned(), ty, shape: shape.to_vec() };
        [
            (info("a.weight", TensorType::F32, &[3, 5]), (0..60).collect()),
            (info("b.weight", TensorType::Q4_0, &[2, 1, 64]), (100..172).collect()),
            (info("c", TensorType::I8, &[7]), vec![9; 7]),
        ]
    }

    fn assert_same(file: &Checkpoint, metadata: &Metadata) {
        assert!(file.metadata.iter().eq(metadata.iter()));
        assert_eq!(file.tensors().len(), 3);
        for (read, (info, data)) in file.tensors().iter().zip(tensors()) {
            assert_eq!((&read.name, read.ty, &read.shape), (&info.name, info.ty, &info.shape));
            assert_eq!(&read.data[..], data);
        }
    }

    #[test]
    fn gguf_reader_returns_the_written_metadata_and_tensors() {
        for container in [Container::Gguf(2), Container::Gguf(3), Container::PowerInfer(3)] {
            for alignment in [None, Some(1), Some(64), Some(4096)] {
                let mut metadata = metadata();
                if let Some(alignment) = alignment {
                    metadata.set("general.alignment", Value::U32(alignment));
                }
                let tensors = tensors();
                let tensors = tensors.each_ref().map(|(info, data)| (info.clone(), data.as_slice()));
                let bytes = to_bytes(container, &metadata, &tensors).unwrap();
                assert!(bytes.len().is_multiple_of(alignment.unwrap_or(32) as usize));
                let file = from_bytes(Path::new("test"), Bytes::new(bytes)).unwrap();
                assert_eq!(file.container, container);
                assert_same(&file, &metadata);
            }
        }
    }

    #[test]
    fn writer_takes_data_in_any_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let (metadata, tensors) = (metadata(), tensors());
        let infos = tensors.each_ref().map(|(info, _)| info.clone());
        let data = tensors.iter().flat_map(|(_, data)| data).copied().collect::<Vec<_>>();
        let whole = {
            let tensors = tensors.each_ref().map(|(info, data)| (info.clone(), data.as_slice()));
            to_bytes(Container::Gguf(3), &metadata, &tensors).unwrap()
        };
        for piece in [1, 7, 60, 61, data.len()] {
            let mut writer = Writer::create(&path, Container::Gguf(3), &metadata, &infos).unwrap();
            data.chunks(piece).for_each(|piece| writer.tensor_data(piece).unwrap());
            writer.finish().unwrap();
            assert_eq!(fs::read(&path).unwrap(), whole);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn writer_leaves_the_old_file_until_finished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        fs::write(&path, b"old").unwrap();
        let infos = tensors().map(|(info, _)| info);
        let create = || Writer::create(&path, Container::Gguf(3), &metadata(), &infos).unwrap();

        drop(create());
        let mut writer = create();
        writer.tensor_data(&[0; 100]).unwrap();
        assert!(writer.tensor_data(&[0; 100]).is_err(), "more than was described");
        assert!(writer.finish().is_err(), "less than was described");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn writer_reports_a_full_disk_at_any_byte() {
        /// A disk that accepts this many bytes.
        struct Disk(usize);
        impl Write for Disk {
            fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
                let taken = data.len().min(self.0);
                self.0 -= taken;
                if taken == 0 { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let infos = tensors().map(|(info, _)| info);
        let layout = || GgufLayout::new(Container::Gguf(3), &metadata(), &infos).unwrap();
        // Three tensors of 60, 72 and 7 bytes, each padded to a multiple of 32.
        let total = layout().head.len() + 64 + 96 + 32;
        let write = |room: usize| -> std::io::Result<()> {
            let mut stream = Stream::start(Disk(room), layout())?;
            stream.append(&[1; 60 + 72 + 7])
        };
        for room in 0..total {
            assert_eq!(write(room).unwrap_err().kind(), std::io::ErrorKind::StorageFull, "{room}");
        }
        write(total).unwrap();
    }

    #[test]
    fn writer_refuses_layouts_the_reader_refuses() {
        let refused = |name: &str, ty, shape: &[usize]| {
            let info = TensorInfo { name: name.to_owned(), ty, shape: shape.to_vec() };
            assert!(matches!(GgufLayout::new(Container::Gguf(3), &metadata(), &[info]), Err(Error::Invalid { .. })));
        };
        refused("", TensorType::F32, &[1]);
        refused(&"x".repeat(64), TensorType::F32, &[1]);
        refused("x", TensorType::F32, &[]);
        refused("x", TensorType::F32, &[1; 5]);
        refused("x", TensorType::F32, &[0]);
        refused("x", TensorType::Q8_0, &[2, 33]);
        refused("x", TensorType::F32, &[usize::MAX, 2]);
        let twice = [tensors()[0].0.clone(), tensors()[0].0.clone()];
        assert!(GgufLayout::new(Container::Gguf(3), &metadata(), &twice).is_err());
        assert!(GgufLayout::new(Container::HuggingFace, &metadata(), &[]).is_err());
        assert!(GgufLayout::new(Container::Gguf(1), &metadata(), &[]).is_err());
    }
}
