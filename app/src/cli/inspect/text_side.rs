//! How a file's text is tokenized and its chats are formatted: the tokenizer or its error, and the
//! origin of the chat template.

use serde::Serialize;
use serde_json::{Value as Json, json};
use thermocline_engine::{
    format::{Checkpoint, TokenizerSource},
    tokenizer::{ChatTemplate, TemplateOrigin, Tokenizer},
};

use thermocline_terminal::failure::one_line;

/// Key of the pre-tokenizer. Without it, text may be split differently than in training.
const PRE: &str = "tokenizer.ggml.pre";

/// The tokenizer and the chat template of a file.
pub struct TextSide {
    /// Number of tokens, or the tokenizer's error.
    tokenizer: Result<usize, String>,
    /// A note on a usable tokenizer.
    note: Option<&'static str>,
    /// The chat template, if the tokenizer is usable.
    pub template: Option<TemplateSide>,
}

/// A chat template's origin.
#[derive(Serialize)]
pub struct TemplateSide {
    /// `model`, `built in` or `replaced`.
    origin: &'static str,
    /// The origin as text.
    text: String,
    /// Fault of the model's own template, which another template replaces.
    failure: Option<String>,
}

impl TextSide {
    /// Describes the tokenizer and template of `checkpoint`; `None` if the file has no tokenizer at
    /// all.
    pub fn of(checkpoint: &Checkpoint) -> Option<Self> {
        let metadata = &checkpoint.metadata;
        let in_metadata = matches!(checkpoint.tokenizer, TokenizerSource::Metadata);
        if in_metadata && !metadata.iter().any(|(key, _)| key.starts_with("tokenizer.")) {
            return None;
        }
        let byte_level = metadata.str("tokenizer.ggml.model").ok().flatten() == Some("gpt2");
        let note = (in_metadata && byte_level && metadata.get(PRE).is_none()).then_some(
            "the file has no `tokenizer.ggml.pre`, so text is split by default rules, which may differ from training",
        );
        Some(match Tokenizer::from_checkpoint(checkpoint) {
            Err(error) => TextSide { tokenizer: Err(error.to_string()), note: None, template: None },
            Ok(tokenizer) => {
                let template = ChatTemplate::from_checkpoint(checkpoint, &tokenizer);
                let template = TemplateSide::new(template.origin());
                TextSide { tokenizer: Ok(tokenizer.vocab_len()), note, template: Some(template) }
            }
        })
    }

    /// Describes them in lines for users.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![match &self.tokenizer {
            Ok(tokens) => format!("tokenizer     usable, {tokens} tokens"),
            Err(error) => format!("tokenizer     cannot be used: {}", one_line(error)),
        }];
        lines.extend(self.note.map(|note| format!("              {note}")));
        lines.extend(self.template.as_ref().map(|template| format!("chat template {}", one_line(&template.text))));
        lines
    }

    /// Formats the tokenizer as JSON.
    pub fn tokenizer_json(&self) -> Json {
        json!({
            "usable": self.tokenizer.is_ok(),
            "tokens": self.tokenizer.as_ref().ok(),
            "problem": self.tokenizer.as_ref().err(),
            "note": self.note,
        })
    }
}

impl TemplateSide {
    fn new(origin: &TemplateOrigin) -> Self {
        let (kind, text) = match origin {
            TemplateOrigin::Model(_) => ("model", origin.to_string()),
            TemplateOrigin::Fallback { failure: Some(_), .. } => ("replaced", format!("replaced by {origin}")),
            TemplateOrigin::Fallback { failure: None, .. } => ("built in", format!("built in, {origin}")),
        };
        TemplateSide { origin: kind, text, failure: origin.failure().map(str::to_owned) }
    }
}
