//! The tokens of a picture.

/// Rows and columns of a picture's tokens, after merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PictureGrid {
    /// Number of rows of tokens.
    pub rows: usize,
    /// Number of tokens in a row.
    pub cols: usize,
}

impl PictureGrid {
    /// Returns the number of tokens.
    pub fn tokens(self) -> usize {
        self.rows.saturating_mul(self.cols)
    }

    /// Returns the number of positions that the first `tokens` tokens take in models with positions
    /// of several axes. Text continues at the largest position plus one.
    pub fn positions(self, tokens: usize) -> usize {
        tokens.div_ceil(self.cols.max(1)).max(tokens.min(self.cols))
    }
}
