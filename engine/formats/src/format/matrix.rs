//! A two-dimensional weight in its file type.

use std::{ops::Range, sync::Arc};

use super::{Bytes, MappedFile, Pager};
use crate::quant::{self, TensorType, WeightType};

/// A `[rows, cols]` matrix with rows of whole blocks. The rows are contiguous, or each is a part of
/// a larger record ([`RecordPart`]). A weight is its value in the block times one factor.
#[derive(Debug, Clone)]
pub struct Matrix {
    encoding: WeightType,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    part: RecordPart,
    factor: f32,
    data: Bytes,
}

/// Place of a matrix's rows in records of equal size. Record `n` contains row `n`, and rows of
/// other matrices that are read together with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordPart {
    /// Bytes of a record.
    pub record: usize,
    /// Bytes of a record before the row.
    pub start: usize,
}

impl Matrix {
    /// Creates a matrix over `data`. `None` if `ty` is not a weight type, or the length does not
    /// match the shape.
    pub fn new(ty: TensorType, rows: usize, cols: usize, data: Bytes) -> Option<Self> {
        let (encoding, row_bytes) = (ty.weight_type()?, ty.row_bytes(cols)?);
        let fits = rows.checked_mul(row_bytes) == Some(data.len());
        let part = RecordPart { record: row_bytes, start: 0 };
        fits.then_some(Matrix { encoding, rows, cols, row_bytes, part, factor: 1.0, data })
    }

    /// Creates a matrix whose rows are parts of `records`, one row in each. `None` if `ty` is not a
    /// weight type, a row does not fit into its record, or the records do not fill their bytes.
    pub fn in_records(ty: TensorType, cols: usize, part: RecordPart, records: &Bytes) -> Option<Self> {
        let (encoding, row_bytes) = (ty.weight_type()?, ty.row_bytes(cols)?);
        let end = part.start.checked_add(row_bytes).filter(|end| *end <= part.record)?;
        let rows = records.len().checked_div(part.record).filter(|rows| rows * part.record == records.len())?;
        let data = match rows.checked_sub(1) {
            None => records.clone(),
            Some(last) => records.slice(part.start..last * part.record + end)?,
        };
        Some(Matrix { encoding, rows, cols, row_bytes, part, factor: 1.0, data })
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

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Bytes from the beginning of one row to the beginning of the next.
    pub fn stride(&self) -> usize {
        self.part.record
    }

    /// True if no bytes lie between the rows.
    pub fn is_contiguous(&self) -> bool {
        self.part.record == self.row_bytes
    }

    /// Bytes of all rows, without bytes between them.
    pub fn byte_len(&self) -> usize {
        self.rows * self.row_bytes
    }

    /// The bytes from the first row to the last. Row `n` begins at `n` times [`Matrix::stride`].
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The bytes of all rows. `None` if other bytes lie between the rows.
    pub fn packed(&self) -> Option<&[u8]> {
        self.is_contiguous().then(|| self.data())
    }

    /// The bytes of all rows, in one piece if no bytes lie between the rows.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let packed = self.packed();
        let rows = if packed.is_some() { 0 } else { self.rows };
        packed.into_iter().chain((0..rows).map(move |row| self.row(row)))
    }

    /// The bytes from the first row to the last, shared.
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

    /// The range of row `row`'s record in a tensor of records that begins `from` bytes before the
    /// first row.
    pub(super) fn record(&self, from: usize, row: usize) -> Range<usize> {
        let start = (from + row * self.part.record).saturating_sub(self.part.start);
        start..start + self.part.record
    }

    /// Row `row`, encoded.
    #[inline]
    pub fn row(&self, row: usize) -> &[u8] {
        &self.data[row * self.part.record..][..self.row_bytes]
    }

    /// The rows in `rows` as a separate matrix that shares the data. `None` if out of bounds.
    pub fn slice_rows(&self, rows: Range<usize>) -> Option<Self> {
        if rows.start > rows.end || rows.end > self.rows {
            return None;
        }
        let start = (rows.start * self.part.record).min(self.data.len());
        let len = rows.len().checked_sub(1).map_or(0, |last| last * self.part.record + self.row_bytes);
        let data = self.data.slice(start..start + len)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Records of 80 bytes: four floats, another row, and padding.
    fn records(n: usize) -> Bytes {
        Bytes::new((0..n * 80).map(|at| (at / 80 * 7 + at % 80) as u8).collect::<Vec<_>>())
    }

    #[test]
    fn rows_of_records_are_those_of_a_contiguous_matrix() {
        let (all, part) = (records(5), RecordPart { record: 80, start: 16 });
        let matrix = Matrix::in_records(TensorType::F32, 4, part, &all).unwrap().with_factor(2.0);
        let packed: Vec<u8> = (0..5).flat_map(|row| all[row * 80 + 16..][..16].to_vec()).collect();
        let packed = Matrix::new(TensorType::F32, 5, 4, Bytes::new(packed)).unwrap().with_factor(2.0);
        assert_eq!((matrix.rows(), matrix.byte_len(), matrix.stride()), (5, packed.data().len(), 80));
        assert!(packed.is_contiguous() && !matrix.is_contiguous());
        assert_eq!((packed.packed(), matrix.packed()), (Some(packed.data()), None));
        assert_eq!((packed.pieces().count(), matrix.pieces().count()), (1, 5));
        assert_eq!(matrix.pieces().collect::<Vec<_>>().concat(), packed.data());
        for rows in [0..5, 1..4, 4..5, 0..0, 5..5] {
            let [some, wanted] = [&matrix, &packed].map(|of| of.slice_rows(rows.clone()).unwrap());
            assert_eq!((some.rows(), some.factor()), (rows.len(), 2.0));
            (0..rows.len()).for_each(|row| assert_eq!(some.row(row), wanted.row(row), "{rows:?}"));
        }
        assert!(matrix.slice_rows(4..6).is_none());
        assert_eq!((matrix.record(16, 3), packed.record(8, 3)), (240..320, 56..72));
    }

    #[test]
    fn rows_must_fit_into_records_that_fill_their_bytes() {
        let of = |record, start, n: usize| {
            let all = records(n).slice(0..n * 80).unwrap();
            Matrix::in_records(TensorType::F32, 4, RecordPart { record, start }, &all)
        };
        assert_eq!(of(80, 64, 3).map(|it| (it.rows(), it.data().len())), Some((3, 176)));
        assert_eq!(of(80, 0, 0).map(|it| it.rows()), Some(0));
        for (record, start) in [(80, 65), (80, usize::MAX), (70, 0), (0, 0), (8, 0)] {
            assert!(of(record, start, 3).is_none(), "{record} {start}");
        }
        let part = RecordPart { record: 80, start: 0 };
        assert!(Matrix::in_records(TensorType::Q4_0, 4, part, &records(3)).is_none(), "no whole block");
        assert!(Matrix::in_records(TensorType::I32, 4, part, &records(3)).is_none(), "no weight type");
    }
}
