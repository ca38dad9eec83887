//! Sends the draft at once, or after the user decided about a message that is too long.

use egui::Ui;

use super::{
    Composer, Conversation,
    over_limit::{self, OverLimitAnswer, Remedies},
};
use crate::{command::Command, shell::Shell};
use thermocline_chats::chat::SamplingOverrides;
use thermocline_host::engine_handle::ModelState;

/// The state of sending the draft.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Delivery {
    /// The draft is not being sent.
    #[default]
    Written,
    /// The draft is sent once its tokens are counted and its files are read.
    Waits,
    /// The draft is too long, and the user is asked what to do.
    Asks,
    /// The draft is sent once the model is open again with this context.
    Enlarges(usize),
}

impl Conversation {
    /// Sends the draft. If it is too long for the context, asks the user what to do. Texts that may
    /// be too long are counted first.
    pub(super) fn send(&mut self, shell: &mut Shell) {
        self.delivery = Delivery::Written;
        let text = self.composer.text.trim().to_owned();
        if text.is_empty() || self.busy(shell) {
            return;
        }
        if self.attaching.is_reading() || !shell.store.is_writable() {
            self.delivery = Delivery::Waits;
            return;
        }
        let context = shell.engine_handle.engine().map(|engine| engine.context());
        if let Some(context) = context {
            let bytes = text.len() + self.branch.iter().map(|message| message.content.len()).sum::<usize>();
            match self.tokens {
                Some(tokens) if tokens.exceed(context) => {
                    self.delivery = Delivery::Asks;
                    return;
                }
                // A token has at least one byte. An uncountable message is sent, and the model says
                // why it cannot answer.
                None if bytes > context / 2 && self.room.is_counting() => {
                    self.delivery = Delivery::Waits;
                    return;
                }
                _ => {}
            }
        }
        self.send_message(&text, shell);
    }

    /// Sends the draft that waits for a larger context.
    pub(super) fn send_with_larger_context(&mut self, shell: &mut Shell) {
        let Delivery::Enlarges(wanted) = self.delivery else { return };
        match shell.engine_handle.state() {
            ModelState::Ready { engine, .. } if engine.context() >= wanted => {
                self.delivery = Delivery::Written;
                let text = self.composer.text.trim().to_owned();
                self.send_message(&text, shell);
            }
            ModelState::Failed { .. } | ModelState::Empty => self.delivery = Delivery::Written,
            _ => {}
        }
    }

    /// Asks what to do with a message that is too long.
    pub(super) fn ask(&mut self, ui: &mut Ui, shell: &mut Shell) {
        let (ModelState::Ready { model, engine }, Some(tokens)) = (shell.engine_handle.state(), self.tokens) else {
            self.delivery = Delivery::Written;
            return;
        };
        let choices = SamplingOverrides::from_json(self.chat.as_ref().and_then(|chat| chat.sampling.as_deref()));
        let moves = !self.branch.is_empty() && self.attaching.draft().next().is_none();
        match over_limit::ask(ui, &engine, tokens, Remedies { stops: choices.stop_when_full, moves }) {
            None => return,
            Some(OverLimitAnswer::Shorten) => self.composer.focus = true,
            Some(OverLimitAnswer::Forget) => {
                let text = self.composer.text.trim().to_owned();
                self.send_message(&text, shell);
            }
            Some(OverLimitAnswer::NewChat) => self.send_in_new_chat(shell),
            Some(OverLimitAnswer::Enlarge(context)) => {
                shell.model_settings(&model).context = Some(context);
                shell.queue_command(Command::ReopenModel);
                self.delivery = Delivery::Enlarges(context);
                return;
            }
        }
        self.delivery = Delivery::Written;
    }

    /// Sends the draft as the first message of a new chat.
    fn send_in_new_chat(&mut self, shell: &mut Shell) {
        let text = self.composer.text.trim().to_owned();
        if let Some(chat) = &self.chat {
            shell.toasts.check(shell.store.set_draft(chat.id, ""));
        }
        self.close(shell);
        // The text stays in the field if it cannot be sent.
        self.composer = Composer::new(&text);
        self.send_message(&text, shell);
    }

    /// Sends `text` after the last message of the chat.
    pub(super) fn send_message(&mut self, text: &str, shell: &mut Shell) {
        let Some(id) = self.ensure_chat(shell) else { return };
        self.read(shell);
        let parent = self.branch.last().map(|message| message.id);
        if shell.toasts.check(shell.chat_controller.send_message(&mut shell.store, id, parent, text)).is_some() {
            self.composer = Composer::new("");
            shell.toasts.check(shell.store.set_draft(id, ""));
        }
        self.refresh(shell);
        self.rows.go_to_end();
    }
}
