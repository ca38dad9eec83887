//! Tokens of a text that are computed and scored.

use std::ops::Range;

use thermocline_base::error::{Error, Result};
use thermocline_text::{EncodeOptions, Tokenizer};

/// A text, divided into independent passages.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// Name, for reports.
    pub name: String,
    /// Passages, in the text's order.
    pub passages: Vec<CorpusPassage>,
    /// Length of the longest passage in tokens.
    pub context: usize,
    /// Number of tokens in the text, including tokens outside of passages.
    pub tokens: usize,
    /// Tokens of the windows before BOS replaced some, `[passages, context]`. Empty for documents.
    pub raw: Vec<u32>,
}

/// A passage of tokens, computed in an empty context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorpusPassage {
    /// All tokens.
    pub tokens: Vec<u32>,
    /// Positions whose logits are scored against the next token.
    pub scored: Range<usize>,
}

impl CorpusPassage {
    /// Returns the token that the logits at position `at` should predict.
    pub fn target(&self, at: usize) -> u32 {
        self.tokens[at + 1]
    }

    /// Returns the number of computed tokens. The last token is only predicted.
    pub fn computed(&self) -> usize {
        self.scored.end
    }
}

impl Corpus {
    /// Divides a text into the windows of llama.cpp's `llama-perplexity`. The whole text is
    /// tokenised, with BOS first, and divided into windows of `context` tokens. BOS replaces the
    /// first token of each window if the model's texts begin with BOS. The second half of each
    /// window is scored, from the token after the middle. Returns at most `most` windows.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a context of fewer than 4 tokens, or a text shorter than two windows.
    pub fn windows(tokenizer: &Tokenizer, name: &str, text: &str, context: usize, most: Option<usize>) -> Result<Self> {
        let tokens = tokenizer.encode(text, EncodeOptions::TEXT)?;
        if tokens.len() < 2 * context {
            let expected = format!("at least {} tokens, which are two windows of {context} tokens", 2 * context);
            return Err(Error::invalid("text", expected, format!("{} tokens in {name}", tokens.len())));
        }
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        Corpus::from_tokens(name, tokens, bos, context, most)
    }

    /// Like [`Corpus::windows`], for a tokenised text.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a context of fewer than 4 tokens, or fewer tokens than one window.
    pub fn from_tokens(
        name: &str,
        tokens: Vec<u32>,
        bos: Option<u32>,
        context: usize,
        most: Option<usize>,
    ) -> Result<Self> {
        if context < 4 {
            return Err(Error::invalid("context", "at least 4 tokens", context));
        }
        let windows = tokens.chunks_exact(context).take(most.unwrap_or(usize::MAX));
        let passages: Vec<CorpusPassage> = windows
            .map(|window| {
                let mut tokens = window.to_vec();
                if let Some(bos) = bos {
                    tokens[0] = bos;
                }
                CorpusPassage { tokens, scored: context / 2..context - 1 }
            })
            .collect();
        if passages.is_empty() {
            return Err(Error::invalid("text", format!("at least a window of {context} tokens"), tokens.len()));
        }
        let raw = tokens[..passages.len() * context].to_vec();
        Ok(Corpus { name: name.to_owned(), passages, context, tokens: tokens.len(), raw })
    }

    /// Treats every document as a passage. A passage is BOS, if the vocabulary contains it, so that
    /// the first token can be predicted, and the trimmed text. It is truncated at `context` tokens,
    /// and every token after the first is scored. Documents of fewer than two tokens are skipped.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no document, or `separator` is empty.
    pub fn documents(
        tokenizer: &Tokenizer,
        name: &str,
        text: &str,
        separator: &str,
        context: usize,
        most: Option<usize>,
    ) -> Result<Self> {
        if separator.is_empty() {
            return Err(Error::invalid("separator of documents", "at least one character", "an empty text"));
        }
        let (mut passages, mut all) = (Vec::new(), 0);
        for document in text.split(separator).map(str::trim).filter(|document| !document.is_empty()) {
            if most.is_some_and(|most| passages.len() == most) {
                break;
            }
            let mut tokens: Vec<u32> = tokenizer.bos().into_iter().collect();
            tokens.extend(tokenizer.encode(document, EncodeOptions::PLAIN)?);
            all += tokens.len();
            tokens.truncate(context);
            if tokens.len() > 1 {
                passages.push(CorpusPassage { scored: 0..tokens.len() - 1, tokens });
            }
        }
        if passages.is_empty() {
            return Err(Error::invalid(
                "text",
                "documents of at least two tokens",
                format!("no such document in {name}"),
            ));
        }
        Ok(Corpus { name: name.to_owned(), passages, context, tokens: all, raw: Vec::new() })
    }

