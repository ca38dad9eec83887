//! Turns arriving token ids into text.

use super::Tokenizer;

/// Joins tokens into text without splitting a UTF-8 character. Bytes are held back until the
/// character is complete. U+FFFD appears only once it is certain that the bytes cannot become a
/// character. Joined, the returned texts equal [`Tokenizer::decode`] of all ids, apart from the
/// leading space.
#[derive(Debug, Clone)]
pub struct Detokeniser<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    strip_space: bool,
    pending: Vec<u8>,
}

impl<'a> Detokeniser<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        Detokeniser { tokenizer, skip_special: true, strip_space: false, pending: Vec::new() }
    }

    /// Also writes special tokens, which are skipped by default.
    #[must_use]
    pub fn with_special(mut self) -> Self {
        self.skip_special = false;
        self
    }

    /// Marks the tokens as a text of their own, such as a chat answer, rather than the continuation
    /// of a prompt. Drops the space that SentencePiece vocabularies put before the first word.
    #[must_use]
    pub fn at_text_start(mut self) -> Self {
        self.strip_space = self.tokenizer.adds_space_prefix();
        self
    }

    /// Returns the text that `id` completes; empty while a character is incomplete.
    pub fn push(&mut self, id: u32) -> String {
        if self.skip_special && self.tokenizer.is_special(id) {
            return String::new();
        }
        let mut bytes = self.tokenizer.token_bytes(id);
        if self.strip_space && !bytes.is_empty() {
            self.strip_space = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.pending.extend_from_slice(bytes);
        self.drain()
    }

    /// True while bytes of an incomplete character are held back.
    pub fn is_holding(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns the rest of the text after the last token. An incomplete character becomes one
    /// U+FFFD.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }

    fn drain(&mut self) -> String {
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, tail) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = tail;
                    let Some(invalid) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[invalid..];
                }
            }
        }
        let consumed = self.pending.len() - rest.len();
        self.pending.drain(..consumed);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_vocabulary::{vocabulary, with_bytes};

    fn tokenizer() -> Tokenizer {
        let tokens = with_bytes(&["<unk>", "<s>", "</s>", "▁a", "▁"]);
        let metadata = vocabulary("llama", tokens, |id| [2, 3, 3, 1, 1].get(id).copied().unwrap_or(6));
        Tokenizer::from_metadata(&metadata).expect("valid")
    }

    fn texts(mut stream: Detokeniser<'_>, bytes: &[u8]) -> Vec<String> {
        let mut texts: Vec<String> = bytes.iter().map(|&byte| stream.push(5 + u32::from(byte))).collect();
        texts.push(stream.finish());
        texts
    }

    #[test]
    fn stream_emits_whole_characters() {
        let tokenizer = tokenizer();
        assert_eq!(texts(tokenizer.stream(), "é🙂".as_bytes()), ["", "é", "", "", "", "🙂", ""]);
    }

    #[test]
    fn invalid_bytes_are_replaced_once_that_is_certain() {
        let tokenizer = tokenizer();
        assert_eq!(texts(tokenizer.stream(), b"\xf0\x9fa"), ["", "", "\u{fffd}a", ""]);
        assert_eq!(texts(tokenizer.stream(), b"\xffa"), ["\u{fffd}", "a", ""]);
        assert_eq!(texts(tokenizer.stream(), b"\xe2\x82"), ["", "", "\u{fffd}"]);
        assert_eq!(texts(tokenizer.stream(), b"\xe2\xe2\x82\xac"), ["", "\u{fffd}", "", "€", ""]);
    }

    #[test]
    fn only_a_text_start_drops_the_space() {
        let tokenizer = tokenizer();
        let ids = [1, 3, 3, 2];
        let joined = |mut stream: Detokeniser<'_>| ids.map(|id| stream.push(id)).concat();
        assert_eq!(joined(tokenizer.stream()), " a a");
        assert_eq!(joined(tokenizer.stream().at_text_start()), "a a");
        assert_eq!(joined(tokenizer.stream().with_special()), "<s> a a</s>");
        assert_eq!(tokenizer.decode(&ids, true), "a a");
    }
}
