//! The first 24 bytes: magic, version, number of tensors, number of key-value pairs.

use super::cursor::Cursor;
use crate::format::Container;
use thermocline_base::error::Result;

/// `GGUF`, llama.cpp's magic.
pub(crate) const GGUF_MAGIC: [u8; 4] = *b"GGUF";
/// `PWRI`, PowerInfer's magic.
pub(crate) const POWERINFER_MAGIC: [u8; 4] = *b"PWRI";

/// Fewest bytes of a key-value pair: key length, a one-byte key, value type, a one-byte value.
const LEAST_PAIR_BYTES: u64 = 8 + 1 + 4 + 1;
/// Fewest bytes of a tensor description: name length, a one-byte name, number of dimensions, one
/// dimension, type, offset.
const LEAST_TENSOR_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// A header whose counts are checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct GgufHeader {
    pub(super) container: Container,
    pub(super) tensors: usize,
    pub(super) pairs: usize,
}

impl GgufHeader {
    pub fn read(cursor: &mut Cursor<'_>) -> Result<Self> {
        let magic = cursor.take(4, format_args!("magic"))?;
        let container: fn(u32) -> Container = match magic {
            magic if *magic == GGUF_MAGIC => Container::Gguf,
            magic if *magic == POWERINFER_MAGIC => Container::PowerInfer,
            _ => {
                let got = format!("`{}`", magic.escape_ascii());
                return Err(cursor.error_at(0, format_args!("magic"), "`GGUF` or `PWRI`", got));
            }
        };
        let version = cursor.u32(format_args!("version"))?;
        if !matches!(version, 2 | 3) {
            let swapped = version.swap_bytes();
            let (expected, got) = match swapped {
                1..=3 => ("a little-endian file", format!("a big-endian file of version {swapped}")),
                _ => ("version 2 or 3", version.to_string()),
            };
            return Err(cursor.error_at(4, format_args!("version"), expected, got));
        }
        // Each count is checked against the bytes that follow it.
        let tensors = cursor.count(LEAST_TENSOR_BYTES, format_args!("tensor count"))?;
        let pairs = cursor.count(LEAST_PAIR_BYTES, format_args!("key-value count"))?;
        Ok(GgufHeader { container: container(version), tensors, pairs })
    }

    /// Appends the header of a file. `None` for a container that is not a GGUF.
    pub fn write(&self, out: &mut Vec<u8>) -> Option<()> {
        let (magic, version) = match self.container {
            Container::Gguf(version) => (GGUF_MAGIC, version),
            Container::PowerInfer(version) => (POWERINFER_MAGIC, version),
            Container::HuggingFace => return None,
        };
        if !matches!(version, 2 | 3) {
            return None;
        }
        out.extend(magic);
        out.extend(version.to_le_bytes());
        out.extend((self.tensors as u64).to_le_bytes());
        out.extend((self.pairs as u64).to_le_bytes());
        Some(())
    }
}
