//! Which tokens of a text are computed, and which are scored.

use std::ops::Range;

use crate::{
    error::{Error, Result},
    tokenizer::{EncodeOptions, Tokenizer},
};

/// A text, cut into passages that know nothing of each other.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// What to call it.
    pub name: String,
    /// In the order of the text.
    pub passages: Vec<Passage>,
    /// Longest passage in tokens.
    pub context: usize,
    /// All tokens of the text, whether they are in a passage or not.
    pub tokens: usize,
    /// Of windows: the tokens as they were before BOS took the place of some, `[passages, context]`. Empty otherwise.
    pub raw: Vec<u32>,
}

/// Tokens of one empty context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage {
    /// All of them.
    pub tokens: Vec<u32>,
    /// Places whose logits are scored by how they foresee the next token.
    pub scored: Range<usize>,
}

impl Passage {
    /// What is to be foreseen at place `at`.
    pub fn target(&self, at: usize) -> u32 {
        self.tokens[at + 1]
    }

    /// Tokens that are computed: the last one is only foreseen.
    pub fn computed(&self) -> usize {
        self.scored.end
    }
}

impl Corpus {
    /// The windows of llama.cpp's `llama-perplexity`: the whole text is tokenised, BOS in front of it; it
    /// is cut into windows of `context` tokens of which the first is overwritten by BOS, if the model has texts begin with
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
        Corpus::of_windows(name, tokens, bos, context, most)
    }

    /// The same of tokens that are there already.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a context of fewer than 4 tokens, or fewer tokens than one window.
    pub fn of_windows(
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

    /// Every document by itself: BOS, if the vocabulary has one (the first token has to be foreseen from something), and its
    /// text without blanks around it, cut at `context` tokens, every token after the first scored. Documents of fewer than two
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

    /// Tokens that are scored.
    pub fn scored(&self) -> usize {
        self.passages.iter().map(|passage| passage.scored.len()).sum()
    }

    /// Tokens that are computed.
    pub fn computed(&self) -> usize {
        self.passages.iter().map(Passage::computed).sum()
    }

    /// Room a cache needs.
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
        let corpus = Corpus::of_windows("t", tokens.clone(), Some(1), 512, None).unwrap();
        assert_eq!(
            (corpus.passages.len(), corpus.tokens, corpus.scored(), corpus.computed()),
            (3, 1540, 3 * 255, 3 * 511)
        );
        let second = &corpus.passages[1];
        assert_eq!((second.tokens[0], second.tokens[1], second.scored.clone()), (1, 613, 256..511));
        assert_eq!((second.target(256), second.target(510)), (100 + 512 + 257, 100 + 512 + 511));
        assert_eq!(corpus.raw[512], 612, "what BOS took the place of");
        assert_eq!(Corpus::of_windows("t", tokens.clone(), None, 512, Some(2)).unwrap().passages[1].tokens[0], 612);
        assert_eq!(Corpus::of_windows("t", tokens.clone(), None, 7, Some(1)).unwrap().passages[0].scored, 3..6);
        for context in [0, 3, 1541] {
            assert!(matches!(Corpus::of_windows("t", tokens.clone(), None, context, None), Err(Error::Invalid { .. })));
        }
    }
}
