//! Files as they are shown: chips above the message being written and above what was sent, and sources under an answer.

use egui::{CollapsingHeader, Frame, Label, Margin, Stroke, Ui};
use egui_material_icons::icons::{ICON_CLOSE, ICON_DESCRIPTION};

use crate::{
    attachment::prompt::{kept_for_answer, whole, with_lines},
    chat::given::sources_line,
    store::{Attachment, AttachmentId, Source},
    ui::{
        theme::{Palette, RADIUS},
        widgets::{icon_button, muted, small},
    },
};

/// Tokens below which there is no room even for passages.
const LEAST: usize = 64;

/// The part of a file that the model will be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// All of it.
    Whole,
    /// Passages of it.
    Passages,
    /// Nothing: the context is full.
    Nothing,
    /// That is not known before it is counted.
    Unknown,
}

/// The parts of files that the model will be given, and how many tokens they take at most.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fits {
    /// For each file.
    pub each: Vec<Fit>,
    /// Tokens of all.
    pub tokens: usize,
}

impl Fits {
    /// Of files with these tokens, in a context of so many of which `used` are taken.
    pub fn new(files: &[Option<usize>], context: usize, used: usize) -> Self {
        let room = context.saturating_sub(kept_for_answer(context) + used);
        let whole = whole(files.iter().map(|tokens| tokens.unwrap_or(0)), room);
        let known = || files.iter().zip(&whole).filter_map(|(tokens, whole)| Some(((*tokens)?, *whole)));
        let taken: usize = known().filter(|(_, whole)| *whole).map(|(tokens, _)| with_lines(tokens)).sum();
        let left = room.saturating_sub(taken) / 2;
        let long: usize = known().filter(|(_, whole)| !whole).map(|(tokens, _)| tokens).sum();
        let each = files.iter().zip(&whole).map(|(tokens, whole)| match (tokens, whole) {
            (None, _) => Fit::Unknown,
            (Some(_), true) => Fit::Whole,
            (Some(_), false) if left >= LEAST => Fit::Passages,
            (Some(_), false) => Fit::Nothing,
        });
        Fits { each: each.collect(), tokens: taken + if left >= LEAST { left.min(long) } else { 0 } }
    }
}

/// A number of tokens in words.
fn counted(tokens: usize) -> String {
    format!("{} {}", grouped(tokens), if tokens == 1 { "token" } else { "tokens" })
}

/// Digits in groups of three.
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
    let frame = Frame::new()
        .fill(palette.raised)
        .stroke(Stroke::new(1.0, palette.line))
        .corner_radius(RADIUS)
        .inner_margin(Margin::symmetric(8, 4));
    frame.show(ui, |ui| {
        ui.horizontal(|ui| {
            ui.spacing_mut().item_spacing.x = 4.0;
            ui.label(ICON_DESCRIPTION.rich_text().size(16.0).color(palette.muted));
            contents(ui);
        });
    });
}

/// Shows the files of the message being written; the one that is to be removed. `key` is the model's; `fits` is known once all is
/// counted. `unread` are names of files that are on their way.
pub fn draft(ui: &mut Ui, files: &[&Attachment], key: Option<&str>, fits: &Fits, unread: &[String]) -> Option<Removed> {
    if files.is_empty() && unread.is_empty() {
        return None;
    }
    let mut removed = None;
    ui.horizontal_wrapped(|ui| {
        for (at, file) in files.iter().enumerate() {
            chip(ui, |ui| {
                ui.add(Label::new(&file.name).truncate());
                let tokens = key.map(|key| file.tokens_for(key));
                let fit = fits.each.get(at).copied().unwrap_or(Fit::Unknown);
                let (words, help) = match (tokens, fit) {
                    (None, _) => (String::new(), ""),
                    (Some(None), _) => ("counting …".to_owned(), ""),
                    (Some(Some(tokens)), Fit::Passages) => (
                        format!("{} tokens, in passages", grouped(tokens)),
                        "It is longer than the room that is left: the model is given the passages that fit the message best",
                    ),
                    (Some(Some(tokens)), Fit::Nothing) => (
                        format!("{} tokens, no room", grouped(tokens)),
                        "The context is full: the model is given its name only",
                    ),
                    (Some(Some(tokens)), _) => (counted(tokens), "The model is given all of it"),
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

/// The removed part of the message being written: one file, or all that are not read yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// This file.
    File(AttachmentId),
    /// Those that are not read yet.
    Unread,
}

/// Shows the files of a message that was sent, from the right.
pub fn sent(ui: &mut Ui, files: &[&Attachment]) {
    if files.is_empty() {
        return;
    }
    let row = egui::vec2(ui.available_width(), 28.0);
    ui.allocate_ui_with_layout(row, egui::Layout::right_to_left(egui::Align::Center).with_main_wrap(true), |ui| {
        for file in files {
            let given = match (file.whole, &file.tokens) {
                (Some(false), Some((tokens, _))) => format!("{} tokens, in passages", grouped(*tokens)),
                (Some(false), None) => "in passages".to_owned(),
                (_, Some((tokens, _))) => counted(*tokens),
                (_, None) => String::new(),
            };
            let palette = Palette::of(ui);
            let frame = Frame::new().fill(palette.panel).stroke(Stroke::new(1.0, palette.line)).corner_radius(RADIUS);
            frame.inner_margin(Margin::symmetric(8, 4)).show(ui, |ui| {
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

/// Shows the sources of an answer: their places, and the passages themselves when they are asked for.
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
    fn fits_say_what_the_model_is_given() {
        let fits = Fits::new(&[Some(100), Some(9000), None], 4096, 1000);
        assert_eq!(fits.each, [Fit::Whole, Fit::Passages, Fit::Unknown]);
        assert!(fits.tokens > 100 && fits.tokens < 4096 - 1000, "{}", fits.tokens);
        assert_eq!(Fits::new(&[Some(9000)], 4096, 3070), Fits { each: vec![Fit::Nothing], tokens: 0 });
        assert_eq!(Fits::new(&[], 4096, 0), Fits::default());
    }

    #[test]
    fn digits_are_in_groups() {
        assert_eq!((grouped(7), grouped(1234), grouped(1_234_567)), ("7".into(), "1,234".into(), "1,234,567".into()));
    }
}
