//! The list of keyboard shortcuts.

use egui::{Frame, Grid, Id, KeyboardShortcut, Modal, RichText, ScrollArea, Ui};

use crate::command::SHORTCUTS;
use thermocline_rich_text::{theme::Palette, widgets};

/// Keys of text fields.
const WRITING: [(&str, &str); 3] = [
    ("Enter", "Send the message"),
    ("Shift+Enter", "Start a new line"),
    ("Esc", "Close the open panel or menu, or stop the answer"),
];

/// Height of heading, button and margins around the list, in points.
const BESIDE_LIST: f32 = 160.0;

/// Shows the list over the window. True if it should close.
pub fn modal(ui: &Ui) -> bool {
    let modal = Modal::new(Id::unique("keys")).frame(Frame::popup(ui.style()).inner_margin(24));
    let shown = modal.show(ui, |ui| {
        ui.set_width(360.0);
        ui.heading("Keys");
        ui.add_space(8.0);
        let rest = ui.ctx().content_rect().height() - BESIDE_LIST;
        ScrollArea::vertical().max_height(rest.max(96.0)).show(ui, list);
        ui.add_space(8.0);
        widgets::primary_button(ui, "Close", true).clicked()
    });
    shown.inner || shown.should_close()
}

/// The name of a keyboard shortcut.
fn name(ui: &Ui, shortcut: &KeyboardShortcut) -> String {
    ui.format_shortcut(shortcut).replace("Comma", ",")
}

/// Shows the list.
pub fn list(ui: &mut Ui) {
    let palette = Palette::of(ui);
    Grid::new("keys").num_columns(2).min_row_height(0.0).spacing([24.0, 6.0]).show(ui, |ui| {
        let typed = SHORTCUTS.iter().map(|(_, shortcut, what)| (name(ui, shortcut), *what));
        let all: Vec<_> = typed.chain(WRITING.map(|(key, what)| (key.to_owned(), what))).collect();
        for (key, what) in all {
            ui.label(RichText::new(key).monospace().color(palette.amber));
            ui.label(what);
            ui.end_row();
        }
    });
}
