//! Tables. Columns are as wide as their text if there is room. Otherwise their text wraps, and a
//! table with too many columns scrolls.

use egui::{Align, Color32, CornerRadius, Layout, Margin, Stroke, Ui, UiBuilder, Vec2};

use super::{
    paragraph::{NaturalWidth, Paragraph},
    sideways::sideways,
};
use crate::{
    theme::{Palette, RADIUS},
    widgets::outlined,
};

/// Minimum width of a column before the table scrolls, in points, and largest width of a word that
/// is kept whole.
const NARROWEST: f32 = 80.0;
const LONGEST: f32 = 280.0;

/// Space around the text of a cell, in points.
const BESIDE: f32 = 10.0;
const ABOVE: f32 = 5.0;

/// Rows of cells; the first row is the heading.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Align>,
    rows: Vec<Vec<Paragraph>>,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: Vec<Align>) -> Self {
        Table { columns, rows: Vec::new() }
    }

    /// Begins a row.
    pub fn begin_row(&mut self) {
        self.rows.push(Vec::new());
    }

    /// Adds a cell to the last row.
    pub fn add_cell(&mut self, cell: Paragraph) {
        if let Some(row) = self.rows.last_mut() {
            let align = self.columns.get(row.len()).copied().unwrap_or_default();
            row.push(cell.with_align(align));
        }
    }

    /// Takes over the layouts of an earlier state. Returns true if both tables look the same.
    pub fn adopt(&mut self, before: Table) -> bool {
        let mut same = self.columns == before.columns && self.rows.len() == before.rows.len();
        for (row, before) in self.rows.iter_mut().zip(before.rows) {
            same &= row.len() == before.len();
            for (cell, before) in row.iter_mut().zip(before) {
                same &= cell.adopt(before);
            }
        }
        same
    }

    /// Shows the table with a font size of `size` points.
    pub fn show(&mut self, ui: &mut Ui, size: f32) {
        let mut natural = vec![NaturalWidth::default(); self.columns.len()];
        for (at, row) in self.rows.iter_mut().enumerate() {
            for (cell, width) in row.iter_mut().zip(&mut natural) {
                let NaturalWidth { line, word } = cell.natural_width(ui, size, at == 0);
                let around = 2.0 * BESIDE + 1.0;
                width.line = width.line.max(line + around);
                width.word = width.word.max(word.min(LONGEST) + around);
            }
        }
        let widths = widths(&natural, (ui.available_width() - 2.0).floor());
        let palette = Palette::of(ui);
        sideways(ui, "table", |ui| {
            outlined(Color32::TRANSPARENT, palette.line, Margin::ZERO).show(ui, |ui| {
                ui.spacing_mut().item_spacing = Vec2::ZERO;
                for (at, row) in self.rows.iter_mut().enumerate() {
                    show_row(ui, row, &widths, &self.columns, size, at == 0, palette);
                }
            });
        });
    }
}

fn show_row(
    ui: &mut Ui,
    row: &mut [Paragraph],
    widths: &[f32],
    columns: &[Align],
    size: f32,
    heading: bool,
    palette: Palette,
) {
    let total: f32 = widths.iter().sum();
    let heights = row.iter_mut().zip(widths).map(|(cell, width)| {
        if cell.is_empty() { 0.0 } else { cell.measure(ui, size, heading, width - 2.0 * BESIDE).y }
    });
    let height = heights.fold(size * 1.3, f32::max) + 2.0 * ABOVE;
    let (rect, _) = ui.allocate_exact_size(Vec2::new(total, height), egui::Sense::hover());
    if heading {
        let corners = CornerRadius { nw: RADIUS, ne: RADIUS, ..CornerRadius::ZERO };
        ui.painter().rect_filled(rect, corners, palette.raised);
    } else {
        ui.painter().hline(rect.x_range(), rect.top(), Stroke::new(1.0, palette.line));
    }
    let mut left = rect.left();
    for ((cell, width), align) in row.iter_mut().zip(widths).zip(columns) {
        let inner = egui::Rect::from_min_size(
            egui::pos2(left + BESIDE, rect.top() + ABOVE),
            Vec2::new(width - 2.0 * BESIDE, height - 2.0 * ABOVE),
        );
        left += width;
        if cell.is_empty() {
            continue;
        }
        // Text of one line is aligned as the column says. Wrapped text fills the width.
        let used = cell.measure(ui, size, heading, inner.width()).x;
        let free = (inner.width() - used).max(0.0);
        let align = if cell.begins_right() { &Align::Min } else { align };
        let before = align.to_factor() * free;
        // Keep the earlier width, so that nothing is laid out again.
        let inner = inner.translate(Vec2::new(before, 0.0));
        let room = UiBuilder::new().max_rect(inner).layout(Layout::top_down(Align::LEFT));
        cell.show(&mut ui.new_child(room), size, heading);
    }
}

/// Widths of columns in `room` points, in whole points. Columns have their natural width if there
/// is room. Otherwise wide columns share the space that narrow columns leave. Each column fits its
/// longest word.
fn widths(columns: &[NaturalWidth], room: f32) -> Vec<f32> {
    let natural: Vec<f32> = columns.iter().map(|column| column.line).collect();
    let total: f32 = natural.iter().sum();
    if total <= room {
        return natural;
    }
    let least = |column: &NaturalWidth| column.line.min(NARROWEST.max(column.word)).ceil();
    let mut widths: Vec<f32> = columns.iter().map(least).collect();
    // Columns grow together until they fit their text or the room is used up.
    loop {
        let open: Vec<usize> = (0..widths.len()).filter(|at| widths[*at] + 0.5 < natural[*at]).collect();
        let free = room - widths.iter().sum::<f32>();
        if open.is_empty() || free < 1.0 {
            return widths.into_iter().map(f32::floor).collect();
        }
        let each = free / open.len() as f32;
        for at in open {
            widths[at] = (widths[at] + each).min(natural[at]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(lines: &[f32], word: f32) -> Vec<NaturalWidth> {
        lines.iter().map(|line| NaturalWidth { line: *line, word }).collect()
    }

    #[test]
    fn widths_fill_the_room_and_no_column_vanishes() {
        assert_eq!(widths(&columns(&[100.0, 200.0], 40.0), 400.0), [100.0, 200.0]);
        let shared = widths(&columns(&[60.0, 900.0, 300.0], 40.0), 500.0);
        assert_eq!(shared[0], 60.0);
        assert!((shared.iter().sum::<f32>() - 500.0).abs() < 4.0 && shared[1] >= 219.0, "{shared:?}");
        let many = widths(&columns(&[200.0; 10], 40.0), 400.0);
        assert!(many.iter().all(|width| *width >= NARROWEST), "it scrolls: {many:?}");
        assert_eq!(widths(&[], 400.0), [0.0; 0]);
    }

    #[test]
    fn no_column_is_narrower_than_its_longest_word() {
        let words = widths(&columns(&[500.0; 8], 170.0), 1000.0);
        assert!(words.iter().all(|width| *width >= 170.0), "it scrolls: {words:?}");
        assert_eq!(widths(&columns(&[90.0, 400.0], 120.0), 300.0), [90.0, 210.0], "none is wider than its line");
    }
}
