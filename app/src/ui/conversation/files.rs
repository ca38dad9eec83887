//! The files that go with the message being written: taken when they are read, and fitted into the context.

use std::path::PathBuf;

use egui::Context;

use super::{Conversation, chips::Fits};
use crate::ui::shell::Shell;

impl Conversation {
    /// Has a file go with the message being written, once it is read.
    pub fn attach(&mut self, path: PathBuf) {
        self.attaching.add(path);
        self.composer.focus();
    }

    /// Keeps files that were read with the chat.
    pub(super) fn take_files(&mut self, ctx: &Context, shell: &mut Shell) {
        while let Some(read) = self.attaching.take(ctx) {
            let read = read.map_err(|why| format!("not attached: {why}"));
            let Some(document) = shell.ok_or_show_error(read) else { continue };
            let Some(chat) = self.ensure_chat(shell) else { continue };
            let attached = shell.store.attach(chat, &document);
            shell.ok_or_show_error(attached);
            self.refresh(shell);
            self.composer.focus();
        }
    }

    /// The parts of the files that the model will be given, as far as they are counted for the model of this key.
    pub(super) fn fits(&self, shell: &Shell, key: Option<&str>) -> Fits {
        let (Some(engine), Some(key), Some(tokens)) = (shell.engine_handle.engine(), key, self.tokens) else {
            return Fits::default();
        };
        let files: Vec<Option<usize>> = self.attaching.draft().map(|file| file.tokens_for(key)).collect();
        Fits::new(&files, engine.context(), tokens.all)
    }
}
