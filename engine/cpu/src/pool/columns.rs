//! A row-major buffer split into column ranges that do not overlap, one for each worker to write.

use std::marker::PhantomData;

/// A range of columns of a row-major `[rows, stride]` buffer. It is writable while other threads
/// own other ranges.
pub struct ColumnsMut<'a> {
    first: *mut f32,
    stride: usize,
    rows: usize,
    width: usize,
    marker: PhantomData<&'a mut [f32]>,
}

// SAFETY: this is a `&mut` to floats that nothing else can reach.
unsafe impl Send for ColumnsMut<'_> {}

impl ColumnsMut<'_> {
    /// Returns this range's part of row `row`.
    ///
    /// # Panics
    /// If the row does not exist.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: `split_columns` checked that `rows * stride` elements exist and that the columns
        // are inside a row. No other `ColumnsMut` has these columns, and `&mut self` prevents a
        // second reference from this one.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(row * self.stride), self.width) }
    }

    /// Number of columns.
    pub fn width(&self) -> usize {
        self.width
    }
}

/// Splits `buffer` (`[rows, stride]`, row-major) into column ranges of at most `width`, from left
/// to right.
///
/// # Panics
/// If `buffer` is not a whole number of rows.
pub fn split_columns(buffer: &mut [f32], stride: usize, width: usize) -> Vec<ColumnsMut<'_>> {
    assert!(stride > 0 && width > 0 && buffer.len().is_multiple_of(stride));
    let rows = buffer.len() / stride;
    let first = buffer.as_mut_ptr();
    (0..stride)
        .step_by(width)
        .map(|at| ColumnsMut {
            // SAFETY: `at` is below `stride`, which is at most the length unless there are no rows.
            // Without rows the pointer is never dereferenced (`row_mut` checks), and `wrapping_add`
            // has no requirements.
            first: first.wrapping_add(at),
            stride,
            rows,
            width: width.min(stride - at),
            marker: PhantomData,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_columns_gives_disjoint_columns() {
        let mut buffer = vec![0.0; 3 * 10];
        for (at, mut columns) in split_columns(&mut buffer, 10, 4).into_iter().enumerate() {
            assert_eq!(columns.width(), [4, 4, 2][at]);
            for row in 0..3 {
                columns.row_mut(row).iter_mut().for_each(|v| *v += (10 * row + at) as f32);
            }
        }
        for (i, v) in buffer.iter().enumerate() {
            assert_eq!(*v, (10 * (i / 10) + (i % 10) / 4) as f32);
        }
    }
}
