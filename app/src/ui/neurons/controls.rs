//! Small controls that the panel is made of.

use egui::{Button, Response, Role, Ui, WidgetInfo};
use egui_material_icons::MaterialIcon;

/// A button with a picture on it, that is called `name`.
pub fn icon(ui: &mut Ui, icon: MaterialIcon, name: &str) -> Response {
    let response = ui.add(Button::new(icon));
    response.widget_info(|| WidgetInfo::labeled(Role::Button, ui.is_enabled(), name));
    response.on_hover_text(name)
}
