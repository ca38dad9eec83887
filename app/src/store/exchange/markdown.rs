//! The Markdown of this program: a heading for whoever speaks, and their words as they are. What looks like such a heading may
//! be part of what was said, so that a comment, which no viewer shows, stands before each real one:
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
//! A number (`thermocline-2:`) tells these comments from those that somebody speaks of. Code that nobody ended would take the
//! rest of the file with it: it is ended, which `unclosed` says.

use super::{FileChat, bad};
use crate::{
    fence::Fence,
    store::{Speaker, StoreError},
};

/// How a comment of ours begins, before its number.
const COMMENT: &str = "<!-- thermocline";
const END: &str = "-->";

const CHAT: &str = "chat";
const SYSTEM: &str = "system";
const UNCLOSED: &str = "unclosed";

/// Headings of what has no name of its own.
pub(super) const SYSTEM_NAME: &str = "System";
pub(super) const USER_NAME: &str = "User";
pub(super) const ASSISTANT_NAME: &str = "Assistant";

/// Something said.
#[derive(Debug, Clone, Copy)]
pub struct Said<'a> {
    /// By whom.
    pub speaker: Speaker,
    /// By which model.
    pub model: Option<&'a str>,
    /// The words.
    pub content: &'a str,
}

/// A conversation without versions. `comments`: for a file, so that [`read`] brings all of it back; without them the text is for
/// people alone.
pub fn write(title: &str, system_prompt: &str, said: &[Said<'_>], comments: bool) -> String {
    let contents = || said.iter().map(|said| said.content).chain([system_prompt]);
    let mut mark = format!("{COMMENT}:");
    for n in 2.. {
        if !contents().any(|content| content.contains(&mark)) {
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
            Speaker::User => USER_NAME,
            Speaker::Assistant => said.model.unwrap_or(ASSISTANT_NAME),
        };
        section(said.speaker.name(), name, said.content);
    }
    text
}

/// What [`write`] wrote; `None` for anything else.
///
/// # Errors
/// [`StoreError::Import`] for a comment of ours that says what we never say.
pub(super) fn read(text: &str) -> Result<Option<FileChat>, StoreError> {
    // Headings and names in bold come first in what others wrote, which may speak of our comments later.
    let first = text.lines().find(|line| line.starts_with("##") || line.starts_with("**") || mark_of(line).is_some());
    let Some((line, mark)) = first.and_then(|line| Some((line, mark_of(line)?))) else { return Ok(None) };
    // The ends of its lines were changed on the way if those of ours were.
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
        let speaker = Speaker::of(what).ok_or_else(|| {
            bad(format!("the comment in line {line}"), "chat, system, user or assistant", format!("{what:?}"))
        })?;
        let model = name.filter(|name| speaker == Speaker::Assistant && !name.is_empty() && *name != ASSISTANT_NAME);
        chat.say(speaker, model, content);
    }
    Ok(Some(chat))
}

/// The name in the heading of a section, and the words below it.
fn parts(body: &str, more: bool) -> (Option<&str>, &str) {
    let (name, content) = match body.strip_prefix("## ") {
        None => (None, body),
        Some(rest) => {
            let (name, content) = rest.split_once('\n').unwrap_or((rest, ""));
            (Some(name), content.strip_prefix('\n').unwrap_or(content))
        }
    };
    // The end of the last line, and the empty line before the next comment.
    let content = if more { content.strip_suffix('\n').unwrap_or(content) } else { content };
    (name, content.strip_suffix('\n').unwrap_or(content))
}

/// What of a line begins every comment of its file, if it is one.
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
