//! Patches of a picture, in the order in which they are merged.

use std::ops::Range;

use thermocline_cpu::ops::RopePosition;
use thermocline_model::{PictureGrid, TowerConfig};
use thermocline_pictures::Picture;

/// Row and column of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PatchPlace {
    pub(super) row: usize,
    pub(super) col: usize,
}

/// The patches of a picture in the order in which they are computed: token by token, and row by row
/// within the square of a token. The tokens of a window follow one another.
#[derive(Debug)]
pub(crate) struct PatchOrder {
    /// Rows and columns of tokens.
    pub grid: PictureGrid,
    /// Patches on a side of a token's square.
    pub(super) merge: usize,
    /// Places of the patches.
    pub(super) places: Vec<PatchPlace>,
    /// Patches of each window; all patches, if there are no windows.
    pub windows: Vec<Range<usize>>,
    /// Index in the grid of each token.
    tokens: Vec<usize>,
}

impl PatchOrder {
    /// Orders the patches of a picture that has the size that the tower takes. If patches are
    /// joined before they are merged, those of a joined one follow one another.
    pub(super) fn of_picture(config: &TowerConfig, picture: &Picture) -> Self {
        let token = config.patch_size * config.merge;
        let grid = PictureGrid { rows: picture.height() / token, cols: picture.width() / token };
        let mut order = PatchOrder::new(grid, config.merge, config.window);
        order.nest(config.first_merge);
        order
    }

    /// Orders the patches of a token so that those of a square of `side` patches follow one
    /// another.
    fn nest(&mut self, side: usize) {
        if side > 1 {
            for token in self.places.chunks_exact_mut(self.merge * self.merge) {
                token.sort_by_key(|place| (place.row / side, place.col / side, place.row, place.col));
            }
        }
    }

    /// Orders the patches of a picture of `grid` tokens with a square of `merge` patches on a side
    /// each. Windows have `window` tokens on a side.
    pub fn new(grid: PictureGrid, merge: usize, window: Option<usize>) -> Self {
        let (high, wide) = (window.unwrap_or(grid.rows).max(1), window.unwrap_or(grid.cols).max(1));
        let (mut places, mut windows, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
        for (top, left) in pairs((0..grid.rows).step_by(high), (0..grid.cols).step_by(wide)) {
            let first = places.len();
            let within = (top..grid.rows.min(top + high), left..grid.cols.min(left + wide));
            for (row, col) in pairs(within.0, within.1) {
                tokens.push(row * grid.cols + col);
                let patches = pairs(row * merge..(row + 1) * merge, col * merge..(col + 1) * merge);
                places.extend(patches.map(|(row, col)| PatchPlace { row, col }));
            }
            windows.push(first..places.len());
        }
        PatchOrder { grid, merge, places, windows, tokens }
    }

    /// Rows and columns of all patches, as positions of rotations.
    pub fn positions(&self) -> impl Iterator<Item = RopePosition> {
        self.places.iter().map(|place| RopePosition { axes: [0, place.row, place.col] })
    }

    /// Number of patches.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Rows of patches.
    pub(super) fn rows(&self) -> usize {
        self.grid.rows * self.merge
    }

    /// Columns of patches.
    pub(super) fn cols(&self) -> usize {
        self.grid.cols * self.merge
    }

    /// Brings rows of tokens, `[tokens, len]`, from this order to that of the grid.
    pub fn in_grid_order(&self, rows: Vec<f32>, len: usize) -> Vec<f32> {
        if self.windows.len() == 1 {
            return rows;
        }
        let mut ordered = vec![0.0; rows.len()];
        for (row, at) in rows.chunks_exact(len).zip(&self.tokens) {
            ordered[at * len..][..len].copy_from_slice(row);
        }
        ordered
    }
}

/// Pairs of every element of `rows` with every element of `cols`.
fn pairs<C: Iterator<Item = usize> + Clone>(
    rows: impl Iterator<Item = usize>,
    cols: C,
) -> impl Iterator<Item = (usize, usize)> {
    rows.flat_map(move |row| cols.clone().map(move |col| (row, col)))
}

/// The pixels of a picture.
#[derive(Clone, Copy)]
pub(super) struct Pixels<'p> {
    /// `[height, width, 3]`
    pub rgb: &'p [u8],
    /// Number of columns.
    pub width: usize,
}

/// Writes the normalised samples of the patches at `places` of a picture to `out`, `[patches, 3 *
/// patch_size^2]`: channel by channel, and row by row within a channel.
pub(super) fn fill(config: &TowerConfig, places: &[PatchPlace], picture: Pixels<'_>, out: &mut [f32]) {
    let side = config.patch_size;
    let stride = picture.width * 3;
    let factor: [f32; 3] = std::array::from_fn(|channel| 1.0 / (255.0 * config.deviation[channel]));
    let shift: [f32; 3] = std::array::from_fn(|channel| config.mean[channel] / config.deviation[channel]);
    for (PatchPlace { row, col }, patch) in places.iter().zip(out.chunks_exact_mut(config.patch_samples())) {
        for y in 0..side {
            let pixels = &picture.rgb[(row * side + y) * stride + col * side * 3..][..side * 3];
            for (x, pixel) in pixels.as_chunks::<3>().0.iter().enumerate() {
                for (channel, sample) in pixel.iter().enumerate() {
                    let value = f32::from(*sample) * factor[channel] - shift[channel];
                    patch[(channel * side + y) * side + x] = value;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(order: &PatchOrder) -> Vec<(usize, usize)> {
        order.places.iter().map(|place| (place.row, place.col)).collect()
    }

    #[test]
    fn patches_are_in_the_order_of_their_tokens() {
        let order = PatchOrder::new(PictureGrid { rows: 1, cols: 2 }, 2, None);
        assert_eq!(places(&order), [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]);
        assert_eq!((order.windows.len(), &order.windows[0]), (1, &(0..8)));
        assert_eq!(order.in_grid_order(vec![1.0, 2.0], 1), [1.0, 2.0]);
    }

    #[test]
    fn patches_that_are_joined_first_follow_one_another() {
        let mut order = PatchOrder::new(PictureGrid { rows: 1, cols: 2 }, 4, None);
        order.nest(2);
        let square = |row: usize, col: usize| [(row, col), (row, col + 1), (row + 1, col), (row + 1, col + 1)];
        let token = |col: usize| [square(0, col), square(0, col + 2), square(2, col), square(2, col + 2)].concat();
        assert_eq!(places(&order), [token(0), token(4)].concat());
    }

    #[test]
    fn windows_are_computed_one_after_the_other() {
        let order = PatchOrder::new(PictureGrid { rows: 3, cols: 3 }, 1, Some(2));
        let expected = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2), (2, 0), (2, 1), (2, 2)];
        assert_eq!(places(&order), expected);
        assert_eq!(order.windows, [0..4, 4..6, 6..8, 8..9]);
        let tokens = (0..9).map(|at| expected[at].0 as f32 * 3.0 + expected[at].1 as f32).collect();
        assert_eq!(order.in_grid_order(tokens, 1), (0..9).map(|at| at as f32).collect::<Vec<_>>());
    }
}
