//! Draws the side columns: their backgrounds, and the contents of the right column.

use egui::{Frame, Margin, Panel, ScrollArea, Shape, Ui};

use super::{
    Window,
    columns::{CHATS, INSET, LEAST_PAGE, NEURONS, Rooms, WIDE, WIDE_CHATS, WIDE_NEURONS},
};
use crate::areas::WindowArea;
use thermocline_host::engine_handle::ModelState;
use thermocline_rich_text::theme::Palette;

/// Minimum height of the right column for two separate panels, in points. In a lower column, both
/// scroll together.
const ROOM_FOR_BOTH: f32 = 720.0;

impl Window {
    /// True if the right column has content. Neurons and memory of a remote model are on its
    /// server.
    pub(super) fn has_neurons(&self) -> bool {
        !matches!(self.shell.engine_handle.state(), ModelState::Remote { .. })
    }

    /// Shows the side columns that have their own place in a window of this `width`.
    pub(super) fn side_columns(&mut self, ui: &mut Ui, rooms: Rooms, width: f32) {
        // Separate names let egui remember the dragged widths of wide and of other windows
        // separately.
        let wide = width >= WIDE;
        let (panels, has_neurons) = (self.shell.settings.panels, self.has_neurons());
        if rooms.chats && panels.chats && !(rooms.neurons_instead && has_neurons) {
            let (name, size) = if wide { ("wide chats", WIDE_CHATS) } else { ("chats", CHATS) };
            let column = Panel::left(name).default_size(size).size_range(180.0..=400.0);
            self.column(ui, column, |window, ui| window.chats.show(ui, &mut window.shell));
        }
        if rooms.neurons_instead && has_neurons {
            let column = Panel::right("neurons alone").default_size(NEURONS).size_range(360.0..=width - LEAST_PAGE);
            self.column(ui, column, |window, ui| window.right(ui));
        } else if rooms.neurons && panels.neurons && has_neurons {
            let (name, size) = if wide { ("wide neurons", WIDE_NEURONS * width) } else { ("neurons", NEURONS) };
            let column = Panel::right(name).default_size(size).size_range(360.0..=1100.0);
            self.column(ui, column, |window, ui| window.right(ui));
        }
    }

    /// Shows a side column.
    fn column(&mut self, ui: &mut Ui, column: Panel, contents: impl FnOnce(&mut Self, &mut Ui)) {
        let (frame, fill) = (Frame::new().inner_margin(INSET), Palette::of(ui).panel);
        let Some(ground) = self.ground else {
            column.frame(frame.fill(fill)).show(ui, |ui| contents(self, ui));
            return;
        };
        let below = ui.painter().add(Shape::Noop);
        let shown = column.frame(frame).show(ui, |ui| contents(self, ui));
        ui.painter().set(below, ground.fill(shown.response.rect, fill));
    }

    /// Shows the map and the VRAM panel, both at once if there is room.
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
            // From the next frame on, the panel has the height of its contents.
            self.vram_height = shown.content_size.y + 24.0;
        });
        scroll("map").auto_shrink(false).show(ui, |ui| self.neurons.show(ui, &mut self.shell));
    }
}
