//! Joins BitNet's matrices in Hugging Face folders into blocks of I2_S: four weights of -1, 0 or 1
//! per byte, and one scale for all.
//!
//! `weight` is u8 `[rows / 4, cols]`. Bits `2 i` and `2 i + 1` of row `r` hold the weights plus one
//! of row `i * rows / 4 + r`. `weight_scale` is one number: a factor on the weights, or its inverse
//! in folders whose `linear_class` is `bitlinear`.
//!
//! Source: the packing in the documentation and configuration of transformers' BitNet integration.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use super::HfConfig;
use thermocline_base::error::{Error, Location, Result};
use thermocline_formats::{
    format::{Bytes, Tensor},
    quant::{self, TensorType, encode_i2_s},
};

/// Returns the tensors of a folder with each three-valued matrix and its scale joined to one I2_S
/// tensor. The matrices are copied.
///
/// # Errors
/// [`Error::Unsupported`] for weights that are not yet rounded; [`Error::Malformed`] for a scale
/// that is missing or not positive and finite, and for rows that are not whole blocks.
pub(super) fn join(path: &Path, hf: &HfConfig, tensors: Vec<Tensor>) -> Result<Vec<Tensor>> {
    let quantised = hf.value("quantization_config");
    let is = |key: &str, value: &str| quantised.and_then(|of| of.get(key)?.as_str()) == Some(value);
    if !is("quant_method", "bitnet") {
        return Ok(tensors);
    }
    if is("quantization_mode", "online") {
        return Err(Error::unsupported(
            "quantization_config",
            "bitnet with quantization_mode online, whose weights are not yet rounded to three values",
            "the packed folder of the same model, or its GGUF file",
        ));
    }
    let inverse = !is("linear_class", "autobitlinear");
    let by_name: HashMap<&str, &Tensor> = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let (mut joined, mut scales) = (HashMap::new(), HashSet::new());
    for packed in tensors.iter().filter(|tensor| tensor.ty == TensorType::I8 && tensor.name.ends_with(".weight")) {
        let name = format!("{}_scale", packed.name);
        let Some(scale) = by_name.get(name.as_str()) else {
            let expected = format!("the scale of `{}`", packed.name);
            return Err(Error::malformed(path, Location::Tensor(name), expected, "nothing: the tensor is missing"));
        };
        joined.insert(packed.name.clone(), blocks(path, packed, factor(path, scale, inverse)?)?);
        scales.insert(name);
    }
    let rest = tensors.into_iter().filter(|tensor| !scales.contains(&tensor.name));
    Ok(rest.map(|tensor| joined.remove(&tensor.name).unwrap_or(tensor)).collect())
}

/// Reads the factor of a matrix.
fn factor(path: &Path, scale: &Tensor, inverse: bool) -> Result<f32> {
    let mut value = [f32::NAN];
    if scale.ty.is_weight() && scale.len() == 1 && scale.ty.row_bytes(1) == Some(scale.data.len()) {
        quant::dequantise(scale.ty, &scale.data, &mut value);
    }
    let factor = if inverse { value[0].recip() } else { value[0] };
    if factor.is_finite() && factor > 0.0 {
        return Ok(factor);
    }
    let got = format!("{} of shape {:?}, {}", value[0], scale.shape, scale.ty);
    Err(Error::malformed(path, Location::Tensor(scale.name.clone()), "one positive finite number", got))
}

