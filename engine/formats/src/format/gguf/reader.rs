//! Reads one GGUF file as a [`Checkpoint`]: header, pairs, descriptions, then the data section by
//! reference.

use std::path::Path;

use super::{cursor::Cursor, header::GgufHeader, tensor_info::Described, value::read_pairs};
use crate::format::{Bytes, Checkpoint, Metadata, Tensor, TokenizerSource, Value};
use thermocline_base::error::{Error, Location, Result};

/// Alignment of tensor data if the file does not specify it.
const DEFAULT_ALIGNMENT: u64 = 32;
/// Largest alignment that is accepted. Real files use 32 to 4096.
const LARGEST_ALIGNMENT: u64 = 1 << 20;
/// Architecture of PowerInfer's GPU index. Only this kind of file may have empty tensors.
pub(crate) const GPU_INDEX_ARCHITECTURE: &str = "generic.gpu_index";

/// Reads one file's bytes. Errors use `name` for the file. Does not look for other shards of a
/// split file.
pub(super) fn read(name: &Path, bytes: &Bytes) -> Result<Checkpoint> {
    let mut cursor = Cursor::new(name, bytes);
    let header = GgufHeader::read(&mut cursor)?;
    let mut metadata = Metadata::new(name);
    read_pairs(&mut cursor, header.pairs, &mut metadata)?;
    let alignment = alignment(&metadata)?;
    let empty = metadata.get("general.architecture").and_then(|v| v.as_str()) == Some(GPU_INDEX_ARCHITECTURE);

    // The tensor count was checked against bytes that the pairs used in part. The vector therefore
    // grows as descriptions are read.
    let mut described = Vec::new();
    for at in 0..header.tensors {
        described.push(Described::read(&mut cursor, at, alignment, empty)?);
    }
    let tensors = locate(name, bytes, &described, cursor.position().checked_next_multiple_of(alignment))?;
    Checkpoint::new(name.to_path_buf(), header.container, metadata, TokenizerSource::Metadata, tensors)
}

/// Reads `general.alignment`. Every tensor's offset and the start of the data section are multiples
/// of it.
pub(super) fn alignment(metadata: &Metadata) -> Result<u64> {
    const KEY: &str = "general.alignment";
    let Some(value) = metadata.get(KEY) else { return Ok(DEFAULT_ALIGNMENT) };
    let got = match *value {
        Value::U32(v) if v.is_power_of_two() && u64::from(v) <= LARGEST_ALIGNMENT => return Ok(v.into()),
        Value::U32(v) => v.to_string(),
        _ => format!("a value of type {}", value.type_name()),
    };
    let expected = format!("a power of two up to {LARGEST_ALIGNMENT}, of type u32");
    Err(Error::malformed(metadata.path(), Location::Key(KEY.to_owned()), expected, got))
}

/// Slices the file into tensors. Each tensor must be inside the file and share no byte with
/// another.
fn locate(name: &Path, bytes: &Bytes, described: &[Described], data_start: Option<u64>) -> Result<Vec<Tensor>> {
    let location = |tensor: &Described| Location::Field {
        name: format!("offset of tensor `{}`", tensor.info.name),
        offset: tensor.offset_at,
    };
    let mut tensors = Vec::with_capacity(described.len());
    for tensor in described {
        let range = data_start.and_then(|start| tensor.range.shifted(start));
        let data = range.and_then(|range| bytes.slice(range.indices()?));
        let Some(data) = data else {
            let starts = data_start.and_then(|start| start.checked_add(tensor.range.start()));
            let there = starts.and_then(|start| (bytes.len() as u64).checked_sub(start)).unwrap_or(0);
            let expected = format!("{} bytes of weights", tensor.range.len());
            let got = format!("{there} bytes before the end of the file");
            return Err(Error::malformed(name, location(tensor), expected, got).of_truncated_file());
        };
        let info = &tensor.info;
        tensors.push(Tensor { name: info.name.clone(), ty: info.ty, shape: info.shape.clone(), data });
    }

    let mut order = described.iter().filter(|tensor| !tensor.range.is_empty()).collect::<Vec<_>>();
    order.sort_unstable_by_key(|tensor| tensor.range);
    for pair in order.windows(2) {
        if pair[0].range.overlaps(pair[1].range) {
            let got = format!("{}, which is inside tensor `{}`", pair[1].range.start(), pair[0].info.name);
            return Err(Error::malformed(name, location(pair[1]), "an offset outside the other tensors", got));
        }
    }
    Ok(tensors)
}
