//! An edit of a message, until the user keeps or discards it.

use egui::{
    EventFilter, Frame, Id, Label, Margin, RichText, TextStyle, Ui,
    accesskit::{Live, Role},
};

use super::message_action::MessageAction;
use thermocline_chats::store::{MessageId, Speaker, StoredMessage};
use thermocline_rich_text::{
    text::{Edition, TextField},
    theme::Palette,
    widgets::{muted, outlined, small, wide},
};

/// The note about an edit that Escape has not discarded. It stands below the edit, because a notice
/// over the page would cover it.
const NOT_KEPT: &str = "Your change is not saved yet. Keep it, or discard it with Cancel.";

/// Id of the text field of the edit.
pub fn id() -> Id {
    Id::unique("message being changed")
}

/// A message that is being edited.
#[derive(Debug)]
pub struct MessageChange {
    /// The edited message.
    pub id: MessageId,
    /// The edited text.
    pub text: String,
    edition: Edition,
    /// True if Escape was pressed. Escape does not discard an edit.
    held: bool,
}

impl MessageChange {
    /// Creates an edit that begins with the message's own text.
    pub fn new(message: &StoredMessage) -> Self {
        MessageChange { id: message.id, text: message.content.clone(), edition: Edition::default(), held: false }
    }

    /// True if the text differs from the message in `branch`.
    pub fn differs(&self, branch: &[StoredMessage]) -> bool {
        branch.iter().any(|message| message.id == self.id && message.content != self.text)
    }

    /// Keeps the edit open after Escape, and shows a note.
    pub fn hold(&mut self, ui: &Ui) {
        self.held = true;
        ui.memory_mut(|memory| memory.request_focus(id()));
    }

    /// Shows the edit in place of the message of this speaker.
    pub fn show(&mut self, ui: &mut Ui, speaker: Speaker) -> Option<MessageAction> {
        let palette = Palette::of(ui);
        let (name, keep, note) = match speaker {
            Speaker::User => ("Changed message", "Send again", "A new version; the old one and its answers are kept."),
            Speaker::Assistant | Speaker::Tool => {
                ("Changed answer", "Keep", "A new version; the old one is kept. The model will treat it as its own.")
            }
        };
        let mut act = None;
        wide(ui, outlined(palette.panel, palette.cold, Margin::same(12)), |ui| {
            let font = TextStyle::Body.resolve(ui.style());
            let response = TextField::lines(id(), font).of(self.edition).show(ui, &mut self.text, |field| {
                field.frame(Frame::NONE).desired_rows(2).desired_width(f32::INFINITY)
            });
            // Without this filter, Escape would take the focus before the field reads letters typed
            // in the same frame.
            let filter =
                EventFilter { horizontal_arrows: true, vertical_arrows: true, escape: true, ..EventFilter::default() };
            ui.memory_mut(|memory| memory.set_focus_lock_filter(id(), filter));
            response.widget_info(|| egui::WidgetInfo::labeled(egui::Role::MultilineTextInput, true, name));
            ui.horizontal(|ui| {
                let empty = self.text.trim().is_empty();
                if ui.add_enabled(!empty, egui::Button::new(RichText::new(keep))).clicked() {
                    act = Some(MessageAction::Keep);
                }
                if ui.button("Cancel").clicked() {
                    act = Some(MessageAction::Forget);
                }
                muted(ui, note);
            });
            if self.held {
                let said = ui.add(Label::new(small(NOT_KEPT, palette.amber)).wrap());
                ui.accesskit_node_builder(said.id, |node| {
                    node.set_role(Role::Alert);
                    node.set_label(NOT_KEPT);
                    node.set_live(Live::Polite);
                });
            }
        });
        act
    }
}
