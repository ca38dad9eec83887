//! A checkpoint in several files, `<prefix>-00001-of-0000N.gguf`.
//!
//! The first file has all metadata. Each file has its own tensors and `split.no`, `split.count` and
//! `split.tensors.count`. Opening any of the files opens all of them.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use super::reader;
use crate::format::{Checkpoint, Metadata, ReadMode, mmap};
use thermocline_base::error::{Error, Location, Result};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// Number of the checkpoint's files according to `metadata`. 1 if the checkpoint is not split.
pub(super) fn count(metadata: &Metadata) -> Result<usize> {
    Ok(metadata.usize(COUNT)?.unwrap_or(1).max(1))
}

/// Joins `opened`, one shard of a split checkpoint, with the other shards beside it.
pub(super) fn join(opened: Checkpoint, mode: ReadMode) -> Result<Checkpoint> {
    let path = opened.path.clone();
    let count = count(&opened.metadata)?;
    let number = number(&opened.metadata, count)?;
    let prefix = prefix(&path, number, count)?;

    let mut first = None;
    let mut tensors = Vec::new();
    let mut opened = Some(opened);
    for at in 0..count {
        let shard = if at == number { opened.take() } else { None };
        let shard = match shard {
            Some(shard) => shard,
            None => open(&path, &shard_path(&path, &prefix, at, count), mode)?,
        };
        let found = (self::number(&shard.metadata, count)?, self::count(&shard.metadata)?);
        if found != (at, count) {
            let got = format!("shard {} of {}", found.0 + 1, found.1);
            let location = Location::Key(NUMBER.to_owned());
            return Err(Error::malformed(&shard.path, location, format!("shard {} of {count}", at + 1), got));
        }
        let head = first.get_or_insert_with(|| (shard.path.clone(), shard.container, shard.metadata.clone()));
        if shard.container != head.1 {
            let (expected, got) =
                (format!("the format of the first shard, {:?}", head.1), format!("{:?}", shard.container));
            return Err(Error::malformed(&shard.path, Location::File, expected, got));
        }
        tensors.extend(shard.into_tensors());
    }

    // There is at least one shard, so `first` is set.
    let Some((path, container, metadata)) = first else {
        return Err(Error::malformed(path, Location::Key(COUNT.to_owned()), "at least one shard", count));
    };
    if let Some(expected) = metadata.usize(TENSORS)?
        && expected != tensors.len()
    {
        let location = Location::Key(TENSORS.to_owned());
        return Err(Error::malformed(path, location, format!("{expected} tensors in all shards"), tensors.len()));
    }
    Checkpoint::new(path, container, metadata, crate::format::TokenizerSource::Metadata, tensors)
}

fn number(metadata: &Metadata, count: usize) -> Result<usize> {
    let number = metadata.usize(NUMBER)?.ok_or_else(|| metadata.missing(NUMBER, "the shard's number, from 0"))?;
    if number >= count {
        let location = Location::Key(NUMBER.to_owned());
        return Err(Error::malformed(metadata.path(), location, format!("below {COUNT}, {count}"), number));
    }
    Ok(number)
}

/// The part before `-00001-of-0000N.gguf` in the name of shard `number`.
fn prefix(path: &Path, number: usize, count: usize) -> Result<OsString> {
    let name = path.file_name().unwrap_or_default();
    without_suffix(name, &suffix(number, count)).ok_or_else(|| {
        let name = name.to_string_lossy();
        let expected = format!("a file name that ends in `{}`, as its metadata says", suffix(number, count));
        Error::malformed(path, Location::File, expected, format!("`{name}`"))
    })
}

/// The part of `name` before `suffix`, if it ends so. The name need not be UTF-8.
fn without_suffix(name: &OsStr, suffix: &str) -> Option<OsString> {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        name.as_bytes().strip_suffix(suffix.as_bytes()).map(|prefix| OsStr::from_bytes(prefix).to_owned())
    }
    // Other systems use UTF-16 names, which are almost always valid text.
    #[cfg(not(unix))]
    {
        name.to_str()?.strip_suffix(suffix).map(OsString::from)
    }
}

fn suffix(number: usize, count: usize) -> String {
    format!("-{:05}-of-{count:05}.gguf", number + 1)
}

fn shard_path(opened: &Path, prefix: &OsStr, number: usize, count: usize) -> PathBuf {
    let mut name = prefix.to_owned();
    name.push(suffix(number, count));
    opened.with_file_name(name)
}

