//! One named tensor of a checkpoint.

use super::Bytes;
use crate::quant::TensorType;

/// A tensor as it lies in its file.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// GGUF name, for example `blk.0.attn_q.weight`.
    pub name: String,
    /// Encoding of the elements.
    pub ty: TensorType,
    /// Row-major shape, outermost first: `[rows, cols]`, `[n]`, or `[experts, rows, cols]`.
    /// (GGUF stores the reverse order, `ne`.)
    pub shape: Vec<usize>,
    /// `product(shape)` elements, rows contiguous; length checked against type and shape.
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

    /// True for a tensor without elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
