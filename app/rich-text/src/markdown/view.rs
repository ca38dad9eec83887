//! Drawing of blocks.

use egui::{
    Align, Color32, FontId, Frame, Label, Layout, Margin, Rect, RichText, Role, Stroke, TextStyle, Ui, Vec2, WidgetInfo,
};

use super::{
    code,
    document::{Block, Item, MarkdownDocument},
    paragraph::Paragraph,
    sideways::sideways,
};
use crate::theme::Palette;

/// Font sizes of headings, relative to the text.
const HEADINGS: [f32; 6] = [1.5, 1.3, 1.15, 1.05, 1.0, 1.0];

/// Minimum width of the column of list marks, in points, and the part of it that stays free before
/// the text.
const MARK: f32 = 26.0;
const FREE: f32 = 6.0;

/// Indentation of a quotation, and width of the bar in it, in points.
const QUOTE: i8 = 14;
const BAR: f32 = 3.0;

/// Space between blocks, in points.
const GAP: f32 = 8.0;

/// Space between list items, in points.
const ITEMS: f32 = 4.0;

/// How blocks are shown.
#[derive(Debug, Clone, Copy)]
struct How {
    /// Font size in points.
    size: f32,
    /// True if the text is complete.
    closed: bool,
}

impl MarkdownDocument {
    /// Shows the document. `closed`: the text is complete.
    pub fn show(&mut self, ui: &mut Ui, closed: bool) {
        let size = TextStyle::Body.resolve(ui.style()).size;
        ui.vertical(|ui| show(ui, &mut self.blocks, How { size, closed }));
    }
}

fn show(ui: &mut Ui, blocks: &mut [Block], how: How) {
    ui.spacing_mut().item_spacing.y = 0.0;
    // A block that is too wide does not widen the next block.
    let (mut gap, width) = (0.0, ui.available_width());
    for (at, block) in blocks.iter_mut().enumerate() {
        ui.add_space(gap);
        ui.push_id(at, |ui| {
            ui.set_max_width(width);
            show_block(ui, block, how);
        });
        gap = if matches!(block, Block::Text { goes_on: true, .. }) { 0.0 } else { GAP };
    }
}

fn show_block(ui: &mut Ui, block: &mut Block, how: How) {
    let palette = Palette::of(ui);
    match block {
        Block::Text { level: None, paragraph, .. } => {
            paragraph.show(ui, how.size, false);
        }
        Block::Text { level: Some(level), paragraph, .. } => {
            let factor = HEADINGS.get(usize::from(*level).saturating_sub(1)).copied().unwrap_or(1.0);
            paragraph.show(ui, (how.size * factor).round(), true);
        }
        Block::Formula(paragraph) => formula(ui, paragraph, how.size),
        Block::List(first, items) => {
            let first = *first;
            let mark = |at: usize| match first {
                Some(first) => format!("{}.", first.saturating_add(at as u64)),
                None => "•".to_owned(),
            };
            let column = column(ui, &mark(items.len().saturating_sub(1)), how.size);
            // Items without text are on the side of the list.
            let of_list = items.iter().find_map(Item::begins_right).unwrap_or_default();
            for (at, item) in items.iter_mut().enumerate() {
                ui.add_space(if at > 0 { ITEMS } else { 0.0 });
                let to_the_left = item.begins_right().unwrap_or(of_list);
                show_item(ui, item, at, ItemMark { text: &mark(at), column, to_the_left }, how);
            }
        }
        Block::Quote(blocks) => {
            let to_the_left = blocks.iter().find_map(Block::begins_right).unwrap_or_default();
            let (left, right) = if to_the_left { (0, QUOTE) } else { (QUOTE, 0) };
            let shown = Frame::new().inner_margin(Margin { left, right, ..Margin::ZERO }).show(ui, |ui| {
                ui.set_width(ui.available_width());
                show(ui, blocks, how);
            });
            let rect = shown.response.rect;
            let bar = if to_the_left { rect.right() - BAR } else { rect.left() + BAR };
            ui.painter().vline(bar, rect.y_range(), Stroke::new(BAR, palette.line));
        }
        Block::Code(language, text, colours) => code::show(ui, language, text, how.closed, colours),
        Block::Table(table) => table.show(ui, how.size),
        Block::Note(name, blocks) => {
            let how = How { size: (how.size * 0.87).round(), ..how };
            let mark = format!("[{name}]");
            let column = column(ui, &mark, how.size);
            let to_the_left = blocks.iter().find_map(Block::begins_right).unwrap_or_default();
            beside(ui, ItemMark { text: &mark, column, to_the_left }, how.size, |ui| show(ui, blocks, how));
        }
        Block::Rule => {
            let (rect, _) = ui.allocate_exact_size(Vec2::new(ui.available_width(), 6.0), egui::Sense::hover());
            ui.painter().hline(rect.x_range(), rect.center().y, Stroke::new(1.0, palette.line));
        }
    }
}

