//! Reordering of a tensor's rows. GGUF splits some tensors that are whole in a Hugging Face folder,
//! or numbers heads differently.

/// Runs of rows of a tensor, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gather {
    /// Number of rows of the source.
    of: usize,
    /// First row and number of rows of each run.
    runs: Vec<(usize, usize)>,
}

impl Gather {
    /// Creates the reordering of a tensor of `of` rows. `runs` has the first row and the number of
    /// rows of each run.
    pub fn new(of: usize, runs: impl IntoIterator<Item = (usize, usize)>) -> Self {
        Gather { of, runs: runs.into_iter().collect() }
    }

    /// Returns the number of rows of the source.
    pub(super) fn source_rows(&self) -> usize {
        self.of
    }

    /// Returns the shape of the result for a source of this shape. Dimensions after the first are
    /// joined.
    pub(super) fn shape(&self, source: &[usize]) -> Vec<usize> {
        let rows = self.runs.iter().map(|(_, rows)| rows).sum();
        match source {
            [_] => vec![rows],
            [_, rest @ ..] => vec![rows, rest.iter().product()],
            [] => Vec::new(),
        }
    }

    /// Returns the runs of the source `data`. `None` if `data` is not a whole number of rows, or if
    /// a run is out of range.
    pub(super) fn rows(&self, data: &[u8]) -> Option<Vec<u8>> {
        let row = data.len().checked_div(self.of).filter(|row| row * self.of == data.len())?;
        let taken = self.runs.iter().fold(0usize, |sum, (_, rows)| sum.saturating_add(*rows));
        let mut bytes = Vec::with_capacity(taken.saturating_mul(row).min(data.len()));
        for (first, rows) in &self.runs {
            bytes.extend_from_slice(data.get(first * row..first.checked_add(*rows)? * row)?);
        }
        Some(bytes)
    }

    /// Reorders columns of `element` bytes instead of rows. Each row of `data` has as many columns
    /// as this reordering has rows.
    pub(super) fn columns(&self, data: &[u8], element: usize) -> Option<Vec<u8>> {
        let row = self.of.checked_mul(element).filter(|row| *row > 0 && data.len().is_multiple_of(*row))?;
        let rows = data.chunks_exact(row).map(|row| self.rows(row));
        rows.collect::<Option<Vec<_>>>().map(|rows| rows.concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_columns_are_gathered_in_runs() {
        let gather = Gather::new(4, [(2, 2), (0, 1)]);
        let data: Vec<u8> = (0..16).collect();
        assert_eq!(gather.rows(&data).unwrap(), [8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3]);
        assert_eq!(gather.columns(&data, 2).unwrap(), [4, 5, 6, 7, 0, 1, 12, 13, 14, 15, 8, 9]);
        assert_eq!((gather.shape(&[4, 1, 3]), gather.shape(&[4])), (vec![3, 3], vec![3]));
        assert_eq!((gather.rows(&data[..5]), gather.columns(&data[..5], 2)), (None, None));
        assert_eq!(Gather::new(4, [(3, 2)]).rows(&data), None);
    }
}