fn open(opened: &Path, path: &Path, mode: ReadMode) -> Result<Checkpoint> {
    if !path.exists() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        return Err(Error::malformed(
            opened,
            Location::File,
            format!("the shard `{name}` in the same folder"),
            "no such file",
        ));
    }
    mmap::read_with(path, mode, |bytes| reader::read(path, bytes))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{
        format::{Container, Value, gguf, gguf::TensorInfo},
        quant::TensorType,
    };

    /// Shard `number` of three. It has as many tensors as its number.
    fn shard(number: u16, change: impl FnOnce(&mut Metadata)) -> Vec<u8> {
        let mut metadata = Metadata::new("shard");
        if number == 0 {
            metadata.set("general.architecture", Value::String("test".to_owned()));
        }
        metadata.set(NUMBER, Value::U16(number));
        metadata.set(COUNT, Value::U16(3));
        metadata.set(TENSORS, Value::I32(3));
        change(&mut metadata);
        let data = [number as u8; 4];
        let info = |at| TensorInfo { name: format!("t.{number}.{at}"), ty: TensorType::F32, shape: vec![1] };
        let tensors = (0..number).map(|at| (info(at), &data[..])).collect::<Vec<_>>();
        gguf::to_bytes(Container::Gguf(3), &metadata, &tensors).unwrap()
    }

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..3 {
            fs::write(path(&folder, number), shard(number, |_| {})).unwrap();
        }
        folder
    }

    fn path(folder: &tempfile::TempDir, number: u16) -> PathBuf {
        folder.path().join(format!("model-{:05}-of-00003.gguf", number + 1))
    }

    #[test]
    fn open_of_any_shard_opens_all() {
        let folder = folder();
        for mode in [ReadMode::Map, ReadMode::Read] {
            for number in 0..3 {
                let file = gguf::open(&path(&folder, number), mode).unwrap();
                assert_eq!(file.path, path(&folder, 0));
                assert_eq!(file.metadata.str("general.architecture").unwrap(), Some("test"));
                let names = file.tensors().iter().map(|tensor| tensor.name.as_str()).collect::<Vec<_>>();
                assert_eq!(names, ["t.1.0", "t.2.0", "t.2.1"]);
                assert_eq!(&file.tensors()[2].data[..], [2; 4]);
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn names_of_shards_need_not_be_utf8() {
        use std::os::unix::ffi::OsStrExt;
        let folder = tempfile::tempdir().unwrap();
        let name = |number: u16| {
            let bytes = [&b"caf\xe9 \xff"[..], format!("-{:05}-of-00003.gguf", number + 1).as_bytes()].concat();
            folder.path().join(OsStr::from_bytes(&bytes))
        };
        (0..3).for_each(|number| fs::write(name(number), shard(number, |_| {})).unwrap());
        for number in 0..3 {
            let file = gguf::open(&name(number), ReadMode::Map).unwrap();
            assert_eq!((file.tensors().len(), &file.path), (3, &name(0)));
        }
        fs::remove_file(name(2)).unwrap();
        let message = gguf::open(&name(0), ReadMode::Map).unwrap_err().to_string();
        assert!(message.contains("-00003-of-00003.gguf` in the same folder"), "{message}");
    }

    #[test]
    fn open_names_a_missing_shard() {
        let folder = folder();
        fs::remove_file(path(&folder, 1)).unwrap();
        for number in [0, 2] {
            let message = gguf::open(&path(&folder, number), ReadMode::Map).unwrap_err().to_string();
            assert!(message.contains("`model-00002-of-00003.gguf`"), "{message}");
        }
    }

    #[test]
    fn open_refuses_shards_that_contradict_each_other() {
        let refused = |number: u16, bytes: Vec<u8>, what: &str| {
            let folder = folder();
            fs::write(path(&folder, number), bytes).unwrap();
            let message = gguf::open(&path(&folder, 0), ReadMode::Map).unwrap_err().to_string();
            assert!(message.contains(what), "{message}");
        };
        refused(1, shard(2, |_| {}), "shard 2 of 3, got shard 3 of 3");
        refused(1, shard(1, |keys| drop(keys.set(COUNT, Value::U16(2)))), "got shard 2 of 2");
        refused(0, shard(0, |keys| drop(keys.set(TENSORS, Value::I32(4)))), "4 tensors in all shards, got 3");
        refused(0, shard(0, |keys| drop(keys.set(NUMBER, Value::U16(3)))), "below split.count, 3, got 3");
        refused(0, shard(0, |keys| drop(keys.set(COUNT, Value::U16(65535)))), "ends in `-00001-of-65535.gguf`");
        refused(0, shard(0, |keys| drop(keys.set(COUNT, Value::I32(-1)))), "key `split.count`");
        let powerinfer = [&b"PWRI"[..], &shard(2, |_| {})[4..]].concat();
        refused(2, powerinfer, "the format of the first shard");
    }

    #[test]
    fn open_refuses_a_renamed_shard() {
        let folder = folder();
        let renamed = folder.path().join("model.gguf");
        fs::rename(path(&folder, 0), &renamed).unwrap();
        let message = gguf::open(&renamed, ReadMode::Map).unwrap_err().to_string();
        assert!(message.contains("ends in `-00001-of-00003.gguf`"), "{message}");
        let bytes = crate::format::Bytes::new(fs::read(&renamed).unwrap());
        let message = gguf::from_bytes(&renamed, bytes).unwrap_err().to_string();
        assert!(message.contains("an unsplit file"), "{message}");
    }
}
