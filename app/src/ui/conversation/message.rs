//! One message as it is shown, with what can be done to it.

use egui::{Align, Color32, Frame, Id, Label, Layout, Margin, RichText, TextEdit, TextFormat, Ui, text::LayoutJob};
use egui_commonmark::CommonMarkCache;
use egui_material_icons::icons::{
    ICON_CHEVRON_LEFT, ICON_CHEVRON_RIGHT, ICON_CONTENT_COPY, ICON_EDIT, ICON_PLAY_ARROW, ICON_REFRESH,
};

use super::blocks::Blocks;
use crate::{
    chat::{AnswerProgress, AnswerStats},
    store::{Message, MessageId, MessageState, Speaker},
    ui::{
        command::{Command, Page},
        neurons::Tint,
        theme::{Palette, RADIUS},
        widgets::{icon_button, muted, sentence, small},
    },
};

/// Widest line of text, in points.
pub const MEASURE: f32 = 760.0;

/// Of the field in which a message is changed.
pub fn id_of_change() -> Id {
    Id::unique("message being changed")
}

/// An action on a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Put it on the clipboard.
    Copy(String),
    /// Change it.
    Edit(MessageId),
    /// Keep the change.
    Keep,
    /// Forget the change.
    Forget,
    /// Answer what it answers once more.
    Again(Option<MessageId>),
    /// Go on with it.
    Resume(MessageId),
    /// Show another version of it.
    Version(MessageId, usize),
    /// Something for the window.
    Ask(Command),
}

/// Context of a message while it is drawn.
pub struct Context<'a> {
    /// It.
    pub message: &'a Message,
    /// Its answer under way, if it is the one being written.
    pub progress: Option<AnswerProgress<'a>>,
    /// True while an answer is being written in the chat, here or in another window: then nothing can be changed.
    pub busy: bool,
    /// True for the last message.
    pub last: bool,
    /// True if an engine can answer.
    pub alive: bool,
    /// The neuron whose firings are shown in an answer's words.
    pub tint: Option<&'a Tint>,
}

/// Shows a message. `blocks` are the pieces of an answer, `draft` its changed words while it is edited.
pub fn show(
    ui: &mut Ui,
    context: &Context<'_>,
    blocks: &mut Blocks,
    cache: &mut CommonMarkCache,
    draft: Option<&mut String>,
) -> Option<Act> {
    match (draft, context.message.speaker) {
        (Some(draft), _) => edit(ui, context.message.speaker, draft),
        (None, Speaker::User) => user(ui, context),
        (None, Speaker::Assistant) => assistant(ui, context, blocks, cache),
    }
}

fn user(ui: &mut Ui, context: &Context<'_>) -> Option<Act> {
    let (palette, message) = (Palette::of(ui), context.message);
    let widest = (ui.available_width() * 0.8).min(MEASURE) - 32.0;
    let font = egui::TextStyle::Body.resolve(ui.style());
    let width = ui.painter().layout(message.content.clone(), font, palette.text, widest).size().x.ceil() + 1.0;
    ui.horizontal_top(|ui| {
        ui.add_space((ui.available_width() - width - 32.0).max(0.0));
        let frame = Frame::new().fill(palette.raised).corner_radius(RADIUS + 4).inner_margin(Margin::symmetric(16, 12));
        frame.show(ui, |ui| {
            ui.set_width(width);
            ui.add(Label::new(&message.content).wrap());
        });
    });
    let mut act = None;
    let row = egui::vec2(ui.available_width(), 24.0);
    ui.allocate_ui_with_layout(row, Layout::right_to_left(Align::Center), |ui| {
        ui.spacing_mut().item_spacing.x = 4.0;
        if icon_button(ui, ICON_CONTENT_COPY, "Copy message").clicked() {
            act = Some(Act::Copy(message.content.clone()));
        }
        if !context.busy {
            if icon_button(ui, ICON_EDIT, "Edit message").clicked() {
                ui.memory_mut(|memory| memory.request_focus(id_of_change()));
                act = Some(Act::Edit(message.id));
            }
            act = versions(ui, message, true).or(act.take());
        }
    });
    act
}

