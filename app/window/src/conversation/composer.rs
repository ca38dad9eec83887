//! The composer: the field for a new message.

use std::time::Instant;

use egui::{
    Align, Frame, Id, Key, KeyboardShortcut, Layout, Margin, Modifiers, ScrollArea, TextStyle, Ui,
    style::ScrollAnimation,
};
use egui_material_icons::icons::{ICON_ATTACH_FILE, ICON_SERVICE_TOOLBOX, ICON_TUNE};

use crate::keyboard;
use thermocline_rich_text::{
    text::{Edition, TextField},
    theme::{Palette, RADIUS},
    widgets::{icon_button, muted, outlined, primary_button, small, wide},
};

/// Maximum height of the draft before it scrolls, in points.
const HIGHEST: f32 = 200.0;

/// Id of the text field.
pub fn id() -> Id {
    Id::unique("message being written")
}

/// An action of the composer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComposerAction {
    /// Send the draft.
    Send,
    /// Stop the answer.
    Stop,
    /// Show or hide the chat's settings.
    Settings,
    /// Choose files to attach.
    Attach,
    /// Switch tools on or off.
    Tools,
    /// The user changed the text. No action.
    Typed,
}

/// How full the context is, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextFill {
    /// Tokens of the chat, including the draft once it is counted.
    pub used: usize,
    /// Tokens of the draft. `None` while it is empty or being counted.
    pub draft: Option<usize>,
    /// Length of the context.
    pub length: usize,
}

impl ContextFill {
    /// Describes the fill in a sentence.
    fn words(self) -> String {
        let ContextFill { used, draft, length } = self;
        match draft {
            Some(draft) => format!("This message {draft}, context {used} / {length}"),
            None => format!("Context {used} / {length}"),
        }
    }
}

/// Who writes the next message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComposerState {
    /// The user.
    Ready,
    /// The model. The user can stop it.
    Answering,
    /// The model, for another window.
    AnsweringElsewhere,
}

/// The parts of the composer besides the text.
#[derive(Debug, Clone, Copy)]
pub struct ComposerView<'a> {
    /// Placeholder of the empty text field.
    pub hint: &'a str,
    /// The chat's settings in one line.
    pub summary: &'a str,
    /// How full the context is, if a model is open.
    pub fill: Option<ContextFill>,
    /// True if the model may call tools.
    pub with_tools: bool,
    /// Describes the available tools.
    pub tools_help: &'a str,
    /// Who writes the next message.
    pub state: ComposerState,
}

/// The text field of the draft.
#[derive(Debug, Default)]
pub struct Composer {
    /// The text.
    pub text: String,
    edition: Edition,
    /// When the text was first changed since the store kept it as the chat's draft.
    pub changed: Option<Instant>,
    /// True if the field should get the keyboard focus in the next frame.
    pub focus: bool,
}

impl Composer {
    /// Creates a composer with this text.
    pub fn new(text: &str) -> Self {
        Composer { text: text.to_owned(), focus: true, ..Composer::default() }
    }

