//! Small things that several panels draw.

use egui::{Button, Color32, Response, RichText, Role, Ui, WidgetInfo};
use egui_material_icons::MaterialIcon;

use super::theme::{Palette, strong};

/// A button with an icon and no frame; `name` is its name for screen readers, and shown on hovering.
pub fn icon_button(ui: &mut Ui, icon: MaterialIcon, name: &str) -> Response {
    let glyph = icon.rich_text().size(16.0).color(Palette::of(ui).muted);
    let response = ui.add(Button::new(glyph).frame(false).min_size(egui::vec2(24.0, 24.0)));
    let enabled = ui.is_enabled();
    response.widget_info(|| WidgetInfo::labeled(Role::Button, enabled, name));
    response.on_hover_text(name)
}

/// The button that matters most.
pub fn primary_button(ui: &mut Ui, text: &str, enabled: bool) -> Response {
    let palette = Palette::of(ui);
    let words = RichText::new(text).font(strong(14.0)).color(palette.on_hot);
    ui.add_enabled(enabled, Button::new(words).fill(palette.hot))
}

/// Words of less weight.
pub fn muted(ui: &mut Ui, text: impl Into<String>) -> Response {
    ui.label(small(text, Palette::of(ui).muted))
}

/// Secondary text in a colour.
pub fn small(text: impl Into<String>, colour: Color32) -> RichText {
    RichText::new(text).size(12.0).color(colour)
}
