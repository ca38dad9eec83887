//! Texts of prompts whose contents cannot act as control tokens.
//!
//! A break is inserted into each control token text within a content, before the content is
//! rendered or appended. The break stays in the text, whatever a template does with it. Encoding
//! finds control tokens in the text with breaks, so that it finds only those that the template
//! wrote. It then removes the breaks before it encodes ordinary text. A content without control
//! token texts is therefore unchanged for the template and the encoder.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};

use super::Tokenizer;

/// A Unicode noncharacter for internal use, inserted into texts that must not become control
/// tokens.
pub(super) const BREAK: char = '\u{FDD0}';

/// Characters removed from contents: the break, and the noncharacters around probes.
const RESERVED: [char; 3] = [BREAK, '\u{FDD1}', '\u{FDD2}'];

/// The text of a prompt, to be encoded with [`Tokenizer::encode_prompt`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptText {
    text: String,
}

/// Keeps contents from acting as control tokens, or allows it.
#[derive(Debug, Clone, Copy)]
pub struct ContentGuard<'a>(Option<&'a Tokenizer>);

impl PromptText {
    /// A text with breaks in its contents.
    pub(super) fn guarded(text: String) -> Self {
        PromptText { text }
    }

    /// Appends template text, whose control tokens are recognised.
    pub fn push_format(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Appends a content.
    pub fn push_content(&mut self, text: &str, guard: ContentGuard<'_>) {
        self.text.push_str(&guard.text(text));
    }

    /// The text with breaks. Any control token in it must be recognised.
    pub fn with_breaks(&self) -> &str {
        &self.text
    }

    /// The text without breaks, as a reader sees it.
    pub fn plain(&self) -> Cow<'_, str> {
        without_breaks(&self.text)
    }
}

impl<'a> ContentGuard<'a> {
    /// A guard against the control tokens of `tokenizer`; `None` guards against nothing.
    pub fn new(tokenizer: Option<&'a Tokenizer>) -> Self {
        ContentGuard(tokenizer)
    }

    /// `said` in a form that is safe to render.
    pub fn text<'t>(&self, said: &'t str) -> Cow<'t, str> {
        let said: Cow<'t, str> = if said.contains(RESERVED) { said.replace(RESERVED, "").into() } else { said.into() };
        let broken = match self.0.map(|tokenizer| tokenizer.with_breaks(&said)) {
            Some(Cow::Owned(broken)) => Some(broken),
            Some(Cow::Borrowed(_)) | None => None,
        };
        broken.map_or(said, Cow::Owned)
    }

    /// `value` with all its texts in a form that is safe to render.
    pub fn value(&self, value: &Json) -> Json {
        match value {
            Json::String(text) => Json::String(self.text(text).into_owned()),
            Json::Array(list) => Json::Array(list.iter().map(|value| self.value(value)).collect()),
            Json::Object(map) => Json::Object(self.map(map)),
            other => other.clone(),
        }
    }

    /// `map` with all its texts and keys in a form that is safe to render.
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
