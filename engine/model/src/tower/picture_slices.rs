//! Large pictures as an overview and a grid of slices, as the image processors of MiniCPM-V do. An
//! overview and a slice have about the area of one square, and about their own proportions.

use super::picture_size::MOST_RATIO;

/// Most marks of a slice: one on both sides, and one at the end of a row.
pub(super) const MARKS: usize = 3;

/// Sizes of a picture's overview and slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PictureSlices {
    /// Side of the square, in pixels.
    pub side: usize,
    /// Divisor of all sides, in pixels.
    pub multiple: usize,
    /// Most slices of a picture. No picture is sliced if this is 1.
    pub most: usize,
    /// About the number of tokens of an overview, and of a slice.
    pub tokens: usize,
}

/// The slices of one picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SliceGrid {
    /// Rows of slices.
    pub rows: usize,
    /// Slices of a row.
    pub cols: usize,
    /// Width and height of a slice, in pixels.
    pub size: [usize; 2],
}

impl SliceGrid {
    /// Returns the number of slices.
    pub fn count(&self) -> usize {
        self.rows * self.cols
    }

    /// Returns width and height of the picture that is cut into the slices.
    pub fn whole(&self) -> [usize; 2] {
        [self.size[0] * self.cols, self.size[1] * self.rows]
    }
}

impl PictureSlices {
    /// Returns width and height of the overview of a picture of `width` x `height` pixels.
    pub fn overview(&self, width: usize, height: usize) -> [usize; 2] {
        let sides = [width as f64, height as f64];
        // A sliced picture has more pixels than the square, so only a single overview grows.
        self.near(self.scaled(sides))
    }

    /// Returns the largest number of cells of an overview or of a slice. A cell is a square whose
    /// side is `multiple`. Long parts have more cells than the square, because sides are rounded.
    pub fn most_cells(&self) -> usize {
        // In cells. Both sides of a part multiply to at most the area of the square.
        let side = self.side as f64 / self.multiple as f64;
        let shortest = side / (MOST_RATIO as f64).sqrt();
        let of_short = |short: usize| {
            // The least side that is rounded to `short`. Any shorter side becomes one cell.
            let least = if short == 1 { shortest } else { (short as f64 - 0.5).max(shortest) };
            short * ((side * side / least).round() as usize).max(1)
        };
        (1..=side.ceil() as usize).map(of_short).max().unwrap_or(1)
    }

    /// Returns the slices of a picture of `width` x `height` pixels; `None` for a picture that
    /// needs only the overview.
    pub fn grid(&self, width: usize, height: usize) -> Option<SliceGrid> {
        let sides = [width as f64, height as f64];
        let squares = (sides[0] * sides[1] / (self.side * self.side) as f64).ceil() as usize;
        let wanted = squares.min(self.most);
        if wanted <= 1 {
            return None;
        }
        let [cols, rows] = self.best_grid(wanted, sides[0] / sides[1]);
        let of_slice = |side: f64, count: usize| round_to(side, count) as f64 / count as f64;
        let size = self.near(self.scaled([of_slice(sides[0], cols), of_slice(sides[1], rows)]));
        Some(SliceGrid { rows, cols, size })
    }

    /// Returns the columns and rows of about `wanted` slices whose proportions are most like
    /// `ratio`, width by height.
    fn best_grid(&self, wanted: usize, ratio: f64) -> [usize; 2] {
        let (mut best, mut least) = ([1, 1], f64::INFINITY);
        for count in (wanted - 1..=wanted + 1).filter(|count| (2..=self.most).contains(count)) {
            for rows in (1..=count).filter(|rows| count.is_multiple_of(*rows)) {
                let cols = count / rows;
                let off = (ratio.ln() - (cols as f64 / rows as f64).ln()).abs();
                if off < least || (off == least && rows > best[1]) {
                    (best, least) = ([cols, rows], off);
                }
            }
        }
        best
    }

    /// Returns sides with the area of the square and these proportions, in whole pixels.
    fn scaled(&self, [width, height]: [f64; 2]) -> [f64; 2] {
        let ratio = width / height;
        let height = (self.side as f64 / ratio.sqrt()).trunc();
        [(height * ratio).trunc(), height]
    }

