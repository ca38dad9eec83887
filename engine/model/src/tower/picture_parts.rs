//! The parts of a picture's tokens in a prompt. Tokens of the text follow each part: ends of rows,
//! or marks of slices.

use super::{RowEnds, SliceGrid, Tower, TowerConfig, TowerHead, picture_slices::MARKS};
use crate::PictureGrid;
use thermocline_base::error::Result;
use thermocline_pictures::Picture;

/// Texts of the tokens around the parts of a sliced picture. The mark before the overview is part
/// of the prompt's text.
const OVERVIEW_END: &str = "</image>";
const SLICE_START: &str = "<slice>";
const SLICE_END: &str = "</slice>";
const SLICE_ROW_END: &str = "\n";

/// Tokens of a picture that follow one another in a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PicturePart {
    /// The tokens.
    pub grid: PictureGrid,
    /// Texts of the tokens that follow. They are no tokens of the picture.
    pub after: Vec<&'static str>,
}

/// The part of a picture that a token sees: a cell of a grid over the whole picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PictureCell {
    /// Rows and columns of the grid. The overview and the slices of a picture have different grids.
    pub grid: PictureGrid,
    /// Index of the cell, row by row.
    pub index: usize,
}

impl TowerConfig {
    /// Returns `picture` at the size that the tower takes, or its overview and slices, row by row.
    ///
    /// # Errors
    /// [`Error::Invalid`](thermocline_base::error::Error::Invalid) if the tower does not take such
    /// a picture.
    pub fn pictures_of(&self, picture: &Picture) -> Result<Vec<Picture>> {
        let (width, height) = (picture.width(), picture.height());
        let [fit_width, fit_height] = self.sizes.fit(width, height)?;
        let mut parts = vec![picture.resized(fit_width, fit_height, self.filter)?];
        if let Some(slices) = self.sizes.slices().and_then(|slices| slices.grid(width, height)) {
            let [whole_width, whole_height] = slices.whole();
            let whole = picture.resized(whole_width, whole_height, self.filter)?;
            for at in 0..slices.count() {
                let corner = [at % slices.cols * slices.size[0], at / slices.cols * slices.size[1]];
                parts.push(whole.cut(corner, slices.size)?);
            }
        }
        Ok(parts)
    }
}

impl Tower {
    /// Returns the parts of the tokens of a picture of this size, without computing it.
    ///
    /// # Errors
    /// [`Error::Invalid`](thermocline_base::error::Error::Invalid) if the tower does not take such
    /// a picture.
    pub fn parts(&self, width: usize, height: usize) -> Result<Vec<PicturePart>> {
        let grid = self.grid_of(self.config.sizes.fit(width, height)?);
        if let Some(RowEnds { between, last }) = self.config.row_ends {
            let row = PictureGrid { rows: 1, cols: grid.cols };
            let after = |at: usize| if at + 1 == grid.rows { last } else { between };
            return Ok((0..grid.rows).map(|at| PicturePart { grid: row, after: vec![after(at)] }).collect());
        }
        let Some(slices) = self.config.sizes.slices() else {
            return Ok(vec![PicturePart { grid, after: Vec::new() }]);
        };
        let mut parts = vec![PicturePart { grid, after: vec![OVERVIEW_END] }];
        if let Some(SliceGrid { rows, cols, size }) = slices.grid(width, height) {
            let grid = self.grid_of(size);
            for at in 0..rows * cols {
                // A slice begins behind the part before it.
                parts.last_mut().into_iter().for_each(|before| {
                    before.after.extend((at > 0 && at.is_multiple_of(cols)).then_some(SLICE_ROW_END));
                    before.after.push(SLICE_START);
                });
                parts.push(PicturePart { grid, after: vec![SLICE_END] });
            }
        }
        Ok(parts)
    }

