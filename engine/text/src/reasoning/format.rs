//! The ways in which published models mark their thoughts.

use super::{AnswerParser, transcript::Thoughts};
use crate::{ContentGuard, PromptText, Tokenizer};

/// A marker text with a role in a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marker {
    pub text: &'static str,
    /// Token of the marker, if the vocabulary has one. Then only that token is a marker, and the
    /// same characters from other tokens are text.
    pub token: Option<u32>,
}

impl Marker {
    fn new(text: &'static str, tokenizer: Option<&Tokenizer>) -> Self {
        Marker { text, token: tokenizer.and_then(|tokenizer| tokenizer.token_id(text)) }
    }
}

/// The grammar of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FormatGrammar {
    /// An answer may start with thoughts between two tags.
    Tags {
        open: Marker,
        close: Marker,
        /// True if a channel name follows `open` on the same line.
        named: bool,
    },
    /// Each message has a header, which names a channel.
    Harmony { start: Marker, channel: Marker, message: Marker, end: Marker, ends: [Marker; 2] },
}

/// How a model marks its thoughts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningFormat {
    pub(super) grammar: FormatGrammar,
}

/// Tags of most models, Seed-OSS, Mistral, Cohere, EXAONE Deep, Apertus, Hy3 and Hy4, in this
/// order.
const TAGS: [(&str, &str); 8] = [
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<thought>", "</thought>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<think:6124c78e>", "</think:6124c78e>"),
];

/// Gemma 4's tags.
const CHANNEL: (&str, &str) = ("<|channel>", "<channel|>");
const THOUGHT: &str = "thought\n";

const HARMONY: [&str; 6] = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"];
const ASSISTANT: &str = "assistant";

impl ReasoningFormat {
    /// Detects the format from a model's vocabulary and the source of its chat template. Without
    /// any sign, the model is assumed to use `<think>`, only at the start of its answers.
    pub fn detect(tokenizer: &Tokenizer, template: &str) -> Self {
        let has = |text: &str| tokenizer.token_id(text).is_some();
        if HARMONY[..4].iter().all(|text| has(text)) {
            return Self::harmony(Some(tokenizer));
        }
        if has(CHANNEL.0) && has(CHANNEL.1) {
            return Self::tags(CHANNEL.0, CHANNEL.1, true, Some(tokenizer));
        }
        let tokens = TAGS.into_iter().find(|(open, close)| has(open) && has(close));
        let named = || TAGS.into_iter().find(|(open, close)| template.contains(open) && template.contains(close));
        let (open, close) = tokens.or_else(named).unwrap_or(TAGS[0]);
        Self::tags(open, close, false, Some(tokenizer))
    }

    fn tags(open: &'static str, close: &'static str, named: bool, tokenizer: Option<&Tokenizer>) -> Self {
        let (open, close) = (Marker::new(open, tokenizer), Marker::new(close, tokenizer));
        ReasoningFormat { grammar: FormatGrammar::Tags { open, close, named } }
    }

    fn harmony(tokenizer: Option<&Tokenizer>) -> Self {
        let [start, channel, message, end, give_back, call] = HARMONY.map(|text| Marker::new(text, tokenizer));
        ReasoningFormat { grammar: FormatGrammar::Harmony { start, channel, message, end, ends: [give_back, call] } }
    }

    /// A parser of the answer to `prompt`, a rendered conversation. The model starts to speak after
    /// it, or continues after `begun`.
    pub fn parser(&self, prompt: &str, begun: Option<&Thoughts<'_>>) -> AnswerParser {
        AnswerParser::new(self.clone(), prompt, begun)
    }

    /// True if `prompt` ends within thoughts, because the template has opened them.
    pub(super) fn opened_by(&self, prompt: &str) -> bool {
        let FormatGrammar::Tags { open, named, .. } = self.grammar else { return false };
        let prompt = prompt.trim_end();
        let prompt = if named { prompt.strip_suffix(THOUGHT.trim_end()).unwrap_or(prompt) } else { prompt };
        prompt.ends_with(open.text)
    }

    /// Appends to `prompt` the beginning of an answer to continue, as the model would have written
    /// it.
    pub fn write(&self, prompt: &mut PromptText, begun: &Thoughts<'_>, guard: ContentGuard<'_>) {
        let (thinking, answer) = (begun.thinking.map(|text| text.trim_start_matches('\n')), begun.answer);
        match self.grammar {
            FormatGrammar::Tags { open, close, named } => {
                let opened = self.opened_by(prompt.with_breaks());
                if !opened && thinking.is_some() {
                    prompt.push_format(open.text);
                    prompt.push_format(if named { THOUGHT } else { "\n" });
                }
                prompt.push_content(thinking.unwrap_or_default(), guard);
                if begun.closed && (opened || thinking.is_some()) {
                    prompt.push_format(close.text);
                    if !answer.starts_with('\n') && !named {
                        prompt.push_format("\n\n");
                    }
                }
                prompt.push_content(answer, guard);
            }
            FormatGrammar::Harmony { start, channel, message, end, .. } => {
                let header = |name: &str| format!("{}{name}{}", channel.text, message.text);
                if let Some(thinking) = thinking {
                    prompt.push_format(&header("analysis"));
                    prompt.push_content(thinking.trim_end_matches('\n'), guard);
                    if begun.closed {
                        prompt.push_format(&format!("{}{}{ASSISTANT}", end.text, start.text));
                    }
                }
                if begun.closed {
                    prompt.push_format(&header("final"));
                    prompt.push_content(answer.trim_start_matches('\n'), guard);
                }
            }
        }
    }

    /// The text with which the model ends its thoughts and begins the answer.
    pub fn end_of_thoughts(&self) -> String {
        match self.grammar {
            FormatGrammar::Tags { close, named: true, .. } => close.text.to_owned(),
            FormatGrammar::Tags { close, named: false, .. } => format!("\n{}\n\n", close.text),
            FormatGrammar::Harmony { start, channel, message, end, .. } => {
                format!("{}{}{ASSISTANT}{}final{}", end.text, start.text, channel.text, message.text)
            }
        }
    }

    /// A format whose markers are texts, not tokens.
    #[cfg(test)]
    pub(super) fn of_texts(name: &str) -> Self {
        match name {
            "harmony" => Self::harmony(None),
            "channel" => Self::tags(CHANNEL.0, CHANNEL.1, true, None),
            _ => {
                let (open, close) = TAGS.into_iter().find(|(open, _)| *open == name).expect("a format");
                Self::tags(open, close, false, None)
            }
        }
    }
}
