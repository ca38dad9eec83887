//! Small widgets used by several panels, and wording shared by them.

use egui::{
    Align, Button, Color32, Frame, Layout, Margin, Response, RichText, Role, Sense, Stroke, Ui, WidgetInfo, WidgetText,
    containers::menu::MenuButton,
};
use egui_material_icons::MaterialIcon;

use crate::theme::{self, Palette, strong};

/// Shows a button with an icon and no frame. Screen readers and the tooltip use `name`.
pub fn icon_button(ui: &mut Ui, icon: MaterialIcon, name: &str) -> Response {
    sensing_icon_button(ui, icon, name, Sense::click())
}

/// Shows an [`icon_button`] that takes keyboard focus only if `sense` allows it.
pub fn sensing_icon_button(ui: &mut Ui, icon: MaterialIcon, name: &str, sense: Sense) -> Response {
    bare_icon_button(ui, icon, name, sense).on_hover_text(name)
}

/// Shows an [`icon_button`] with `more` in the tooltip, below its name.
pub fn icon_button_with(ui: &mut Ui, icon: MaterialIcon, name: &str, more: impl FnOnce(&mut Ui)) -> Response {
    bare_icon_button(ui, icon, name, Sense::click()).on_hover_ui(|ui| {
        ui.label(name);
        more(ui);
    })
}

fn bare_icon_button(ui: &mut Ui, icon: MaterialIcon, name: &str, sense: Sense) -> Response {
    let response = ui.add(bare_button(ui, icon).sense(sense));
    response.widget_info(|| WidgetInfo::labeled(Role::Button, ui.is_enabled(), name));
    response
}

fn bare_button(ui: &Ui, icon: MaterialIcon) -> Button<'static> {
    let glyph = icon.rich_text().size(16.0).color(Palette::of(ui).muted);
    Button::new(glyph).frame(false).min_size(egui::vec2(24.0, 24.0))
}

/// Shows a button with an icon and a frame. `name` is used as in [`icon_button`].
pub fn framed_icon_button(ui: &mut Ui, icon: MaterialIcon, name: &str) -> Response {
    let response = ui.add(Button::new(icon));
    response.widget_info(|| WidgetInfo::labeled(Role::Button, ui.is_enabled(), name));
    response.on_hover_text(name)
}

/// Shows a menu that opens from an [`icon_button`].
pub fn icon_menu(ui: &mut Ui, icon: MaterialIcon, name: &str, contents: impl FnOnce(&mut Ui)) {
    let (response, _) = MenuButton::from_button(bare_button(ui, icon)).ui(ui, contents);
    response.widget_info(|| WidgetInfo::labeled(Role::Button, ui.is_enabled(), name));
    response.on_hover_text(name);
}

/// Shows the primary button of a surface.
pub fn primary_button(ui: &mut Ui, text: &str, enabled: bool) -> Response {
    let palette = Palette::of(ui);
    let words = RichText::new(text).font(strong(14.0)).color(palette.on_hot);
    ui.add_enabled(enabled, Button::new(words).fill(palette.hot).stroke(Stroke::NONE))
}

/// Shows wrapped text. In menus and columns, egui's justified layout would stretch the spaces of
/// each line.
pub fn words(ui: &mut Ui, text: impl Into<WidgetText>) -> Response {
    if !ui.layout().horizontal_justify() {
        return ui.label(text);
    }
    ui.with_layout(Layout::top_down(Align::Min), |ui| ui.label(text)).inner
}

/// Shows secondary text.
pub fn muted(ui: &mut Ui, text: impl Into<String>) -> Response {
    let text = small(text, Palette::of(ui).muted);
    words(ui, text)
}

/// Shows two columns of text without justified lines, unlike [`Ui::columns`]. `add` gets the index
/// of the column.
pub fn two_columns(ui: &mut Ui, mut add: impl FnMut(&mut Ui, usize)) {
    ui.columns(2, |columns| {
        for (at, ui) in columns.iter_mut().enumerate() {
            ui.with_layout(egui::Layout::top_down(egui::Align::Min), |ui| add(ui, at));
        }
    });
}

/// Small text in a colour.
pub fn small(text: impl Into<String>, colour: Color32) -> RichText {
    RichText::new(text).size(12.0).color(colour)
}

/// Shows contents on a raised surface.
pub fn card<R>(ui: &mut Ui, contents: impl FnOnce(&mut Ui) -> R) -> R {
    outlined_card(ui, Palette::of(ui).line, contents)
}

/// Shows a [`card`] with an outline of this colour.
pub fn outlined_card<R>(ui: &mut Ui, outline: Color32, contents: impl FnOnce(&mut Ui) -> R) -> R {
    wide(ui, outlined(Palette::of(ui).panel, outline, Margin::same(16)), contents)
}

/// A frame with round corners and an outline.
pub fn outlined(fill: Color32, outline: Color32, inset: Margin) -> Frame {
    Frame::new().fill(fill).stroke(Stroke::new(1.0, outline)).corner_radius(theme::RADIUS).inner_margin(inset)
}

/// Shows contents in a frame of the full available width.
pub fn wide<R>(ui: &mut Ui, frame: Frame, contents: impl FnOnce(&mut Ui) -> R) -> R {
    let shown = frame.show(ui, |ui| {
        ui.set_width(ui.available_width());
        contents(ui)
    });
    shown.inner
}

/// Shows an error as a sentence.
pub fn trouble(ui: &mut Ui, text: impl std::fmt::Display) -> Response {
    let text = small(sentence(text), Palette::of(ui).bad);
    words(ui, text)
}

/// `text` with a capital letter at the beginning and a full stop at the end.
pub fn sentence(text: impl std::fmt::Display) -> String {
    let text = text.to_string();
    let mut letters = text.trim().chars();
    let first: String = letters.next().map(|letter| letter.to_uppercase().collect()).unwrap_or_default();
    let mut sentence = first + letters.as_str();
    if !sentence.is_empty() && !sentence.ends_with(['.', '!', '?']) {
        sentence.push('.');
    }
    sentence
}

/// A time in seconds, in words.
pub fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout of menus and columns.
    #[test]
    fn words_in_menus_are_not_spread() {
        let long = "Words that are much too long for one line of a menu as narrow as this one is.";
        let menu = Layout::top_down_justified(Align::Min);
        let it = egui_kittest::Harness::builder().with_size([160.0, 300.0]).build_ui(|ui| {
            ui.with_layout(menu, |ui| {
                words(ui, long);
                muted(ui, long);
                trouble(ui, long);
                _ = ui.button("A button");
            });
        });
        let texts = it.output().shapes.iter().filter_map(|shape| match &shape.shape {
            egui::Shape::Text(text) if text.galley.rows.len() > 1 => Some(text.galley.job.justify),
            _ => None,
        });
        assert_eq!(texts.collect::<Vec<_>>(), [false; 3]);
    }

    #[test]
    fn sentence_and_duration_are_formatted() {
        assert_eq!(sentence("no GPU"), "No GPU.");
        assert_eq!(sentence("is it? "), "Is it?");
        assert_eq!(sentence(""), "");
        assert_eq!([0.4, 59.0, 61.0, 3600.0, 7260.0].map(duration), ["0 s", "59 s", "2 min", "1 h 0 min", "2 h 1 min"]);
    }
}
