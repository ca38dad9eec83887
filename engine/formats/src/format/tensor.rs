//! One named tensor of a checkpoint.

use super::{Bytes, Matrix};
use crate::quant::TensorType;

/// A tensor as stored in its file.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// GGUF name, for example `blk.0.attn_q.weight`.
    pub name: String,
    /// Encoding of the elements.
    pub ty: TensorType,
    /// Row-major shape, outermost first: `[rows, cols]`, `[n]`, or `[experts, rows, cols]`.
    /// (GGUF stores the reverse order, `ne`.)
    pub shape: Vec<usize>,
    /// `product(shape)` elements with contiguous rows, followed by the type's trailer. The length
    /// is checked against type and shape.
    pub data: Bytes,
}

impl Tensor {
    /// Length of the innermost dimension.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(0)
    }

    /// Product of all dimensions but the innermost.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// The elements as a matrix of [`Tensor::rows`] rows, times the factor in the type's trailer.
    /// `None` if the type is not a weight type, or the length is not a whole number of rows.
    pub fn matrix(&self) -> Option<Matrix> {
        let trailer = if self.is_empty() { 0 } else { self.ty.trailer_bytes() };
        let end = self.data.len().checked_sub(trailer)?;
        let matrix = Matrix::new(self.ty, self.rows(), self.cols(), self.data.slice(0..end)?)?;
        let factor = self.data[end..].first_chunk().map_or(1.0, |bytes| f32::from_le_bytes(*bytes));
        Some(matrix.with_factor(factor))
    }

    /// True for a tensor without elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
