//! A field for a typed path, for desktops without a file dialog.

use std::path::PathBuf;

use egui::{Frame, Id, Key, Modal, TextStyle, Ui};

use thermocline_rich_text::{
    text::{Edition, TextField},
    widgets,
};

/// A text field over the whole window, and the purpose of its path.
#[derive(Debug)]
pub struct PathField<T> {
    title: String,
    path: String,
    edition: Edition,
    /// Purpose of the path.
    pub then: T,
    focused: bool,
}

/// The result of a path field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Typed {
    /// The user typed this path.
    Path(PathBuf),
    /// The user closed the field.
    Nothing,
}

impl<T> PathField<T> {
    /// Creates a field with the initial text `path`.
    pub fn new(title: impl Into<String>, path: impl Into<String>, then: T) -> Self {
        PathField { title: title.into(), path: path.into(), edition: Edition::default(), then, focused: false }
    }

    /// Shows the field. Returns its result once.
    pub fn show(&mut self, ui: &Ui) -> Option<Typed> {
        let modal = Modal::new(Id::unique("path")).frame(Frame::popup(ui.style()).inner_margin(24));
        let shown = modal.show(ui, |ui| {
            ui.set_width(420.0);
            ui.heading(&self.title);
            widgets::muted(ui, "This desktop has no file dialog. Type the path of the file.");
            let field = TextField::line(Id::unique("path typed by hand"), TextStyle::Body.resolve(ui.style()));
            let field = field.of(self.edition).show(ui, &mut self.path, |field| field.desired_width(f32::INFINITY));
            field.widget_info(|| egui::WidgetInfo::labeled(egui::Role::TextInput, true, "Path"));
            if !self.focused {
                self.focused = true;
                field.request_focus();
            }
            let entered = field.lost_focus() && ui.input(|input| input.key_pressed(Key::Enter));
            let path = self.path.trim().to_owned();
            // The first word of the title is the label of the button.
            let action = self.title.split(' ').next().unwrap_or_default().to_owned();
            let mut typed = None;
            ui.horizontal(|ui| {
                if (widgets::primary_button(ui, &action, !path.is_empty()).clicked() || entered) && !path.is_empty() {
                    typed = Some(Typed::Path(PathBuf::from(&path)));
                }
                if ui.button("Cancel").clicked() {
                    typed = Some(Typed::Nothing);
                }
            });
            typed
        });
        let closed = shown.should_close().then_some(Typed::Nothing);
        shown.inner.or(closed)
    }
}

#[cfg(test)]
mod tests {
    use egui_kittest::{Harness, kittest::Queryable};

    use super::*;

    #[test]
    fn path_is_typed_or_given_up() {
        let state = (PathField::new("Import chats", "", ()), None);
        let mut it = Harness::builder().with_size([600.0, 400.0]).build_ui_state(
            |ui, (field, typed): &mut (PathField<()>, Option<Typed>)| {
                thermocline_rich_text::theme::install(ui);
                *typed = field.show(ui).or(typed.take());
            },
            state,
        );
        it.run_steps(4);
        it.get_by_label("Path").type_text("/a/chats.json");
        it.run_steps(2);
        it.key_press(Key::Enter);
        it.run_steps(2);
        assert_eq!(it.state().1, Some(Typed::Path("/a/chats.json".into())));
        it.state_mut().1 = None;
        it.get_by_label("Cancel").click();
        it.run_steps(2);
        assert_eq!(it.state().1, Some(Typed::Nothing));
    }
}
