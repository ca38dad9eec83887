//! Rows of a tensor in another order: where GGUF keeps apart what is one tensor in a Hugging Face folder, or numbers heads otherwise.

/// Runs of rows of a tensor, one behind the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gather {
    /// Rows of the source.
    of: usize,
    /// First row and number of rows of each run.
    runs: Vec<(usize, usize)>,
}

impl Gather {
    /// `runs`, first row and number of rows, of a tensor of `of` rows.
    pub fn new(of: usize, runs: impl IntoIterator<Item = (usize, usize)>) -> Self {
        Gather { of, runs: runs.into_iter().collect() }
    }

    /// Rows of the source.
    pub(super) fn source_rows(&self) -> usize {
        self.of
    }

    /// Shape of the result for a source of this shape: its later dimensions are joined.
    pub(super) fn shape(&self, source: &[usize]) -> Vec<usize> {
        let rows = self.runs.iter().map(|(_, rows)| rows).sum();
        match source {
            [_] => vec![rows],
            [_, rest @ ..] => vec![rows, rest.iter().product()],
            [] => Vec::new(),
        }
    }

    /// The runs of `data`, a source; `None` if that is no whole number of rows, or a run is not among them.
    pub(super) fn rows(&self, data: &[u8]) -> Option<Vec<u8>> {
        let row = data.len().checked_div(self.of).filter(|row| row * self.of == data.len())?;
        let mut bytes = Vec::with_capacity(data.len());
        for (first, rows) in &self.runs {
            bytes.extend_from_slice(data.get(first * row..first.checked_add(*rows)? * row)?);
        }
        Some(bytes)
    }

    /// The same of columns of `element` bytes: `data` are rows of as many of them as this has rows.
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
