//! A text field of one or several lines, for text of any direction.
//!
//! The field is egui's [`TextEdit`], with its keys, input methods, undo, clipboard and
//! accessibility. egui lays out text from left to right and finds the pointer in the same order.
//! For text with right-to-left letters, egui therefore gets a layout that is already ordered
//! ([`EditedText`]). The pointer, the up and down arrows and the selection are replaced. Purely
//! left-to-right text is left to egui.
//!
//! A text library would shape the same letters into a second set of pictures. parley has 31 more
//! crates and a second copy of the font finder. cosmic-text has 8 more, and second copies of the
//! shaper and the font reader (counted in November 2026). All handling of keys, clipboard and input
//! methods would have to be written again.
//!
//! Directions follow UAX #9. The direction of a paragraph is that of its first letter. The arrows
//! move through the text in logical order, along the direction of the line. They reach every
//! position, even where both directions meet.

use std::{borrow::Cow, sync::Arc};

use egui::{
    Color32, CursorIcon, FontId, Id, Pos2, Response, Sense, Shape, SurrenderFocusOn, TextBuffer, TextEdit, TextFormat,
    Ui,
    layers::ShapeIdx,
    text::CCursorRange,
    text_edit::{TextEditOutput, TextEditState},
};

use super::{
    control,
    described::describe,
    edited::{EditedText, Leading, Room},
    edition::Edition,
};

/// The character shown for each character of a secret, as in egui.
const SECRET: char = egui::epaint::text::PASSWORD_REPLACEMENT_CHAR;

/// A layout, and everything that it depends on.
#[derive(Debug, Clone)]
struct FieldLayout {
    text: String,
    room: Room,
    format: TextFormat,
    leading: Leading,
    edited: Arc<EditedText>,
}

impl FieldLayout {
    fn is_of(&self, ui: &Ui, text: &str, room: Room, format: &TextFormat, leading: Leading) -> bool {
        let same = self.room == room && self.leading == leading && self.format == *format && self.text == text;
        same && self.edited.is_current(ui)
    }
}

/// A field as it was last shown.
#[derive(Debug, Clone)]
struct Shown {
    layout: FieldLayout,
    /// Position at which its text begins.
    at: Pos2,
    leading: Leading,
    /// The text after the last frame.
    text: String,
    edition: Option<Edition>,
}

/// The number of lines of a field, and whether its letters are visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldKind {
    /// Several lines.
    Lines,
    /// One line, which scrolls sideways if it is too long.
    Line,
    /// One line of hidden letters.
    Secret,
}

impl FieldKind {
    /// The text as laid out, with the same number of characters. In one-line fields, line ends
    /// become spaces of the same number of bytes.
    fn shown(self, text: &str) -> Cow<'_, str> {
        let space = |c: char| match c {
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' => ' ',
            '\u{85}' => '\u{a0}',
            '\u{2028}' | '\u{2029}' => '\u{3000}',
            c => c,
        };
        match self {
            FieldKind::Secret => text.chars().map(|_| SECRET).collect(),
            FieldKind::Line if text.chars().any(|c| space(c) != c) => text.chars().map(space).collect(),
            FieldKind::Line | FieldKind::Lines => text.into(),
        }
    }
}

/// A text field.
#[derive(Debug, Clone)]
pub struct TextField {
    id: Id,
    font: FontId,
    kind: FieldKind,
    edition: Option<Edition>,
}

impl TextField {
    /// A field of several lines in this font.
    pub fn lines(id: Id, font: FontId) -> Self {
        TextField { id, font, kind: FieldKind::Lines, edition: None }
    }

    /// A field of one line in this font. Enter leaves it.
    pub fn line(id: Id, font: FontId) -> Self {
        TextField { id, font, kind: FieldKind::Line, edition: None }
    }

    /// A one-line field that hides its letters.
    pub fn secret(id: Id, font: FontId) -> Self {
        TextField { id, font, kind: FieldKind::Secret, edition: None }
    }

    /// The field showing this edition of a text. A field may show several texts one after another,
    /// even equal texts.
    pub fn of(self, edition: Edition) -> Self {
        TextField { edition: Some(edition), ..self }
    }

    /// Selects all of `text` in the frame in which the field gets the keyboard focus, so that
    /// typing replaces it.
    pub fn select_all(&self, ui: &Ui, text: &str) {
        let mut state = TextEditState::load(ui, self.id).unwrap_or_default();
        state.cursor.set_char_range(Some(CCursorRange::select_all_str(text)));
        state.store(ui, self.id);
    }