    /// Removes the first `most` passages, at most half of all, and returns them as another corpus.
    /// A calibration on these passages is then not scored on them.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a corpus of one passage.
    pub fn hold_out(&mut self, most: usize) -> Result<Corpus> {
        let count = most.min(self.passages.len() / 2);
        if count == 0 {
            let expected = "at least two contexts, one of them for the calibration, or a separate text for it";
            return Err(Error::invalid("text", expected, self.passages.len()));
        }
        let passages = self.passages.drain(..count).collect();
        let raw = self.raw.drain(..(count * self.context).min(self.raw.len())).collect();
        Ok(Corpus { passages, raw, ..self.clone() })
    }

    /// Keeps the first `most` passages.
    pub fn truncate(&mut self, most: usize) {
        self.passages.truncate(most);
        self.raw.truncate(most.saturating_mul(self.context));
    }

    /// Returns the number of scored tokens.
    pub fn scored(&self) -> usize {
        self.passages.iter().map(|passage| passage.scored.len()).sum()
    }

    /// Returns the number of computed tokens.
    pub fn computed(&self) -> usize {
        self.passages.iter().map(CorpusPassage::computed).sum()
    }

    /// Returns the tokens that a KV cache must hold.
    pub fn longest(&self) -> usize {
        self.passages.iter().map(CorpusPassage::computed).max().unwrap_or(1).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_out_passages_are_no_longer_in_the_corpus() {
        let tokens: Vec<u32> = (0..70).collect();
        let mut corpus = Corpus::from_tokens("t", tokens.clone(), None, 10, None).unwrap();
        let held = corpus.hold_out(2).unwrap();
        assert_eq!((held.passages.len(), corpus.passages.len()), (2, 5));
        assert_eq!((held.raw.clone(), corpus.raw.clone()), (tokens[..20].to_vec(), tokens[20..].to_vec()));
        assert!(held.passages.iter().all(|passage| !corpus.passages.contains(passage)));
        assert_eq!(corpus.hold_out(100).unwrap().passages.len(), 2, "no more than half");
        corpus.truncate(1);
        assert_eq!((corpus.passages.len(), corpus.raw.len()), (1, 10));
        assert!(matches!(corpus.hold_out(1), Err(Error::Invalid { .. })));
    }

    #[test]
    fn windows_score_their_second_half() {
        let tokens: Vec<u32> = (100..1640).collect();
        let corpus = Corpus::from_tokens("t", tokens.clone(), Some(1), 512, None).unwrap();
        assert_eq!(
            (corpus.passages.len(), corpus.tokens, corpus.scored(), corpus.computed()),
            (3, 1540, 3 * 255, 3 * 511)
        );
        let second = &corpus.passages[1];
        assert_eq!((second.tokens[0], second.tokens[1], second.scored.clone()), (1, 613, 256..511));
        assert_eq!((second.target(256), second.target(510)), (100 + 512 + 257, 100 + 512 + 511));
        assert_eq!(corpus.raw[512], 612, "the token that BOS replaced");
        assert_eq!(Corpus::from_tokens("t", tokens.clone(), None, 512, Some(2)).unwrap().passages[1].tokens[0], 612);
        assert_eq!(Corpus::from_tokens("t", tokens.clone(), None, 7, Some(1)).unwrap().passages[0].scored, 3..6);
        for context in [0, 3, 1541] {
            assert!(matches!(
                Corpus::from_tokens("t", tokens.clone(), None, context, None),
                Err(Error::Invalid { .. })
            ));
        }
    }
}
