//! Factors stored beside matrices whose types need one: NVFP4, whose own scales have a small range,
//! and BitNet's three-valued types. A tensor `{stem}.scale` (or `{stem}.weight.scale`) holds one
//! F32 number, or one per expert. `{stem}.input_scale` is the scale of four-bit activations and
//! does not affect weights.

use thermocline_base::error::{Error, Location, Result};
use thermocline_formats::{
    format::{Checkpoint, Tensor},
    quant::{self, TensorType},
};

/// Returns the `count` factors of `weight`; `None` if its type or its file has none. A single
/// factor applies to every matrix.
///
/// # Errors
/// [`Error::Malformed`] if there is another number of factors, or if one is not finite.
pub(crate) fn factors(checkpoint: &Checkpoint, weight: &Tensor, count: usize) -> Result<Option<Vec<f32>>> {
    if ![TensorType::NVFP4, TensorType::TQ1_0, TensorType::TQ2_0].contains(&weight.ty) {
        return Ok(None);
    }
    let Some(tensor) = factor_names(&weight.name).iter().find_map(|name| checkpoint.tensor(name)) else {
        return Ok(None);
    };
    let error = |expected: String, got: String| {
        Error::malformed(&checkpoint.path, Location::Tensor(tensor.name.clone()), expected, got)
    };
    let whole = tensor.ty.is_weight() && tensor.ty.row_bytes(tensor.len()) == Some(tensor.data.len());
    if !whole || ![1, count].contains(&tensor.len()) {
        let expected = format!("one factor or {count} factors of {}", weight.name);
        return Err(error(expected, format!("shape {:?} of {}", tensor.shape, tensor.ty)));
    }
    let mut values = vec![0.0; tensor.len()];
    quant::dequantise(tensor.ty, &tensor.data, &mut values);
    if let Some(value) = values.iter().find(|value| !value.is_finite()) {
        return Err(error(format!("finite factors of {}", weight.name), value.to_string()));
    }
    if values.len() < count {
        values.resize(count, values[0]);
    }
    Ok(Some(values))
}

/// Returns the names that files use for the factors of a matrix.
pub(crate) fn factor_names(weight: &str) -> [String; 2] {
    let stem = weight.strip_suffix(".weight").unwrap_or(weight);
    [format!("{stem}.scale"), format!("{weight}.scale")]
}
