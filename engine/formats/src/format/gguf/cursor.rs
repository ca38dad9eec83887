//! A bounds-checked little-endian reader. Each read takes the name of its field, so that errors can
//! name the field and the byte offset.

use std::{borrow::Cow, fmt::Arguments, path::Path};

use thermocline_base::error::{Error, Location, Result};

/// A position in a file's bytes.
pub(super) struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Cursor { path, bytes, rest: bytes }
    }

    /// Bytes read so far.
    pub fn position(&self) -> u64 {
        self.bytes.len().saturating_sub(self.rest.len()) as u64
    }

    /// Bytes from here to the end of the file.
    pub fn remaining(&self) -> u64 {
        self.rest.len() as u64
    }

    /// The error for `field`, which starts at byte `offset`.
    pub fn error_at(
        &self,
        offset: u64,
        field: Arguments<'_>,
        expected: impl Into<String>,
        got: impl ToString,
    ) -> Error {
        Error::malformed(self.path, Location::Field { name: field.to_string(), offset }, expected, got.to_string())
    }

    /// Reads the next `len` bytes.
    pub fn take(&mut self, len: u64, field: Arguments<'_>) -> Result<&'a [u8]> {
        let split = usize::try_from(len).ok().and_then(|len| self.rest.split_at_checked(len));
        let Some((head, tail)) = split else {
            let got = format!("{} bytes to the end of the file", self.rest.len());
            return Err(self.error_at(self.position(), field, format!("{len} bytes"), got).of_truncated_file());
        };
        self.rest = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, field: Arguments<'_>) -> Result<[u8; N]> {
        let mut value = [0; N];
        value.copy_from_slice(self.take(N as u64, field)?);
        Ok(value)
    }

    pub fn u32(&mut self, field: Arguments<'_>) -> Result<u32> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, field: Arguments<'_>) -> Result<u64> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// Reads a count of items that each take at least `item_bytes` in the file. Refuses a count
    /// whose items cannot fit in the rest of the file. Memory for `count` items is therefore at
    /// most a small multiple of the file.
    pub fn count(&mut self, item_bytes: u64, field: Arguments<'_>) -> Result<usize> {
        let offset = self.position();
        let count = self.u64(field)?;
        let most = self.remaining() / item_bytes.max(1);
        usize::try_from(count).ok().filter(|_| count <= most).ok_or_else(|| {
            let expected = format!("at most {most} (the file has {} bytes left)", self.remaining());
            self.error_at(offset, field, expected, count).of_truncated_file()
        })
    }

    /// Reads the bytes of a string: the length as u64, then the bytes. The format requires UTF-8,
    /// but published files contain other bytes.
    pub fn string(&mut self, field: Arguments<'_>) -> Result<&'a [u8]> {
        let len = self.count(1, format_args!("length of {field}"))?;
        self.take(len as u64, field)
    }

    /// Reads a string as text. Bytes that are not UTF-8 become U+FFFD.
    pub fn text(&mut self, field: Arguments<'_>) -> Result<Cow<'a, str>> {
        self.string(field).map(String::from_utf8_lossy)
    }
}
