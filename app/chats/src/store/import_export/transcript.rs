//! Import of Markdown transcripts of other programs, and of Thermocline before
//! [`markdown`](super::markdown) had comments. Speakers are in headings (`## User`), in bold
//! (`**User:** Hello`) or, if there are neither, before a colon (`User: Hello`). A file uses one of
//! these forms. A line in another form is part of the text.

use std::collections::HashMap;

use super::{
    FileChat, bad,
    markdown::{ASSISTANT_NAME, SYSTEM_NAME, USER_NAME},
};
use crate::store::{Speaker, StoreError};
use thermocline_engine::tokenizer::fence::Fence;

/// Names of users, models and system prompts in transcripts.
const USERS: &[&str] = &["user", "you", "you said", "human", "me", "prompt", "question"];
const ASSISTANTS: &[&str] = &["assistant", "ai", "bot", "model", "answer", "response", "reply", "llm"];
const PRODUCTS: &[&str] =
    &["chatgpt", "claude", "gemini", "copilot", "deepseek", "grok", "mistral", "llama", "qwen", "gpt"];
const SYSTEMS: &[&str] = &["system", "system prompt"];

/// Number of headings quoted in the error if no heading names a speaker.
const TOLD: usize = 4;

/// The form in which a transcript names its speakers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameStyle {
    /// In a heading of this level.
    Heading(usize),
    Bold,
    Plain,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Who {
    User,
    Assistant(Option<String>),
    System,
}

/// A line that may name a speaker.
#[derive(Debug)]
struct SpeakerLine<'a> {
    style: NameStyle,
    name: &'a str,
    who: Option<Who>,
    /// Byte offsets of the line and of the text after the name.
    line: usize,
    words: usize,
}

/// Parses a transcript.
///
/// # Errors
/// [`StoreError::Import`] if no line names a speaker.
pub(super) fn read(text: &str) -> Result<FileChat, StoreError> {
    let plain = text.replace("\r\n", "\n");
    let text = &*plain;
    let mut signs = signs(text);
    let is_ours = is_ours(text);
    let style = if is_ours { Some(NameStyle::Heading(2)) } else { style(&signs) };
    let Some(style) = style else { return Err(no_speaker(&signs)) };
    signs.retain(|sign| sign.style == style);
    if is_ours {
        name_models(&mut signs);
    } else {
        keep_names(&mut signs);
    }
    signs.retain(|sign| sign.who.is_some());
    let Some(first) = signs.first() else { return Err(no_speaker(&[])) };

    let mut chat = FileChat::now();
    let before = text[..first.line].lines().find_map(|line| line.strip_prefix("# "));
    chat.title = before.unwrap_or_default().trim().to_owned();
    let ends = signs.iter().skip(1).map(|sign| sign.line).chain([text.len()]);
    let words: Vec<&str> = signs.iter().zip(ends).map(|(sign, end)| trim(&text[sign.words..end])).collect();
    let between = words.split_last().map_or(&[][..], |(_, rest)| rest);
    let ruled = !between.is_empty() && between.iter().all(|words| without_rule(words).is_some());
    for (sign, words) in signs.iter().zip(&words) {
        let words = without_rule(words).filter(|_| ruled).unwrap_or(words);
        match &sign.who {
            Some(Who::User) => chat.add_message(Speaker::User, None, words),
            Some(Who::Assistant(model)) => chat.add_message(Speaker::Assistant, model.as_deref(), words),
            Some(Who::System) => chat.instruct(words),
            None => {}
        }
    }
    Ok(chat)
}

/// All lines outside of code that may name a speaker.
fn signs(text: &str) -> Vec<SpeakerLine<'_>> {
    // Inside an unclosed code block, lines still count. The names in a block are dropped when it
    // closes.
    let mut open: Option<(Fence<'_>, usize)> = None;
    let (mut signs, mut at) = (Vec::new(), 0);
    for whole in text.split_inclusive('\n') {
        let line = whole.trim_end();
        match open {
            Some((fence, before)) if fence.closes(line) => {
                signs.truncate(before);
                open = None;
            }
            Some(_) => signs.extend(sign(line, at)),
            None => {
                open = Fence::opening(line).map(|fence| (fence, signs.len()));
                signs.extend(sign(line, at));
            }
        }
        at += whole.len();
    }
    signs
}

