//! Attached files: chips above the draft and above sent messages, and sources under an answer.

use egui::{CollapsingHeader, Label, Margin, Ui};
use egui_material_icons::icons::{ICON_CLOSE, ICON_DESCRIPTION};

use thermocline_chats::{
    chat::given::{FilePart, FileParts, sources_line},
    store::{Attachment, AttachmentId, Source},
};
use thermocline_rich_text::{
    theme::Palette,
    widgets::{icon_button, muted, outlined, small},
};

/// A token count in words.
fn counted(tokens: usize) -> String {
    format!("{} {}", grouped(tokens), if tokens == 1 { "token" } else { "tokens" })
}

/// Formats a number with its digits in groups of three.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn chip(ui: &mut Ui, contents: impl FnOnce(&mut Ui)) {
    let palette = Palette::of(ui);
    outlined(palette.raised, palette.line, Margin::symmetric(8, 4)).show(ui, |ui| {
        ui.horizontal(|ui| {
            ui.spacing_mut().item_spacing.x = 4.0;
            ui.label(ICON_DESCRIPTION.rich_text().size(16.0).color(palette.muted));
            contents(ui);
        });
    });
}

/// Shows the files of the draft. Returns what the user removes. `key` is the model's key. `parts`
/// tells what the model will be given of each file, once all files are counted. `unread` are the
/// names of files that are still being read.
pub fn draft(
    ui: &mut Ui,
    files: &[&Attachment],
    key: Option<&str>,
    parts: Option<&FileParts>,
    unread: &[String],
) -> Option<Removed> {
    if files.is_empty() && unread.is_empty() {
        return None;
    }
    let mut removed = None;
    ui.horizontal_wrapped(|ui| {
        for (at, file) in files.iter().enumerate() {
            chip(ui, |ui| {
                ui.add(Label::new(&file.name).truncate());
                let tokens = key.map(|key| file.tokens_for(key));
                let part = parts.and_then(|parts| parts.each.get(at).copied());
                let (words, help) = match (tokens, part) {
                    (None, _) => (String::new(), ""),
                    (Some(None), _) => ("counting …".to_owned(), ""),
                    (Some(Some(tokens)), Some(FilePart::Passages)) => (
                        format!("{} tokens, in passages", grouped(tokens)),
                        "The file does not fit in the free context. The model gets the passages that match the message best.",
                    ),
                    (Some(Some(tokens)), Some(FilePart::Name)) => (
                        format!("{} tokens, only its name", grouped(tokens)),
                        "The free context has no room for a passage of this file. The model gets its name only.",
                    ),
                    (Some(Some(tokens)), Some(FilePart::Whole)) => (counted(tokens), "The model gets the whole file."),
                    (Some(Some(tokens)), None) => (counted(tokens), ""),
                };
                if !words.is_empty() {
                    let shown = muted(ui, words);
                    if !help.is_empty() {
                        shown.on_hover_text(help);
                    }
                }
                if icon_button(ui, ICON_CLOSE, &format!("Remove {}", file.name)).clicked() {
                    removed = Some(Removed::File(file.id));
                }
            });
        }
        for name in unread {
            chip(ui, |ui| {
                ui.add(Label::new(name).truncate());
                muted(ui, "reading …");
                if icon_button(ui, ICON_CLOSE, &format!("Do not attach {name}")).clicked() {
                    removed = Some(Removed::Unread);
                }
            });
        }
    });
    ui.add_space(4.0);
    removed
}

/// What the user removes from the draft: one file, or all unread files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// This file.
    File(AttachmentId),
    /// All unread files.
    Unread,
}

/// Shows the files of a sent message, right-aligned. `sources` are what the model was given with
/// it.
pub fn sent(ui: &mut Ui, files: &[&Attachment], sources: &[Source]) {
    if files.is_empty() {
        return;
    }
    let row = egui::vec2(ui.available_width(), 28.0);
    ui.allocate_ui_with_layout(row, egui::Layout::right_to_left(egui::Align::Center).with_main_wrap(true), |ui| {
        for file in files {
            let part = match sources.iter().any(|source| source.name == file.name && source.passage.is_some()) {
                _ if file.whole != Some(false) => None,
                true => Some("in passages"),
                false => Some("only its name"),
            };
            let tokens = file.tokens.as_ref().map(|(tokens, _)| counted(*tokens));
            let given = tokens.as_deref().into_iter().chain(part).collect::<Vec<_>>().join(", ");
            let palette = Palette::of(ui);
            outlined(palette.panel, palette.line, Margin::symmetric(8, 4)).show(ui, |ui| {
                ui.spacing_mut().item_spacing.x = 4.0;
                if !given.is_empty() {
                    muted(ui, given);
                }
                ui.add(Label::new(&file.name).truncate());
                ui.label(ICON_DESCRIPTION.rich_text().size(16.0).color(palette.muted));
            });
        }
    });
}

/// Shows the sources of an answer: their places, and the passages if the user unfolds them.
pub fn sources(ui: &mut Ui, sources: &[Source]) {
    if sources.is_empty() {
        return;
    }
    let palette = Palette::of(ui);
    ui.add(Label::new(small(sources_line(sources), palette.muted)).wrap());
    let passages = || sources.iter().filter_map(|source| Some((&source.name, source.passage.as_ref()?)));
    let count = passages().count();
    if count == 0 {
        return;
    }
    let title = if count == 1 { "The passage".to_owned() } else { format!("The {count} passages") };
    CollapsingHeader::new(small(title, palette.muted)).id_salt("sources").show(ui, |ui| {
        for (name, passage) in passages() {
            ui.label(small(format!("{name}, {}", passage.place), palette.text));
            ui.add(Label::new(small(passage.text.trim_end(), palette.muted)).wrap());
            ui.add_space(4.0);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_in_groups() {
        assert_eq!((grouped(7), grouped(1234), grouped(1_234_567)), ("7".into(), "1,234".into(), "1,234,567".into()));
    }
}
