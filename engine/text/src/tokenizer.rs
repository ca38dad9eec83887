//! The tokenizer of one checkpoint, whatever the source of its description.

use std::borrow::Cow;

use super::{
    Detokeniser, PictureMarks, PromptText, TokenKind, added::AddedTokens, control_texts::ControlTexts, gguf, json,
    sentence_piece::SentencePiece, special_ids::SpecialIds, subwords::Subwords, vocab::Vocab,
};
use thermocline_base::error::{Error, Result};
use thermocline_formats::format::{Checkpoint, Metadata, TokenizerSource};

/// How text becomes ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Recognise control tokens (`<s>`, `<|im_end|>`) in the text. Turn it off for external text,
    /// and on for the output of a chat template.
    pub special: bool,
    /// Begin with BOS if the model asks for it and the text does not start with it.
    pub add_bos: bool,
    /// End with EOS if the model asks for it and the text does not end with it. Turn it off for a
    /// text to be continued.
    pub add_eos: bool,
}

impl EncodeOptions {
    /// Encodes only the text: no special tokens, nothing added.
    pub const PLAIN: EncodeOptions = EncodeOptions { special: false, add_bos: false, add_eos: false };
    /// Encodes a text to continue: no special tokens are recognised, and BOS is added if the model
    /// asks for it.
    pub const TEXT: EncodeOptions = EncodeOptions { special: false, add_bos: true, add_eos: false };
    /// Encodes a rendered chat template: special tokens are recognised, and BOS is added unless the
    /// template wrote it.
    pub const CHAT: EncodeOptions = EncodeOptions { special: true, add_bos: true, add_eos: false };
    /// Encodes a complete text: special tokens are recognised, and BOS and EOS are added if the
    /// model asks for them.
    pub const WHOLE: EncodeOptions = EncodeOptions { special: true, add_bos: true, add_eos: true };
}

/// The tokens of a pair of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenPair {
    /// All ids.
    pub ids: Vec<u32>,
    /// Index of the second text's first id.
    pub second_at: usize,
}

impl Default for EncodeOptions {
    fn default() -> Self {
        EncodeOptions::TEXT
    }
}

#[derive(Debug)]
pub(super) enum Encoder {
    Subwords(Box<Subwords>),
    SentencePiece(SentencePiece),
}

impl Encoder {
    /// The tokens that are split off the text.
    pub fn added(&self) -> impl Iterator<Item = &AddedTokens> {
        let all = match self {
            Encoder::Subwords(encoder) => [Some(&encoder.added), Some(&encoder.added_normalised)],
            Encoder::SentencePiece(encoder) => [Some(&encoder.added), None],
        };
        all.into_iter().flatten()
    }
}

/// Converts text to ids and back. It is `Send + Sync`; encoding and decoding take `&self`.
#[derive(Debug)]
pub struct Tokenizer {
    pub(super) encoder: Encoder,
    /// Texts of its control tokens, for guarding prompts.
    pub(super) control_texts: ControlTexts,
    pub(super) vocab: Vocab,
    pub(super) ids: SpecialIds,
    /// Ids put before and after a text if the caller allows it.
    pub(super) before: Vec<u32>,
    pub(super) after: Vec<u32>,
    /// Ids between the two texts of a pair.
    pub(super) between: Vec<u32>,
    /// True if decoding drops the space that encoding put in front.
    pub(super) space_prefix: bool,
}

