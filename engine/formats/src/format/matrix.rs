//! A two-dimensional weight in its file type.

use std::{ops::Range, sync::Arc};

use super::{Bytes, MappedFile, Pager};
use crate::quant::{self, TensorType, WeightType};

/// A `[rows, cols]` matrix with contiguous rows of whole blocks. Its weights are those of the
/// blocks times one factor.
#[derive(Debug, Clone)]
pub struct Matrix {
    encoding: WeightType,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    factor: f32,
    data: Bytes,
}

impl Matrix {
    /// Creates a matrix over `data`. `None` if `ty` is not a weight type, or the length does not
    /// match the shape.
    pub fn new(ty: TensorType, rows: usize, cols: usize, data: Bytes) -> Option<Self> {
        let (encoding, row_bytes) = (ty.weight_type()?, ty.row_bytes(cols)?);
        let fits = rows.checked_mul(row_bytes) == Some(data.len());
        fits.then_some(Matrix { encoding, rows, cols, row_bytes, factor: 1.0, data })
    }

    /// Returns the same weights times `factor`. Files store such a factor beside matrices of NVFP4
    /// and after those of I2_S.
    pub fn with_factor(self, factor: f32) -> Self {
        Matrix { factor: self.factor * factor, ..self }
    }

    /// Factor of all weights, 1 if the file has none. Products multiply their sums by it.
    pub fn factor(&self) -> f32 {
        self.factor
    }

    /// Type of the elements in a file.
    pub fn ty(&self) -> TensorType {
        self.encoding.tensor_type()
    }

    /// Encoding of the elements.
    pub fn weight_type(&self) -> WeightType {
        self.encoding
    }

    /// Number of rows, which are the outputs of `y = W x`.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns, which are the inputs of `y = W x`.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes from one row to the next.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// All rows.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// All rows, shared.
    pub fn bytes(&self) -> &Bytes {
        &self.data
    }

    /// The mapped file that contains the rows. `None` if the rows are in memory.
    pub fn file(&self) -> Option<&Arc<MappedFile>> {
        self.data.file()
    }

    /// Decides which rows are in memory, if the matrix is in a file that is larger than the RAM
    /// that it may use.
    #[inline]
    pub fn pager(&self) -> Option<&Pager> {
        self.data.file()?.pager()
    }

    /// Row `row`, encoded.
    #[inline]
    pub fn row(&self, row: usize) -> &[u8] {
        &self.data[row * self.row_bytes..(row + 1) * self.row_bytes]
    }

    /// The rows in `rows` as a separate matrix that shares the data. `None` if out of bounds.
    pub fn slice_rows(&self, rows: Range<usize>) -> Option<Self> {
        if rows.start > rows.end || rows.end > self.rows {
            return None;
        }
        let data = self.data.slice(rows.start * self.row_bytes..rows.end * self.row_bytes)?;
        Some(Matrix { rows: rows.len(), data, ..self.clone() })
    }

    /// Decodes row `row` into `dst`, which has [`Matrix::cols`] elements.
    pub fn dequantise_row(&self, row: usize, dst: &mut [f32]) {
        quant::dequantise(self.ty(), self.row(row), dst);
        self.scale(dst);
    }

    /// Multiplies sums of this matrix's weights by its factor.
    pub fn scale(&self, sums: &mut [f32]) {
        if self.factor != 1.0 {
            sums.iter_mut().for_each(|sum| *sum *= self.factor);
        }
    }
}