    /// Returns the nearest sides that are multiples.
    fn near(&self, sides: [f64; 2]) -> [usize; 2] {
        sides.map(|side| round_to(side, self.multiple))
    }
}

/// Returns the multiple of `multiple` that is nearest to `side`, at least one. Python rounds halves
/// to even numbers.
fn round_to(side: f64, multiple: usize) -> usize {
    ((side / multiple as f64).round_ties_even() as usize).max(1) * multiple
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLISHED: PictureSlices = PictureSlices { side: 448, multiple: 56, most: 9, tokens: 64 };

    /// Sizes that transformers' processor of MiniCPM-V 4.6 returns: of the overview, and columns,
    /// rows, width and height of slices.
    #[test]
    fn sizes_equal_those_of_the_reference() {
        for (picture, overview, slices) in [
            ([1024, 1024], [448, 448], Some([3, 2, 336, 560])),
            ([448, 448], [448, 448], None),
            ([449, 449], [448, 448], Some([1, 2, 616, 336])),
            ([640, 480], [504, 392], Some([2, 1, 392, 560])),
            ([1920, 1080], [616, 336], Some([4, 2, 448, 448])),
            ([100, 60], [560, 336], None),
            ([20, 900], [56, 3024], None),
            ([3000, 200], [1736, 112], Some([4, 1, 840, 224])),
            ([4032, 3024], [504, 392], Some([3, 3, 504, 392])),
            ([900, 301], [784, 280], Some([3, 1, 448, 448])),
            ([500, 1700], [224, 840], Some([1, 4, 504, 392])),
            ([13, 9], [560, 392], None),
        ] {
            let [width, height] = picture;
            assert_eq!(PUBLISHED.overview(width, height), overview, "{picture:?}");
            let slices = slices.map(|[cols, rows, width, height]| SliceGrid { rows, cols, size: [width, height] });
            assert_eq!(PUBLISHED.grid(width, height), slices, "{picture:?}");
        }
    }

    #[test]
    fn sides_are_multiples_of_about_the_area_of_the_square() {
        for multiple in [14, 56] {
            let of = PictureSlices { multiple, ..PUBLISHED };
            for width in [1, 13, 448, 449, 1000, 4032] {
                for height in [7, 448, 640, 3024, 9000] {
                    let grid = of.grid(width, height);
                    assert_eq!(grid.is_some(), width * height > 448 * 448, "{width} x {height}");
                    assert!(grid.is_none_or(|grid| (2..=9).contains(&grid.count())));
                    for size in grid.map(|grid| grid.size).into_iter().chain([of.overview(width, height)]) {
                        assert!(size.iter().all(|side| *side > 0 && side.is_multiple_of(multiple)));
                    }
                }
            }
        }
    }

    #[test]
    fn no_part_has_more_than_the_most_cells() {
        for (side, multiple, most_cells) in [(448, 14, 1230), (448, 56, 113), (32, 8, 57), (20, 14, 20), (14, 14, 14)] {
            let of = PictureSlices { side, multiple, ..PUBLISHED };
            assert_eq!(of.most_cells(), most_cells, "{side}, {multiple}");
            let mut most = 0;
            for short in [1, 2, 5, 17, 60, 448, 900, 2000] {
                for long in (2..=2 * MOST_RATIO).map(|halves| short * halves / 2) {
                    for [width, height] in [[short, long], [long, short]] {
                        let parts = of.grid(width, height).map(|grid| grid.size);
                        let cells = parts.into_iter().chain([of.overview(width, height)]);
                        most = cells.map(|[w, h]| w * h / (multiple * multiple)).fold(most, usize::max);
                    }
                }
            }
            assert!(most > most_cells * 9 / 10 && most <= most_cells, "{side}, {multiple}: {most}");
        }
    }

    #[test]
    fn pictures_are_whole_without_room_for_slices() {
        let whole = PictureSlices { most: 1, ..PUBLISHED };
        assert_eq!(whole.grid(4032, 3024), None);
        assert_eq!(whole.overview(4032, 3024), PUBLISHED.overview(4032, 3024));
    }
}
