//! One message of the chat, with its actions.

use egui::{Align, Label, Layout, Margin, TextFormat, Ui, text::LayoutJob};
use egui_material_icons::icons::{
    ICON_CHEVRON_LEFT, ICON_CHEVRON_RIGHT, ICON_CONTENT_COPY, ICON_EDIT, ICON_PLAY_ARROW, ICON_REFRESH,
    ICON_TROUBLESHOOT,
};

use super::{
    blocks::MessageBlocks,
    chips,
    message_action::MessageAction,
    message_change::{self, MessageChange},
    thumbnails::Thumbnails,
    tool_calls,
};
use crate::{
    command::{Command, Page},
    neurons::Tint,
};
use thermocline_chats::{
    chat::AnswerProgress,
    store::{Attachment, MessageState, PassageRanking, Source, Speaker, Store, StoredMessage},
};
use thermocline_host::answer_stats::AnswerStats;
use thermocline_rich_text::{
    theme::{Palette, RADIUS},
    widgets::{icon_button, icon_button_with, muted, outlined, sentence, small},
};

/// Explanation of the line that shows how much an answer read.
const READS_HELP: &str = "FFN neurons that do not fire are not read. The figures do not include attention. Use a race to see \
    how much time this saves.";

/// The values that a message is drawn with.
pub struct MessageContext<'a> {
    /// The message.
    pub message: &'a StoredMessage,
    /// The progress of the message, if it is the answer being written.
    pub progress: Option<AnswerProgress<'a>>,
    /// True while an answer is being written in the chat, here or in another window. Nothing can be
    /// changed then.
    pub busy: bool,
    /// True if an answer shows its model's name. An answer that continues after tool results does
    /// not.
    pub named: bool,
    /// True for the last message.
    pub last: bool,
    /// True if an open model can answer.
    pub alive: bool,
    /// Why the open model cannot say which neurons made the answer's words. `None` if it can.
    pub unexplained: Option<&'a str>,
    /// The neuron whose activations tint the answer's words.
    pub tint: Option<&'a Tint>,
    /// The token that the map holds.
    pub mark: Option<&'a Tint>,
    /// The message's files.
    pub files: &'a [&'a Attachment],
    pub thumbnails: &'a Thumbnails,
    /// Files and passages that the model was given with the message, or for the answer.
    pub sources: &'a [Source],
    /// How the passages were ranked.
    pub ranking: Option<&'a PassageRanking>,
    /// The store. It also converts times to local time.
    pub store: &'a Store,
}

/// Shows a message. `blocks` are the blocks of its text, `change` is its edited text.
pub fn show(
    ui: &mut Ui,
    context: &MessageContext<'_>,
    blocks: &mut MessageBlocks,
    change: Option<&mut MessageChange>,
) -> Option<MessageAction> {
    match (change, context.message.speaker) {
        (_, Speaker::Tool) => tool_calls::result(ui, context.message),
        (Some(change), _) => change.show(ui, context.message.speaker),
        (None, Speaker::User) => user(ui, context, blocks),
        (None, Speaker::Assistant) => assistant(ui, context, blocks),
    }
}

fn user(ui: &mut Ui, context: &MessageContext<'_>, blocks: &mut MessageBlocks) -> Option<MessageAction> {
    let (palette, message) = (Palette::of(ui), context.message);
    let opened = chips::sent(ui, context);
    let widest = ui.available_width() * 0.8 - 32.0;
    let words = blocks.plain(&message.content);
    let width = words.natural_width(ui).min(widest.floor()) + 1.0;
    ui.horizontal_top(|ui| {
        ui.add_space((ui.available_width() - width - 32.0).max(0.0));
        let frame = outlined(palette.raised, palette.line, Margin::symmetric(16, 12)).corner_radius(RADIUS + 4);
        frame.show(ui, |ui| {
            ui.set_width(width);
            words.show(ui, true);
        });
    });
    let mut act = None;
    let row = egui::vec2(ui.available_width(), 24.0);
    ui.allocate_ui_with_layout(row, Layout::right_to_left(Align::Center), |ui| {
        ui.spacing_mut().item_spacing.x = 4.0;
        act = copy_and_edit(ui, context, "message");
        if !context.busy {
            act = versions(ui, message, true).or(act.take());
        }
    });
    opened.map(MessageAction::Picture).or(act)
}

