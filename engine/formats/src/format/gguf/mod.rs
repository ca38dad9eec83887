//! GGUF versions 2 and 3, little endian, and PowerInfer's variant, which differs in its first four
//! bytes.
//!
//! A file has a 24-byte header, typed key-value pairs, descriptions of tensors, padding, and the
//! tensors' data. Each of the first three has a file here for reading and writing: [`header`],
//! [`value`], [`tensor_info`]. Nothing in a file is trusted before it is compared with the file's
//! length. Counts are checked before memory is allocated for them, sizes and offsets with
//! [`super::byte_range`]. Names and keys are unique, and tensors share no byte. Data are not
//! copied: tensors refer to the map. [`split`] joins shards, [`writer`] creates files.
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

/// Reads a GGUF from memory. Errors use `name` for the file. A shard of a split file is refused,
/// because the other shards cannot be found.
pub fn from_bytes(name: &Path, bytes: Bytes) -> Result<Checkpoint> {
    let checkpoint = reader::read(name, &bytes)?;
    match split::count(&checkpoint.metadata)? {
        1 => Ok(checkpoint),
        count => Err(Error::malformed(name, Location::Key("split.count".to_owned()), "an unsplit file", count)),
    }
}

/// Opens the GGUF at `path`, and the other shards of a split checkpoint.
pub(super) fn open(path: &Path, mode: ReadMode) -> Result<Checkpoint> {
    let checkpoint = mmap::read_with(path, mode, |bytes| reader::read(path, bytes))?;
    match split::count(&checkpoint.metadata)? {
        1 => Ok(checkpoint),
        _ => split::join(checkpoint, mode),
    }
}
