//! Files dropped on the window: models for the library, chats for the list, and other files as
//! attachments of the draft.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use egui::{Align2, Area, Id, Label, Margin, Order, RichText, Ui, Vec2};

use crate::command::Page;
use thermocline_chats::store::import_export::FileFormat;
use thermocline_rich_text::{
    theme::{Palette, RADIUS, strong},
    widgets::outlined,
};

/// Number of bytes at the start of a file that identify its format.
const HEAD: u64 = 4096;

/// The action on a dropped file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// Attach it to the draft.
    Message,
    /// Import its chats.
    Chats,
    /// Add it to the library: a model, or a folder of models.
    Library,
}

impl Destination {
    /// The destination of a file that is dropped while `page` is shown.
    pub fn of(path: &Path, page: Page) -> Self {
        match Self::by_name(path, page) {
            Destination::Message if FileFormat::from_path(path).is_some() && is_exported(path) => Destination::Chats,
            destination => destination,
        }
    }

    /// The destination by the file's name alone.
    fn by_name(path: &Path, page: Page) -> Self {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let is_model = ["gguf", "safetensors", "powerinfer"].iter().any(|it| extension.eq_ignore_ascii_case(it));
        match page {
            _ if is_model || path.is_dir() => Destination::Library,
            Page::Chat => Destination::Message,
            _ if FileFormat::from_path(path).is_some() => Destination::Chats,
            _ => Destination::Library,
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Destination::Message => "Drop it to attach it to the message",
            Destination::Chats => "Drop it to import its chats",
            Destination::Library => "Drop it to add it to the library",
        }
    }
}

/// True for chats exported by this program, ChatGPT or Claude.
fn is_exported(path: &Path) -> bool {
    let mut head = Vec::new();
    // An unreadable file is not an export. Attaching it then reports the reason.
    if File::open(path).and_then(|file| file.take(HEAD).read_to_end(&mut head)).is_err() {
        return false;
    }
    let head = String::from_utf8_lossy(&head);
    let has = |words: &str| head.contains(words);
    has("<!-- thermocline")
        || has("\"thermocline.chats\"")
        || (head.trim_start().starts_with('[') && (has("\"mapping\"") || has("\"chat_messages\"")))
}

/// Files dropped since the previous frame.
pub fn dropped(ui: &Ui) -> Vec<PathBuf> {
    ui.input(|input| input.raw.dropped_files.iter().map(|file| file.path().to_owned()).collect())
}

/// Shows what will happen to a file that is held over the window.
pub fn invite(ui: &Ui, page: Page) {
    let hovered: Vec<Destination> = ui.input(|input| {
        let destination = |path: &PathBuf| Destination::by_name(path, page);
        input
            .raw
            .hovered_files
            .iter()
            .map(|file| file.path.as_ref().map_or(Destination::Library, destination))
            .collect()
    });
    let Some(first) = hovered.first() else { return };
    let words = if hovered.iter().all(|it| it == first) { first.words() } else { "Drop them" };
    let palette = Palette::of(ui);
    let area = Area::new(Id::unique("drop")).order(Order::Foreground).anchor(Align2::CENTER_CENTER, Vec2::ZERO);
    area.interactable(false).show(ui, |ui| {
        let frame = outlined(palette.raised, palette.cold, Margin::symmetric(32, 24)).corner_radius(RADIUS + 4);
        frame.show(ui, |ui| {
            ui.add(Label::new(RichText::new(words).font(strong(16.0))).extend().selectable(false));
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destination_is_told_by_name_page_and_contents() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let chat = |path: &Path| Destination::of(path, Page::Chat);
        assert_eq!(chat(&file("a.GGUF", "")), Destination::Library);
        assert_eq!(chat(folder.path()), Destination::Library);
        assert_eq!(chat(&file("a.md", "# Notes")), Destination::Message);
        assert_eq!(chat(&file("b.md", "<!-- thermocline:chat -->\n# Frogs\n")), Destination::Chats);
        assert_eq!(chat(&file("a.json", "[1, 2]")), Destination::Message);
        assert_eq!(chat(&file("b.json", "{\"format\": \"thermocline.chats\"}")), Destination::Chats);
        assert_eq!(chat(&file("c.json", " [{\"title\": \"x\", \"mapping\": {}}]")), Destination::Chats);
        assert_eq!(chat(&file("a.pdf", "%PDF-")), Destination::Message);
        assert_eq!(Destination::of(&file("a.md", "# Notes"), Page::Models), Destination::Chats);
        assert_eq!(Destination::of(&file("a.txt", ""), Page::Models), Destination::Library);
    }
}
