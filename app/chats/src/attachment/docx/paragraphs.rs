//! Paragraphs of a docx part. Headings and lists have Markdown marks, tables are read row by row,
//! and text boxes follow their paragraph. Deleted, moved-away and hidden text is left out.

use std::collections::HashSet;

use quick_xml::{
    Reader,
    escape::resolve_predefined_entity,
    events::{BytesStart, Event},
};

use super::{AttachmentFault, damaged, package::attribute};
use crate::attachment::passage::SourcePart;

/// Elements that hold notes, and the first letter of their labels.
pub(super) const NOTES: [(&str, &str); 3] = [("footnote", ""), ("endnote", "e"), ("comment", "c")];

/// A note that the text refers to.
#[derive(Debug)]
struct Note {
    /// Name of its XML element.
    kind: &'static str,
    id: String,
}

/// A paragraph that is being read.
#[derive(Debug, Default)]
struct OpenParagraph {
    text: String,
    /// Markdown mark of a heading or a list item.
    mark: String,
    /// Number of open tables around it. A table row becomes a line.
    tables: usize,
}

/// Paragraphs being read.
#[derive(Debug, Default)]
pub(super) struct Paragraphs {
    /// Finished paragraphs that have text.
    pub done: Vec<SourcePart>,
    /// Number of paragraphs so far, including those without text.
    number: usize,
    open: OpenParagraph,
    /// Paragraphs around the text box that is being read, outermost first.
    around: Vec<OpenParagraph>,
    /// Lines of text boxes, which follow the paragraph.
    boxed: Vec<String>,
    in_text: bool,
    /// True if the run is hidden.
    hidden: bool,
    /// Number of open elements that are skipped.
    skipped: usize,
    /// For each open `AlternateContent`, whether one alternative was read.
    chosen: Vec<bool>,
    /// Notes, in the order of their references.
    notes: Vec<Note>,
}

impl Paragraphs {
    /// Reads a part.
    pub fn read(&mut self, xml: &str) -> Result<(), AttachmentFault> {
        let mut reader = Reader::from_str(xml);
        loop {
            match reader.read_event().map_err(damaged)? {
                Event::Start(_) if self.skipped > 0 => self.skipped += 1,
                Event::End(_) if self.skipped > 0 => self.skipped -= 1,
                Event::Eof => return Ok(()),
                _ if self.skipped > 0 => {}
                Event::Start(tag) => self.start(&tag),
                Event::Empty(tag) => self.empty(&tag),
                Event::End(tag) => self.end(tag.local_name().as_ref()),
                Event::Text(words) if self.in_text => self.push(&words),
                Event::GeneralRef(name) if self.in_text => {
                    let value = match name.strip_prefix('#') {
                        Some(number) => character(number).map(String::from),
                        None => resolve_predefined_entity(&name).map(str::to_owned),
                    };
                    self.push(&value.unwrap_or_default());
                }
                _ => {}
            }
        }
    }

    /// Reads a part, except for paragraphs that were already read: pages of several kinds share
    /// headers.
    pub fn read_once(&mut self, xml: &str) -> Result<(), AttachmentFault> {
        let before = self.done.len();
        self.read(xml)?;
        let known: HashSet<String> = self.done[..before].iter().map(|part| part.text.clone()).collect();
        let new = self.done.split_off(before);
        self.done.extend(new.into_iter().filter(|part| !known.contains(&part.text)));
        Ok(())
    }

    fn push(&mut self, words: &str) {
        if !self.hidden {
            self.open.text.push_str(words);
        }
    }

    fn start(&mut self, tag: &BytesStart<'_>) {
        let name = tag.local_name();
        let is_other = match name.as_ref() {
            // Deleted or moved-away text, and the list of tab stops. `PrChange` elements hold
            // earlier formatting.
            "del" | "moveFrom" | "tabs" => true,
            "Choice" | "Fallback" => self.chosen.last_mut().is_some_and(|chosen| std::mem::replace(chosen, true)),
            "footnote" | "endnote" | "comment" => !self.start_note(tag),
            name => name.ends_with("PrChange"),
        };
        if is_other {
            self.skipped = 1;
            return;
        }
        match name.as_ref() {
            "t" => self.in_text = true,
            "r" => self.hidden = false,
            "tbl" => self.open.tables += 1,
            "AlternateContent" => self.chosen.push(false),
            "txbxContent" => self.around.push(std::mem::take(&mut self.open)),
            "p" if self.open.tables == 0 => self.open.text.clear(),
            // Other elements may have children, too.
            _ => self.empty(tag),
        }
    }

