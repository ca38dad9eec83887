//! Encodes text with a model of the `tokenizers` library: normaliser, pre-tokeniser, and byte-pair
//! merges ([`bpe`](super::bpe)), [WordPiece](super::word_piece) or [Unigram](super::unigram).

use std::borrow::Cow;

use tokenizers::{
    Model, ModelWrapper, NormalizedString, Normalizer, NormalizerWrapper, OffsetType, PreTokenizedString, PreTokenizer,
    PreTokenizerWrapper, Token, tokenizer::normalizer::Range,
};

use super::{
    added::{AddedTokens, Fragment},
    prompt_text::BREAK,
};

/// An encoder of words into tokens.
#[derive(Debug)]
pub struct Subwords {
    /// Added tokens recognised before normalisation.
    pub added: AddedTokens,
    /// Added tokens recognised after normalisation.
    pub added_normalised: AddedTokens,
    /// Changes text before it is split.
    pub normaliser: Option<NormalizerWrapper>,
    /// Splits text into words.
    pub pre_tokeniser: Option<PreTokenizerWrapper>,
    /// Splits a word into tokens.
    pub model: ModelWrapper,
}

impl Subwords {
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

#[cfg(test)]
mod tests {
    use crate::{EncodeOptions, Tokenizer, export_metadata};
    use serde_json::Value;
    use thermocline_formats::format::{Array, Metadata, TokenizerSource, Value as Meta};

    fn fixture(name: &str) -> String {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/vocabularies/");
        std::fs::read_to_string(format!("{folder}{name}.json")).expect("a fixture")
    }

    /// The tokenizer of a folder, and of the GGUF file made of it.
    fn both(name: &str) -> [Tokenizer; 2] {
        let (json, mut metadata) = (fixture(name), Metadata::new("folder"));
        let folder = Tokenizer::from_json(&json, &Value::Null, &metadata).expect("the folder's");
        let source = TokenizerSource::HuggingFace { tokenizer_json: json, tokenizer_config: Value::Null };
        export_metadata(&source, folder.vocab_len() + 3, &mut metadata).expect("GGUF can hold it");
        [folder, Tokenizer::from_metadata(&metadata).expect("the file's")]
    }

    /// The fixture is described in tests/fixtures/vocabularies/README.md.
    #[test]
    fn word_piece_and_unigram_give_the_references_ids_from_folders_and_gguf() {
        let reference: Value = serde_json::from_str(&fixture("ids")).expect("a table");
        let texts: Vec<String> = serde_json::from_value(reference["texts"].clone()).expect("strings");
        for name in ["wordpiece", "wordpiece_cased", "unigram"] {
            let rows = |kind: &str| -> Vec<Vec<u32>> {
                serde_json::from_value(reference[name][kind].clone()).expect("ids of each text")
            };
            for (tokenizer, of) in both(name).iter().zip(["folder", "file"]) {
                for (text, want) in texts.iter().zip(rows("single")) {
                    let ids = tokenizer.encode(text, EncodeOptions::WHOLE).expect("text");
                    // The reference ends a text again that says its end.
                    let once = want.len() - usize::from(name == "unigram" && text.ends_with("</s>"));
                    assert_eq!(ids, want[..once], "{name} of a {of}: {text:?}");
                }
                // Control tokens within a pair are text.
                let pairs = texts.iter().zip(rows("pair")).filter(|(text, _)| !text.contains("<s>"));
                for (text, want) in pairs {
                    let pair = tokenizer.encode_pair(&texts[0], text).expect("text");
                    assert_eq!(pair.ids, want, "{name} of a {of}: {text:?}");
                    let first = tokenizer.encode(&texts[0], EncodeOptions::WHOLE).expect("text");
                    assert!(pair.second_at >= first.len() && pair.ids.starts_with(&first), "{pair:?}");
                }
            }
        }
    }

    #[test]
    fn texts_of_control_tokens_in_contents_are_text() {
        for (name, text) in [("wordpiece", "a [CLS] [SEP] b"), ("unigram", "a<s>b</s> <unk><mask>")] {
            for tokenizer in both(name) {
                let ids = tokenizer.encode(text, EncodeOptions::PLAIN).expect("text");
                assert!(!ids.iter().any(|id| Some(*id) == tokenizer.bos() || Some(*id) == tokenizer.eos()), "{ids:?}");
                let specials = [tokenizer.token_id("[CLS]"), tokenizer.token_id("<s>"), tokenizer.token_id("</s>")];
                assert!(!ids.iter().any(|id| specials.contains(&Some(*id))), "{name}: {ids:?}");
            }
        }
    }

    #[test]
    fn decoding_joins_the_pieces_of_words() {
        for name in ["wordpiece", "unigram"] {
            for tokenizer in both(name) {
                let ids = tokenizer.encode("the old dog found a ball", EncodeOptions::WHOLE).expect("text");
                assert_eq!(tokenizer.decode(&ids, true), "the old dog found a ball", "{name}");
            }
        }
    }

    #[test]
    fn damaged_vocabularies_are_refused() {
        let refused = |json: Value| {
            let built = Tokenizer::from_json(&json.to_string(), &Value::Null, &Metadata::new("folder"));
            built.expect_err("a damaged vocabulary").to_string()
        };
        let mut json: Value = serde_json::from_str(&fixture("wordpiece")).expect("a vocabulary");
        json["model"]["unk_token"] = "[NONE]".into();
        assert!(refused(json).contains("[NONE]"));
        let mut json: Value = serde_json::from_str(&fixture("unigram")).expect("a vocabulary");
        json["model"]["unk_id"] = 9999.into();
        assert!(refused(json.clone()).contains("unk_id"), "{json}");
        json["model"]["unk_id"] = 3.into();
        json["normalizer"]["normalizers"][0]["precompiled_charsmap"] = "CAAAAAAAAAAAAAAA".into();
        assert!(refused(json).contains("leads out"));
        let mut metadata = Metadata::new("m.gguf");
        metadata.set("tokenizer.ggml.model", Meta::String("bert".to_owned()));
        metadata.set("tokenizer.ggml.tokens", Meta::Array(Array::String(vec!["a".to_owned()])));
        assert!(Tokenizer::from_metadata(&metadata).is_err(), "no token for unknown words");
    }
}
