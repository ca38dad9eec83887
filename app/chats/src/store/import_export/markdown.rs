//! Thermocline's Markdown format: a heading for each speaker, and the unchanged text. The text may
//! contain similar headings. Therefore each real heading follows a comment, which viewers do not
//! show:
//!
//! ```text
//! <!-- thermocline:chat -->
//! # Frogs
//!
//! <!-- thermocline:user -->
//! ## User
//!
//! Tell me of a frog.
//! ```
//!
//! Attached files follow their message. Each passage is a code block named by its place. A picture
//! is a passage, its file in base64. If the
//! text itself contains such comments, all comments get a number (`thermocline-2:`). An unclosed
//! code block in the text would swallow the rest of the file, so it is closed and marked
//! `unclosed`.

use super::{
    FileChat,
    attached::{FileAttachment, written},
    bad,
};
use crate::{
    attachment::{Document, Passage},
    store::{Speaker, StoreError},
};
use thermocline_engine::tokenizer::fence::Fence;

/// Prefix of our comments, before the number.
const COMMENT: &str = "<!-- thermocline";
const END: &str = "-->";

const CHAT: &str = "chat";
const SYSTEM: &str = "system";
const UNCLOSED: &str = "unclosed";
const FILE: &str = "file";

/// Headings of sections that have no name of their own.
pub(super) const SYSTEM_NAME: &str = "System";
pub(super) const USER_NAME: &str = "User";
pub(super) const ASSISTANT_NAME: &str = "Assistant";
const TOOL_NAME: &str = "Tool";

/// A message to write.
#[derive(Debug, Clone, Copy)]
pub struct MarkdownMessage<'a> {
    /// Author.
    pub speaker: Speaker,
    /// Name of the model, or of the tool.
    pub model: Option<&'a str>,
    /// Text.
    pub content: &'a str,
    /// Attached files.
    pub files: &'a [Document],
}

