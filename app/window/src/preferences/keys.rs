//! The list of keys.

use egui::{Frame, Grid, Id, KeyboardShortcut, Modal, RichText, ScrollArea, Ui};

use crate::command::SHORTCUTS;
use thermocline_rich_text::{theme::Palette, widgets};

/// Keys that belong to where one writes.
const WRITING: [(&str, &str); 3] = [
    ("Enter", "Send the message"),
    ("Shift+Enter", "Begin a new line"),
    ("Esc", "Close what is open, or stop the answer"),
];

/// Points above and below the list: heading, button and margins.
const BESIDE_LIST: f32 = 160.0;

/// The list, over everything; whether it is to be closed.
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

/// Keyboard shortcuts.
fn name(ui: &Ui, shortcut: &KeyboardShortcut) -> String {
    ui.format_shortcut(shortcut).replace("Comma", ",")
}

/// The list.
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
