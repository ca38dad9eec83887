//! Joins NVFP4 matrices of Hugging Face folders into GGUF's blocks. In the folders, codes, scales
//! and a factor are three tensors.
//!
//! | | ModelOpt | compressed-tensors |
//! |---|---|---|
//! | codes, u8 `[rows, cols / 2]`, the earlier of two in the low nibble | `weight` | `weight_packed` |
//! | scales, E4M3 `[rows, cols / 16]` | `weight_scale` | `weight_scale` |
//! | factor, F32 | `weight_scale_2` | `weight_global_scale`, of which it is the inverse |
//!
//! Sources: the checkpoint layout in NVIDIA's Model Optimizer and NeMo documentation, and that of
//! compressed-tensors.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use thermocline_base::error::{Error, Location, Result, ScarceMemory};
use thermocline_formats::{
    format::{Bytes, Tensor, anonymous},
    quant::TensorType,
};

/// Elements that share a scale.
const GROUP: usize = 16;

/// Factors of NVFP4 matrices, by the name of the matrix.
pub(super) type Factors = HashMap<String, f32>;

/// Returns the tensors of a folder with the parts of each NVFP4 matrix joined to one tensor,
/// `{stem}.weight`, and the factors of these matrices. The matrices are copied.
///
/// # Errors
/// [`Error::Malformed`] for missing scales, and for scales or a factor of another shape or not
/// positive and finite; [`Error::Memory`] if there is no room.
pub(super) fn join(path: &Path, tensors: Vec<Tensor>) -> Result<(Vec<Tensor>, Factors)> {
    let by_name: HashMap<&str, &Tensor> = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let (mut joined, mut factors, mut parts) = (HashMap::new(), Factors::new(), HashSet::new());
    for codes in tensors.iter().filter(|tensor| tensor.ty == TensorType::I8) {
        let stem = codes.name.strip_suffix(".weight").map(|stem| (stem, "weight_scale_2"));
        let packed = codes.name.strip_suffix(".weight_packed").map(|stem| (stem, "weight_global_scale"));
        let Some((stem, factor)) = stem.or(packed) else { continue };
        // A tensor of bytes without a factor has another type.
        let Some(factor) = by_name.get(format!("{stem}.{factor}").as_str()) else { continue };
        let scales = format!("{stem}.weight_scale");
        let Some(scales) = by_name.get(scales.as_str()) else {
            let expected = format!("the scales of `{}`", codes.name);
            return Err(Error::malformed(path, Location::Tensor(scales), expected, "nothing: the tensor is missing"));
        };
        let name = format!("{stem}.weight");
        factors.insert(name.clone(), factor_of(path, factor, packed.is_some())?);
        joined.insert(codes.name.clone(), blocks(path, name, codes, scales)?);
        parts.extend([scales.name.clone(), factor.name.clone()]);
    }
    let rest = tensors.into_iter().filter(|tensor| !parts.contains(&tensor.name));
    let all = rest.map(|tensor| joined.remove(&tensor.name).unwrap_or(tensor)).collect();
    Ok((all, factors))
}

/// Reads the factor of a matrix; `inverse` if the file stores its inverse.
fn factor_of(path: &Path, tensor: &Tensor, inverse: bool) -> Result<f32> {
    let value = match (tensor.ty, tensor.data.first_chunk()) {
        (TensorType::F32, Some(bytes)) if tensor.data.len() == 4 => Some(f32::from_le_bytes(*bytes)),
        _ => None,
    };
    let factor = value.map(|value| if inverse { value.recip() } else { value });
    factor.filter(|factor| factor.is_finite() && *factor > 0.0).ok_or_else(|| {
        let got = value.map_or(format!("shape {:?} of {}", tensor.shape, tensor.ty), |value| value.to_string());
        Error::malformed(path, Location::Tensor(tensor.name.clone()), "one positive finite number of F32", got)
    })
}

