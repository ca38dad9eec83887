//! From what is written to what is sent: at once, or after it was asked what to do with a message that is too long.

use egui::Ui;

use super::{
    Composer, Conversation,
    over_limit::{self, OverLimitAnswer, Remedies},
};
use crate::{
    chat::SamplingOverrides,
    engine_handle::ModelState,
    ui::{command::Command, shell::Shell},
};

impl Conversation {
    /// Sends what is written, unless it is too long for the context: then it is asked what to do. Texts that may be too long are
    /// counted first.
    pub(super) fn send(&mut self, shell: &mut Shell) {
        self.sending = false;
        let text = self.composer.text().trim().to_owned();
        if text.is_empty() || self.busy(shell) {
            return;
        }
        if self.attaching.is_reading() || !shell.store.is_writable() {
            self.sending = true;
            return;
        }
        let context = shell.engine_handle.engine().map(|engine| engine.context());
        if let Some(context) = context {
            let bytes = text.len() + self.branch.iter().map(|message| message.content.len()).sum::<usize>();
            match self.tokens {
                Some(tokens) if tokens.exceed(context) => {
                    self.asking = true;
                    return;
                }
                // Tokens have at least one byte. What cannot be counted is sent: the model says why it cannot answer.
                None if bytes > context / 2 && self.room.is_counting() => {
                    self.sending = true;
                    return;
                }
                _ => {}
            }
        }
        self.send_message(&text, shell);
    }

    /// Sends the message that waits for a larger context.
    pub(super) fn send_with_larger_context(&mut self, shell: &mut Shell) {
        let Some(wanted) = self.reopening else { return };
        match shell.engine_handle.state() {
            ModelState::Ready { engine, .. } if engine.context() >= wanted => {
                self.reopening = None;
                let text = self.composer.text().trim().to_owned();
                self.send_message(&text, shell);
            }
            ModelState::Failed { .. } | ModelState::Empty => self.reopening = None,
            _ => {}
        }
    }

    /// Asks what to do with a message that is too long.
    pub(super) fn ask(&mut self, ui: &mut Ui, shell: &mut Shell) {
        let (ModelState::Ready { model, engine }, Some(tokens)) = (shell.engine_handle.state(), self.tokens) else {
            self.asking = false;
            return;
        };
        let choices = SamplingOverrides::from_json(self.chat.as_ref().and_then(|chat| chat.sampling.as_deref()));
        let moves = !self.branch.is_empty() && self.attaching.draft().next().is_none();
        match over_limit::ask(ui, &engine, tokens, Remedies { stops: choices.stop_when_full, moves }) {
            None => return,
            Some(OverLimitAnswer::Shorten) => self.composer.focus(),
            Some(OverLimitAnswer::Forget) => {
                let text = self.composer.text().trim().to_owned();
                self.send_message(&text, shell);
            }
            Some(OverLimitAnswer::NewChat) => self.send_in_new_chat(shell),
            Some(OverLimitAnswer::Enlarge(context)) => {
                shell.model_settings(&model).context = Some(context);
                shell.queue_command(Command::ReopenModel);
                self.reopening = Some(context);
            }
        }
        self.asking = false;
    }

    /// Sends what is written as the first message of a new chat.
    fn send_in_new_chat(&mut self, shell: &mut Shell) {
        let text = self.composer.text().trim().to_owned();
        if let Some(chat) = &self.chat {
            let moved = shell.store.set_draft(chat.id, "");
            shell.ok_or_show_error(moved);
        }
        self.close(shell);
        // It stays in the field if it cannot be sent.
        self.composer = Composer::new(&text);
        self.send_message(&text, shell);
    }

    /// Sends `text` behind the last message of the chat.
    pub(super) fn send_message(&mut self, text: &str, shell: &mut Shell) {
        let Some(id) = self.ensure_chat(shell) else { return };
        self.read(shell);
        let parent = self.branch.last().map(|message| message.id);
        let said = shell.chat_controller.send_message(&mut shell.store, &shell.engine_handle, id, parent, text);
        if shell.ok_or_show_error(said).is_some() {
            self.composer = Composer::new("");
            self.composer.focus();
            self.changed = None;
            let kept = shell.store.set_draft(id, "");
            shell.ok_or_show_error(kept);
        }
        self.refresh(shell);
        self.rows.go_to_end();
    }
}
