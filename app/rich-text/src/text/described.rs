//! Description of a field's lines for screen readers.

use egui::{
    Id, Pos2, Rangef, Ui,
    accesskit::{Rect, TextDirection},
};

use super::{edited::EditedText, row::TextRow};

/// Longest run of characters that is reported at once, as in egui's field.
const RUN: usize = 255;

/// Reports the direction of each line and the positions of its characters. egui's field reports
/// every line as left-to-right.
pub fn describe(ui: &Ui, field: Id, at: Pos2, edited: &EditedText) {
    if !ui.ctx().has_accesskit_node(field) {
        return;
    }
    for (nth, row) in edited.rows.iter().enumerate() {
        let count = row.places.len() + usize::from(row.ends);
        for run in 0..count.div_ceil(RUN).max(1) {
            let columns = run * RUN..count.min((run + 1) * RUN);
            let id = field.with(nth).with(run);
            let described = LineRun::new(row, columns);
            ui.ctx().accesskit_node_builder(id, |node| {
                let direction = if row.to_the_left { TextDirection::RightToLeft } else { TextDirection::LeftToRight };
                node.set_text_direction(direction);
                node.set_bounds(Rect {
                    x0: (at.x + described.left).into(),
                    y0: (at.y + row.height.min).into(),
                    x1: (at.x + described.right).into(),
                    y1: (at.y + row.height.max).into(),
                });
                node.set_character_positions(described.positions);
                node.set_character_widths(described.widths);
            });
        }
    }
}

/// A part of a line.
struct LineRun {
    left: f32,
    right: f32,
    /// Distance of each character from the beginning of the part, in points.
    positions: Vec<f32>,
    widths: Vec<f32>,
}

impl LineRun {
    fn new(row: &TextRow, columns: std::ops::Range<usize>) -> Self {
        let last = columns.end.min(row.places.len());
        let places = row.places.get(columns.start..last).unwrap_or_default();
        let Rangef { min: left, max: right } = row.span(places);
        let from_start = |ends: &Rangef| if row.to_the_left { right - ends.max } else { ends.min - left };
        let mut positions: Vec<f32> = places.iter().map(|place| from_start(&place.ends)).collect();
        let mut widths: Vec<f32> = places.iter().map(|place| place.ends.span()).collect();
        // The line end.
        if columns.len() > places.len() {
            positions.push(right - left);
            widths.push(0.0);
        }
        LineRun { left, right, positions, widths }
    }
}
