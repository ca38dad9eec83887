//! Attached files: chips above the draft and above sent messages, and sources under an answer.

use egui::{Align, CollapsingHeader, Label, Layout, Margin, Response, Ui};
use egui_material_icons::icons::{ICON_CLOSE, ICON_DESCRIPTION};

use super::{message::MessageContext, thumbnails::Thumbnails};
use thermocline_chats::{
    chat::given::{FilePart, FileParts, sources_line},
    store::{Attachment, AttachmentId, PassageRanking, Source},
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

/// A chip. `picture` shows the thumbnail of a picture in place of the symbol of a file.
fn chip(ui: &mut Ui, picture: Option<impl FnOnce(&mut Ui)>, contents: impl FnOnce(&mut Ui)) {
    let palette = Palette::of(ui);
    in_rows(ui, |ui| {
        let frame = outlined(palette.raised, palette.line, Margin::symmetric(8, 4));
        let shown = frame.show(ui, |ui| {
            ui.horizontal(|ui| {
                ui.spacing_mut().item_spacing.x = 4.0;
                match picture {
                    Some(picture) => picture(ui),
                    None => _ = ui.label(ICON_DESCRIPTION.rich_text().size(16.0).color(palette.muted)),
                }
                contents(ui);
            });
        });
        shown.response
    });
}

/// Shows a frame in a layout that wraps. Such a layout does not wrap frames itself, because it does
/// not know their widths. If the frame was wider in the last pass than the rest of the row, it
/// begins a new row.
fn in_rows(ui: &mut Ui, show: impl FnOnce(&mut Ui) -> Response) {
    let id = ui.next_auto_id();
    let before: f32 = ui.data(|data| data.get_temp(id)).unwrap_or_default();
    let room = ui.available_size_before_wrap().x;
    if room < before && room < ui.max_rect().width() {
        ui.end_row();
    }
    let width = show(ui).rect.width();
    if (width - before).abs() > 0.5 {
        ui.data_mut(|data| data.insert_temp(id, width));
        ui.ctx().request_discard("a file in a row has another width");
    }
}

/// The files of the draft.
pub struct DraftFiles<'a> {
    pub files: &'a [&'a Attachment],
    pub thumbnails: &'a Thumbnails,
    /// The model's key.
    pub key: Option<&'a str>,
    /// The part of each file that the model will get, once all files are counted.
    pub parts: Option<&'a FileParts>,
    /// The names of files that are still being read.
    pub unread: &'a [String],
    /// How passages are ranked.
    pub ranking: &'a PassageRanking,
}

