//! WordPiece, the vocabulary of BERT. A word is split into the longest token that begins it, then
//! the longest that continues it, and so on. A word that cannot be split is unknown.
//!
//! `tokenizer.json` marks tokens that continue a word (`##ing`). GGUF marks those that begin one
//! (`▁word`).

use ahash::AHashMap;
use tokenizers::{
    ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, models::wordpiece::WordPiece, normalizers::BertNormalizer,
    pre_tokenizers::bert::BertPreTokenizer,
};

/// Mark of tokens that continue a word, in `tokenizer.json`.
pub const CONTINUES: &str = "##";
/// Mark of tokens that begin a word, in GGUF.
const BEGINS: char = '\u{2581}';
/// Characters of the longest word that is split, unless the file says otherwise.
pub const LONGEST_WORD: usize = 100;

/// Parts of a WordPiece model.
#[derive(Debug)]
pub struct WordPieces {
    /// Token text to id, in the spelling of `tokenizer.json`.
    pub vocab: AHashMap<String, u32>,
    /// Text of the token for unknown words.
    pub unknown: String,
    /// Mark of tokens that continue a word.
    pub continues: String,
    /// Characters of the longest word that is split.
    pub longest_word: usize,
}

/// How BERT changes letters before splitting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LetterRules {
    /// Turn letters into small ones.
    pub lowercase: bool,
    /// Remove accents.
    pub strip_accents: bool,
}

impl WordPieces {
    /// Builds the model. The error text is the library's.
    pub fn model(self) -> Result<ModelWrapper, String> {
        if !self.vocab.contains_key(&self.unknown) {
            return Err(format!("no token `{}` for unknown words", self.unknown));
        }
        let builder = WordPiece::builder()
            .vocab(self.vocab)
            .unk_token(self.unknown)
            .continuing_subword_prefix(self.continues)
            .max_input_chars_per_word(self.longest_word);
        builder.build().map(ModelWrapper::WordPiece).map_err(|error| error.to_string())
    }
}

impl LetterRules {
    /// BERT's normaliser with these rules. It also removes control characters and puts spaces
    /// around Chinese characters.
    pub fn normaliser(self) -> NormalizerWrapper {
        NormalizerWrapper::BertNormalizer(BertNormalizer::new(true, true, Some(self.strip_accents), self.lowercase))
    }
}

/// BERT's split into words: at white space, and around each punctuation character.
pub fn words() -> PreTokenizerWrapper {
    PreTokenizerWrapper::BertPreTokenizer(BertPreTokenizer)
}

/// GGUF's text of an ordinary token of `tokenizer.json`.
pub fn to_gguf(token: &str, continues: &str) -> String {
    match token.strip_prefix(continues).filter(|_| !continues.is_empty()) {
        Some(rest) => rest.to_owned(),
        None => format!("{BEGINS}{token}"),
    }
}

/// The text in `tokenizer.json` of an ordinary token of GGUF.
pub fn from_gguf(token: &str) -> String {
    token.strip_prefix(BEGINS).map_or_else(|| format!("{CONTINUES}{token}"), str::to_owned)
}
