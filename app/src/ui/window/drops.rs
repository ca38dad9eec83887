//! Files that are dragged over the window and let go there: models for the library and chats for the list, wherever one is.

use std::path::PathBuf;

use egui::{Align2, Area, Frame, HoveredFile, Id, Label, Margin, Order, RichText, Stroke, Ui, Vec2};

use crate::{
    store::import_export::FileFormat,
    ui::theme::{Palette, RADIUS, strong},
};

/// Files dropped since the last frame.
pub fn dropped(ui: &Ui) -> Vec<PathBuf> {
    ui.input(|input| input.raw.dropped_files.iter().map(|file| file.path().to_owned()).collect())
}

/// Says what becomes of a file that is held over the window.
pub fn invite(ui: &Ui) {
    let is_chat = |file: &HoveredFile| file.path.as_deref().is_some_and(|path| FileFormat::from_path(path).is_some());
    let hovered = ui.input(|input| input.raw.hovered_files.iter().map(is_chat).reduce(|all, one| all && one));
    let Some(chats) = hovered else { return };
    let palette = Palette::of(ui);
    let area = Area::new(Id::unique("drop")).order(Order::Foreground).anchor(Align2::CENTER_CENTER, Vec2::ZERO);
    area.interactable(false).show(ui, |ui| {
        let frame = Frame::new().fill(palette.raised).stroke(Stroke::new(1.0, palette.cold)).corner_radius(RADIUS + 4);
        frame.inner_margin(Margin::symmetric(32, 24)).show(ui, |ui| {
            let words = if chats { "Drop it to import its chats" } else { "Drop it to add it to the library" };
            let words = RichText::new(words).font(strong(16.0));
            ui.add(Label::new(words).extend().selectable(false));
        });
    });
}
