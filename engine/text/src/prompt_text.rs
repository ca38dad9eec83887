//! Texts of prompts in which the words of others are words: nothing that they say can act as a control token.
//!
//! A break is put into each text of a control token within a content before the content is rendered or appended. It goes where the text
//! goes, through whatever a template does with it; encoding finds control tokens in the text with the breaks, which are those that the
//! template wrote, and takes the breaks out before ordinary text is encoded. So texts without control tokens are the same to a template and
//! to the encoder as if they were not guarded at all.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};

use super::Tokenizer;

/// A noncharacter of Unicode, for a program's own use, that stands within the text of what is no control token.
pub(super) const BREAK: char = '\u{FDD0}';

/// Removed from what is said: the break, and the noncharacters that stand around probes.
const RESERVED: [char; 3] = [BREAK, '\u{FDD1}', '\u{FDD2}'];

/// The text of a prompt, to be encoded with [`Tokenizer::encode_prompt`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptText {
    text: String,
}

/// Takes the power from control tokens in what is said, or leaves it as it is.
#[derive(Debug, Clone, Copy)]
pub struct ContentGuard<'a>(Option<&'a Tokenizer>);

impl PromptText {
    /// A text with breaks in its contents.
    pub(super) fn guarded(text: String) -> Self {
        PromptText { text }
    }

    /// Appends a text whose control tokens count.
    pub fn push_format(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Appends what is said.
    pub fn push_content(&mut self, text: &str, guard: ContentGuard<'_>) {
        self.text.push_str(&guard.text(text));
    }

    /// It with the breaks, in which a control token is one that counts.
    pub fn with_breaks(&self) -> &str {
        &self.text
    }

    /// The text as a reader sees it.
    pub fn plain(&self) -> Cow<'_, str> {
        without_breaks(&self.text)
    }
}

impl<'a> ContentGuard<'a> {
    /// A guard against the control tokens of `tokenizer`; `None`: against none.
    pub fn new(tokenizer: Option<&'a Tokenizer>) -> Self {
        ContentGuard(tokenizer)
    }

    /// `said` as it may be rendered.
    pub fn text<'t>(&self, said: &'t str) -> Cow<'t, str> {
        let said: Cow<'t, str> = if said.contains(RESERVED) { said.replace(RESERVED, "").into() } else { said.into() };
        let broken = match self.0.map(|tokenizer| tokenizer.with_breaks(&said)) {
            Some(Cow::Owned(broken)) => Some(broken),
            Some(Cow::Borrowed(_)) | None => None,
        };
        broken.map_or(said, Cow::Owned)
    }

    /// `value` with all its texts as they may be rendered.
    pub fn value(&self, value: &Json) -> Json {
        match value {
            Json::String(text) => Json::String(self.text(text).into_owned()),
            Json::Array(list) => Json::Array(list.iter().map(|value| self.value(value)).collect()),
            Json::Object(map) => Json::Object(self.map(map)),
            other => other.clone(),
        }
    }

    /// `map` with all its texts, keys included, as they may be rendered.
    pub fn map(&self, map: &Map<String, Json>) -> Map<String, Json> {
        map.iter().map(|(key, value)| (self.text(key).into_owned(), self.value(value))).collect()
    }
}

/// `text` without breaks.
pub(super) fn without_breaks(text: &str) -> Cow<'_, str> {
    if text.contains(BREAK) { text.replace(BREAK, "").into() } else { text.into() }
}

#[cfg(test)]
mod tests;
