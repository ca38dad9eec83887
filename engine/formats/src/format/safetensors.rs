//! Tensors of a safetensors file, by reference into the file's bytes. The `safetensors` crate
//! checks the header. Slicing checks the offsets again.

use std::path::Path;

use safetensors::{Dtype, SafeTensorError, SafeTensors};

use super::{Bytes, Tensor, byte_range::ByteRange};
use crate::quant::TensorType;
use thermocline_base::error::{Error, Location, Result};

/// Bytes of the length before the JSON header.
const LENGTH_BYTES: u64 = 8;

/// Reads the tensors in `bytes`, in the order of their data. Errors use `name` for the file.
pub(super) fn read(name: &Path, bytes: &Bytes) -> Result<Vec<Tensor>> {
    let (header_len, header) = SafeTensors::read_metadata(bytes).map_err(|error| {
        let malformed = Error::malformed(name, Location::File, "a safetensors header that fits the file", &error);
        match error {
            SafeTensorError::MetadataIncompleteBuffer
            | SafeTensorError::HeaderTooSmall
            | SafeTensorError::InvalidHeaderLength => malformed.of_truncated_file(),
            _ => malformed,
        }
    })?;
    let data_start = LENGTH_BYTES.checked_add(header_len as u64);
    let mut found = header.tensors().into_iter().collect::<Vec<_>>();
    found.sort_by(|a, b| (a.1.data_offsets, &a.0).cmp(&(b.1.data_offsets, &b.0)));

    let mut tensors = Vec::with_capacity(found.len());
    for (tensor, info) in found {
        let refuse =
            |expected: &str, got: String| Error::malformed(name, Location::Tensor(tensor.clone()), expected, got);
        let ty = tensor_type(info.dtype)
            .ok_or_else(|| refuse("elements of F32, F16, BF16 or integers", info.dtype.to_string()))?;
        if info.shape.contains(&0) {
            return Err(refuse("dimensions above 0", format!("{:?}", info.shape)));
        }
        let (start, end) = info.data_offsets;
        let range =
            end.checked_sub(start).and_then(|len| ByteRange::new(start as u64, len as u64)?.shifted(data_start?));
        let data = range
            .and_then(|range| bytes.slice(range.indices()?))
            .ok_or_else(|| refuse("data inside the file", format!("bytes {start} to {end} of the data")))?;
        // A scalar becomes a vector of one element.
        let shape = if info.shape.is_empty() { vec![1] } else { info.shape.clone() };
        tensors.push(Tensor { name: tensor, ty, shape, data });
    }
    Ok(tensors)
}

/// Our type for a safetensors type: float types of weights, and integers and F64 for tables.
fn tensor_type(dtype: Dtype) -> Option<TensorType> {
    Some(match dtype {
        Dtype::F32 => TensorType::F32,
        Dtype::F16 => TensorType::F16,
        Dtype::BF16 => TensorType::BF16,
        Dtype::F64 => TensorType::F64,
        // Unsigned bytes of codes and scales can be stored as signed bytes.
        Dtype::I8 | Dtype::U8 | Dtype::F8_E4M3 => TensorType::I8,
        Dtype::I16 => TensorType::I16,
        Dtype::I32 => TensorType::I32,
        Dtype::I64 => TensorType::I64,
        _ => return None,
    })
}