impl Tokenizer {
    /// Builds the tokenizer of a checkpoint. Errors name the key: a missing or empty vocabulary,
    /// arrays of different lengths, an unknown model or pre-tokeniser.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        match &checkpoint.tokenizer {
            TokenizerSource::Metadata => Self::from_metadata(&checkpoint.metadata),
            TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config } => {
                Self::from_json(tokenizer_json, tokenizer_config, &checkpoint.metadata)
            }
        }
    }

    /// Builds the tokenizer from GGUF's `tokenizer.ggml.*` keys.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        gguf::build(metadata)
    }

    /// Builds the tokenizer from the text of `tokenizer.json` and the contents of
    /// `tokenizer_config.json` (or null). Special ids that they do not name are looked up in
    /// `metadata`, whose path appears in errors.
    pub fn from_json(tokenizer_json: &str, tokenizer_config: &serde_json::Value, metadata: &Metadata) -> Result<Self> {
        json::build(tokenizer_json, tokenizer_config, metadata)
    }

    /// The ids of `text`.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 2);
        match &self.encoder {
            Encoder::SentencePiece(encoder) => encoder.encode(text, options.special, &mut ids),
            Encoder::Subwords(encoder) => encoder
                .encode(text, options.special, &mut ids)
                .map_err(|error| Error::invalid("text", "text that the tokenizer can encode", error))?,
        }
        if options.add_bos && !ids.starts_with(&self.before) {
            ids.splice(0..0, self.before.iter().copied());
        }
        if options.add_eos && !ids.ends_with(&self.after) {
            ids.extend_from_slice(&self.after);
        }
        Ok(ids)
    }

    /// The ids of a pair of texts, as rerankers read it, and the index of the second text's first
    /// id.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<TokenPair> {
        let mut ids = self.before.clone();
        ids.extend(self.encode(first, EncodeOptions::PLAIN)?);
        ids.extend_from_slice(&self.between);
        let second_at = ids.len();
        ids.extend(self.encode(second, EncodeOptions::PLAIN)?);
        ids.extend_from_slice(&self.after);
        Ok(TokenPair { ids, second_at })
    }

    /// The ids of a prompt. Special tokens are recognised outside contents, and BOS is put in front
    /// unless the format wrote it.
    pub fn encode_prompt(&self, prompt: &PromptText) -> Result<Vec<u32>> {
        self.encode(prompt.with_breaks(), EncodeOptions::CHAT)
    }

    /// `said` with breaks, so that it cannot add a control token to a prompt.
    pub(super) fn with_breaks<'t>(&self, said: &'t str) -> Cow<'t, str> {
        let broken = match &self.encoder {
            Encoder::Subwords(encoder) => encoder.break_special(said),
            Encoder::SentencePiece(encoder) => encoder.added.break_special(said),
        };
        let both = match self.control_texts.break_borders(&broken) {
            Cow::Borrowed(_) => None,
            Cow::Owned(both) => Some(both),
        };
        both.map_or(broken, Cow::Owned)
    }

    /// The text of `ids`. `skip_special` omits special tokens. Bytes that are not UTF-8 become
    /// U+FFFD, and ids outside the vocabulary are skipped.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut stream = if skip_special { self.stream() } else { self.stream().with_special() }.at_text_start();
        let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// Starts turning arriving ids into text. The stream continues a text; see
    /// [`Detokeniser::at_text_start`].
    pub fn stream(&self) -> Detokeniser<'_> {
        Detokeniser::new(self)
    }

    /// The bytes of token `id`, possibly a part of a character; empty outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocab.bytes(id)
    }

    /// Kind of token `id`; `None` outside the vocabulary.
    pub fn token_kind(&self, id: u32) -> Option<TokenKind> {
        self.vocab.kind(id)
    }

    /// The id of the token with exactly this text, in the vocabulary's spelling.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        match &self.encoder {
            Encoder::Subwords(encoder) => encoder.token_id(text),
            Encoder::SentencePiece(encoder) => encoder.token_id(text),
        }
    }

    /// Number of ids. The model's embedding may have more rows.
    pub fn vocab_len(&self) -> usize {
        self.vocab.len()
    }

    /// Number of ids without padding at the end, which no text and no answer contains.
    pub fn unpadded_len(&self) -> usize {
        self.vocab.unpadded_len()
    }

    /// The first id whose token differs from that of `other`; `None` if the ids mean the same to
    /// both. Padding and the kinds of tokens are not compared.
    pub fn first_difference(&self, other: &Tokenizer) -> Option<u32> {
        self.vocab.first_difference(&other.vocab)
    }

    /// A hash of the tokens, equal for tokenizers without a difference. It changes between versions
    /// of the program.
    pub fn hash_of_tokens(&self) -> u64 {
        self.vocab.hash_of_tokens()
    }

    /// True if `id` is a control token or the unknown token, which are not part of the text.
    pub fn is_special(&self, id: u32) -> bool {
        matches!(self.vocab.kind(id), Some(TokenKind::Control | TokenKind::Unknown))
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.ids.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.ids.eos
    }

    /// The token that pads batches.
    pub fn padding(&self) -> Option<u32> {
        self.ids.padding
    }

    /// The token that stands for pictures, and the marks around it: the token that `metadata`
    /// names, or one with a known text. `None` if the vocabulary has no such token.
    ///
    /// # Errors
    /// [`Error::Malformed`] for a key that is not a token id.
    pub fn picture_marks(&self, metadata: &Metadata) -> Result<Option<PictureMarks>> {
        let named = metadata.usize("thermocline.tokenizer.picture_token_id")?;
        Ok(PictureMarks::of(self, named.and_then(|id| u32::try_from(id).ok())))
    }

    /// True if generation ends with `id`: an end of text, turn or message, either named by the file
    /// or known by its text.
    pub fn is_end(&self, id: u32) -> bool {
        self.ids.ends.contains(&id)
    }

    /// Every id for which [`Tokenizer::is_end`] holds, ascending.
    pub fn ends(&self) -> impl Iterator<Item = u32> {
        self.ids.ends.iter().copied()
    }

    /// The tokens that end a complete text; empty if the model asks for none.
    pub fn text_end(&self) -> &[u32] {
        &self.after
    }

    /// True if encoding puts BOS in front when the options allow it.
    pub fn adds_bos(&self) -> bool {
        self.ids.bos.is_some_and(|bos| self.before.first() == Some(&bos))
    }

    /// True if encoding puts a space in front of the text, which decoding a complete text removes.
    pub fn adds_space_prefix(&self) -> bool {
        self.space_prefix
    }
}