/// Shows the buttons that every message has. `name` is the name of the message in their labels.
fn copy_and_edit(ui: &mut Ui, context: &MessageContext<'_>, name: &str) -> Option<MessageAction> {
    let (message, mut act) = (context.message, None);
    let when = if message.speaker == Speaker::User { "Sent" } else { "Started" };
    let dated = |ui: &mut Ui| date(ui, context, when);
    if icon_button_with(ui, ICON_CONTENT_COPY, &format!("Copy {name}"), dated).clicked() {
        act = Some(MessageAction::Copy(message.content.clone()));
    }
    if !context.busy && icon_button(ui, ICON_EDIT, &format!("Edit {name}")).clicked() {
        ui.memory_mut(|memory| memory.request_focus(message_change::id()));
        act = Some(MessageAction::Edit(message.id));
    }
    act
}

fn assistant(ui: &mut Ui, context: &MessageContext<'_>, blocks: &mut MessageBlocks) -> Option<MessageAction> {
    let (palette, message) = (Palette::of(ui), context.message);
    ui.set_width(ui.available_width());
    if let Some(model) = message.model.as_deref().filter(|_| context.named) {
        let name = ui.add(Label::new(small(model, palette.muted)).truncate());
        name.on_hover_ui(|ui| date(ui, context, "Started"));
    }
    if let Some(progress) = &context.progress {
        if !tinted(ui, context, progress.content) {
            blocks.update(progress.content, progress.ended);
            blocks.show(ui);
        }
        let line = match (progress.prompt, progress.figures) {
            _ if progress.waits => "Waiting for the model …".to_owned(),
            (Some((done, total)), _) if progress.content.is_empty() => {
                format!("Reading the chat: {done} of {total} tokens")
            }
            (_, Some(figures)) if figures.generated_tokens > 0 => figures.line(),
            _ => "Thinking …".to_owned(),
        };
        muted(ui, line);
        if let Some(why) = progress.unsaved {
            let text = format!("the answer is not saved yet: {why}. Thermocline retries every few seconds");
            ui.add(Label::new(small(sentence(text), palette.bad)).wrap());
        }
        return None;
    }
    if !tinted(ui, context, &message.content) {
        blocks.update(&message.content, true);
        blocks.show(ui);
    }
    chips::sources(ui, context.sources, context.ranking);
    let figures = AnswerStats::from_json(message.stats.as_deref());
    let mut act = None;
    match message.state {
        MessageState::Failed => {
            let why = figures.as_ref().and_then(|figures| figures.error.clone());
            ui.add(Label::new(small(why.unwrap_or_else(|| "The answer failed.".to_owned()), palette.bad)).wrap());
            ui.horizontal(|ui| {
                if context.alive && !context.busy && ui.button("Try again").clicked() {
                    act = Some(MessageAction::Again(message.parent));
                }
                if !context.alive && context.last {
                    if ui.button("Open the model again").clicked() {
                        act = Some(MessageAction::Ask(Command::ReopenModel));
                    }
                    if ui.button("Choose a model").clicked() {
                        act = Some(MessageAction::Ask(Command::Show(Page::Models)));
                    }
                }
            });
        }
        MessageState::Interrupted => {
            muted(ui, "Thermocline closed before this answer was complete.");
        }
        MessageState::Streaming => {
            muted(ui, "Another window is writing this answer.");
        }
        MessageState::Complete | MessageState::Stopped | MessageState::Truncated => {}
    }
    // After tool calls, the answer continues below the calls' results.
    if !message.calls().is_empty() {
        if context.busy || !context.last {
            return act;
        }
        tool_calls::stopped(ui, message.calls());
    }
    footer(ui, context, figures).or(act)
}

/// Shows the date of a message after a word for its event.
fn date(ui: &mut Ui, context: &MessageContext<'_>, what: &str) {
    if let Ok(date) = context.store.local_time(context.message.created) {
        muted(ui, format!("{what} {date}"));
    }
}