    /// Shows the composer. `above` draws what is shown above the text.
    pub fn show(&mut self, ui: &mut Ui, view: ComposerView<'_>, above: impl FnOnce(&mut Ui)) -> Option<ComposerAction> {
        let ComposerView { hint, summary, fill, with_tools, tools_help, state } = view;
        let palette = Palette::of(ui);
        let mut action = None;
        let frame = outlined(palette.panel, palette.line, Margin::symmetric(16, 12)).corner_radius(RADIUS + 4);
        wide(ui, frame, |ui| {
            above(ui);
            // Without this, a long text grows the field by one line per frame. Meanwhile the
            // buttons below would be outside the window.
            let area = ScrollArea::vertical().id_salt(("writing", self.edition));
            let area = area.max_height(HIGHEST).min_scrolled_height(HIGHEST);
            let field = area.show(ui, |ui| {
                // In a slow window an animation would hide the typed text for seconds.
                ui.style_mut().scroll_animation = ScrollAnimation::none();
                let newline = KeyboardShortcut::new(Modifiers::SHIFT, Key::Enter);
                let font = TextStyle::Body.resolve(ui.style());
                TextField::lines(id(), font).of(self.edition).show(ui, &mut self.text, |field| {
                    field
                        .hint_text(hint.to_owned())
                        .frame(Frame::NONE)
                        .desired_rows(1)
                        .desired_width(f32::INFINITY)
                        .return_key(newline)
                })
            });
            let field = field.inner;
            field.widget_info(|| egui::WidgetInfo::labeled(egui::Role::MultilineTextInput, true, "Message"));
            if std::mem::take(&mut self.focus) {
                field.request_focus();
            }
            if field.changed() {
                action = Some(ComposerAction::Typed);
            }
            let ready = state == ComposerState::Ready && !self.text.trim().is_empty();
            let enter = keyboard::pressed(ui, Modifiers::NONE, Key::Enter);
            if enter && field.has_focus() && ready {
                action = Some(ComposerAction::Send);
            }
            ui.add_space(4.0);
            ui.horizontal(|ui| {
                if icon_button(ui, ICON_TUNE, "Chat settings").clicked() {
                    action = Some(ComposerAction::Settings);
                }
                if icon_button(ui, ICON_ATTACH_FILE, "Attach files").clicked() {
                    action = Some(ComposerAction::Attach);
                }
                if tools_switch(ui, with_tools, tools_help).clicked() {
                    action = Some(ComposerAction::Tools);
                }
                ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
                    if state == ComposerState::Answering {
                        if ui.button("Stop").on_hover_text("Esc").clicked() {
                            action = Some(ComposerAction::Stop);
                        }
                    } else if primary_button(ui, "Send", ready)
                        .on_hover_text("Enter; Shift+Enter for a new line")
                        .on_disabled_hover_text(match state {
                            ComposerState::AnsweringElsewhere => "This chat is being answered in another window.",
                            _ => "The message is empty.",
                        })
                        .clicked()
                    {
                        action = Some(ComposerAction::Send);
                    }
                    // The figures get the width that the button leaves. The button is never
                    // shortened.
                    ui.with_layout(Layout::left_to_right(Align::Center), |ui| figures(ui, summary, fill));
                });
            });
        });
        action
    }
}

/// The switch of tools. `help` describes the tools.
fn tools_switch(ui: &mut Ui, on: bool, help: &str) -> egui::Response {
    let palette = Palette::of(ui);
    let colour = if on { palette.hot } else { palette.muted };
    let glyph = ICON_SERVICE_TOOLBOX.rich_text().size(16.0).color(colour);
    let button = ui.add(egui::Button::new(glyph).frame(false).min_size(egui::vec2(24.0, 24.0)));
    button.widget_info(|| egui::WidgetInfo::selected(egui::Role::CheckBox, true, on, "Tools"));
    button.on_hover_text(help)
}

/// Width of the bar of the context, in points.
const BAR: f32 = 80.0;

/// Shows `summary` and the fill of the context in the remaining width. If both do not fit, only the
/// fill is shown.
fn figures(ui: &mut Ui, summary: &str, fill: Option<ContextFill>) {
    let (room, gap, palette) = (ui.available_width(), ui.spacing().item_spacing.x, Palette::of(ui));
    let wide =
        |text: String| ui.painter().layout_no_wrap(text, egui::FontId::proportional(12.0), palette.text).size().x;
    let needed = fill.map_or(0.0, |fill| wide(fill.words()) + gap);
    if wide(summary.to_owned()) + gap + needed + BAR <= room {
        muted(ui, summary);
    }
    if let Some(fill) = fill {
        gauge(ui, fill, needed + BAR <= room);
    }
}

fn gauge(ui: &mut Ui, fill: ContextFill, with_bar: bool) {
    let palette = Palette::of(ui);
    let ContextFill { used, length, .. } = fill;
    let part = used as f32 / length.max(1) as f32;
    let colour = if part > 1.0 { palette.bad } else { palette.muted };
    let mut shown = ui.add(egui::Label::new(small(fill.words(), colour)).truncate());
    if with_bar {
        shown |= bar(ui, part);
    }
    let help = format!(
        "{:.0} % of the context is used. When it is full, the model no longer sees the oldest questions and answers, unless the chat's settings say to stop.",
        part * 100.0
    );
    shown.on_hover_text(help);
}

/// Draws a bar whose fraction `part` is filled.
fn bar(ui: &mut Ui, part: f32) -> egui::Response {
    let palette = Palette::of(ui);
    let (rect, bar) = ui.allocate_exact_size(egui::vec2(BAR, 6.0), egui::Sense::hover());
    ui.painter().rect_filled(rect, 3.0, palette.raised);
    let fill = match part {
        part if part > 1.0 => palette.bad,
        part if part > 0.9 => palette.amber,
        _ => palette.cold,
    };
    let size = rect.size() * egui::vec2(part.min(1.0), 1.0);
    ui.painter().rect_filled(egui::Rect::from_min_size(rect.min, size), 3.0, fill);
    bar
}