fn assistant(ui: &mut Ui, context: &Context<'_>, blocks: &mut Blocks, cache: &mut CommonMarkCache) -> Option<Act> {
    let (palette, message) = (Palette::of(ui), context.message);
    ui.set_max_width(ui.available_width().min(MEASURE));
    ui.set_width(ui.available_width());
    if let Some(progress) = &context.progress {
        if !tinted(ui, context.tint, progress.content) {
            blocks.update(progress.content, progress.ended);
            blocks.show(ui, cache);
        }
        let line = match (progress.prompt, progress.figures) {
            _ if progress.waits => "Waiting for the model …".to_owned(),
            (Some((done, total)), _) if progress.content.is_empty() => {
                format!("Reading what was said: {done} of {total} tokens")
            }
            (_, Some(figures)) if figures.generated_tokens > 0 => figures.line(),
            _ => "Thinking …".to_owned(),
        };
        muted(ui, line);
        if let Some(why) = progress.unsaved {
            let text = format!("not on disk yet: {why}. It is tried again every few seconds");
            ui.add(Label::new(small(sentence(text), palette.bad)).wrap());
        }
        return None;
    }
    if !tinted(ui, context.tint, &message.content) {
        blocks.update(&message.content, true);
        blocks.show(ui, cache);
    }
    let figures = AnswerStats::from_json(message.stats.as_deref());
    let mut act = None;
    match message.state {
        MessageState::Failed => {
            let why = figures.as_ref().and_then(|figures| figures.error.clone());
            ui.add(Label::new(small(why.unwrap_or_else(|| "The answer failed.".to_owned()), palette.bad)).wrap());
            ui.horizontal(|ui| {
                if context.alive && !context.busy && ui.button("Try again").clicked() {
                    act = Some(Act::Again(message.parent));
                }
                if !context.alive && context.last {
                    if ui.button("Open the model again").clicked() {
                        act = Some(Act::Ask(Command::ReopenModel));
                    }
                    if ui.button("Choose a model").clicked() {
                        act = Some(Act::Ask(Command::Show(Page::Models)));
                    }
                }
            });
        }
        MessageState::Interrupted => {
            muted(ui, "The program ended while this was being written.");
        }
        MessageState::Streaming => {
            muted(ui, "This is being written in another window.");
        }
        MessageState::Complete | MessageState::Stopped | MessageState::Truncated => {}
    }
    ui.horizontal(|ui| {
        ui.spacing_mut().item_spacing.x = 4.0;
        if icon_button(ui, ICON_CONTENT_COPY, "Copy answer").clicked() {
            act = Some(Act::Copy(message.content.clone()));
        }
        if !context.busy {
            if icon_button(ui, ICON_EDIT, "Edit answer").clicked() {
                ui.memory_mut(|memory| memory.request_focus(id_of_change()));
                act = Some(Act::Edit(message.id));
            }
            if icon_button(ui, ICON_REFRESH, "Answer again").clicked() {
                act = Some(Act::Again(message.parent));
            }
            let ended_early = !matches!(message.state, MessageState::Complete | MessageState::Streaming);
            if context.last && ended_early && icon_button(ui, ICON_PLAY_ARROW, "Continue").clicked() {
                act = Some(Act::Resume(message.id));
            }
            act = versions(ui, message, false).or(act.take());
        }
        let mut line = figures.map(|figures| figures.line()).unwrap_or_default();
        if message.edited {
            line.push_str(if line.is_empty() { "edited" } else { "   edited" });
        }
        if !line.is_empty() {
            ui.add_space(4.0);
            ui.label(small(line, palette.muted));
        }
    });
    act
}

/// An answer as plain words on the strength of a neuron; `false` if it is not known of this answer.
fn tinted(ui: &mut Ui, tint: Option<&Tint>, text: &str) -> bool {
    let Some((tint, pieces)) = tint.and_then(|tint| Some((tint, tint.pieces(text)?))) else { return false };
    let palette = Palette::of(ui);
    let colour = if tint.hot { palette.hot } else { palette.cold };
    let font = egui::TextStyle::Body.resolve(ui.style());
    let mut words = LayoutJob::default();
    for (range, strength) in pieces {
        let background =
            if strength > 0.0 { colour.gamma_multiply(0.2 + 0.4 * strength) } else { Color32::TRANSPARENT };
        let format = TextFormat { font_id: font.clone(), color: palette.text, background, ..TextFormat::default() };
        words.append(&text[range], 0.0, format);
    }
    ui.add(Label::new(words).wrap());
    muted(ui, format!("Coloured where {} fires.", tint.name));
    true
}

/// Arrows between the versions of a message; `backwards`: laid out from the right.
fn versions(ui: &mut Ui, message: &Message, backwards: bool) -> Option<Act> {
    let (now, count) = message.version;
    if count < 2 {
        return None;
    }
    let mut act = None;
    let earlier = |ui: &mut Ui, act: &mut Option<Act>| {
        ui.add_enabled_ui(now > 1, |ui| {
            if icon_button(ui, ICON_CHEVRON_LEFT, "Earlier version").clicked() {
                *act = Some(Act::Version(message.id, now - 1));
            }
        });
    };
    let later = |ui: &mut Ui, act: &mut Option<Act>| {
        ui.add_enabled_ui(now < count, |ui| {
            if icon_button(ui, ICON_CHEVRON_RIGHT, "Later version").clicked() {
                *act = Some(Act::Version(message.id, now + 1));
            }
        });
    };
    let number = |ui: &mut Ui| muted(ui, format!("{now}/{count}"));
    if backwards {
        later(ui, &mut act);
        number(ui);
        earlier(ui, &mut act);
    } else {
        earlier(ui, &mut act);
        number(ui);
        later(ui, &mut act);
    }
    act
}

fn edit(ui: &mut Ui, speaker: Speaker, draft: &mut String) -> Option<Act> {
    let palette = Palette::of(ui);
    let (name, keep, note) = match speaker {
        Speaker::User => ("Changed message", "Send again", "A new version; the old one and its answers are kept."),
        Speaker::Assistant => {
            ("Changed answer", "Keep", "The words are replaced; the model will take them for its own.")
        }
    };
    let mut act = None;
    let frame = Frame::new()
        .fill(palette.panel)
        .stroke(egui::Stroke::new(1.0, palette.cold))
        .corner_radius(RADIUS)
        .inner_margin(Margin::same(12));
    frame.show(ui, |ui| {
        ui.set_width(ui.available_width());
        let field = TextEdit::multiline(draft)
            .id(id_of_change())
            .frame(Frame::NONE)
            .desired_rows(2)
            .desired_width(f32::INFINITY);
        let response = ui.add(field);
        response.widget_info(|| egui::WidgetInfo::labeled(egui::Role::MultilineTextInput, true, name));
        ui.horizontal(|ui| {
            let empty = draft.trim().is_empty();
            if ui.add_enabled(!empty, egui::Button::new(RichText::new(keep))).clicked() {
                act = Some(Act::Keep);
            }
            if ui.button("Cancel").clicked() {
                act = Some(Act::Forget);
            }
            muted(ui, note);
        });
    });
    act
}