/// Writes a chat without versions. With `comments`, [`read`] restores all of it. Without them, only
/// people can read it.
pub fn write(title: &str, system_prompt: &str, said: &[MarkdownMessage<'_>], comments: bool) -> String {
    let passages = || said.iter().flat_map(|said| said.files).flat_map(|file| &file.passages);
    let texts = || passages().filter(|_| comments).map(|passage| passage.text.as_str());
    let contents = || said.iter().map(|said| said.content).chain([system_prompt]);
    let mut mark = format!("{COMMENT}:");
    for n in 2.. {
        if !contents().chain(texts()).any(|content| content.contains(&mark)) {
            break;
        }
        mark = format!("{COMMENT}-{n}:");
    }
    let comment = |what: &str| if comments { format!("{mark}{what} {END}\n") } else { String::new() };
    let mut text = comment(CHAT);
    if !title.is_empty() {
        text.push_str(&format!("# {}\n", one_line(title)));
    }
    let mut section = |what: &str, name: &str, content: &str| {
        let (comment, fence) = match Fence::left_open(content) {
            None => (comment(what), String::new()),
            Some(fence) => (comment(&format!("{what} {UNCLOSED}")), format!("\n{}", fence.mark)),
        };
        text.push_str(&format!("\n{comment}## {}\n\n{content}{fence}\n", one_line(name)));
    };
    if !system_prompt.is_empty() {
        section(SYSTEM, SYSTEM_NAME, system_prompt);
    }
    for said in said {
        let name = match said.speaker {
            Speaker::User => USER_NAME.to_owned(),
            Speaker::Assistant => said.model.unwrap_or(ASSISTANT_NAME).to_owned(),
            Speaker::Tool => format!("{TOOL_NAME} {}", said.model.unwrap_or_default()).trim_end().to_owned(),
        };
        section(said.speaker.name(), &name, said.content);
        if comments {
            for file in said.files {
                section(&format!("{FILE} {}", file.kind.name()), &file.name, &blocks(&written(file)));
            }
        } else if !said.files.is_empty() {
            let names: Vec<&str> = said.files.iter().map(|file| file.name.as_str()).collect();
            section("", "Attached", &names.join("\n"));
        }
    }
    text
}

/// Writes each passage as a code block, with its place as the language of the block.
fn blocks(passages: &[Passage]) -> String {
    let block = |passage: &Passage| {
        let runs = passage.text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
        let fence = "`".repeat(3.max(runs + 1));
        // A mark records whether the passage itself ends with a line end.
        let end = if passage.text.ends_with('\n') { "" } else { " …" };
        let (place, line) = (one_line(&passage.place), if end.is_empty() { "" } else { "\n" });
        format!("{fence}{place}{end}\n{}{line}{fence}\n", passage.text)
    };
    let blocks: String = passages.iter().map(block).collect();
    blocks.trim_end().to_owned()
}

/// Reads the passages written by [`blocks`].
fn passages(blocks: &str) -> Vec<Passage> {
    let (mut passages, mut rest) = (Vec::new(), blocks);
    while let Some((first, body)) = rest.split_once('\n') {
        let place = first.trim_start_matches('`');
        let fence = &first[..first.len() - place.len()];
        if fence.len() < 3 {
            rest = body;
            continue;
        }
        let mut end = 0;
        let closing = body.split_inclusive('\n').find_map(|line| {
            let start = end;
            end += line.len();
            (line.trim_end_matches('\n') == fence).then_some(start)
        });
        let text = &body[..closing.unwrap_or(body.len())];
        let (place, text) = match place.strip_suffix(" …") {
            Some(place) => (place, text.strip_suffix('\n').unwrap_or(text)),
            None => (place, text),
        };
        passages.push(Passage { place: place.to_owned(), text: text.to_owned() });
        rest = &body[end..];
    }
    passages
}

/// Parses the output of [`write`]; `None` for anything else.
///
/// # Errors
/// [`StoreError::Import`] if one of our comments is unknown.
pub(super) fn read(text: &str) -> Result<Option<FileChat>, StoreError> {
    // Transcripts of other programs start with headings or bold names. Their text may contain our
    // comments.
    let first = text.lines().find(|line| line.starts_with("##") || line.starts_with("**") || mark_of(line).is_some());
    let Some((line, mark)) = first.and_then(|line| Some((line, mark_of(line)?))) else { return Ok(None) };
    // If the line ends of our comments were changed, so were the line ends of the text.
    let plain = text.contains(&format!("{line}\r\n")).then(|| text.replace("\r\n", "\n"));
    let text = plain.as_deref().unwrap_or(text);

    let mut end = 0;
    let sections = text.split_inclusive('\n').enumerate().filter_map(|(n, line)| {
        let start = end;
        end += line.len();
        let words = line.strip_prefix(mark)?.trim_end().strip_suffix(END)?;
        Some((start, end, n + 1, words.trim()))
    });
    let sections: Vec<(usize, usize, usize, &str)> = sections.collect();
    let mut chat = FileChat::now();
    for (n, (_, start, line, words)) in sections.iter().enumerate() {
        let next = sections.get(n + 1).map(|(start, ..)| *start);
        let body = text[*start..next.unwrap_or(text.len())].trim_start_matches('\n');
        let (what, state) = words.split_once(' ').unwrap_or((words, ""));
        if what == CHAT {
            let title = body.lines().next().and_then(|line| line.strip_prefix("# "));
            chat.title = title.unwrap_or_default().to_owned();
            continue;
        }
        let (name, content) = parts(body, next.is_some());
        let content = match content.rsplit_once('\n').filter(|_| state == UNCLOSED) {
            Some((content, _fence)) => content,
            None => content,
        };
        if what == SYSTEM {
            chat.instruct(content);
            continue;
        }
        if let (FILE, Some(message)) = (what, chat.messages.last_mut()) {
            let name = name.unwrap_or("file").to_owned();
            message.attachments.push(FileAttachment::new(name, state, passages(content)));
            continue;
        }
        let speaker = Speaker::from_name(what).ok_or_else(|| {
            bad(
                format!("the comment in line {line}"),
                "chat, system, user, assistant, tool or file",
                format!("{what:?}"),
            )
        })?;
        let model = name.filter(|name| speaker == Speaker::Assistant && !name.is_empty() && *name != ASSISTANT_NAME);
        chat.add_message(speaker, model, content);
    }
    Ok(Some(chat))
}

/// The name in the heading of a section, and the text below it.
fn parts(body: &str, more: bool) -> (Option<&str>, &str) {
    let (name, content) = match body.strip_prefix("## ") {
        None => (None, body),
        Some(rest) => {
            let (name, content) = rest.split_once('\n').unwrap_or((rest, ""));
            (Some(name), content.strip_prefix('\n').unwrap_or(content))
        }
    };
    // Remove the last line end, and the empty line before the next comment.
    let content = if more { content.strip_suffix('\n').unwrap_or(content) } else { content };
    (name, content.strip_suffix('\n').unwrap_or(content))
}

/// The prefix of all comments of the file, if `line` is one of our comments.
fn mark_of(line: &str) -> Option<&str> {
    let number = line.strip_prefix(COMMENT)?.split_once(':')?.0;
    let digits = number.strip_prefix('-').unwrap_or_default();
    let is_number = number.is_empty() || (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()));
    (is_number && line.trim_end().ends_with(END)).then(|| &line[..=COMMENT.len() + number.len()])
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests;
