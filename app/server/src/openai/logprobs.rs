//! The JSON of log probabilities: one entry per token for chats, parallel lists for texts.

use serde_json::{Map, Value, json};

use super::Endpoint;
use crate::generation::ScoredToken;

/// Log probability reported for a token that cannot be chosen. JSON has no infinity.
const IMPOSSIBLE: f32 = -9999.0;

/// Formatter of the log probabilities of one choice.
#[derive(Debug)]
pub struct LogprobsFormat {
    endpoint: Endpoint,
    /// Position of the next token in the text, in characters.
    offset: usize,
    /// Whether the text lost the space before its first word.
    strips_space: bool,
}

impl LogprobsFormat {
    /// Creates a formatter of a choice whose text begins with `echo`.
    pub fn new(endpoint: Endpoint, echo: Option<&str>) -> Self {
        LogprobsFormat { endpoint, offset: 0, strips_space: echo.is_some_and(|text| !text.starts_with(' ')) }
    }

    /// Builds the JSON of the next tokens.
    pub fn json(&mut self, tokens: &[ScoredToken]) -> Value {
        match self.endpoint {
            Endpoint::Chat => {
                let entry = |bytes: &[u8], logprob| json!({ "token": token_text(bytes), "logprob": number(logprob), "bytes": bytes });
                let token = |token: &ScoredToken| {
                    let mut whole = entry(&token.bytes, token.logprob.unwrap_or(IMPOSSIBLE));
                    whole["top_logprobs"] = token.top.iter().map(|(bytes, logprob)| entry(bytes, *logprob)).collect();
                    whole
                };
                json!({ "content": tokens.iter().map(token).collect::<Vec<_>>(), "refusal": null })
            }
            Endpoint::Completion => {
                let offsets: Vec<usize> = tokens.iter().map(|token| self.next_offset(token)).collect();
                let logprobs: Vec<_> = tokens.iter().map(|token| token.logprob.map(number)).collect();
                json!({
                    "tokens": tokens.iter().map(|token| token_text(&token.bytes)).collect::<Vec<_>>(),
                    "token_logprobs": logprobs,
                    "top_logprobs": tokens.iter().map(top_map).collect::<Vec<_>>(),
                    "text_offset": offsets,
                })
            }
        }
    }

    /// Position of `token` in the text, in characters.
    fn next_offset(&mut self, token: &ScoredToken) -> usize {
        let offset = self.offset;
        if token.visible {
            let begun = |byte: &&u8| **byte & 0xc0 != 0x80;
            let stripped = std::mem::take(&mut self.strips_space) && token.bytes.starts_with(b" ");
            self.offset += token.bytes.iter().filter(begun).count() - usize::from(stripped);
        }
        offset
    }
}

/// Maps the most likely tokens at this position, and the token itself, to their log probabilities.
/// Of tokens with the same text, the most likely counts.
fn top_map(token: &ScoredToken) -> Value {
    let Some(own) = token.logprob else { return Value::Null };
    let mut map = Map::new();
    for (bytes, logprob) in token.top.iter().map(|(bytes, logprob)| (bytes, *logprob)).chain([(&token.bytes, own)]) {
        map.entry(token_text(bytes)).or_insert_with(|| number(logprob).into());
    }
    map.into()
}

fn number(logprob: f32) -> f64 {
    f64::from(logprob.max(IMPOSSIBLE))
}

/// Converts a token to text. A part of a character is written as byte numbers.
fn token_text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |text, byte| format!("{text}\\x{byte:02x}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(bytes: &[u8], logprob: Option<f32>, top: &[(&[u8], f32)]) -> ScoredToken {
        let top = top.iter().map(|(bytes, logprob)| (bytes.to_vec(), *logprob)).collect();
        ScoredToken { bytes: bytes.to_vec(), visible: bytes != b"<s>", logprob, top }
    }

    #[test]
    fn text_offsets_count_characters_of_the_echoed_text() {
        let tokens = [
            token(b"<s>", None, &[]),
            token(b" caf", Some(-1.0), &[(b" the", -0.5)]),
            token(&[0xc3], Some(-2.0), &[(&[0xc3], -2.0)]),
            token(&[0xa9], Some(f32::NEG_INFINITY), &[]),
            token(b"!", Some(-0.25), &[]),
        ];
        let read = LogprobsFormat::new(Endpoint::Completion, Some("café!")).json(&tokens);
        assert_eq!(read["text_offset"], json!([0, 0, 3, 4, 4]));
        assert_eq!(read["tokens"], json!(["<s>", " caf", "bytes:\\xc3", "bytes:\\xa9", "!"]));
        assert_eq!(read["token_logprobs"], json!([null, -1.0, -2.0, -9999.0, -0.25]));
        assert_eq!(read["top_logprobs"][0], Value::Null);
        assert_eq!(read["top_logprobs"][1], json!({ " the": -0.5, " caf": -1.0 }));
    }

    #[test]
    fn logprobs_of_chats_are_entries_with_bytes() {
        let tokens = [token(b"Hi", Some(-0.5), &[(b"Hi", -0.5), (b"Yo", -1.0)])];
        let read = LogprobsFormat::new(Endpoint::Chat, None).json(&tokens);
        let entry = |text: &str, logprob: f64| json!({ "token": text, "logprob": logprob, "bytes": text.as_bytes() });
        let mut want = entry("Hi", -0.5);
        want["top_logprobs"] = json!([entry("Hi", -0.5), entry("Yo", -1.0)]);
        assert_eq!(read, json!({ "content": [want], "refusal": null }));
    }
}
