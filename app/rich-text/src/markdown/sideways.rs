//! Contents that are wider than their room: code, tables and formulas.

use egui::{ScrollArea, Ui};

/// Opacity of a bar that the pointer is not at.
const RESTING: f32 = 0.5;

/// Shows `contents`, which move sideways if they are wider than the room. The bar is seen at all
/// times, so that one knows that there is more.
pub fn sideways(ui: &mut Ui, name: &str, contents: impl FnOnce(&mut Ui)) {
    ui.scope(|ui| {
        let scroll = &mut ui.spacing_mut().scroll;
        scroll.dormant_handle_opacity = scroll.dormant_handle_opacity.max(RESTING);
        scroll.floating_allocated_width = scroll.floating_allocated_width.max(scroll.floating_width);
        ScrollArea::horizontal().id_salt(name).show(ui, contents);
    });
}
