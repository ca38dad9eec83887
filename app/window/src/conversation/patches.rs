//! The patches of a shown picture: their places, and the tint of a neuron on them.

use egui::{Painter, Pos2, Rect, Vec2};

use crate::neurons::{PatchTint, Tint};
use thermocline_engine::pictures::PictureHash;
use thermocline_rich_text::theme::Palette;

/// Rows and columns of patches over the whole of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatchGrid {
    pub rows: usize,
    pub cols: usize,
}

impl PatchGrid {
    /// Number of patches.
    pub fn count(self) -> usize {
        self.rows * self.cols
    }

    /// Row and column of a patch, from 1, in words.
    pub fn name(self, patch: usize) -> String {
        let cols = self.cols.max(1);
        format!("row {}, column {} of {} × {}", patch / cols + 1, patch % cols + 1, self.rows, self.cols)
    }

    /// The rectangle of a patch of a picture at `picture`.
    pub fn rect(self, patch: usize, picture: Rect) -> Rect {
        let size = picture.size() / Vec2::new(self.cols.max(1) as f32, self.rows.max(1) as f32);
        let place = Vec2::new((patch % self.cols.max(1)) as f32, (patch / self.cols.max(1)) as f32);
        Rect::from_min_size(picture.min + place * size, size)
    }

    /// The patch at `at` of a picture at `picture`.
    pub fn at(self, at: Pos2, picture: Rect) -> Option<usize> {
        let place = (at - picture.min) / picture.size();
        let index = |part: f32, count: usize| ((part * count as f32) as usize).min(count.saturating_sub(1));
        (picture.contains(at) && self.count() > 0)
            .then(|| index(place.y, self.rows) * self.cols + index(place.x, self.cols))
    }
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
        let [rows, cols] = self.patches.grid();
        for (patch, strength) in self.patches.fired() {
            let place = PatchGrid { rows, cols }.rect(patch, picture);
            painter.rect_filled(place, 0.0, self.tint.colour(palette, strength));
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

    #[test]
    fn every_patch_is_where_it_is_drawn() {
        let (grid, picture) =
            (PatchGrid { rows: 3, cols: 4 }, Rect::from_min_size(Pos2::new(10.0, 20.0), Vec2::splat(60.0)));
        for patch in 0..grid.count() {
            assert_eq!(grid.at(grid.rect(patch, picture).center(), picture), Some(patch));
        }
        assert_eq!(grid.at(picture.max, picture), Some(11), "the edge");
        assert_eq!(grid.at(picture.min - Vec2::splat(1.0), picture), None);
        assert_eq!(grid.name(6), "row 2, column 3 of 3 × 4");
        assert_eq!(PatchGrid { rows: 0, cols: 0 }.at(picture.center(), picture), None);
    }
}
