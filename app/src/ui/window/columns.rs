//! The columns beside the page: their widths, and a column that lies over the page.

use egui::{Align2, Area, Frame, Margin, Order, Stroke, Ui, Vec2};

use crate::ui::theme::Palette;

/// Around what a column shows.
pub(super) const INSET: Margin = Margin { left: 16, right: 16, top: 12, bottom: 12 };

/// Widths of the side columns, in points, and those on a wide window.
pub(super) const CHATS: f32 = 232.0;
pub(super) const NEURONS: f32 = 448.0;
pub(super) const WIDE: f32 = 1800.0;
pub(super) const WIDE_CHATS: f32 = 288.0;
pub(super) const WIDE_NEURONS: f32 = 0.29;

/// A side column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SideColumn {
    /// The list of chats.
    Chats,
    /// Neurons and memory.
    Neurons,
}

/// True for each side column that has a place of its own in a window of this width.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rooms {
    /// The list of chats.
    pub chats: bool,
    /// Neurons and memory.
    pub neurons: bool,
}

/// A column over the middle one.
pub(super) fn over(ui: &Ui, id: &str, corner: Align2, width: f32, palette: Palette, contents: impl FnOnce(&mut Ui)) {
    let height = ui.content_rect().height();
    Area::new(egui::Id::unique(id)).order(Order::Middle).anchor(corner, Vec2::ZERO).show(ui, |ui| {
        let frame = Frame::new().fill(palette.panel).stroke(Stroke::new(1.0, palette.line)).inner_margin(INSET);
        frame.show(ui, |ui| {
            ui.set_width(width - 32.0);
            ui.set_height(height - 24.0);
            contents(ui);
        });
    });
}