    /// Shows `text`, which the user may change. `with` sets the look of the field. The caret and
    /// the undo history belong to the text. If another text is shown than before, the caret moves
    /// to its end and the history is empty.
    pub fn show(
        &self,
        ui: &mut Ui,
        text: &mut String,
        with: impl for<'a> FnOnce(TextEdit<'a>) -> TextEdit<'a>,
    ) -> Response {
        let (id, over) = (self.id, self.id.with("pointer"));
        let shown: Option<Shown> = ui.data(|data| data.get_temp(id));
        let shown = shown.filter(|shown| shown.edition == self.edition && shown.text == *text);
        if shown.is_none() {
            TextEditState::default().store(ui, id);
        }
        let mut layout = shown.as_ref().map(|shown| shown.layout.clone());
        let mut leading = shown.as_ref().and_then(|shown| shown.leading);
        // Input applies to right-to-left text as it was last shown.
        let before =
            shown.filter(|shown| !shown.layout.edited.rows.is_empty() && shown.layout.text == self.kind.shown(text));
        let events = before.map(|shown| {
            let seen = control::FieldTarget { id, over, edited: &shown.layout.edited, at: shown.at };
            seen.control(ui, &mut leading)
        });
        let (selection, surrender) = (ui.visuals().selection, ui.options(|it| it.input_options.surrender_focus_on));
        if let Some(events) = &events {
            // egui's field marks only one part of each line.
            ui.visuals_mut().selection.bg_fill = Color32::TRANSPARENT;
            if events.pointed {
                ui.options_mut(|it| it.input_options.surrender_focus_on = SurrenderFocusOn::Never);
            }
        }
        let format = format(ui, &self.font);
        let mut layouter = |ui: &Ui, text: &dyn TextBuffer, width: f32| {
            let text = self.kind.shown(text.as_str());
            let room = Room { width, wraps: self.kind == FieldKind::Lines };
            let kept = layout.take().filter(|layout| layout.is_of(ui, &text, room, &format, leading));
            let laid = kept.unwrap_or_else(|| {
                let edited = Arc::new(EditedText::new(ui, &text, room, &format, leading));
                FieldLayout { text: text.into_owned(), room, format: format.clone(), leading, edited }
            });
            Arc::clone(&layout.insert(laid).edited.galley)
        };
        let field = match self.kind {
            FieldKind::Lines => TextEdit::multiline(text),
            FieldKind::Line => TextEdit::singleline(text),
            FieldKind::Secret => TextEdit::singleline(text).password(true),
        };
        let output = with(field.id(id).font(self.font.clone()).layouter(&mut layouter)).show(ui);
        if let Some(events) = events {
            ui.visuals_mut().selection = selection;
            ui.options_mut(|it| it.input_options.surrender_focus_on = surrender);
            events.restore(ui);
        }
        if let Some(layout) = layout {
            if !layout.edited.rows.is_empty() {
                complete(ui, over, &output, &layout.edited);
            }
            let cursor = output.state.cursor.char_range().map(|range| range.primary.index.0);
            let leading = leading.filter(|leading| !output.response.changed() && cursor == Some(*leading));
            let (at, text, edition) = (output.galley_pos, text.clone(), self.edition);
            ui.data_mut(|data| data.insert_temp(id, Shown { layout, at, leading, text, edition }));
        }
        output.response.response
    }
}

/// A text format with the colour of the field.
fn format(ui: &Ui, font: &FontId) -> TextFormat {
    let height = ui.fonts_mut(|fonts| fonts.row_height(font)) + ui.spacing().extra_text_line_spacing;
    TextFormat { line_height: Some(height), ..TextFormat::simple(font.clone(), Color32::PLACEHOLDER) }
}

