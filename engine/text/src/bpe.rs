//! Byte-pair encoding with the `tokenizers` library: normaliser, pre-tokeniser and merges. The
//! library's own build functions trust the file, so this module checks everything that it passes to
//! them.

use std::borrow::Cow;

use ahash::AHashMap;
use tokenizers::{
    Model, NormalizedString, Normalizer, NormalizerWrapper, OffsetType, PreTokenizedString, PreTokenizer,
    PreTokenizerWrapper, Token, models::bpe, tokenizer::normalizer::Range,
};

use super::{
    added::{AddedTokens, Fragment},
    prompt_text::BREAK,
};

/// Parts of a BPE model.
#[derive(Debug, Default)]
pub struct Merges {
    /// Token text to id.
    pub vocab: AHashMap<String, u32>,
    /// Pairs that merge, highest priority first.
    pub merges: Vec<(String, String)>,
    /// A word that is a token is taken whole, regardless of the merges.
    pub ignore_merges: bool,
    /// Characters without a token become their `<0xHH>` byte tokens.
    pub byte_fallback: bool,
    /// Adjacent unknown characters become one unknown token.
    pub fuse_unknown: bool,
    /// Text of the token for unknown characters.
    pub unknown: Option<String>,
}

/// A byte-pair encoder.
#[derive(Debug)]
pub struct Bpe {
    /// Added tokens recognised before normalisation.
    pub added: AddedTokens,
    /// Added tokens recognised after normalisation.
    pub added_normalised: AddedTokens,
    normaliser: Option<NormalizerWrapper>,
    pre_tokeniser: Option<PreTokenizerWrapper>,
    model: bpe::BPE,
}

impl Bpe {
    /// Builds the encoder. Merges with a part or result that is not a token can never apply and are
    /// dropped with a warning. The error text is the library's.
    pub fn new(
        mut parts: Merges,
        added: AddedTokens,
        added_normalised: AddedTokens,
        normaliser: Option<NormalizerWrapper>,
        pre_tokeniser: Option<PreTokenizerWrapper>,
    ) -> Result<Self, String> {
        let total = parts.merges.len();
        let mut whole = String::new();
        parts.merges.retain(|(left, right)| {
            whole.clear();
            whole.push_str(left);
            whole.push_str(right);
            [left, right, &whole].into_iter().all(|token| parts.vocab.contains_key(token.as_str()))
        });
        if parts.merges.len() < total {
            tracing::warn!(dropped = total - parts.merges.len(), total, "merges with unknown tokens are ignored");
        }
        let unknown = parts.unknown.filter(|unknown| parts.vocab.contains_key(unknown));
        let mut builder = bpe::BPE::builder()
            .vocab_and_merges(parts.vocab, parts.merges)
            .ignore_merges(parts.ignore_merges)
            .byte_fallback(parts.byte_fallback)
            .fuse_unk(parts.fuse_unknown);
        if let Some(unknown) = unknown {
            builder = builder.unk_token(unknown);
        }
        let model = builder.build().map_err(|error| error.to_string())?;
        Ok(Bpe { added, added_normalised, normaliser, pre_tokeniser, model })
    }

    /// Appends the ids of `text`. If `special`, recognises special tokens and drops breaks. The
    /// error text is the library's.
    pub fn encode(&self, text: &str, special: bool, ids: &mut Vec<u32>) -> tokenizers::Result<()> {
        let mut pieces = PreTokenizedString::from(text);
        pieces.split(|_, piece| split_at_added(&piece, &self.added, special))?;
        pieces.split(|_, mut piece| {
            if let Some(normaliser) = &self.normaliser {
                normaliser.normalize(&mut piece)?;
            }
            split_at_added(&piece, &self.added_normalised, special)
        })?;
        if special && text.contains(BREAK) {
            pieces.normalize(|piece| {
                piece.filter(|character| character != BREAK);
                Ok(())
            })?;
        }
        if let Some(pre_tokeniser) = &self.pre_tokeniser {
            pre_tokeniser.pre_tokenize(&mut pieces)?;
        }
        pieces.tokenize(|piece| self.model.tokenize(piece.get()))?;
        ids.extend_from_slice(pieces.into_encoding(None, 0, OffsetType::None)?.get_ids());
        Ok(())
    }

    /// `text` with breaks, so that no special token is recognised in it.
    pub fn break_special<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let broken = self.added.break_special(text);
        if self.added_normalised.special_texts().next().is_none() {
            return broken;
        }
        let again = self.added_normalised.break_special(&broken).into_owned();
        // Normalisation may turn other characters into a token.
        let mut normalised = NormalizedString::from(again.as_str());
        let known = self.normaliser.as_ref().is_none_or(|it| it.normalize(&mut normalised).is_ok());
        match self.added_normalised.break_special(normalised.get()) {
            Cow::Borrowed(_) if known && again == text => text.into(),
            Cow::Borrowed(_) if known => again.into(),
            _ => text.chars().flat_map(|character| [BREAK, character]).collect::<String>().into(),
        }
    }

    /// Id of the token with exactly this text.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        let added = self.added.id(text).or_else(|| self.added_normalised.id(text));
        added.or_else(|| self.model.token_to_id(text))
    }
}

type SplitPiece = (NormalizedString, Option<Vec<Token>>);

fn split_at_added(piece: &NormalizedString, added: &AddedTokens, special: bool) -> tokenizers::Result<Vec<SplitPiece>> {
    let slice = |range| piece.slice(Range::Normalized(range)).ok_or("a token splits a character");
    let pieces = added.split(piece.get(), special).into_iter().map(|fragment| match fragment {
        Fragment::Text(range) => Ok((slice(range)?, None)),
        Fragment::Token(id, range) => {
            let token = Token::new(id, String::new(), (0, range.len()));
            Ok((slice(range)?, Some(vec![token])))
        }
    });
    pieces.collect()
}