/// Shows the actions on an answer and its statistics.
fn footer(ui: &mut Ui, context: &MessageContext<'_>, figures: Option<AnswerStats>) -> Option<MessageAction> {
    let (palette, message, mut act) = (Palette::of(ui), context.message, None);
    let row = ui.horizontal(|ui| {
        ui.spacing_mut().item_spacing.x = 4.0;
        act = copy_and_edit(ui, context, "answer");
        if !context.busy {
            if icon_button(ui, ICON_REFRESH, "Answer again").clicked() {
                act = Some(MessageAction::Again(message.parent));
            }
            let ended_early = !matches!(message.state, MessageState::Complete | MessageState::Streaming);
            if context.last && ended_early && icon_button(ui, ICON_PLAY_ARROW, "Continue").clicked() {
                act = Some(MessageAction::Resume(message.id));
            }
            act = magnifier(ui, context).or(act.take());
            act = versions(ui, message, false).or(act.take());
        }
        // The statistics of an edited answer belong to its old text.
        let figures = figures.filter(|_| !message.edited);
        let reads = figures.as_ref().and_then(AnswerStats::reads_line);
        let line = match &figures {
            _ if message.edited => "edited".to_owned(),
            Some(figures) => figures.line(),
            None if message.state == MessageState::Stopped => "stopped".to_owned(),
            None => String::new(),
        };
        if !line.is_empty() {
            ui.add_space(4.0);
            ui.label(small(line, palette.muted)).on_hover_ui(|ui| {
                date(ui, context, "Started");
                if reads.is_some() {
                    ui.label(READS_HELP);
                }
            });
        }
        reads
    });
    if let Some(reads) = row.inner {
        ui.add(Label::new(small(reads, palette.muted)).wrap()).on_hover_text(READS_HELP);
    }
    act
}

/// The button that shows an answer word by word. Disabled, with the reason, if the open model did
/// not write the answer.
fn magnifier(ui: &mut Ui, context: &MessageContext<'_>) -> Option<MessageAction> {
    let button = |ui: &mut Ui| icon_button(ui, ICON_TROUBLESHOOT, "Which neurons made these words?");
    let shown = ui.add_enabled_ui(context.unexplained.is_none(), button).inner;
    let clicked = shown.clicked();
    if let Some(why) = context.unexplained {
        shown.on_disabled_hover_text(why);
    }
    clicked.then_some(MessageAction::Words(context.message.id))
}

/// Shows an answer as plain words, tinted by a neuron's activation or with the token marked that
/// the map holds. `false` if the answer contains neither.
fn tinted(ui: &mut Ui, context: &MessageContext<'_>, text: &str) -> bool {
    let palette = Palette::of(ui);
    let mut tints = context.tint.into_iter().chain(context.mark);
    let Some((tint, pieces)) = tints.find_map(|tint| Some((tint, tint.marks(text)?))) else { return false };
    let font = egui::TextStyle::Body.resolve(ui.style());
    let mut words = LayoutJob::default();
    for (range, strength) in pieces {
        let background = tint.colour(&palette, strength);
        let format = TextFormat { font_id: font.clone(), color: palette.text, background, ..TextFormat::default() };
        words.append(&text[range], 0.0, format);
    }
    ui.add(Label::new(words).wrap());
    muted(ui, tint.sentence());
    true
}

/// Arrows between the versions of a message. `backwards` lays them out from the right.
fn versions(ui: &mut Ui, message: &StoredMessage, backwards: bool) -> Option<MessageAction> {
    let (now, count) = message.version;
    if count < 2 {
        return None;
    }
    let mut act = None;
    let mut arrow = |ui: &mut Ui, icon, name: &str, to: usize| {
        ui.add_enabled_ui((1..=count).contains(&to), |ui| {
            if icon_button(ui, icon, name).clicked() {
                act = Some(MessageAction::Version(message.id, to));
            }
        });
    };
    let earlier = (ICON_CHEVRON_LEFT, "Earlier version", now - 1);
    let later = (ICON_CHEVRON_RIGHT, "Later version", now + 1);
    let (first, last) = if backwards { (later, earlier) } else { (earlier, later) };
    arrow(ui, first.0, first.1, first.2);
    muted(ui, format!("{now}/{count}"));
    arrow(ui, last.0, last.1, last.2);
    act
}
