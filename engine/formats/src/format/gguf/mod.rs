//! GGUF versions 2 and 3, little endian, and PowerInfer's variant of it, which differs in its first four bytes.
//!
//! A file is a 24-byte header, typed key-value pairs, descriptions of tensors, padding, and the tensors' data. Each of
//! the first three has its file here, read and written side by side: [`header`], [`value`], [`tensor_info`]. Nothing a
//! file says is believed before it has been compared with the file's length: counts before anything is allocated for
//! them, sizes and offsets through [`super::byte_range`]. Names and keys occur once, tensors share no byte, and data stay
//! where they are: tensors refer to the map. [`split`] joins shards, [`writer`] makes files.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod cursor;
pub(crate) mod header;
mod reader;
mod split;
mod tensor_info;
mod value;
mod writer;

use std::path::Path;

pub(crate) use reader::GPU_INDEX_ARCHITECTURE;
pub use tensor_info::TensorInfo;
pub use writer::{Writer, to_bytes};

use super::{Bytes, Checkpoint, ReadMode, mmap};
use thermocline_base::error::{Error, Location, Result};

/// Reads a GGUF that is in memory; `name` is what errors call it. A shard of a split file is refused, because there
/// is nowhere to look for the others.
pub fn from_bytes(name: &Path, bytes: Bytes) -> Result<Checkpoint> {
    let checkpoint = reader::read(name, &bytes)?;
    match split::count(&checkpoint.metadata)? {
        1 => Ok(checkpoint),
        count => Err(Error::malformed(name, Location::Key("split.count".to_owned()), "an unsplit file", count)),
    }
}

/// Opens the GGUF at `path`, and its other shards when it is split.
pub(super) fn open(path: &Path, mode: ReadMode) -> Result<Checkpoint> {
    let checkpoint = mmap::read_with(path, mode, |bytes| reader::read(path, bytes))?;
    match split::count(&checkpoint.metadata)? {
        1 => Ok(checkpoint),
        _ => split::join(checkpoint, mode),
    }
}
