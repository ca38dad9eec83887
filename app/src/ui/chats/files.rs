//! Files of chats. The system's dialogs wait for the user, so that they do it in a thread of their own; it is they who ask
//! before a file is overwritten.

use std::{
    fs,
    path::PathBuf,
    sync::mpsc::{Receiver, TryRecvError, channel},
    thread,
};

use crate::{
    files,
    store::{ChatId, exchange},
    ui::{command::Command, shell::Shell},
};

/// What came of a dialog.
enum Done {
    /// Chats to be added, and the file they are from.
    Read(PathBuf, String),
    /// A file was written.
    Written(PathBuf),
    /// It did not work, for this reason.
    Failed(String),
    /// The user has thought better of it.
    Nothing,
}

/// The dialog that is open.
#[derive(Default)]
pub struct Files {
    dialog: Option<Receiver<Done>>,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("open", &self.dialog.is_some()).finish()
    }
}

impl Files {
    /// Takes what came of the dialog.
    pub fn tick(&mut self, shell: &mut Shell) {
        let done = match &self.dialog {
            None => return,
            Some(dialog) => match dialog.try_recv() {
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => Done::Nothing,
                Ok(done) => done,
            },
        };
        self.dialog = None;
        match done {
            Done::Nothing => {}
            Done::Failed(why) => shell.complain(why),
            Done::Written(path) => {
                shell.toasts.success(format!("Written to {}", path.display()));
            }
            Done::Read(path, text) => {
                let imported = shell.store.import(&text).map_err(|error| format!("{}: {error}", path.display()));
                if let Some(chats) = shell.hear(imported) {
                    shell.toasts.success(format!("{} chats were imported", chats.len()));
                    if let Some(first) = chats.first() {
                        shell.ask(Command::OpenChat(*first));
                    }
                }
            }
        }
    }

    /// Writes the branch of a chat that is shown as Markdown.
    pub fn export_markdown(&mut self, id: ChatId, shell: &mut Shell) {
        if let Some((title, text)) = markdown(id, shell) {
            self.save(file_name(&title, "md"), "Markdown", "md", text);
        }
    }

    /// Writes chats with all their branches as JSON.
    pub fn export_json(&mut self, ids: &[ChatId], title: &str, shell: &mut Shell) {
        let text = shell.store.export(ids);
        if let Some(text) = shell.hear(text) {
            self.save(file_name(title, "json"), "JSON", "json", text);
        }
    }

    fn save(&mut self, name: String, kind: &'static str, extension: &'static str, text: String) {
        self.ask(move || {
            let dialog = rfd::FileDialog::new().set_file_name(name).add_filter(kind, &[extension]);
            match dialog.save_file() {
                None => Done::Nothing,
                Some(path) => match files::write(&path, text.as_bytes()) {
                    Ok(()) => Done::Written(path),
                    Err(error) => Done::Failed(format!("writing {}: {error}", path.display())),
                },
            }
        });
    }

    /// Reads a JSON file of chats.
    pub fn import(&mut self) {
        self.ask(|| match rfd::FileDialog::new().add_filter("JSON", &["json"]).pick_file() {
            None => Done::Nothing,
            Some(path) => match fs::read_to_string(&path) {
                Ok(text) => Done::Read(path, text),
                Err(error) => Done::Failed(format!("reading {}: {error}", path.display())),
            },
        });
    }

    fn ask(&mut self, work: impl FnOnce() -> Done + Send + 'static) {
        if self.dialog.is_some() {
            return;
        }
        let (send, receive) = channel();
        // Nobody waits any more if it cannot be sent.
        let begun = thread::Builder::new().name("file-dialog".to_owned()).spawn(move || drop(send.send(work())));
        self.dialog = begun.is_ok().then_some(receive);
    }
}

/// A chat's title, and the branch of it that is shown, as Markdown.
pub fn markdown(id: ChatId, shell: &mut Shell) -> Option<(String, String)> {
    let read = shell.store.chat(id).and_then(|chat| Ok((shell.store.branch(id)?, chat)));
    let (branch, chat) = shell.hear(read)?;
    let text = exchange::markdown(&chat, &branch);
    Some((chat.title, text))
}

/// A file name for a title, of letters that every system allows.
fn file_name(title: &str, extension: &str) -> String {
    let allowed = |c: char| if c.is_control() || r#"<>:"/\|?*"#.contains(c) { '-' } else { c };
    let name: String = title.chars().map(allowed).take(60).collect();
    let name = name.trim_matches(|c: char| c == '.' || c.is_whitespace());
    format!("{}.{extension}", if name.is_empty() { "chat" } else { name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_allowed_everywhere() {
        assert_eq!(file_name("a/b: \"c\"?\n", "md"), "a-b- -c---.md");
        assert_eq!(file_name(" ..", "json"), "chat.json");
    }
}
