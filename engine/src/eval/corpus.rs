//! The tokens of a text that are computed and scored.

use std::ops::Range;

use crate::{
    error::{Error, Result},
    tokenizer::{EncodeOptions, Tokenizer},
};

/// A text as independent passages.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// Name, for reports.
    pub name: String,
    /// Passages in the order of the text.
    pub passages: Vec<Passage>,
    /// Longest passage in tokens.
    pub context: usize,
    /// Number of tokens of the text, including those outside of passages.
    pub tokens: usize,
    /// Tokens of windows before BOS replaced some, `[passages, context]`; empty for documents.
    pub raw: Vec<u32>,
}

/// Tokens of one empty context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage {
    /// All tokens.
    pub tokens: Vec<u32>,
    /// Positions whose logits are scored against the next token.
    pub scored: Range<usize>,
}

impl Passage {
    /// The token that the logits at position `at` should predict.
    pub fn target(&self, at: usize) -> u32 {
        self.tokens[at + 1]
    }

    /// Number of tokens computed: the last one is only predicted.
    pub fn computed(&self) -> usize {
        self.scored.end
    }
}

impl Corpus {
    /// The windows of llama.cpp's `llama-perplexity`: the whole text is tokenised, BOS in front of it; it
    /// is divided into windows of `context` tokens of which the first is overwritten by BOS, if the model has texts begin with
    /// it; the second half of each is scored, beginning with the token after the middle. No more than `most` windows.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a context of fewer than 4 tokens, or a text shorter than two windows.
    pub fn windows(tokenizer: &Tokenizer, name: &str, text: &str, context: usize, most: Option<usize>) -> Result<Self> {
        let tokens = tokenizer.encode(text, EncodeOptions::TEXT)?;
        if tokens.len() < 2 * context {
            let expected = format!("at least {} tokens, two windows of {context}", 2 * context);
            return Err(Error::invalid("text", expected, format!("{} in {name}", tokens.len())));
        }
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        Corpus::from_tokens(name, tokens, bos, context, most)
    }

    /// The same for a text that is tokenised already.
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
        let passages: Vec<Passage> = windows
            .map(|window| {
                let mut tokens = window.to_vec();
                if let Some(bos) = bos {
                    tokens[0] = bos;
                }
                Passage { tokens, scored: context / 2..context - 1 }
            })
            .collect();
        if passages.is_empty() {
            return Err(Error::invalid("text", format!("at least a window of {context} tokens"), tokens.len()));
        }
        let raw = tokens[..passages.len() * context].to_vec();
        Ok(Corpus { name: name.to_owned(), passages, context, tokens: tokens.len(), raw })
    }

    /// Every document by itself: BOS, if the vocabulary has one (so that the first token can be predicted), and its
    /// text without blanks around it, truncated at `context` tokens, every token after the first scored. Documents of fewer than two
    /// tokens are left out.
    ///
    /// # Errors
    /// [`Error::Invalid`] without a document, or an empty `separator`.
    pub fn documents(
        tokenizer: &Tokenizer,
        name: &str,
        text: &str,
        separator: &str,
        context: usize,
        most: Option<usize>,
    ) -> Result<Self> {
        if separator.is_empty() {
            return Err(Error::invalid("separator of documents", "at least one character", "none"));
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
                passages.push(Passage { scored: 0..tokens.len() - 1, tokens });
            }
        }
        if passages.is_empty() {
            return Err(Error::invalid("text", "documents of at least two tokens", format!("none in {name}")));
        }
        Ok(Corpus { name: name.to_owned(), passages, context, tokens: all, raw: Vec::new() })
    }

    /// Number of tokens scored.
    pub fn scored(&self) -> usize {
        self.passages.iter().map(|passage| passage.scored.len()).sum()
    }

    /// Number of tokens computed.
    pub fn computed(&self) -> usize {
        self.passages.iter().map(Passage::computed).sum()
    }

    /// Tokens that a KV cache needs room for.
    pub fn longest(&self) -> usize {
        self.passages.iter().map(Passage::computed).max().unwrap_or(1).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
