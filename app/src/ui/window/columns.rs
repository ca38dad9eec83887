//! The columns beside the page: their widths, what they are drawn on, and what the right one shows.

use egui::{Align2, Area, Frame, Margin, Order, Panel, ScrollArea, Shape, Stroke, Ui, Vec2};

use super::Window;
use crate::ui::{areas::WindowArea, theme::Palette};

/// Height of the right column below which its two panels scroll as one, in points.
const ROOM_FOR_BOTH: f32 = 720.0;

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

impl Window {
    /// A side column.
    pub(super) fn column(&mut self, ui: &mut Ui, column: Panel, contents: impl FnOnce(&mut Self, &mut Ui)) {
        let (frame, fill) = (Frame::new().inner_margin(INSET), Palette::of(ui).panel);
        let Some(ground) = self.ground else {
            column.frame(frame.fill(fill)).show(ui, |ui| contents(self, ui));
            return;
        };
        let below = ui.painter().add(Shape::Noop);
        let shown = column.frame(frame).show(ui, |ui| contents(self, ui));
        ui.painter().set(below, ground.fill(shown.response.rect, fill));
    }

    /// The map and what memory it has. Both are seen at once where there is room for both.
    pub(super) fn right(&mut self, ui: &mut Ui) {
        WindowArea::Neurons.stop(ui, "Neurons and memory");
        let scroll = |id: &str| ScrollArea::vertical().id_salt(id).auto_shrink([false, true]);
        if ui.available_height() < ROOM_FOR_BOTH {
            scroll("right").auto_shrink(false).show(ui, |ui| {
                self.neurons.show(ui, &mut self.shell);
                ui.separator();
                self.vram.show(ui, &mut self.shell);
            });
            return;
        }
        let height = self.vram_height.min(ui.available_height() / 2.0);
        let frame = Frame::new().inner_margin(Margin { top: 12, ..Margin::ZERO });
        Panel::bottom("vram").exact_size(height).frame(frame).show(ui, |ui| {
            let shown = scroll("vram").show(ui, |ui| self.vram.show(ui, &mut self.shell));
            // As high as what it shows, from the next frame on.
            self.vram_height = shown.content_size.y + 24.0;
        });
        scroll("map").auto_shrink(false).show(ui, |ui| self.neurons.show(ui, &mut self.shell));
    }
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
