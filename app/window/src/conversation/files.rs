//! The draft's files: stored when they are read, and fitted into the context.

use std::path::PathBuf;

use egui::Context;

use super::{Conversation, attaching::is_counted, context_room::number};
use crate::shell::Shell;
use thermocline_chats::{
    chat::given::{FilePart, FileParts, Measure, Question},
    store::{Attachment, AttachmentId},
};

/// The parts of files that the model will be given, and a fingerprint of the inputs of that
/// decision.
#[derive(Debug, Default)]
pub struct DecidedParts {
    of: u64,
    parts: FileParts,
}

impl Conversation {
    /// Attaches a file to the draft. A background thread reads it first.
    pub fn attach(&mut self, path: PathBuf) {
        self.attaching.add(path);
        self.composer.focus = true;
    }

    /// Stores the files that were read with their chats.
    pub(super) fn take_files(&mut self, ctx: &Context, shell: &mut Shell) {
        while let Some(read) = self.attaching.take(ctx) {
            let document = read.document.map_err(|why| format!("not attached: {why}"));
            let Some(document) = shell.toasts.check(document) else { continue };
            let Some(chat) = read.chat.or_else(|| self.ensure_chat(shell)) else { continue };
            shell.toasts.check(shell.store.attach(chat, &document));
            if self.chat.as_ref().is_some_and(|shown| shown.id == chat) {
                self.refresh(shell);
                self.composer.focus = true;
            }
        }
    }

    /// The parts of the files that the model will be given with the draft. `None` until the model
    /// of this key has counted the files.
    pub(super) fn parts(&mut self, shell: &Shell, key: Option<&str>) -> Option<FileParts> {
        let (engine, key, tokens) = (shell.engine_handle.engine()?, key?, self.tokens?);
        let files: Vec<&Attachment> = self.attaching.draft().collect();
        let sees_pictures = engine.tower().is_some();
        if !files.iter().all(|file| is_counted(file, key, sees_pictures)) {
            return None;
        }
        let of_branch = self.branch.iter().flat_map(|message| self.attaching.of(message.id));
        let long: Vec<AttachmentId> = of_branch.filter(|file| file.whole == Some(false)).map(|file| file.id).collect();
        if files.is_empty() && long.is_empty() {
            return Some(FileParts::default());
        }
        let text = self.composer.text.trim();
        let above = tokens.all - tokens.draft;
        let ids: Vec<AttachmentId> = files.iter().map(|file| file.id).collect();
        let of = number((key, engine.context(), sees_pictures, text, above, ids, &long));
        if self.parts.of != of {
            let question = Question { text, above, files: &files, long: &long };
            let parts = question.parts(&shell.store, &Measure::engine(&engine, key, &[])).ok()?;
            // Vectors are computed while the message is being written.
            let own = files.iter().zip(&parts.each).filter(|(_, part)| **part != FilePart::Whole);
            let own = own.filter(|(file, _)| file.size > 0).map(|(file, _)| file.id);
            let files: Vec<AttachmentId> = own.chain(long.iter().copied()).collect();
            if !files.is_empty() {
                shell.chat_controller.meaning().prepare(&shell.store, &files);
            }
            self.parts = DecidedParts { of, parts };
        }
        Some(self.parts.parts.clone())
    }
}