fn blocks(path: &Path, packed: &Tensor, factor: f32) -> Result<Tensor> {
    let error =
        |expected: String, got: String| Error::malformed(path, Location::Tensor(packed.name.clone()), expected, got);
    let &[quarter, cols] = &packed.shape[..] else {
        return Err(error("bytes [rows / 4, cols]".to_owned(), format!("shape {:?}", packed.shape)));
    };
    let block = TensorType::I2_S.block_len();
    if !cols.is_multiple_of(block) || packed.data.len() != packed.len() {
        return Err(error(format!("rows of whole blocks of {block}"), format!("{cols} columns")));
    }
    if let Some(byte) = packed.data.iter().find(|byte| *byte & *byte >> 1 & 0b0101_0101 != 0) {
        return Err(error("weights of -1, 0 and 1".to_owned(), format!("a byte {byte:#010b}")));
    }
    let rows = (0..4).flat_map(|part| (0..quarter).map(move |row| (2 * part, row)));
    let weight = |code: u8| f32::from(code as i8 - 1) * factor;
    let weights: Vec<f32> = rows
        .flat_map(|(shift, row)| packed.data[row * cols..][..cols].iter().map(move |byte| weight(byte >> shift & 3)))
        .collect();
    let data = Bytes::new(encode_i2_s(&weights)?);
    Ok(Tensor { name: packed.name.clone(), ty: TensorType::I2_S, shape: vec![4 * quarter, cols], data })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(linear_class: &str, mode: &str, scale: f32) -> (HfConfig, Vec<Tensor>) {
        let config = serde_json::json!({
            "model_type": "bitnet",
            "quantization_config": {"quant_method": "bitnet", "linear_class": linear_class, "quantization_mode": mode},
        });
        let tensor = |name: &str, ty, shape: &[usize], data: Vec<u8>| Tensor {
            name: name.to_owned(),
            ty,
            shape: shape.to_vec(),
            data: Bytes::new(data),
        };
        let packed =
            (0..256u32).map(|at| (0..4).fold(0, |byte, part| byte | ((at + part * at / 7) % 3) << (2 * part)) as u8);
        let tensors = vec![
            tensor("norm.weight", TensorType::F32, &[1], vec![0; 4]),
            tensor("q.weight", TensorType::I8, &[2, 128], packed.collect()),
            tensor("q.weight_scale", TensorType::F32, &[1], scale.to_le_bytes().to_vec()),
        ];
        (HfConfig::new(Path::new("m"), config).unwrap(), tensors)
    }

    #[test]
    fn packed_matrices_join_with_their_scale_or_its_inverse() {
        for (class, scale) in [("autobitlinear", 0.25), ("bitlinear", 4.0)] {
            let (hf, source) = folder(class, "offline", scale);
            let packed = source[1].data.to_vec();
            let tensors = join(Path::new("m"), &hf, source).unwrap();
            let names: Vec<_> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
            assert_eq!((names, &tensors[1].shape[..]), (vec!["norm.weight", "q.weight"], &[8, 128][..]));
            let matrix = tensors[1].matrix().unwrap();
            for row in 0..8 {
                let mut values = [0.0; 128];
                matrix.dequantise_row(row, &mut values);
                for (col, value) in values.into_iter().enumerate() {
                    let code = packed[row % 2 * 128 + col] >> (row / 2 * 2) & 3;
                    assert_eq!(value, 0.25 * (f32::from(code) - 1.0), "{class} {row} {col}");
                }
            }
        }
    }

    #[test]
    fn packed_matrices_that_do_not_fit_are_refused_by_name() {
        let refused = |mode: &str, change: fn(&mut Vec<Tensor>)| {
            let (hf, mut tensors) = folder("autobitlinear", mode, 0.25);
            change(&mut tensors);
            join(Path::new("m"), &hf, tensors).unwrap_err().to_string()
        };
        assert!(refused("online", |_| ()).contains("not yet rounded"));
        assert!(refused("offline", |it| drop(it.remove(2))).contains("q.weight_scale"));
        assert!(refused("offline", |it| it[2].data = Bytes::new(vec![0; 4])).contains("positive finite"));
        assert!(refused("offline", |it| it[1].shape = vec![4, 64]).contains("blocks of 128"));
        assert!(refused("offline", |it| it[1].data = Bytes::new(vec![0b11; 256])).contains("-1, 0 and 1"));
    }
}
