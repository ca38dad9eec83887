//! Files of chats: export and import. The system's dialogs block their thread, so they run on a
//! thread of their own. They ask before they overwrite a file.

use std::{
    fs,
    path::{Path, PathBuf},
};

use egui::{Context, Ui};
use thermocline_engine::files;

use crate::{
    command::Command,
    file_dialog::{self, DialogAnswer},
    path_field::{PathField, Typed},
    shell::Shell,
};
use thermocline_chats::{
    attachment,
    store::{
        ChatId, Store, StoreError, StoreFile,
        import_export::{self, FileFormat, ImportedChats, Unreadable},
    },
};
use thermocline_host::engine_handle::error_message;
use thermocline_rich_text::background::Background;

/// The outcome of a file dialog or of dropped files.
#[derive(Debug)]
enum FileOutcome {
    /// The files that were read, each with its chats or the reason why it has none.
    Read(Vec<(PathBuf, Result<FileChats, String>)>),
    /// A file was written.
    Written(PathBuf),
    /// The action failed for this reason.
    Failed(String),
    /// The user closed the dialog.
    Nothing,
    /// The desktop has no file dialog.
    NoDialog(PathPurpose),
}

/// The chats of a file.
#[derive(Debug)]
enum FileChats {
    /// The chats were added to the file of chats.
    Imported(ImportedChats),
    /// The text of the file. Its chats are added to the chats in memory.
    Text(String),
}

/// The purpose of a path.
#[derive(Debug)]
enum PathPurpose {
    /// Import chats from the file.
    Import,
    /// Write this text to a file. The first value is the suggested name.
    Save(String, String),
}

/// The open dialog, and the dropped files that wait until it closes.
#[derive(Debug, Default)]
pub struct ChatFiles {
    work: Background<FileOutcome>,
    dropped: Vec<PathBuf>,
    typed: Option<PathField<PathPurpose>>,
}

impl ChatFiles {
    /// Handles the result of the dialog, and reads dropped files. True if chats may have been
    /// added.
    pub fn tick(&mut self, ctx: &Context, shell: &mut Shell) -> bool {
        let done = self.work.take();
        let added = matches!(done, Some(FileOutcome::Read(_)));
        match done {
            None | Some(FileOutcome::Nothing) => {}
            Some(FileOutcome::Failed(why)) => shell.show_error(why),
            Some(FileOutcome::Written(path)) => {
                shell.toasts.success(format!("Saved to {}", path.display()));
            }
            Some(FileOutcome::Read(files)) => add(files, shell),
            Some(FileOutcome::NoDialog(PathPurpose::Import)) => {
                self.typed = Some(PathField::new("Import chats", "", PathPurpose::Import));
            }
            Some(FileOutcome::NoDialog(PathPurpose::Save(name, text))) => {
                let home = directories::UserDirs::new().map(|dirs| dirs.home_dir().join(&name));
                let path = home.unwrap_or_else(|| PathBuf::from(&name)).display().to_string();
                self.typed = Some(PathField::new("Save the chat", path, PathPurpose::Save(name, text)));
            }
        }
        if !self.dropped.is_empty() && !self.work.is_busy() {
            let paths = std::mem::take(&mut self.dropped);
            let file = shell.store.file();
            self.begin(ctx, shell, move || import(paths, file));
        }
        added
    }

    /// Shows the path field on desktops without a file dialog.
    pub fn show(&mut self, ui: &Ui, shell: &mut Shell) {
        let Some(typed) = self.typed.as_mut().and_then(|field| field.show(ui)) else { return };
        let Some(field) = self.typed.take() else { return };
        match (typed, field.then) {
            (Typed::Nothing, _) => {}
            (Typed::Path(path), PathPurpose::Import) => self.drop(ui, path),
            (Typed::Path(path), PathPurpose::Save(name, text)) if path.exists() => {
                shell.show_error(format!("{} already exists. Choose another name.", path.display()));
                self.typed =
                    Some(PathField::new("Save the chat", path.display().to_string(), PathPurpose::Save(name, text)));
            }
            (Typed::Path(path), PathPurpose::Save(_, text)) => self.begin(ui, shell, move || write(path, &text)),
        }
    }