    /// Returns the cell of each token of a picture of this size. Tokens of learned queries see the
    /// whole overview, or a whole slice.
    ///
    /// # Errors
    /// [`Error::Invalid`](thermocline_base::error::Error::Invalid) if the tower does not take such
    /// a picture.
    pub fn cells(&self, width: usize, height: usize) -> Result<Vec<PictureCell>> {
        let slices = self.config.sizes.slices().and_then(|slices| slices.grid(width, height));
        let sizes = slices.iter().flat_map(|slices| vec![slices.size; slices.count()]);
        let mut cells = Vec::new();
        for (at, size) in [self.config.sizes.fit(width, height)?].into_iter().chain(sizes).enumerate() {
            let tokens = self.grid_of(size);
            let (own, shared) = match &self.weights.head {
                TowerHead::Resampler(_) => (PictureGrid { rows: 1, cols: 1 }, tokens.tokens()),
                _ => (tokens, 1),
            };
            // The overview is the only part of its grid.
            let (parts, part) = match (slices, at.checked_sub(1)) {
                (Some(SliceGrid { rows, cols, .. }), Some(slice)) => (PictureGrid { rows, cols }, slice),
                _ => (PictureGrid { rows: 1, cols: 1 }, 0),
            };
            let grid = PictureGrid { rows: parts.rows * own.rows, cols: parts.cols * own.cols };
            let (top, left) = (part / parts.cols * own.rows, part % parts.cols * own.cols);
            for cell in 0..own.tokens() {
                let index = (top + cell / own.cols) * grid.cols + left + cell % own.cols;
                cells.extend(std::iter::repeat_n(PictureCell { grid, index }, shared));
            }
        }
        Ok(cells)
    }

    /// Returns the texts of all tokens that may follow parts of pictures.
    pub fn part_ends(&self) -> Vec<&'static str> {
        let of_rows = self.config.row_ends.map(|ends| vec![ends.between, ends.last]);
        let of_slices = || vec![OVERVIEW_END, SLICE_START, SLICE_END, SLICE_ROW_END];
        of_rows.or_else(|| self.config.sizes.slices().map(|_| of_slices())).unwrap_or_default()
    }

    /// True if the tokens of pictures have the positions of text, even in models with positions of
    /// several axes.
    pub fn has_text_positions(&self) -> bool {
        self.config.sizes.slices().is_some()
    }

    /// Returns the grid of tokens of a picture of this size, without computing it. The tokens of a
    /// sliced picture have one row.
    ///
    /// # Errors
    /// [`Error::Invalid`](thermocline_base::error::Error::Invalid) if the tower does not take such
    /// a picture.
    pub fn grid(&self, width: usize, height: usize) -> Result<PictureGrid> {
        if self.config.sizes.slices().is_none() {
            return Ok(self.grid_of(self.config.sizes.fit(width, height)?));
        }
        Ok(match &self.parts(width, height)?[..] {
            [overview] => overview.grid,
            parts => PictureGrid { rows: 1, cols: parts.iter().map(|part| part.grid.tokens()).sum() },
        })
    }

    /// The tokens of a picture, or of a part of one, that was brought to this width and height.
    fn grid_of(&self, [width, height]: [usize; 2]) -> PictureGrid {
        if let TowerHead::Resampler(resampler) = &self.weights.head {
            return PictureGrid { rows: 1, cols: resampler.tokens() };
        }
        let token = self.config.patch_size * self.config.merge;
        PictureGrid { rows: height / token, cols: width / token }
    }

    /// Returns about the largest number of patches of a picture, or of a part of a sliced one: the
    /// patches of whole tokens.
    pub fn most_patches(&self) -> usize {
        let (each, token) = (self.config.merge * self.config.merge, self.config.patch_size * self.config.merge);
        self.config.sizes.most_pixels() / (token * token).max(1) * each
    }

    /// Returns about the largest number of tokens of a picture, or of a part of a sliced one. The
    /// tokens that follow are not counted.
    pub fn most_part_tokens(&self) -> usize {
        match &self.weights.head {
            TowerHead::Resampler(resampler) => resampler.tokens(),
            _ => self.most_patches() / (self.config.merge * self.config.merge).max(1),
        }
    }

    /// Returns about the largest number of tokens of a picture, with the tokens that follow its
    /// parts.
    pub fn most_tokens(&self) -> usize {
        let tokens = self.most_part_tokens();
        if let Some(slices) = self.config.sizes.slices() {
            return (tokens + MARKS) * (slices.most + 1);
        }
        tokens + self.config.row_ends.map_or(0, |_| tokens.isqrt())
    }
}
