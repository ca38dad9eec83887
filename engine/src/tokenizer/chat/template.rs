//! The chat template of one checkpoint.

use minijinja::{Value, context};

use super::{fallback, sandbox};
use crate::{
    error::{Error, Result},
    format::{Checkpoint, TokenizerSource},
    tokenizer::Tokenizer,
};

/// One turn of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChatMessage<'a> {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: &'a str,
    /// What is said.
    pub content: &'a str,
}

/// Where a template came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateOrigin {
    /// The model's own, under this key.
    Model(String),
    /// One of ours.
    Fallback {
        /// What the format is called: `ChatML`, `plain`.
        format: &'static str,
        /// Why this one, and what was wrong with the model's own.
        reason: String,
    },
}

impl std::fmt::Display for TemplateOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TemplateOrigin::Model(key) => write!(f, "the model's own (`{key}`)"),
            TemplateOrigin::Fallback { format, reason } => write!(f, "{format} format: {reason}"),
        }
    }
}

/// Turns messages into the text a model was trained on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatTemplate {
    source: String,
    origin: TemplateOrigin,
    stops: &'static [&'static str],
    tokens: SpecialTexts,
}

/// Texts of the special tokens templates refer to; empty where the model has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct SpecialTexts {
    bos: String,
    eos: String,
    padding: String,
}

impl ChatTemplate {
    /// The checkpoint's template. Where there is none, or where it fails on a first question, one of ours takes its
    /// place; [`ChatTemplate::origin`] says so.
    pub fn from_checkpoint(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Self {
        Self::named(checkpoint, tokenizer, "default")
    }

    /// The checkpoint's template called `name`, of those that bring several (`default`, `tool_use`, `rag`).
    pub fn named(checkpoint: &Checkpoint, tokenizer: &Tokenizer, name: &str) -> Self {
        let model = checkpoint.metadata.str("general.name").ok().flatten().unwrap_or_default();
        match find(checkpoint, name) {
            Some((key, source)) => Self::from_source(source, &key, tokenizer, model),
            None => Self::fallback(tokenizer, model, "the file has no chat template"),
        }
    }

    /// A template given as text, found under `key`; ours if it fails on a first question.
    pub fn from_source(source: &str, key: &str, tokenizer: &Tokenizer, model: &str) -> Self {
        let template = ChatTemplate {
            source: source.to_owned(),
            origin: TemplateOrigin::Model(key.to_owned()),
            stops: &[],
            tokens: SpecialTexts::of(tokenizer),
        };
        match template.render(&[ChatMessage { role: "user", content: "Hello" }], true) {
            Ok(text) if text.contains("Hello") => template,
            Ok(_) => Self::fallback(tokenizer, model, &format!("the one under `{key}` leaves out what the user says")),
            Err(error) => Self::fallback(tokenizer, model, &format!("the one under `{key}` fails: {error}")),
        }
    }

    /// The template of ours that fits the vocabulary, and the model's name where that tells nothing.
    pub fn fallback(tokenizer: &Tokenizer, model: &str, reason: &str) -> Self {
        let (format, why) = fallback::choose(tokenizer, model);
        ChatTemplate {
            source: format.source.to_owned(),
            origin: TemplateOrigin::Fallback { format: format.name, reason: format!("{reason}; {why}") },
            stops: format.stops,
            tokens: SpecialTexts::of(tokenizer),
        }
    }

    /// Where the template came from, and if it is ours, why.
    pub fn origin(&self) -> &TemplateOrigin {
        &self.origin
    }

    /// The template itself.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Texts after which an answer is over, besides the tokens for which [`Tokenizer::is_end`] holds.
    pub fn stop_strings(&self) -> &'static [&'static str] {
        self.stops
    }

    /// The text of a conversation, to be encoded with [`EncodeOptions::CHAT`](crate::tokenizer::EncodeOptions::CHAT);
    /// with `add_generation_prompt`, up to where the model's answer begins.
    ///
    /// A template that knows no system role gets the system message in front of the first user message. Errors are
    /// [`Error::Template`]: what the template raised, or what it asked too much of.
    pub fn render(&self, messages: &[ChatMessage<'_>], add_generation_prompt: bool) -> Result<String> {
        let plain = self.render_as_is(messages, add_generation_prompt);
        let Some((system, rest)) = messages.split_first().filter(|(first, _)| first.role == "system") else {
            return plain;
        };
        if plain.as_ref().is_ok_and(|text| text.contains(system.content.trim())) {
            return plain;
        }
        let Some(at) = rest.iter().position(|message| message.role == "user") else { return plain };
        let joined = format!("{}\n\n{}", system.content.trim(), rest[at].content);
        let mut merged = rest.to_vec();
        merged[at].content = &joined;
        self.render_as_is(&merged, add_generation_prompt).or(plain)
    }

    fn render_as_is(&self, messages: &[ChatMessage<'_>], add_generation_prompt: bool) -> Result<String> {
        let input = messages.iter().map(|message| message.role.len() + message.content.len()).sum();
        let messages: Vec<Value> =
            messages.iter().map(|message| context! { role => message.role, content => message.content }).collect();
        let context = context! {
            messages,
            add_generation_prompt,
            bos_token => self.tokens.bos.as_str(),
            eos_token => self.tokens.eos.as_str(),
            pad_token => self.tokens.padding.as_str(),
            tools => Value::from(()),
            documents => Value::from(()),
        };
        sandbox::render(&self.source, &context, input).map_err(Error::Template)
    }
}

impl SpecialTexts {
    fn of(tokenizer: &Tokenizer) -> Self {
        let text = |id: Option<u32>| {
            id.map(|id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned()).unwrap_or_default()
        };
        SpecialTexts { bos: text(tokenizer.bos()), eos: text(tokenizer.eos()), padding: text(tokenizer.padding()) }
    }
}

/// The template called `name`, and the key it was found under.
fn find<'a>(checkpoint: &'a Checkpoint, name: &str) -> Option<(String, &'a str)> {
    match &checkpoint.tokenizer {
        TokenizerSource::Metadata => {
            let named = format!("tokenizer.chat_template.{name}");
            let keys = if name == "default" { vec!["tokenizer.chat_template".to_owned(), named] } else { vec![named] };
            keys.into_iter().find_map(|key| {
                let source = checkpoint.metadata.str(&key).ok()??;
                Some((key, source))
            })
        }
        TokenizerSource::HuggingFace { tokenizer_config, .. } => {
            let templates = tokenizer_config.get("chat_template")?;
            let source = match templates.as_array() {
                Some(list) => list
                    .iter()
                    .find(|entry| entry.get("name").and_then(serde_json::Value::as_str) == Some(name))?
                    .get("template")?
                    .as_str()?,
                None => templates.as_str().filter(|_| name == "default")?,
            };
            Some(("chat_template".to_owned(), source))
        }
    }
}