    /// Writes the shown branch of a chat as Markdown.
    pub fn export_markdown(&mut self, ctx: &Context, id: ChatId, title: &str, shell: &mut Shell) {
        let text = shell.store.reading(move |store| markdown(store, id, true));
        self.save(ctx, shell, title, FileFormat::Markdown, text);
    }

    /// Writes chats with all their branches as JSON.
    pub fn export_json(&mut self, ctx: &Context, ids: Vec<ChatId>, title: &str, shell: &mut Shell) {
        let text = shell.store.reading(move |store| store.export(&ids));
        self.save(ctx, shell, title, FileFormat::Json, text);
    }

    fn save(
        &mut self,
        ctx: &Context,
        shell: &mut Shell,
        title: &str,
        form: FileFormat,
        text: impl FnOnce() -> Result<String, StoreError> + Send + 'static,
    ) {
        let extensions = form.extensions();
        let name = file_name(title, extensions[0]);
        self.begin(ctx, shell, move || {
            let text = match text() {
                Ok(text) => text,
                Err(error) => return FileOutcome::Failed(error.to_string()),
            };
            let dialog = |it: rfd::FileDialog| it.set_file_name(&name).add_filter(kind(form), extensions).save_file();
            match file_dialog::ask(dialog) {
                DialogAnswer::Chosen(path) => write(path, &text),
                DialogAnswer::Closed => FileOutcome::Nothing,
                DialogAnswer::NoDialog => FileOutcome::NoDialog(PathPurpose::Save(name, text)),
            }
        });
    }

    /// Imports files of chats that the user chooses.
    pub fn import(&mut self, ctx: &Context, shell: &mut Shell) {
        let file = shell.store.file();
        self.begin(ctx, shell, move || {
            let both = [FileFormat::Markdown, FileFormat::Json];
            let all = both.map(FileFormat::extensions).concat();
            let dialog = |it: rfd::FileDialog| {
                let filters = both.into_iter().map(|form| (kind(form), form.extensions()));
                let all = it.add_filter("Chats", &all);
                filters.fold(all, |dialog, (name, extensions)| dialog.add_filter(name, extensions)).pick_files()
            };
            match file_dialog::ask(dialog) {
                DialogAnswer::Chosen(paths) => import(paths, file),
                DialogAnswer::Closed => FileOutcome::Nothing,
                DialogAnswer::NoDialog => FileOutcome::NoDialog(PathPurpose::Import),
            }
        });
    }

    /// Imports a dropped file of chats.
    pub fn drop(&mut self, ctx: &Context, path: PathBuf) {
        self.dropped.push(path);
        ctx.request_repaint();
    }

    fn begin(&mut self, ctx: &Context, shell: &mut Shell, work: impl FnOnce() -> FileOutcome + Send + 'static) {
        if !self.work.is_busy() {
            shell.toasts.check(self.work.start(ctx, work));
        }
    }
}

fn write(path: PathBuf, text: &str) -> FileOutcome {
    match files::write(&path, files::Form::Stream, text.as_bytes()) {
        Ok(()) => FileOutcome::Written(path),
        Err(error) => FileOutcome::Failed(error_message(&error)),
    }
}

/// Adds the chats of the files at `paths` to the file of chats, if the chats are in a file.
fn import(paths: Vec<PathBuf>, file: Option<StoreFile>) -> FileOutcome {
    let mut store = match file.map(StoreFile::open_to_write).transpose() {
        Ok(store) => store,
        Err(error) => return FileOutcome::Failed(error.to_string()),
    };
    let add_file = |path: PathBuf| {
        let chats = read(&path).and_then(|text| match &mut store {
            Some(store) => add_text(store, &path, &text).map(FileChats::Imported),
            None => Ok(FileChats::Text(text)),
        });
        (path, chats)
    };
    FileOutcome::Read(paths.into_iter().map(add_file).collect())
}

fn read(path: &Path) -> Result<String, String> {
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    Ok(attachment::decode(&bytes).map_err(|error| error.to_string())?.into_owned())
}

/// Adds the chats of the file at `path`. `text` is its content.
fn add_text(store: &mut Store, path: &Path, text: &str) -> Result<ImportedChats, String> {
    let form = FileFormat::from_path(path).unwrap_or(FileFormat::Markdown);
    store.import(form, text).map_err(|error| error.to_string())
}

