//! Horizontal scrolling of code, tables and formulas that are too wide.

use egui::{ScrollArea, Ui};

/// Opacity of the scroll bar while the pointer is elsewhere.
const RESTING: f32 = 0.5;

/// Shows `contents`, scrolling sideways if they are too wide. The scroll bar is always visible, so
/// that users see that there is more.
pub fn sideways(ui: &mut Ui, name: &str, contents: impl FnOnce(&mut Ui)) {
    ui.scope(|ui| {
        let scroll = &mut ui.spacing_mut().scroll;
        scroll.dormant_handle_opacity = scroll.dormant_handle_opacity.max(RESTING);
        scroll.floating_allocated_width = scroll.floating_allocated_width.max(scroll.floating_width);
        ScrollArea::horizontal().id_salt(name).show(ui, contents);
    });
}
