//! Files of chats. The system's dialogs wait for the user, so that they do it beside the window; it is they who ask before a
//! file is overwritten.

use std::{
    fs,
    path::{Path, PathBuf},
};

use egui::Context;
use thermocline_engine::files;

use crate::{
    store::{
        ChatId,
        import_export::{self, FileFormat},
    },
    ui::{background::Background, command::Command, shell::Shell},
};

/// The outcome of a file dialog or of dropped files.
#[derive(Debug)]
enum Done {
    /// Chats to be added, and the files they are from; or why a file could not be read.
    Read(Vec<(PathBuf, Result<String, String>)>),
    /// A file was written.
    Written(PathBuf),
    /// It did not work, for this reason.
    Failed(String),
    /// The user has thought better of it.
    Nothing,
}

/// The dialog that is open, and files that wait for its end.
#[derive(Debug, Default)]
pub struct Files {
    work: Background<Done>,
    dropped: Vec<PathBuf>,
}

impl Files {
    /// True if the file name has the extension of exported chats.
    pub fn is_one(path: &Path) -> bool {
        FileFormat::from_path(path).is_some() && !path.is_dir()
    }

    /// Takes what came of the dialog, and reads what was dropped.
    pub fn tick(&mut self, ctx: &Context, shell: &mut Shell) {
        match self.work.take() {
            None | Some(Done::Nothing) => {}
            Some(Done::Failed(why)) => shell.show_error(why),
            Some(Done::Written(path)) => {
                shell.toasts.success(format!("Written to {}", path.display()));
            }
            Some(Done::Read(files)) => add(files, shell),
        }
        if !self.dropped.is_empty() && !self.work.is_busy() {
            let paths = std::mem::take(&mut self.dropped);
            self.begin(ctx, shell, move || Done::Read(paths.into_iter().map(read).collect()));
        }
    }

    /// Writes the branch of a chat that is shown as Markdown.
    pub fn export_markdown(&mut self, ctx: &Context, id: ChatId, shell: &mut Shell) {
        if let Some((title, text)) = markdown(id, shell, true) {
            self.save(ctx, shell, &title, FileFormat::Markdown, text);
        }
    }

    /// Writes chats with all their branches as JSON.
    pub fn export_json(&mut self, ctx: &Context, ids: &[ChatId], title: &str, shell: &mut Shell) {
        let text = shell.store.export(ids);
        if let Some(text) = shell.ok_or_show_error(text) {
            self.save(ctx, shell, title, FileFormat::Json, text);
        }
    }

    fn save(&mut self, ctx: &Context, shell: &mut Shell, title: &str, form: FileFormat, text: String) {
        let extensions = form.extensions();
        let name = file_name(title, extensions[0]);
        self.begin(ctx, shell, move || {
            let dialog = rfd::FileDialog::new().set_file_name(name).add_filter(kind(form), extensions);
            match dialog.save_file() {
                None => Done::Nothing,
                Some(path) => match files::write(&path, files::Form::Stream, text.as_bytes()) {
                    Ok(()) => Done::Written(path),
                    Err(error) => Done::Failed(error.to_string()),
                },
            }
        });
    }

    /// Reads files of chats that the user chooses.
    pub fn import(&mut self, ctx: &Context, shell: &mut Shell) {
        self.begin(ctx, shell, || {
            let both = [FileFormat::Markdown, FileFormat::Json];
            let all = both.map(FileFormat::extensions).concat();
            let dialog = rfd::FileDialog::new().add_filter("Chats", &all);
            let dialog = both.into_iter().fold(dialog, |dialog, form| dialog.add_filter(kind(form), form.extensions()));
            match dialog.pick_files() {
                None => Done::Nothing,
                Some(paths) => Done::Read(paths.into_iter().map(read).collect()),
            }
        });
    }

    /// Reads a file of chats that was dropped.
    pub fn drop(&mut self, ctx: &Context, path: PathBuf) {
        self.dropped.push(path);
        ctx.request_repaint();
    }

    fn begin(&mut self, ctx: &Context, shell: &mut Shell, work: impl FnOnce() -> Done + Send + 'static) {
        if !self.work.is_busy() {
            let begun = self.work.start(ctx, work);
            shell.ok_or_show_error(begun);
        }
    }
}

fn read(path: PathBuf) -> (PathBuf, Result<String, String>) {
    let text = fs::read_to_string(&path).map_err(|error| error.to_string());
    (path, text)
}

/// Adds the chats of files, and opens the first.
fn add(files: Vec<(PathBuf, Result<String, String>)>, shell: &mut Shell) {
    let mut added = Vec::new();
    for (path, text) in files {
        let chats = text.and_then(|text| {
            let form = FileFormat::from_path(&path).unwrap_or(FileFormat::Markdown);
            shell.store.import(form, &text).map_err(|error| error.to_string())
        });
        let chats = chats.map_err(|error| format!("importing {}: {error}", path.display()));
        added.extend(shell.ok_or_show_error(chats).unwrap_or_default());
    }
    let Some(first) = added.first() else { return };
    shell.queue_command(Command::OpenChat(*first));
    shell.toasts.success(match added.len() {
        1 => "One chat was imported".to_owned(),
        count => format!("{count} chats were imported"),
    });
}

/// Name of a file format in dialogs.
const fn kind(form: FileFormat) -> &'static str {
    match form {
        FileFormat::Json => "JSON",
        FileFormat::Markdown => "Markdown",
    }
}

/// A chat's title, and the branch of it that is shown, as Markdown.
pub fn markdown(id: ChatId, shell: &mut Shell, comments: bool) -> Option<(String, String)> {
    let read = shell.store.chat(id).and_then(|chat| Ok((shell.store.branch(id)?, chat)));
    let (branch, chat) = shell.ok_or_show_error(read)?;
    let text = import_export::markdown(&chat, &branch, comments);
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
    fn file_names_are_valid_on_every_system() {
        assert_eq!(file_name("a/b: \"c\"?\n", "md"), "a-b- -c---.md");
        assert_eq!(file_name(" ..", "json"), "chat.json");
    }
}