/// Shows which chats were imported. Opens the first new chat, or the first known chat if none is
/// new.
fn add(files: Vec<(PathBuf, Result<FileChats, String>)>, shell: &mut Shell) {
    let mut all = ImportedChats::default();
    for (path, chats) in files {
        let chats = chats.and_then(|chats| match chats {
            FileChats::Imported(chats) => Ok(chats),
            FileChats::Text(text) => add_text(&mut shell.store, &path, &text),
        });
        let chats = chats.map_err(|error| format!("importing {}: {error}", path.display()));
        let chats = shell.toasts.check(chats).unwrap_or_default();
        all.added.extend(chats.added);
        all.known.extend(chats.known);
        all.unreadable.chats += chats.unreadable.chats;
        all.unreadable.messages += chats.unreadable.messages;
    }
    let Some(first) = all.added.first().or(all.known.first()) else { return };
    shell.queue_command(Command::OpenChat(*first));
    if all.unreadable == Unreadable::default() {
        shell.toasts.success(told(&all));
    } else {
        shell.toasts.warning(told(&all));
    }
}

/// Describes how many chats of imported files were added, known already, or unreadable.
fn told(ImportedChats { added, known, unreadable }: &ImportedChats) -> String {
    let number = |count: usize, noun: &str| match count {
        1 => format!("one {noun}"),
        _ => format!("{count} {noun}s"),
    };
    let mut told = match (added.len(), known.len()) {
        (0, 1) => "You already have this chat".to_owned(),
        (0, known) if known > 0 => format!("You already have these {known} chats"),
        (1, _) => "One chat was imported".to_owned(),
        (added, _) => format!("{added} chats were imported"),
    };
    match known.len() {
        known if known == 0 || added.is_empty() => {}
        1 => told += "; you already had one",
        known => told += &format!("; you already had {known}"),
    }
    let Unreadable { chats, messages } = *unreadable;
    let parts = [(chats, "chat"), (messages, "message")].into_iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = parts.map(|(count, noun)| number(count, noun)).collect();
    if !parts.is_empty() {
        told += &format!("; {} could not be read", parts.join(" and "));
    }
    told
}

/// The name of a file format in dialogs.
const fn kind(form: FileFormat) -> &'static str {
    match form {
        FileFormat::Json => "JSON",
        FileFormat::Markdown => "Markdown",
    }
}

/// Returns the shown branch of a chat as Markdown.
pub fn markdown(store: &Store, id: ChatId, comments: bool) -> Result<String, StoreError> {
    let (chat, branch, files) = (store.chat(id)?, store.branch(id)?, store.documents(id)?);
    Ok(import_export::markdown(&chat, &branch, &files, comments))
}

/// Returns a file name for a title, made of characters that every system allows.
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

    #[test]
    fn outcome_of_an_import_says_what_was_there_and_what_could_not_be_read() {
        let (_, chat) = Store::with_chat();
        let said = |added, known, chats, messages| {
            let (added, known) = (vec![chat; added], vec![chat; known]);
            told(&ImportedChats { added, known, unreadable: Unreadable { chats, messages } })
        };
        for (said, want) in [
            (said(1, 0, 0, 0), "One chat was imported"),
            (said(3, 0, 0, 0), "3 chats were imported"),
            (said(0, 1, 0, 0), "You already have this chat"),
            (said(0, 2, 0, 0), "You already have these 2 chats"),
            (said(1, 1, 0, 0), "One chat was imported; you already had one"),
            (said(3, 2, 0, 0), "3 chats were imported; you already had 2"),
            (said(3, 0, 1, 0), "3 chats were imported; one chat could not be read"),
            (said(1, 0, 0, 5), "One chat was imported; 5 messages could not be read"),
            (said(0, 1, 2, 1), "You already have this chat; 2 chats and one message could not be read"),
        ] {
            assert_eq!(said, want);
        }
    }

    #[test]
    fn files_to_import_may_have_marks_and_other_letters() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let wide: Vec<u8> = "\u{feff}{}".encode_utf16().flat_map(u16::to_le_bytes).collect();
        for (bytes, want) in [(&wide[..], Ok("{}".to_owned())), (b"\xef\xbb\xbf{}", Ok("{}".to_owned()))] {
            fs::write(&path, bytes).unwrap();
            assert_eq!(read(&path), want);
        }
        fs::write(&path, b"PK\x03\x04\0\0\0\0\0").unwrap();
        assert_eq!(read(&path), Err("not text".to_owned()));
    }
}