fn sign(line: &str, at: usize) -> Option<SpeakerLine<'_>> {
    let hashes = line.len() - line.trim_start_matches('#').len();
    let (style, name, words) = if (1..=6).contains(&hashes) && line[hashes..].starts_with([' ', '\t']) {
        let name = line[hashes..].trim();
        let closed = name.trim_end_matches('#');
        // `# C#` is not a closed heading.
        (NameStyle::Heading(hashes), if closed.ends_with(' ') { closed.trim_end() } else { name }, line.len())
    } else if let Some(mark) = ["**", "__"].into_iter().find(|mark| line.starts_with(mark)) {
        let inner = &line[mark.len()..];
        let end = inner.find(mark)?;
        let (name, rest) = (&inner[..end], &inner[end + mark.len()..]);
        let words = rest.trim_start().trim_start_matches(':');
        if !words.is_empty() && !name.ends_with(':') && !rest.trim_start().starts_with(':') {
            return None;
        }
        (NameStyle::Bold, name, line.len() - words.len())
    } else {
        let (name, words) = line.split_once(':')?;
        (NameStyle::Plain, name, line.len() - words.len())
    };
    let who = who(name);
    let tells = who.is_some() || matches!(style, NameStyle::Heading(_));
    tells.then_some(SpeakerLine { style, name, who, line: at, words: at + words })
}

/// A name without decoration, and the text in brackets after it.
fn bare(name: &str) -> (&str, Option<&str>) {
    let name = name.trim_matches(|c: char| !c.is_alphanumeric() && !"()".contains(c));
    let (name, detail) = match name.strip_suffix(')').and_then(|name| name.rsplit_once('(')) {
        None => (name, None),
        Some((name, detail)) => (name.trim(), Some(detail.trim()).filter(|detail| !detail.is_empty())),
    };
    (name.strip_suffix(" said").filter(|name| is(PRODUCTS, name)).unwrap_or(name), detail)
}

fn is(names: &[&str], name: &str) -> bool {
    names.iter().any(|it| it.eq_ignore_ascii_case(name))
}

/// The speaker that a name stands for. `Assistant (llama)` also names the model.
fn who(name: &str) -> Option<Who> {
    let (name, detail) = bare(name);
    if is(USERS, name) {
        Some(Who::User)
    } else if is(ASSISTANTS, name) {
        Some(Who::Assistant(detail.map(str::to_owned)))
    } else if is(PRODUCTS, name) {
        Some(Who::Assistant(Some(detail.unwrap_or(name).to_owned())))
    } else {
        is(SYSTEMS, name).then_some(Who::System)
    }
}