/// Makes GGUF's blocks: four scales, then eight bytes per group of 16. Element `j` shares a byte
/// with element `j + 8`.
fn blocks(path: &Path, name: String, codes: &Tensor, scales: &Tensor) -> Result<Tensor> {
    let (ty, wrong) = (TensorType::NVFP4, |tensor: &Tensor, expected: String| {
        let got = format!("shape {:?} of {} bytes", tensor.shape, tensor.data.len());
        Error::malformed(path, Location::Tensor(tensor.name.clone()), expected, got)
    });
    let cols = codes.cols().saturating_mul(2);
    let mut shape = codes.shape.clone();
    shape.pop();
    let mut scales_shape = shape.clone();
    shape.push(cols);
    scales_shape.push(cols / GROUP);
    let rows = codes.rows();
    let Some(row_bytes) = ty.row_bytes(cols).filter(|bytes| *bytes > 0 && codes.data.len() == rows * codes.cols())
    else {
        return Err(wrong(codes, format!("rows of whole blocks of {} codes, two to a byte", ty.block_len())));
    };
    if scales.shape != scales_shape || scales.data.len() != scales.len() {
        return Err(wrong(scales, format!("bytes of shape {scales_shape:?}")));
    }
    if let Some(scale) = scales.data.iter().find(|scale| **scale >= 0x7f) {
        let location = Location::Tensor(scales.name.clone());
        return Err(Error::malformed(path, location, "positive finite E4M3 numbers", format!("{scale:#x}")));
    }
    let mut memory = anonymous(rows.saturating_mul(row_bytes).max(1), "NVFP4 matrix in GGUF's blocks")?;
    let groups = codes.data.as_chunks::<32>().0.iter().zip(scales.data.as_chunks::<4>().0);
    for ((codes, scales), block) in groups.zip(memory.as_chunks_mut::<36>().0) {
        let (head, to) = block.split_at_mut(4);
        head.copy_from_slice(scales);
        for (codes, to) in codes.as_chunks::<8>().0.iter().zip(to.as_chunks_mut::<8>().0) {
            let code = |j: usize| codes[j / 2] >> (j % 2 * 4) & 15;
            *to = std::array::from_fn(|j| code(j) | code(j + 8) << 4);
        }
    }
    let room = |_| Error::memory(ScarceMemory::Ram, "NVFP4 matrix in GGUF's blocks", (rows * row_bytes) as u64, 0);
    let data = Bytes::new(memory.make_read_only().map_err(room)?);
    let data = data.slice(0..rows * row_bytes).unwrap_or(data);
    Ok(Tensor { name, ty, shape, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes scales, codes and factor of two rows of 64, in one of the two layouts.
    fn folder(packed: bool) -> Vec<Tensor> {
        let tensor = |name: &str, ty, shape: &[usize], data: Vec<u8>| Tensor {
            name: format!("m.{name}"),
            ty,
            shape: shape.to_vec(),
            data: Bytes::new(data),
        };
        let (codes, factor) =
            if packed { ("weight_packed", "weight_global_scale") } else { ("weight", "weight_scale_2") };
        let value = if packed { 4.0f32 } else { 0.25 };
        vec![
            tensor("bias", TensorType::F32, &[2], vec![0; 8]),
            tensor(codes, TensorType::I8, &[2, 32], (0..64).map(|at| (at * 37 % 256) as u8).collect()),
            tensor("weight_scale", TensorType::I8, &[2, 4], (0..8).map(|at| 0x30 + 3 * at).collect()),
            tensor(factor, TensorType::F32, &[1], value.to_le_bytes().to_vec()),
            tensor("input_scale", TensorType::F32, &[], vec![0; 4]),
        ]
    }

    #[test]
    fn nvfp4_tensors_join_to_the_values_of_either_layout() {
        const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        for packed in [false, true] {
            let source = folder(packed);
            let (codes, scales) = (source[1].data.to_vec(), source[2].data.to_vec());
            let (tensors, factors) = join(Path::new("m"), source).unwrap();
            let names: Vec<_> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
            assert_eq!((names, factors["m.weight"]), (vec!["m.bias", "m.weight", "m.input_scale"], 0.25));
            let weight = &tensors[1];
            assert_eq!((weight.ty, &weight.shape[..]), (TensorType::NVFP4, &[2, 64][..]));
            let matrix = weight.matrix().unwrap().with_factor(0.25);
            for row in 0..2 {
                let mut values = [0.0; 64];
                matrix.dequantise_row(row, &mut values);
                for (col, value) in values.into_iter().enumerate() {
                    let code = codes[row * 32 + col / 2] >> (col % 2 * 4) & 15;
                    let scale = scales[row * 4 + col / 16];
                    let scale = (1.0 + f32::from(scale & 7) / 8.0) * 2f32.powi(i32::from(scale >> 3) - 7);
                    let magnitude = 0.25 * scale * E2M1[usize::from(code & 7)];
                    assert_eq!(value, if code > 7 { -magnitude } else { magnitude }, "{packed} {row} {col}");
                }
            }
        }
    }

    #[test]
    fn nvfp4_tensors_that_do_not_fit_are_refused_by_name() {
        let refused = |change: fn(&mut Vec<Tensor>)| {
            let mut tensors = folder(false);
            change(&mut tensors);
            join(Path::new("m"), tensors).unwrap_err().to_string()
        };
        assert!(refused(|it| drop(it.remove(2))).contains("m.weight_scale"));
        assert!(refused(|it| it[2].shape = vec![4, 2]).contains("[2, 4]"));
        assert!(refused(|it| it[2].data = Bytes::new(vec![0x7f; 8])).contains("0x7f"));
        assert!(refused(|it| it[3].data = Bytes::new(f32::NAN.to_le_bytes())).contains("NaN"));
        assert!(refused(|it| it[1].shape = vec![64, 1]).contains("blocks of 64"));
    }
}
