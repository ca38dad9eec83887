//! The composer of the shown chat: its token count, its files, and the model that will answer.

use egui::Ui;

use super::{
    Conversation,
    chips::{DraftFiles, Removed},
    composer::{ComposerAction, ComposerState, ComposerView, ContextFill},
    context_room::NextPrompt,
    sending::Delivery,
    tool_choices::tools_help,
};
use crate::shell::Shell;
use thermocline_chats::{
    chat::{
        SamplingOverrides,
        given::{self, MessageContent},
    },
    store::StoredMessage,
};
use thermocline_host::{answer_stats::AnswerStats, engine_handle::ModelState};

impl Conversation {
    /// Shows the composer with the content above it. Returns the user's action.
    pub(super) fn compose(&mut self, ui: &mut Ui, shell: &mut Shell) -> Option<ComposerAction> {
        let system = self.chat.as_ref().map(|chat| chat.system_prompt.clone()).unwrap_or_default();
        let draft = self.composer.text.trim();
        let key = match shell.engine_handle.state() {
            ModelState::Ready { model, engine } => {
                let key = given::counting_key(&model.key(), &engine);
                shell.toasts.check(self.attaching.count(ui, &mut shell.store, &engine, &key));
                Some(key)
            }
            _ => None,
        };
        let chat = self.chat.as_ref().map(|chat| chat.id);
        let with_tools = self.chat.as_ref().is_some_and(|chat| chat.tools);
        let offered = match shell.chat_controller.tools() {
            Some(tools) if with_tools => tools.offered(),
            _ => Vec::new(),
        };
        let definitions = || offered.iter().map(|offered| offered.tool.definition(&offered.name)).collect();
        let tools_help = tools_help(shell, with_tools, &offered);
        self.tokens = match shell.engine_handle.engine() {
            Some(engine) if !self.busy(shell) => {
                let (store, branch) = (&shell.store, &self.branch);
                let path: Vec<&StoredMessage> = branch.iter().collect();
                let said = || branch.iter().map(|message| MessageContent::text(&message.content)).collect();
                let sees = engine.tower().is_some();
                let contents = |chat| given::contents(store, chat, &path, sees).ok();
                let contents = || chat.and_then(contents).unwrap_or_else(said);
                let prompt = NextPrompt { branch, system: &system, tools: offered.len(), draft };
                self.room.count(ui, &engine, prompt, definitions, (self.attaching.given(), sees), contents)
            }
            _ => None,
        };
        shell.passage_models.wanted |= self.attaching.shown().any(|file| file.size > 0);
        let parts = self.parts(shell, key.as_deref());
        if let Some((tokens, parts)) = self.tokens.as_mut().zip(parts.as_ref()) {
            (tokens.draft, tokens.all) = (tokens.draft + parts.tokens, tokens.all + parts.tokens);
        }
        let files = parts.as_ref().map_or(0, |parts| parts.tokens);
        let fill = self.fill(ui, shell, files);
        if self.delivery == Delivery::Asks {
            self.ask(ui, shell);
        }
        let (model, base) = self.model(shell);
        let choices = SamplingOverrides::from_json(self.chat.as_ref().and_then(|chat| chat.sampling.as_deref()));
        let sampling = choices.apply_to(base);
        let summary = format!("Temperature {:.2}   Top-p {:.2}", sampling.temperature, sampling.top_p);
        let hint = model.map_or("Write a message".to_owned(), |model| format!("Message {model}"));
        let state = match () {
            () if self.busy(shell) => ComposerState::Answering,
            () if self.is_elsewhere(shell) => ComposerState::AnsweringElsewhere,
            () => ComposerState::Ready,
        };
        let files: Vec<_> = self.attaching.draft().collect();
        let unread: Vec<String> = self.attaching.unread().collect();
        let ranking = shell.chat_controller.meaning().ranking();
        let draft = DraftFiles {
            files: &files,
            thumbnails: &self.thumbnails,
            key: key.as_deref(),
            parts: parts.as_ref(),
            unread: &unread,
            ranking: &ranking,
        };
        let mut removed = None;
        let above = |ui: &mut Ui| removed = draft.show(ui);
        let view = ComposerView { hint: &hint, summary: &summary, fill, with_tools, tools_help: &tools_help, state };
        let action = self.composer.show(ui, view, above);
        if let Some(removed) = removed {
            self.remove_file(removed, shell);
        }
        action
    }

    /// The fill of the context: tokens of the next prompt, including the draft. If they are not
    /// counted yet, uses the figures of the running or latest answer. `files` are the tokens of
    /// attached files.
    fn fill(&mut self, ui: &Ui, shell: &Shell, files: usize) -> Option<ContextFill> {
        let engine = shell.engine_handle.engine()?;
        let (length, text) = (engine.context(), self.composer.text.trim());
        let is_written = !text.is_empty() || self.attaching.draft().next().is_some();
        if let Some(tokens) = self.tokens {
            return Some(ContextFill { used: tokens.used(), draft: is_written.then_some(tokens.draft), length });
        }
        let draft = self.room.count_draft(ui, &engine, text).map(|draft| draft + files).filter(|_| is_written);
        let progress = self.chat.as_ref().and_then(|chat| shell.chat_controller.progress(chat.id));
        let last = || self.branch.iter().rev().find_map(|message| AnswerStats::from_json(message.stats.as_deref()));
        let figures = progress.and_then(|progress| progress.figures.cloned()).or_else(last);
        let used = figures.map_or(0, |figures| figures.context_used) + draft.unwrap_or(0);
        Some(ContextFill { used, draft, length })
    }

    /// Removes a file from the draft.
    fn remove_file(&mut self, removed: Removed, shell: &mut Shell) {
        match removed {
            Removed::Unread => self.attaching.forget_unread(),
            Removed::File(id) => {
                shell.toasts.check(shell.store.detach(id));
                self.refresh(shell);
            }
        }
        self.composer.focus = true;
    }
}