/// Keeps only the first name used for each speaker, because `Prompt` and `Answer` may be headings
/// of the text. Product names, and models in brackets, may alternate.
fn keep_names(signs: &mut [SpeakerLine<'_>]) {
    let first = |who: fn(&Who) -> bool| {
        let sign = signs.iter().find(|sign| sign.who.as_ref().is_some_and(who));
        sign.map_or("", |sign| bare(sign.name).0)
    };
    let user = first(|who| *who == Who::User);
    let assistant = first(|who| matches!(who, Who::Assistant(_)));
    for sign in signs {
        let (name, detail) = bare(sign.name);
        let kept = match &sign.who {
            Some(Who::User) => is(&[user], name),
            Some(Who::Assistant(_)) => {
                let product = is(PRODUCTS, assistant) && is(PRODUCTS, name);
                is(&[assistant], name) || product || detail.is_some()
            }
            Some(Who::System) | None => true,
        };
        sign.who = sign.who.take().filter(|_| kept);
    }
}

/// The form that names both speakers or, failing that, the user.
fn style(signs: &[SpeakerLine<'_>]) -> Option<NameStyle> {
    let has =
        |style, is: fn(&Who) -> bool| signs.iter().any(|sign| sign.style == style && sign.who.as_ref().is_some_and(is));
    let user = |style| has(style, |who| *who == Who::User);
    let both = |style| user(style) && has(style, |who| matches!(who, Who::Assistant(_)));
    let clear = || (1..=6).map(NameStyle::Heading).chain([NameStyle::Bold]);
    let plain = || Some(NameStyle::Plain).filter(|style| both(*style));
    clear().find(|style| both(*style)).or_else(|| clear().find(|style| user(*style))).or_else(plain)
}

/// `true` if an earlier version of this program wrote the text: it begins with a title, followed at
/// once by a speaker heading.
fn is_ours(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
    lines.next().is_some_and(|line| line.starts_with("# "))
        && lines.next().is_some_and(|line| line == "## User" || line == "## System")
}

/// Recognises model names as speakers in an export of an earlier version, which has a model name
/// after each user. The heading that follows most users is the model, not part of the text.
fn name_models(signs: &mut [SpeakerLine<'_>]) {
    for sign in signs.iter_mut() {
        let exact = [USER_NAME, ASSISTANT_NAME, SYSTEM_NAME].contains(&sign.name);
        sign.who = sign.who.take().filter(|_| exact);
    }
    if let Some(at) = signs.iter().position(|sign| sign.who == Some(Who::User)) {
        // A system prompt is only valid before the first message.
        signs[at..].iter_mut().filter(|sign| sign.who == Some(Who::System)).for_each(|sign| sign.who = None);
    }
    let is_user = |sign: &SpeakerLine<'_>| sign.who == Some(Who::User);
    let is_answered = |turn: &[SpeakerLine<'_>]| turn.iter().any(|sign| sign.who.is_some());
    let mut turns: HashMap<&str, usize> = HashMap::new();
    for turn in signs.split(is_user).skip(1).filter(|turn| !is_answered(turn)) {
        let mut names: Vec<&str> = turn.iter().map(|sign| sign.name).collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter().for_each(|name| *turns.entry(name).or_default() += 1);
    }
    for turn in signs.split_mut(is_user).skip(1).filter(|turn| !is_answered(turn)) {
        let often = |sign: &SpeakerLine<'_>| turns.get(sign.name).copied().unwrap_or_default();
        // The first of equally frequent names.
        if let Some(sign) = turn.iter_mut().rev().max_by_key(|sign| often(sign)) {
            sign.who = Some(Who::Assistant(Some(sign.name.to_owned())));
        }
    }
}

/// Text without empty lines around it.
fn trim(words: &str) -> &str {
    let start = words.len() - words.trim_start().len();
    // The first line keeps its indentation, which may mark code or a list item.
    let line = words[..start].rfind('\n').map_or(0, |end| end + 1);
    let words = words[line..].trim_end();
    if line == 0 { words.trim_start() } else { words }
}

/// Text before a final thematic break, which separates it from the next message.
fn without_rule(words: &str) -> Option<&str> {
    let (before, last) = words.rsplit_once('\n').unwrap_or(("", words));
    let is_rule =
        last.len() >= 3 && ["-", "*", "_"].iter().any(|mark| last.trim_matches(|c| mark.contains(c)).is_empty());
    is_rule.then(|| before.trim_end())
}

fn no_speaker(signs: &[SpeakerLine<'_>]) -> StoreError {
    let mut names: Vec<String> = signs
        .iter()
        .filter(|sign| matches!(sign.style, NameStyle::Heading(_)))
        .map(|sign| format!("\u{201c}{}\u{201d}", sign.name))
        .collect();
    let more = names.len().saturating_sub(TOLD);
    names.truncate(TOLD);
    let got = match (names.is_empty(), more) {
        (true, _) => "text without a heading".to_owned(),
        (false, 0) => format!("the headings {}", names.join(", ")),
        (false, more) => format!("the headings {} and {more} more", names.join(", ")),
    };
    bad(
        "the file",
        "a conversation with headings such as \u{201c}## User\u{201d} and \u{201c}## Assistant\u{201d}",
        got,
    )
}

#[cfg(test)]
mod tests;