/// Adds what egui's field cannot do for right-to-left text: it marks the selection, describes the
/// positions of characters to screen readers, and receives the pointer.
fn complete(ui: &Ui, over: Id, output: &TextEditOutput, edited: &EditedText) {
    let id = output.response.id;
    // egui copies the layout when something is selected.
    if let Some(range) = output.state.cursor.char_range()
        && !std::ptr::eq(&*output.galley, &*edited.galley)
    {
        let range = range.as_sorted_char_range();
        let at = output.galley_pos.to_vec2();
        let colour = ui.visuals().selection.bg_fill;
        let marked = edited.selected(&(range.start.0..range.end.0)).into_iter();
        let mut shapes: Vec<Shape> = marked.map(|rect| Shape::rect_filled(rect.translate(at), 0.0, colour)).collect();
        ui.ctx().graphics_mut(|layers| {
            let list = layers.entry(ui.layer_id());
            let is_text =
                |shape: &Shape| matches!(shape, Shape::Text(text) if Arc::ptr_eq(&text.galley, &output.galley));
            let drawn = list.all_entries().enumerate().filter(|(_, entry)| is_text(&entry.shape));
            if let Some(number) = drawn.map(|(number, _)| number).last() {
                list.mutate_shape(ShapeIdx(number), |entry| {
                    shapes.push(std::mem::replace(&mut entry.shape, Shape::Noop));
                    entry.shape = Shape::Vec(shapes);
                });
            }
        });
    }
    describe(ui, id, output.galley_pos, edited);
    // A moving finger scrolls.
    let touched = ui.input(egui::InputState::any_touches) && !ui.memory(|memory| memory.has_focus(id));
    let sense = if touched { Sense::click() } else { Sense::click_and_drag() } - Sense::FOCUSABLE;
    let pointed = ui.interact(output.response.rect, over, sense);
    if pointed.hovered() {
        ui.ctx().set_cursor_icon(CursorIcon::Text);
        ui.output_mut(|output| output.mutable_text_under_cursor = true);
    }
}

#[cfg(test)]
mod tests {
    use egui::{Event, Key, Modifiers};
    use egui_kittest::Harness;

    use super::*;

    /// A field, and the text that it shows.
    struct Edited {
        field: fn(Id, FontId) -> TextField,
        text: String,
        edition: Edition,
        hidden: bool,
    }

    fn shown(field: fn(Id, FontId) -> TextField) -> Harness<'static, Edited> {
        let show = |ui: &mut Ui, edited: &mut Edited| {
            let id = Id::unique("field of a test");
            let field = (edited.field)(id, FontId::proportional(15.0)).of(edited.edition);
            if !edited.hidden {
                let shown = field.show(ui, &mut edited.text, |field| field);
                shown.widget_info(|| egui::WidgetInfo::labeled(egui::Role::MultilineTextInput, true, "Text"));
                shown.request_focus();
            }
        };
        let edited = Edited { field, text: "abc".to_owned(), edition: Edition::default(), hidden: false };
        let mut it = Harness::builder().with_step_dt(0.5).build_ui_state(show, edited);
        it.run_steps(4);
        it
    }

    fn types(it: &mut Harness<'_, Edited>, text: &str) {
        it.event(Event::Text(text.to_owned()));
        it.run_steps(4);
    }

    fn undo(it: &mut Harness<'_, Edited>) {
        for _ in 0..6 {
            it.key_press_modifiers(Modifiers::COMMAND, Key::Z);
            it.run_steps(2);
        }
    }

    #[test]
    fn caret_and_history_belong_to_the_text() {
        for field in [TextField::lines, TextField::line, TextField::secret] {
            let mut it = shown(field);
            it.key_press(Key::Home);
            it.run_steps(2);
            types(&mut it, "x");
            // A text that was hidden for a while is the same text.
            it.state_mut().hidden = true;
            it.run_steps(2);
            it.state_mut().hidden = false;
            it.run_steps(2);
            types(&mut it, "y");
            assert_eq!(it.state().text, "xyabc");
            // Another text, and an empty text as after sending.
            for other in ["another text", ""] {
                it.state_mut().text = other.to_owned();
                it.run_steps(2);
                types(&mut it, "!");
                assert_eq!(it.state().text, format!("{other}!"));
                undo(&mut it);
                assert_eq!(it.state().text, other);
            }
            // Another text with equal contents.
            types(&mut it, "of the first");
            it.key_press(Key::Home);
            it.run_steps(2);
            it.state_mut().edition = Edition::default();
            it.run_steps(2);
            undo(&mut it);
            assert_eq!(it.state().text, "of the first");
            types(&mut it, "!");
            assert_eq!(it.state().text, "of the first!");
        }
    }

    #[test]
    fn one_line_has_as_many_characters_and_bytes_as_its_text() {
        let text = "a\nb\r\u{b}\u{85}c\u{2028}\u{2029}\u{1c}אב";
        let shown = FieldKind::Line.shown(text);
        assert_eq!((shown.len(), shown.chars().count()), (text.len(), text.chars().count()));
        assert!(
            shown.starts_with("a b ")
                && shown.chars().all(|c| !c.is_control() && !('\u{2028}'..='\u{2029}').contains(&c))
        );
        assert!(matches!(FieldKind::Line.shown("plain"), Cow::Borrowed("plain")));
        assert_eq!(FieldKind::Lines.shown(text), text);
        assert_eq!(FieldKind::Secret.shown("aבc"), "•••");
    }
}
