//! The notations in which published models write tool calls.

use super::{
    brackets::{ALL, BracketSign, Brackets, CallSpelling, FUNCTION, HUNYUAN, KnownBrackets, LLAMA, LLAMA4, TOOL_CALL},
    event::CONTROL,
};
use crate::{TokenKind, Tokenizer};

/// Suffixes of the names of tags, as in `<tool_calls:opensource>`: Hy3's and Hy4's.
const SUFFIXES: [&str; 2] = [":opensource", ":6124c78e"];

/// A token that occurs in calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallToken {
    /// Id of the token.
    pub id: u32,
    /// Its text in the vocabulary.
    pub text: String,
    /// Text of the token in an answer that is parsed for calls. It differs from the same characters
    /// as ordinary text.
    pub shown: String,
}

/// How a model writes tool calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolFormat {
    pub(super) brackets: Vec<Brackets>,
    pub(super) spelling: CallSpelling,
    /// True if an answer may start with a call without brackets.
    pub(super) bare: bool,
    tokens: Vec<CallToken>,
}

impl ToolFormat {
    /// Detects the format from a model's vocabulary and the source of its chat template. For
    /// templates without tools it is `<tool_call>`, as our instructions describe.
    pub fn detect(tokenizer: &Tokenizer, template: &str) -> Self {
        let is_token = |text: &str| token(tokenizer, text).is_some();
        let is_used = |known: &&KnownBrackets| match known.sign {
            BracketSign::Template => template.contains(known.open),
            BracketSign::Token => template.contains(known.open) || is_token(known.open),
            BracketSign::Both(other) => template.contains(known.open) && template.contains(other),
        };
        let mut used: Vec<KnownBrackets> = ALL.iter().filter(is_used).copied().collect();
        if template.contains("Environment: ipython") && !template.contains(LLAMA.open) {
            used.push(LLAMA);
        }
        let suffix = SUFFIXES.into_iter().find(|suffix| is_token(&with_suffix(HUNYUAN.open, suffix)));
        // The template adds the suffix when it is rendered.
        used.extend(suffix.map(|_| HUNYUAN).filter(|_| !template.contains(HUNYUAN.open)));
        let has = |known: KnownBrackets| used.iter().any(|it| it.open == known.open);
        let is_llama = has(LLAMA) || has(LLAMA4);
        // GLM 4 writes the name, a line end and the arguments.
        let bare = is_llama || (used.is_empty() && template.contains("<|observation|>"));
        let is_known = bare || !used.is_empty();
        // Function tags may be nested in these brackets.
        let is_coder = has(FUNCTION) && used.iter().all(|it| it.close.is_empty());
        // A template that ignores definitions gets them as text.
        let in_words = !is_known || !template.contains("tools");
        if (is_coder || in_words) && !has(TOOL_CALL) {
            used.push(TOOL_CALL);
        }
        // If the model uses a notation of its own, a text with a token only matches that token.
        let shown = |text: &str| if is_known { format!("{CONTROL}{text}") } else { text.to_owned() };
        let call_token = |text: String| Some(CallToken { id: token(tokenizer, &text)?, shown: shown(&text), text });
        Self::of(&used, bare, suffix.unwrap_or_default(), &call_token)
    }

    /// The format with the brackets `used`, whose tags have names with `suffix`.
    fn of(used: &[KnownBrackets], bare: bool, suffix: &str, call_token: &dyn Fn(String) -> Option<CallToken>) -> Self {
        let texts = CallSpelling::token_texts(used).into_iter();
        let tokens: Vec<CallToken> = texts.filter_map(|text| call_token(with_suffix(&text, suffix))).collect();
        let spell = |text: &str| {
            let text = with_suffix(text, suffix);
            match tokens.iter().find(|token| token.text == text) {
                Some(token) => token.shown.clone(),
                None => match tokens.iter().find(|token| text.contains(&token.text)) {
                    Some(token) => text.replace(&token.text, &token.shown),
                    None => text,
                },
            }
        };
        let brackets = used.iter().map(|known| Brackets::of(known, &spell)).collect();
        let spelling = CallSpelling::of(&spell);
        ToolFormat { brackets, spelling, bare, tokens }
    }

    /// The format of answers that are JSON from the first character, as a grammar forces them.
    pub fn forced() -> Self {
        Self::of(&[], true, "", &|_| None)
    }

    /// Tokens of calls, which a caller must see even if the vocabulary hides them.
    pub fn tokens(&self) -> &[CallToken] {
        &self.tokens
    }

    /// The format of one kind of brackets, as plain texts without tokens.
    pub fn of_texts(open: &str) -> Self {
        let used: Vec<KnownBrackets> = ALL.iter().filter(|it| it.open == open).copied().collect();
        Self::of(&used, [LLAMA.open, LLAMA4.open].contains(&open), "", &|_| None)
    }
}

/// The tag `text` with `suffix` after its name. Other texts have no suffix.
fn with_suffix(text: &str, suffix: &str) -> String {
    match text.strip_prefix('<').and_then(|_| text.strip_suffix('>')) {
        Some(tag) => format!("{tag}{suffix}>"),
        None => text.to_owned(),
    }
}

/// The token with this text, if it is a control token or user-defined.
fn token(tokenizer: &Tokenizer, text: &str) -> Option<u32> {
    let is_own = |id: &u32| matches!(tokenizer.token_kind(*id), Some(TokenKind::Control | TokenKind::UserDefined));
    tokenizer.token_id(text).filter(is_own)
}

#[cfg(test)]
mod tests;
