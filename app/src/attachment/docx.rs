//! The text of docx files: their paragraphs, with headings and lists as Markdown marks them, and tables row by row.

use std::io::{Cursor, Read};

use quick_xml::{
    Reader,
    escape::resolve_predefined_entity,
    events::{BytesStart, Event},
};
use zip::{ZipArchive, result::ZipError};

use super::passage::SourcePart;

/// The part of the archive that has the text.
const MAIN: &str = "word/document.xml";

/// Most bytes that it may unpack to.
const LARGEST: u64 = 64 << 20;

/// First bytes of the container in which word processors encrypt a file.
const ENCRYPTED: &[u8] = &[0xd0, 0xcf, 0x11, 0xe0, 0xa1, 0xb1, 0x1a, 0xe1];

/// Why there is no text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DocxError {
    /// It opens with a password only.
    Encrypted,
    /// It is not what it should be.
    Damaged(String),
}

fn damaged(error: impl ToString) -> DocxError {
    DocxError::Damaged(error.to_string())
}

/// The paragraphs of a docx file that have text.
pub(super) fn paragraphs(bytes: &[u8]) -> Result<Vec<SourcePart>, DocxError> {
    if bytes.starts_with(ENCRYPTED) {
        return Err(DocxError::Encrypted);
    }
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(damaged)?;
    let part = archive.by_name(MAIN).map_err(|error| match error {
        ZipError::FileNotFound => damaged(format!("there is no {MAIN} in it")),
        ZipError::UnsupportedArchive(ZipError::PASSWORD_REQUIRED) => DocxError::Encrypted,
        error => damaged(error),
    })?;
    let mut xml = String::new();
    part.take(LARGEST).read_to_string(&mut xml).map_err(damaged)?;
    let mut text = Paragraphs::default();
    let mut reader = Reader::from_str(&xml);
    loop {
        match reader.read_event().map_err(damaged)? {
            Event::Start(tag) => text.start(tag.local_name().as_ref()),
            Event::Empty(tag) => text.empty(&tag),
            Event::End(tag) => text.end(tag.local_name().as_ref()),
            Event::Text(words) if text.in_text => text.paragraph.push_str(&words),
            Event::GeneralRef(name) if text.in_text => {
                let value = match name.strip_prefix('#') {
                    Some(number) => character(number).map(String::from),
                    None => resolve_predefined_entity(&name).map(str::to_owned),
                };
                text.paragraph.push_str(&value.unwrap_or_default());
            }
            Event::Eof => return Ok(text.done),
            _ => {}
        }
    }
}

/// The character of a number such as `228` or `xE4`.
fn character(number: &str) -> Option<char> {
    let code = match number.strip_prefix(['x', 'X']) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => number.parse(),
    };
    char::from_u32(code.ok()?)
}

/// Paragraphs as they are read.
#[derive(Debug, Default)]
struct Paragraphs {
    done: Vec<SourcePart>,
    /// Paragraphs so far, those without text among them.
    number: usize,
    paragraph: String,
    /// Mark of a heading or of an item.
    mark: String,
    in_text: bool,
    /// Tables around the paragraph; their rows are lines.
    tables: usize,
}

impl Paragraphs {
    fn start(&mut self, tag: &str) {
        match tag {
            "t" => self.in_text = true,
            "tbl" => self.tables += 1,
            "p" if self.tables == 0 => {
                self.paragraph.clear();
                self.mark.clear();
            }
            _ => {}
        }
    }

    fn empty(&mut self, tag: &BytesStart<'_>) {
        let value = || {
            let attributes = tag.attributes().flatten();
            let found = attributes.into_iter().find(|attribute| attribute.key.local_name().as_ref() == "val");
            found.map(|attribute| attribute.value.into_owned()).unwrap_or_default()
        };
        match tag.local_name().as_ref() {
            "tab" => self.paragraph.push('\t'),
            "br" | "cr" => self.paragraph.push('\n'),
            // A paragraph without text.
            "p" if self.tables == 0 => self.number += 1,
            "noBreakHyphen" => self.paragraph.push('-'),
            "pStyle" if self.tables == 0 => {
                let style = value().to_ascii_lowercase();
                let level = style.strip_prefix("heading").and_then(|level| level.parse::<usize>().ok());
                match level {
                    Some(level @ 1..=6) => self.mark = "#".repeat(level) + " ",
                    _ if style == "title" => self.mark = "# ".to_owned(),
                    _ => {}
                }
            }
            "ilvl" if self.tables == 0 => {
                self.mark = "  ".repeat(value().parse::<usize>().unwrap_or(0).min(8)) + "- ";
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: &str) {
        match tag {
            "t" => self.in_text = false,
            "tbl" => self.tables = self.tables.saturating_sub(1),
            "tc" => self.paragraph.push_str(" | "),
            "p" if self.tables == 0 => self.finish(),
            "p" => self.paragraph.push(' '),
            "tr" if self.tables == 1 => self.finish(),
            _ => {}
        }
    }

    fn finish(&mut self) {
        self.number += 1;
        let words = self.paragraph.trim().trim_end_matches('|').trim_end();
        if !words.is_empty() {
            self.done.push(SourcePart { number: self.number, text: format!("{}{words}\n", self.mark) });
        }
        self.paragraph.clear();
        self.mark.clear();
    }
}