    /// Begins a note with its label; false if nothing refers to the note.
    fn start_note(&mut self, tag: &BytesStart<'_>) -> bool {
        let Some(label) = self.label(tag, false) else { return false };
        let author = attribute(tag, "author").filter(|author| !author.is_empty());
        self.open.mark = format!("[^{label}]: {}", author.map(|author| format!("{author}: ")).unwrap_or_default());
        true
    }

    /// The label of the note that an element belongs to. `new` adds a note that was not referred to
    /// yet.
    fn label(&mut self, tag: &BytesStart<'_>, new: bool) -> Option<String> {
        let name = tag.local_name();
        let name: &str = name.as_ref();
        let element = name.strip_suffix("Reference").unwrap_or(name);
        let (kind, letter) = NOTES.into_iter().find(|(kind, _)| *kind == element)?;
        let id = attribute(tag, "id")?;
        let is_this = |note: &Note| note.kind == kind && note.id == id;
        if new && !self.notes.iter().any(is_this) {
            self.notes.push(Note { kind, id: id.clone() });
        }
        let at = self.notes.iter().filter(|note| note.kind == kind).position(is_this)?;
        Some(format!("{letter}{}", at + 1))
    }

    fn empty(&mut self, tag: &BytesStart<'_>) {
        let name = tag.local_name();
        match name.as_ref() {
            "tab" | "ptab" => self.push("\t"),
            "br" | "cr" => self.push("\n"),
            "noBreakHyphen" => self.push("-"),
            "vanish" => {
                self.hidden = attribute(tag, "val").is_none_or(|value| !matches!(&*value, "0" | "false" | "off"))
            }
            // An empty paragraph.
            "p" if self.open.tables == 0 => self.number += 1,
            "pStyle" if self.open.tables == 0 => self.set_style(&attribute(tag, "val").unwrap_or_default()),
            "ilvl" if self.open.tables == 0 => {
                let level = attribute(tag, "val").and_then(|level| level.parse::<usize>().ok()).unwrap_or(0);
                self.open.mark = "  ".repeat(level.min(8)) + "- ";
            }
            "footnoteReference" | "endnoteReference" | "commentReference" => {
                if let Some(label) = self.label(tag, true) {
                    self.push(&format!("[^{label}]"));
                }
            }
            _ => {}
        }
    }

    fn set_style(&mut self, style: &str) {
        let style = style.to_ascii_lowercase();
        let level = style.strip_prefix("heading").and_then(|level| level.parse::<usize>().ok());
        match level {
            Some(level @ 1..=6) => self.open.mark = "#".repeat(level) + " ",
            _ if style == "title" => self.open.mark = "# ".to_owned(),
            _ => {}
        }
    }

    fn end(&mut self, name: &str) {
        match name {
            "t" => self.in_text = false,
            "r" => self.hidden = false,
            "tbl" => self.open.tables = self.open.tables.saturating_sub(1),
            "tc" => self.open.text.push_str(" | "),
            "p" if self.open.tables == 0 => self.finish(),
            "p" => self.open.text.push(' '),
            "tr" if self.open.tables == 1 => self.finish(),
            "AlternateContent" => _ = self.chosen.pop(),
            "txbxContent" => self.open = self.around.pop().unwrap_or_default(),
            _ => {}
        }
    }

    fn finish(&mut self) {
        let OpenParagraph { text, mark, .. } = &mut self.open;
        let (text, mark) = (std::mem::take(text), std::mem::take(mark));
        let words = text.trim().trim_end_matches('|').trim_end();
        let line = (!words.is_empty()).then(|| format!("{mark}{words}\n"));
        if !self.around.is_empty() {
            self.boxed.extend(line);
            return;
        }
        self.number += 1;
        let mut number = self.number;
        for text in line.into_iter().chain(self.boxed.drain(..)) {
            self.done.push(SourcePart { number, text });
            number += 1;
        }
        self.number = self.number.max(number - 1);
    }
}

/// The character of a numeric entity such as `228` or `xE4`.
fn character(number: &str) -> Option<char> {
    let code = match number.strip_prefix(['x', 'X']) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => number.parse(),
    };
    char::from_u32(code.ok()?)
}
