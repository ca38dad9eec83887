//! Descriptions of tensors: name, dimensions, type, and offset into the data section.

use super::{cursor::Cursor, value::write_string};
use crate::{
    format::byte_range::{ByteRange, tensor_bytes},
    quant::TensorType,
};
use thermocline_base::error::{Error, Result};

/// Longest name, in bytes. llama.cpp keeps names in 64 bytes, one of them for the terminating zero.
const LONGEST_NAME: usize = 63;
/// Most dimensions of a tensor.
const MOST_DIMS: usize = 4;

/// Description of a tensor to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name of 1 to 63 bytes.
    pub name: String,
    /// Encoding of the elements.
    pub ty: TensorType,
    /// Row-major shape, outermost first, one to four dimensions.
    pub shape: Vec<usize>,
}

/// A description read from a file. Its size is representable, but not yet compared with the file.
#[derive(Debug)]
pub(super) struct Described {
    pub(super) info: TensorInfo,
    /// Bytes of the tensor within the data section.
    pub(super) range: ByteRange,
    /// Position of the offset field in the file, for messages.
    pub(super) offset_at: u64,
}

impl Described {
    /// Reads description number `at`. `alignment` is the file's alignment. `empty` allows
    /// dimensions of zero.
    pub fn read(cursor: &mut Cursor<'_>, at: usize, alignment: u64, empty: bool) -> Result<Self> {
        let name_at = cursor.position();
        // The length counts replacement characters too, so that every name that is read can be
        // written.
        let name = cursor.text(format_args!("name of tensor {at}"))?;
        if name.is_empty() || name.len() > LONGEST_NAME {
            let expected = format!("a name of 1 to {LONGEST_NAME} bytes");
            let got = format!("{} bytes", name.len());
            return Err(cursor.error_at(name_at, format_args!("name of tensor {at}"), expected, got));
        }

        let dims_at = cursor.position();
        let dims = cursor.u32(format_args!("number of dimensions of tensor `{name}`"))?;
        if !matches!(dims, 1..=4) {
            let field = format_args!("number of dimensions of tensor `{name}`");
            return Err(cursor.error_at(dims_at, field, format!("1 to {MOST_DIMS}"), dims));
        }
        let ne_at = cursor.position();
        let mut shape = Vec::with_capacity(MOST_DIMS);
        for _ in 0..dims {
            shape.push(cursor.u64(format_args!("dimensions of tensor `{name}`"))?);
        }
        shape.reverse();
        let field = format_args!("dimensions of tensor `{name}`");
        if !empty && shape.contains(&0) {
            return Err(cursor.error_at(ne_at, field, "dimensions above 0", format!("{shape:?}")));
        }

        let ty_at = cursor.position();
        let id = cursor.u32(format_args!("type of tensor `{name}`"))?;
        let Some(ty) = TensorType::from_id(id) else {
            let known = TensorType::ALL.map(|ty| format!("{} {ty}", ty as u32)).join(", ");
            return Err(cursor.error_at(ty_at, format_args!("type of tensor `{name}`"), format!("one of {known}"), id));
        };
        if !shape.last().is_some_and(|cols| cols.is_multiple_of(ty.block_len() as u64)) {
            let expected = format!("rows of whole {ty} blocks of {}", ty.block_len());
            return Err(cursor.error_at(ne_at, field, expected, format!("{shape:?}")));
        }
        let too_large = || cursor.error_at(ne_at, field, "a size that fits in memory", format!("{shape:?} of {ty}"));
        let bytes = tensor_bytes(ty, &shape).ok_or_else(too_large)?;
        let sizes = shape.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<Vec<_>>>();
        let sizes = sizes.ok_or_else(too_large)?;

        let offset_at = cursor.position();
        let offset = cursor.u64(format_args!("offset of tensor `{name}`"))?;
        let field = format_args!("offset of tensor `{name}`");
        if !offset.is_multiple_of(alignment) {
            return Err(cursor.error_at(offset_at, field, format!("a multiple of {alignment}"), offset));
        }
        let range = ByteRange::new(offset, bytes)
            .ok_or_else(|| cursor.error_at(offset_at, field, "an offset inside the file", offset))?;
        Ok(Described { info: TensorInfo { name: name.to_string(), ty, shape: sizes }, range, offset_at })
    }
}

impl TensorInfo {
    /// Bytes of the tensor's data. An error if the name or shape cannot be written.
    pub fn bytes(&self) -> Result<u64> {
        if self.name.is_empty() || self.name.len() > LONGEST_NAME {
            let expected = format!("1 to {LONGEST_NAME} bytes");
            return Err(Error::invalid("name of a tensor to write", expected, format!("`{}`", self.name)));
        }
        let dims = self.shape.iter().map(|&dim| dim as u64).collect::<Vec<_>>();
        let writable = (1..=MOST_DIMS).contains(&dims.len());
        writable.then(|| tensor_bytes(self.ty, &dims)).flatten().ok_or_else(|| {
            let expected = format!("1 to {MOST_DIMS} dimensions, rows of whole blocks of {}", self.ty.block_len());
            let got = format!("{:?} of {} for `{}`", self.shape, self.ty, self.name);
            Error::invalid("shape of a tensor to write", expected, got)
        })
    }

    /// Appends the description.
    pub(super) fn write(&self, out: &mut Vec<u8>, offset: u64) {
        write_string(out, &self.name);
        out.extend((self.shape.len() as u32).to_le_bytes());
        out.extend(self.shape.iter().rev().flat_map(|&dim| (dim as u64).to_le_bytes()));
        out.extend((self.ty as u32).to_le_bytes());
        out.extend(offset.to_le_bytes());
    }
}