/// A mark before a list item.
#[derive(Clone, Copy)]
struct ItemMark<'a> {
    text: &'a str,
    /// Width of the mark's column.
    column: f32,
    /// True if the mark is to the right of right-to-left text.
    to_the_left: bool,
}

/// Shows a list item. An item outside the view only takes up its space.
fn show_item(ui: &mut Ui, item: &mut Item, at: usize, mark: ItemMark<'_>, how: How) {
    let (top, width) = (ui.cursor().min, ui.available_width());
    if let Some((known, height)) = item.size
        && (known - width).abs() < 0.5
        && !ui.is_rect_visible(Rect::from_min_size(top, Vec2::new(width, height)))
    {
        ui.allocate_space(Vec2::new(width, height));
        return;
    }
    let shown = ui.push_id(at, |ui| beside(ui, mark, how.size, |ui| show(ui, &mut item.blocks, how)));
    item.size = Some((width, shown.response.rect.height()));
}

/// Shows a centred formula. A formula that is too wide scrolls.
fn formula(ui: &mut Ui, paragraph: &mut Paragraph, size: f32) {
    let (width, room) = (paragraph.natural_width(ui, size, false).line, ui.available_width());
    if width > room {
        sideways(ui, "formula", |ui| {
            ui.set_width(width);
            paragraph.show(ui, size, false);
        });
    } else {
        ui.horizontal(|ui| {
            ui.spacing_mut().item_spacing.x = 0.0;
            ui.add_space(((room - width) / 2.0).floor());
            paragraph.show(ui, size, false);
        });
    }
}

/// Width of a column whose widest mark is `widest`.
fn column(ui: &Ui, widest: &str, size: f32) -> f32 {
    let width = ui.painter().layout_no_wrap(widest.to_owned(), FontId::proportional(size), Color32::WHITE).size().x;
    (width.ceil() + FREE + 1.0).max(MARK)
}

/// Shows a mark with contents next to it, both starting on the same line.
fn beside(ui: &mut Ui, mark: ItemMark<'_>, size: f32, contents: impl FnOnce(&mut Ui)) {
    let width = ui.available_width();
    ui.horizontal_top(|ui| {
        ui.spacing_mut().item_spacing.x = 0.0;
        let words = |ui: &mut Ui| {
            ui.vertical(|ui| {
                ui.set_width((width - mark.column).max(40.0));
                contents(ui);
            });
        };
        if mark.to_the_left {
            words(ui);
            show_mark(ui, mark, size);
        } else {
            show_mark(ui, mark, size);
            words(ui);
        }
    });
}

/// Shows a mark in its column, next to the text.
fn show_mark(ui: &mut Ui, ItemMark { text, column, to_the_left }: ItemMark<'_>, size: f32) {
    let color = Palette::of(ui).muted;
    let (layout, seen) = match to_the_left {
        // Read from the right, the point of a number is on its left.
        true => (
            Layout::left_to_right(Align::Min),
            match text.strip_suffix('.') {
                Some(number) => format!(".{number}"),
                None => text.to_owned(),
            },
        ),
        false => (Layout::right_to_left(Align::Min), text.to_owned()),
    };
    ui.allocate_ui_with_layout(egui::vec2(column, size * 1.3), layout, |ui| {
        ui.add_space(FREE);
        let mark = ui.add(Label::new(RichText::new(seen).size(size).color(color)).extend());
        mark.widget_info(|| WidgetInfo::labeled(Role::Label, true, text));
    });
}
