//! The patches of a shown picture: their places, and the tint of a neuron on them.

use std::cmp::Reverse;

use egui::{Painter, Pos2, Rect, Vec2};

use crate::neurons::{PatchTint, Tint};
use thermocline_engine::{
    model::{PictureCell, PictureGrid},
    pictures::PictureHash,
};
use thermocline_rich_text::theme::Palette;

/// The parts of a picture that its tokens see, in the order of the tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchCells(pub Vec<PictureCell>);

impl PatchCells {
    /// The place of a patch in words. Rows and columns count from 1.
    pub fn name(&self, patch: usize) -> String {
        let Some(PictureCell { grid: PictureGrid { rows, cols }, index }) = self.0.get(patch).copied() else {
            return String::new();
        };
        let mut name =
            format!("row {}, column {} of {rows} × {cols}", index / cols.max(1) + 1, index % cols.max(1) + 1);
        if self.0.last().is_some_and(|last| last.grid != self.0[patch].grid) {
            name += " of the overview";
        }
        let same: Vec<usize> = (0..self.0.len()).filter(|at| self.0[*at] == self.0[patch]).collect();
        if same.len() > 1 {
            let at = same.iter().position(|at| *at == patch).unwrap_or_default();
            name += &format!(", token {} of {}", at + 1, same.len());
        }
        name
    }

    /// The rectangle of a patch of a picture at `picture`.
    pub fn rect(&self, patch: usize, picture: Rect) -> Option<Rect> {
        self.0.get(patch).map(|cell| cell_rect(*cell, picture))
    }

    /// The patch at `at` of a picture at `picture`: the patch behind `chosen` among the patches
    /// there, or else a smallest patch.
    pub fn at(&self, at: Pos2, picture: Rect, chosen: Option<usize>) -> Option<usize> {
        let place = (at - picture.min) / picture.size();
        let index = |part: f32, count: usize| ((part * count as f32) as usize).min(count.saturating_sub(1));
        let covers = |cell: &PictureCell| {
            let PictureGrid { rows, cols } = cell.grid;
            cell.index == index(place.y, rows) * cols + index(place.x, cols)
        };
        let mut there: Vec<usize> = (0..self.0.len()).filter(|patch| covers(&self.0[*patch])).collect();
        there.sort_by_key(|patch| Reverse(self.0[*patch].grid.tokens()));
        let before = chosen.and_then(|chosen| there.iter().position(|patch| *patch == chosen));
        let next = before.map_or(0, |before| (before + 1) % there.len());
        there.get(next).copied().filter(|_| picture.contains(at))
    }

    /// The first patch of the cell that is `rows` rows below the cell of `patch`, in the same grid.
    pub fn below(&self, patch: usize, rows: isize) -> Option<usize> {
        let PictureCell { grid, index } = *self.0.get(patch)?;
        let index = index.checked_add_signed(rows * grid.cols as isize)?;
        self.0.iter().position(|cell| *cell == PictureCell { grid, index })
    }
}

/// The rectangle of a cell of a picture at `picture`.
fn cell_rect(PictureCell { grid: PictureGrid { rows, cols }, index }: PictureCell, picture: Rect) -> Rect {
    let size = picture.size() / Vec2::new(cols.max(1) as f32, rows.max(1) as f32);
    let place = Vec2::new((index % cols.max(1)) as f32, (index / cols.max(1)) as f32);
    Rect::from_min_size(picture.min + place * size, size)
}

/// The tint of a neuron, or of a held token, on one picture.
#[derive(Debug, Clone, Copy)]
pub struct TintedPatches<'t> {
    tint: &'t Tint,
    patches: &'t PatchTint,
}

impl<'t> TintedPatches<'t> {
    /// The first of `tints` that colours a patch of the picture, or else the first that knows it.
    pub fn of(picture: PictureHash, tints: impl Iterator<Item = &'t Tint> + Clone) -> Option<Self> {
        let mut known = tints.filter_map(|tint| Some(TintedPatches { tint, patches: tint.picture(picture)? }));
        known.clone().find(|it| it.patches.fired().next().is_some()).or_else(|| known.next())
    }

    /// How many patches are coloured, in words.
    pub fn count(self) -> String {
        if self.tint.held { "marked on the map".to_owned() } else { format!("fires at {}", self.patches.count()) }
    }

    /// The sentence about the colours.
    pub fn sentence(self) -> String {
        let TintedPatches { tint, patches } = self;
        if tint.held { tint.sentence() } else { format!("{} fires at {}.", capital(&tint.name), patches.count()) }
    }

    /// Colours the patches of a picture at `picture`.
    pub fn paint(self, painter: &Painter, picture: Rect, palette: &Palette) {
        for (cell, strength) in self.patches.areas() {
            painter.rect_filled(cell_rect(cell, picture), 0.0, self.tint.colour(palette, strength));
        }
    }
}

/// `name` with a capital letter.
fn capital(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PICTURE: Rect = Rect::from_min_max(Pos2::new(10.0, 20.0), Pos2::new(70.0, 80.0));

    fn cells(rows: usize, cols: usize) -> impl Iterator<Item = PictureCell> {
        let grid = PictureGrid { rows, cols };
        (0..grid.tokens()).map(move |index| PictureCell { grid, index })
    }

    #[test]
    fn every_patch_is_where_it_is_drawn() {
        let patches = PatchCells(cells(3, 4).collect());
        for patch in 0..12 {
            let centre = patches.rect(patch, PICTURE).unwrap().center();
            assert_eq!(patches.at(centre, PICTURE, None), Some(patch));
            assert_eq!(patches.at(centre, PICTURE, Some(patch)), Some(patch), "the only one there");
        }
        assert_eq!(patches.at(PICTURE.max, PICTURE, None), Some(11), "the edge");
        assert_eq!(patches.at(PICTURE.min - Vec2::splat(1.0), PICTURE, None), None);
        assert_eq!(patches.name(6), "row 2, column 3 of 3 × 4");
        assert_eq!((patches.below(6, 1), patches.below(6, -1), patches.below(6, 2)), (Some(10), Some(2), None));
        assert_eq!(PatchCells(Vec::new()).at(PICTURE.center(), PICTURE, None), None);
    }

    /// Two tokens see the overview, and two see each of two slices.
    #[test]
    fn clicks_choose_slices_first_and_then_the_overview() {
        let parts = cells(1, 1).chain(cells(1, 2));
        let patches = PatchCells(parts.flat_map(|cell| [cell; 2]).collect());
        let right = patches.rect(4, PICTURE).unwrap();
        assert_eq!((right.min.x, right.max), (40.0, PICTURE.max));
        let mut chosen = None;
        let clicked: Vec<_> = (0..5)
            .map(|_| {
                chosen = patches.at(right.center(), PICTURE, chosen);
                chosen.unwrap()
            })
            .collect();
        assert_eq!(clicked, [4, 5, 0, 1, 4]);
        assert_eq!(patches.name(5), "row 1, column 2 of 1 × 2, token 2 of 2");
        assert_eq!(patches.name(0), "row 1, column 1 of 1 × 1 of the overview, token 1 of 2");
    }
}
