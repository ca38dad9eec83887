//! [`open`]: opens any file or folder that may be a model. It recognises the kind by the contents,
//! not the name.

use std::path::Path;

use super::{Checkpoint, HfFolder, MappedFiles, ReadMode, gguf, mmap};
use thermocline_base::error::{Error, Location, Result};

/// Bytes at the start of a file that identify its kind.
const LONGEST_MAGIC: u64 = 64;

/// An opened model file or folder.
#[derive(Debug, Clone)]
pub enum Opened {
    /// A GGUF file or PowerInfer's variant, with all shards of a split checkpoint.
    Checkpoint(Checkpoint),
    /// A Hugging Face folder, under its own tensor names.
    HuggingFace(HfFolder),
}

impl Opened {
    /// The mapped files that contain its tensors.
    pub fn files(&self) -> MappedFiles {
        match self {
            Opened::Checkpoint(checkpoint) => checkpoint.files().clone(),
            Opened::HuggingFace(folder) => MappedFiles::of(&folder.tensors),
        }
    }
}

/// Opens a GGUF file (any shard of a split one), a Hugging Face folder, or a `config.json` or
/// safetensors file in one.
///
/// Anything else is [`Error::Malformed`], with a guess of what the file is. A file that cannot be
/// read is [`Error::Io`].
pub fn open(path: &Path, mode: ReadMode) -> Result<Opened> {
    if path.is_dir() {
        return HfFolder::open(path, mode).map(Opened::HuggingFace);
    }
    match FileKind::of(path, &mmap::first_bytes(path, LONGEST_MAGIC)?) {
        FileKind::Gguf => gguf::open(path, mode).map(Opened::Checkpoint),
        FileKind::InFolder => {
            let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            HfFolder::open(folder, mode).map(Opened::HuggingFace)
        }
        FileKind::Other(got) => {
            let expected = "a GGUF file (magic `GGUF` or `PWRI`), or a folder with `config.json` and safetensors";
            Err(Error::malformed(path, Location::File, expected, got))
        }
    }
}

/// Kind of a file, by its first bytes.
enum FileKind {
    Gguf,
    InFolder,
    Other(String),
}

impl FileKind {
    fn of(path: &Path, bytes: &[u8]) -> Self {
        let safetensors = bytes.get(8) == Some(&b'{') && bytes.get(5..8) == Some(&[0; 3]);
        let known: [(&[u8], &str); 9] = [
            (b"tjgg", "a GGML file, a format from before GGUF: convert the model again from its source"),
            (b"lmgg", "a GGML file, a format from before GGUF: convert the model again from its source"),
            (b"algg", "a GGML adapter, a format from before GGUF"),
            (b"PK\x03\x04", "a zip archive, as PyTorch writes its checkpoints of pickles: use safetensors or GGUF"),
            (b"\x80\x02", "a pickle, which can run code when it is read: use safetensors or GGUF"),
            (b"\x89HDF", "an HDF5 file: use safetensors or GGUF"),
            (b"version https://git-lfs", "a Git LFS pointer: the model itself has not been downloaded"),
            (b"<", "a web page or XML: the download failed"),
            (b"\x1f\x8b", "a gzip archive: unpack it"),
        ];
        if bytes.starts_with(&gguf::header::GGUF_MAGIC) || bytes.starts_with(&gguf::header::POWERINFER_MAGIC) {
            FileKind::Gguf
        } else if safetensors || path.file_name().is_some_and(|name| name == "config.json") {
            FileKind::InFolder
        } else if let Some((_, what)) = known.iter().find(|(magic, _)| bytes.starts_with(magic)) {
            FileKind::Other((*what).to_owned())
        } else {
            let magic = &bytes[..bytes.len().min(4)];
            FileKind::Other(format!("a file that begins with `{}`", magic.escape_ascii()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::format::{Container, Metadata};

    #[test]
    fn open_recognises_files_by_their_contents() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.bin");
        let gguf = gguf::to_bytes(Container::PowerInfer(3), &Metadata::new("test"), &[]).unwrap();
        fs::write(&path, gguf).unwrap();
        let opened = open(&path, ReadMode::Map).unwrap();
        assert!(matches!(opened, Opened::Checkpoint(file) if file.container == Container::PowerInfer(3)));
        let cases: [(&[u8], &str); 10] = [
            (b"", "an empty file"),
            (b"G", "begins with `G`"),
            (b"\x80\x02}q\x00", "a pickle"),
            (b"PK\x03\x04....", "a zip archive"),
            (b"tjgg\x01\x00\x00\x00", "before GGUF"),
            (b"version https://git-lfs.github.com/spec/v1\n", "has not been downloaded"),
            (b"<!DOCTYPE html>", "a web page"),
            (b"GGUF\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x00", "a big-endian file of version 3"),
            (b"GGUF\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "version 2 or 3, got 1"),
            (b"\x00\x01\x02\x03\x04", r"begins with `\x00\x01\x02\x03`"),
        ];
        for (bytes, what) in cases {
            fs::write(&path, bytes).unwrap();
            let message = open(&path, ReadMode::Map).unwrap_err().to_string();
            assert!(message.contains(what) && message.contains("model.bin"), "{message}");
        }
        let absent = open(&folder.path().join("absent"), ReadMode::Map).unwrap_err();
        assert!(matches!(absent, Error::Io { .. }), "{absent}");
    }

    #[test]
    fn open_of_a_file_in_a_folder_opens_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let weights = folder.path().join("model.safetensors");
        let none: [(&str, safetensors::tensor::TensorView<'_>); 0] = [];
        safetensors::serialize_to_file(none, None, &weights).unwrap();
        let message = open(&weights, ReadMode::Map).unwrap_err().to_string();
        assert!(message.contains("a folder with `config.json`"), "{message}");
        let config = folder.path().join("config.json");
        fs::write(&config, "{}").unwrap();
        for path in [weights.as_path(), &config, folder.path()] {
            let opened = open(path, ReadMode::Map).unwrap();
            assert!(matches!(opened, Opened::HuggingFace(found) if found.path == folder.path()));
        }
    }
}
