//! How one GGUF tensor is made from one Hugging Face tensor.

use std::path::Path;

use crate::{
    error::{Error, Location, Result},
    format::{Bytes, Tensor},
    quant,
    quant::TensorType,
};

/// Difference between a Hugging Face tensor and GGUF's.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::model) enum Transform {
    /// None: the bytes are shared.
    None,
    /// Rows of `heads` heads, of which the first `dims` are rotated: halves become neighbours.
    Rope {
        /// Heads in the tensor.
        heads: usize,
        /// Rotated elements per head.
        dims: usize,
    },
    /// Rows by key/value group (queries, key, value) become all queries, all keys, all values.
    Qkv {
        /// Query heads.
        heads: usize,
        /// Key/value heads.
        kv_heads: usize,
    },
    /// Weights stored minus one.
    AddOne,
    /// `[1, n]` becomes `[n]`.
    Flatten,
    /// One of several equal ranges of rows: GGUF keeps apart what is one tensor in the folder.
    Rows {
        /// Number of the range.
        range: usize,
        /// Ranges in the tensor.
        of: usize,
    },
}

/// A tensor under its GGUF name, still with its Hugging Face contents.
#[derive(Debug, Clone)]
pub(in crate::model) struct Recipe {
    pub(in crate::model) tensor: Tensor,
    pub(in crate::model) transform: Transform,
}

impl Recipe {
    /// The tensor as it is.
    pub(in crate::model) fn plain(tensor: Tensor) -> Self {
        Recipe { tensor, transform: Transform::None }
    }

    /// Shape of the tensor when made.
    pub(in crate::model) fn shape(&self) -> Vec<usize> {
        match self.transform {
            Transform::Flatten => vec![self.tensor.len()],
            Transform::Rows { of, .. } => {
                let rows = self.tensor.shape.first().map(|rows| rows / of.max(1));
                rows.into_iter().chain(self.tensor.shape.iter().skip(1).copied()).collect()
            }
            _ => self.tensor.shape.clone(),
        }
    }

    /// A tensor of the right shape with the wrong contents, for checks of sizes.
    pub(in crate::model) fn untransformed(&self) -> Tensor {
        let data = self.rows_data().unwrap_or_else(|| self.tensor.data.clone());
        Tensor { shape: self.shape(), data, ..self.tensor.clone() }
    }

    /// The bytes of a range of rows, if that is what the tensor is and its rows can be divided.
    fn rows_data(&self) -> Option<Bytes> {
        let Transform::Rows { range, of } = self.transform else { return None };
        let rows = self.tensor.shape.first()?;
        let len = self.tensor.data.len() / of.max(1);
        let divides = rows.is_multiple_of(of) && self.tensor.data.len().is_multiple_of(of) && range < of;
        divides.then(|| self.tensor.data.slice(range * len..(range + 1) * len)).flatten()
    }

    /// Makes the tensor; copies only where the transformation asks for it. `path` is for errors.
    pub(in crate::model) fn make(&self, path: &Path) -> Result<Tensor> {
        let tensor = &self.tensor;
        let rows = tensor.shape.first().copied().unwrap_or(0);
        let error = |expected: String| {
            let location = Location::Tensor(tensor.name.clone());
            Err(Error::malformed(path, location, expected, format!("shape {:?}", tensor.shape)))
        };
        match self.transform {
            Transform::None => Ok(tensor.clone()),
            Transform::Qkv { kv_heads: 1, .. } => Ok(tensor.clone()),
            Transform::Flatten => Ok(self.untransformed()),
            Transform::Rows { of, .. } => match self.rows_data() {
                Some(_) => Ok(self.untransformed()),
                None => error(format!("a multiple of {of} rows")),
            },
            Transform::Rope { heads, dims } => {
                let head_dim = rows / heads.max(1);
                if head_dim == 0 || rows != heads * head_dim || dims > head_dim {
                    return error(format!("rows of {heads} heads of at least {dims}"));
                }
                Ok(self.with_rows(|row| rope_source(row, head_dim, dims)))
            }
            Transform::Qkv { heads, kv_heads } => {
                let all = heads + 2 * kv_heads;
                let head_dim = rows / all.max(1);
                let divides = kv_heads != 0 && heads.is_multiple_of(kv_heads);
                if !divides || head_dim == 0 || rows != all * head_dim {
                    return error(format!("rows of {heads} query and twice {kv_heads} key/value heads"));
                }
                Ok(self.with_rows(|row| qkv_source(row / head_dim, heads, kv_heads) * head_dim + row % head_dim))
            }
            Transform::AddOne => {
                if !tensor.ty.is_weight() || tensor.ty.row_bytes(tensor.len()) != Some(tensor.data.len()) {
                    return error("a vector of floats".to_owned());
                }
                let mut values = vec![0.0; tensor.len()];
                quant::dequantise(tensor.ty, &tensor.data, &mut values);
                let bytes: Vec<u8> = values.iter().flat_map(|value| (value + 1.0).to_le_bytes()).collect();
                Ok(Tensor { ty: TensorType::F32, data: Bytes::new(bytes), ..tensor.clone() })
            }
        }
    }

    /// The tensor with row `i` taken from row `source(i)`; the first dimension counts rows.
    fn with_rows(&self, source: impl Fn(usize) -> usize) -> Tensor {
        let rows = self.tensor.shape[0];
        let row_bytes = self.tensor.data.len() / rows;
        let mut bytes = Vec::with_capacity(self.tensor.data.len());
        for row in 0..rows {
            let start = source(row) * row_bytes;
            bytes.extend_from_slice(&self.tensor.data[start..start + row_bytes]);
        }
        Tensor { data: Bytes::new(bytes), ..self.tensor.clone() }
    }
}

/// Where GGUF's row `row` is among Hugging Face's, heads being `head_dim` rows of which `dims` are rotated.
fn rope_source(row: usize, head_dim: usize, dims: usize) -> usize {
    let (head, at) = (row / head_dim, row % head_dim);
    let source = if at < dims { at % 2 * (dims / 2) + at / 2 } else { at };
    head * head_dim + source
}

/// Where GGUF's head `head` (queries, then keys, then values) is among Hugging Face's groups.
fn qkv_source(head: usize, heads: usize, kv_heads: usize) -> usize {
    let per_group = heads / kv_heads;
    if head < heads {
        head / per_group * (per_group + 2) + head % per_group
    } else if head < heads + kv_heads {
        (head - heads) * (per_group + 2) + per_group
    } else {
        (head - heads - kv_heads) * (per_group + 2) + per_group + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rope_rows_pair_the_halves() {
        let rows: Vec<_> = (0..8).map(|row| rope_source(row, 8, 8)).collect();
        assert_eq!(rows, [0, 4, 1, 5, 2, 6, 3, 7]);
        let partial: Vec<_> = (8..16).map(|row| rope_source(row, 8, 4)).collect();
        assert_eq!(partial, [8, 10, 9, 11, 12, 13, 14, 15]);
    }

    #[test]
    fn qkv_heads_come_out_of_their_groups() {
        let heads: Vec<_> = (0..8).map(|head| qkv_source(head, 4, 2)).collect();
        assert_eq!(heads, [0, 1, 4, 5, 2, 6, 3, 7]);
    }
}