impl DraftFiles<'_> {
    /// Shows the files. Returns what the user removes.
    pub fn show(&self, ui: &mut Ui) -> Option<Removed> {
        let DraftFiles { files, thumbnails, key, parts, unread, ranking } = *self;
        if files.is_empty() && unread.is_empty() {
            return None;
        }
        let mut removed = None;
        let row = egui::vec2(ui.available_width(), ui.spacing().interact_size.y);
        ui.allocate_ui_with_layout(row, Layout::left_to_right(Align::TOP).with_main_wrap(true), |ui| {
            for (at, file) in files.iter().enumerate() {
                let picture = file.has_pictures().then_some(|ui: &mut Ui| thumbnails.show(ui, file));
                chip(ui, picture, |ui| {
                    ui.add(Label::new(&file.name).truncate());
                    let tokens = key.map(|key| file.tokens_for(key));
                    given(ui, tokens, parts.and_then(|parts| parts.each.get(at).copied()), ranking);
                    if icon_button(ui, ICON_CLOSE, &format!("Remove {}", file.name)).clicked() {
                        removed = Some(Removed::File(file.id));
                    }
                });
            }
            for name in unread {
                chip(ui, None::<fn(&mut Ui)>, |ui| {
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
}

/// Says how much of a file the model is given. `tokens` are `None` without a model, and
/// `Some(None)` until they are counted.
fn given(ui: &mut Ui, tokens: Option<Option<usize>>, part: Option<FilePart>, ranking: &PassageRanking) {
    let (words, help) = match (tokens, part) {
        (None, _) => return,
        (_, Some(FilePart::Unseen)) => (
            "not shown to this model".to_owned(),
            "The open model cannot see pictures, or not this one. It gets the name of the file only.",
        ),
        (Some(None), _) => ("counting …".to_owned(), ""),
        (Some(Some(tokens)), Some(FilePart::Passages)) => (
            format!("{} tokens, in passages {}", grouped(tokens), ranking.words()),
            "The file does not fit in the free context. The model gets the passages that match the message best.",
        ),
        (Some(Some(tokens)), Some(FilePart::Name)) => (
            format!("{} tokens, only its name", grouped(tokens)),
            "The free context has no room for a passage of this file. The model gets its name only.",
        ),
        (Some(Some(tokens)), Some(FilePart::Whole)) => (counted(tokens), "The model gets the whole file."),
        (Some(Some(tokens)), None) => (counted(tokens), ""),
    };
    let shown = muted(ui, words);
    if !help.is_empty() {
        shown.on_hover_text(help);
    }
}

/// The files that the user removes from the draft: one file, or all unread files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// This file.
    File(AttachmentId),
    /// All unread files.
    Unread,
}

/// Shows the files of a sent message, right-aligned. Returns the picture that the user clicks.
pub fn sent(ui: &mut Ui, context: &MessageContext<'_>) -> Option<AttachmentId> {
    let MessageContext { files, thumbnails, sources, tint, mark, .. } = *context;
    if files.is_empty() {
        return None;
    }
    let mut clicked = None;
    let row = egui::vec2(ui.available_width(), 28.0);
    ui.allocate_ui_with_layout(row, Layout::right_to_left(Align::TOP).with_main_wrap(true), |ui| {
        for file in files {
            let is_picture = file.has_pictures();
            let part = match sources.iter().any(|source| source.name == file.name && source.passage.is_some()) {
                _ if file.whole != Some(false) => None,
                true => Some("in passages"),
                false if is_picture => Some("not shown"),
                false => Some("only its name"),
            };
            let tokens = file.tokens.as_ref().filter(|_| !(is_picture && part.is_some()));
            let tokens = tokens.map(|(tokens, _)| counted(*tokens));
            let given = tokens.as_deref().into_iter().chain(part).collect::<Vec<_>>().join(", ");
            let palette = Palette::of(ui);
            let frame = outlined(palette.panel, palette.line, Margin::symmetric(8, 4));
            let contents = |ui: &mut Ui| {
                ui.spacing_mut().item_spacing.x = 4.0;
                if !given.is_empty() {
                    muted(ui, given);
                }
                ui.add(Label::new(&file.name).truncate());
                if is_picture {
                    let tint = thumbnails.tinted(file, tint.into_iter().chain(mark));
                    if let Some(tint) = tint {
                        muted(ui, tint.count());
                    }
                    if thumbnails.show_tinted(ui, file, tint).clicked() {
                        clicked = Some(file.id);
                    }
                } else {
                    ui.label(ICON_DESCRIPTION.rich_text().size(16.0).color(palette.muted));
                }
            };
            in_rows(ui, |ui| frame.show(ui, contents).response);
        }
    });
    clicked
}

/// Shows the sources of an answer: their places, and the passages if the user unfolds them.
/// `ranking` is how the passages were ranked.
pub fn sources(ui: &mut Ui, sources: &[Source], ranking: Option<&PassageRanking>) {
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
    let title = ranking.map_or(title.clone(), |ranking| format!("{title}, {}", ranking.words()));
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
    use std::{cell::RefCell, rc::Rc};

    use super::*;

    #[test]
    fn files_that_do_not_fit_into_a_row_begin_another() {
        let places = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&places);
        let mut harness = egui_kittest::Harness::builder().with_size([500.0, 300.0]).build_ui(move |ui| {
            seen.borrow_mut().clear();
            let row = egui::vec2(ui.available_width(), 20.0);
            ui.allocate_ui_with_layout(row, Layout::left_to_right(Align::TOP).with_main_wrap(true), |ui| {
                for size in [egui::vec2(200.0, 40.0), egui::vec2(200.0, 20.0), egui::vec2(300.0, 20.0)] {
                    in_rows(ui, |ui| {
                        let frame = egui::Frame::new().inner_margin(4);
                        let shown = frame.show(ui, |ui| ui.allocate_exact_size(size, egui::Sense::hover()));
                        seen.borrow_mut().push(shown.response.rect);
                        shown.response
                    });
                }
            });
        });
        harness.run();
        let [first, second, third] = places.borrow()[..] else { panic!("three files") };
        assert_eq!(first.top(), second.top());
        assert!(third.top() >= first.bottom() && third.right() <= 500.0, "{first:?} {second:?} {third:?}");
    }

    #[test]
    fn digits_are_in_groups() {
        assert_eq!((grouped(7), grouped(1234), grouped(1_234_567)), ("7".into(), "1,234".into(), "1,234,567".into()));
    }
}
