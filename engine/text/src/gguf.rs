//! Builds tokenizers from GGUF's `tokenizer.ggml.*` keys.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use ahash::AHashMap;
use tokenizers::{NormalizerWrapper, normalizers::Replace};

use super::{
    TokenKind, Tokenizer,
    added::{AddedToken, AddedTokens},
    bpe::Merges,
    control_texts::ControlTexts,
    pre_tokenizer::{GEMMA4, Scheme},
    sentence_piece::SentencePiece,
    special_ids::SpecialIds,
    subwords::Subwords,
    tokenizer::Encoder,
    unigram::{Pieces, SpaceRules},
    vocab::{Spelling, Vocab, byte_token},
    word_piece::{self, LetterRules, WordPieces},
};
use thermocline_base::error::{Error, Location, Result};
use thermocline_formats::format::{Array, Metadata};

/// The tokens and their types.
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
/// Keys of BERT's normaliser.
const LOWERCASE: &str = "tokenizer.ggml.normalizer.lowercase";
const STRIP_ACCENTS: &str = "tokenizer.ggml.normalizer.strip_accents";
/// SentencePiece's map of characters.
const CHARACTER_MAP: &str = "tokenizer.ggml.precompiled_charsmap";
/// All ids that end an answer, from a `generation_config.json` that lists several. GGUF's own key
/// holds one.
const END_IDS: &str = "thermocline.tokenizer.end_token_ids";

/// Builds the tokenizer that `metadata` describes.
pub fn build(metadata: &Metadata) -> Result<Tokenizer> {
    let key = "tokenizer.ggml.model";
    let model = metadata.str(key)?.ok_or_else(|| metadata.missing(key, "the tokenizer's model"))?;
    match model {
        "llama" => build_sentence_piece(metadata),
        "gpt2" => build_bpe(metadata, scheme(metadata)?),
        GEMMA4 => build_bpe(metadata, named(GEMMA4)?),
        "bert" => build_word_piece(metadata),
        "t5" => build_unigram(metadata),
        other => Err(Error::unsupported("tokenizer model", other, "llama, gpt2, gemma4, bert, t5")),
    }
}

fn build_sentence_piece(metadata: &Metadata) -> Result<Tokenizer> {
    let tokens = VocabTokens::read(metadata)?;
    let kinds = kinds(metadata, &tokens.texts)?;
    let vocab = tokens.vocab(&kinds, Spelling::SentencePiece);
    let mut bytes = Box::new([None; 256]);
    for (id, (text, &kind)) in tokens.texts.iter().zip(&kinds).enumerate() {
        if kind == TokenKind::Byte
            && let Some(byte) = byte_token(text)
        {
            bytes[usize::from(byte)] = Some(id as u32);
        }
    }
    let defaults = SpecialIds { bos: Some(1), eos: Some(2), unknown: Some(0), ..SpecialIds::default() };
    let mut ids = special_ids(metadata, tokens.texts.len(), defaults)?;
    let space_prefix = metadata.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let encoder = SentencePiece {
        added: added(metadata, &tokens, &kinds)?,
        vocab: tokens.ids(),
        scores: scores(metadata, tokens.texts.len())?,
        bytes,
        unknown: ids.unknown,
        space_prefix,
    };
    ids.add_known_ends(|text| encoder.token_id(text));
    let (before, after) = framing(metadata, &ids, true, false)?;
    let between = between(metadata, &ids, &after, false)?;
    let encoder = Encoder::SentencePiece(encoder);
    let control_texts = ControlTexts::of(encoder.added());
    Ok(Tokenizer { encoder, control_texts, vocab, ids, before, after, between, space_prefix })
}

fn build_bpe(metadata: &Metadata, scheme: &Scheme) -> Result<Tokenizer> {
    let tokens = VocabTokens::read(metadata)?;
    let kinds = kinds(metadata, &tokens.texts)?;
    let vocab = tokens.vocab(&kinds, scheme.spelling);
    let byte_fallback = scheme.spelling == Spelling::SentencePiece;
    let parts = Merges {
        vocab: tokens.ids(),
        merges: merges(metadata)?,
        ignore_merges: scheme.ignore_merges,
        byte_fallback,
        ..Merges::default()
    };
    let split = scheme.build().map_err(|error| malformed(metadata, "tokenizer.ggml.pre", "a pre-tokeniser", error))?;
    let spaces = byte_fallback.then(|| Replace::new(" ", "\u{2581}").map(NormalizerWrapper::Replace)).transpose();
    let spaces = spaces.map_err(|error| malformed(metadata, "tokenizer.ggml.model", "a normaliser", error))?;
    let encoder = Subwords {
        added: added(metadata, &tokens, &kinds)?,
        added_normalised: AddedTokens::default(),
        normaliser: spaces,
        pre_tokeniser: Some(split),
        model: parts.model().map_err(|error| malformed(metadata, MERGES, "merges that fit the tokens", error))?,
    };
    let mut ids = special_ids(metadata, tokens.texts.len(), SpecialIds::default())?;
    ids.add_known_ends(|text| encoder.token_id(text));
    let (mut before, after) = framing(metadata, &ids, scheme.add_bos, false)?;
    if scheme.is_gemma4() {
        // Published files say that a text begins without BOS, but the model does not work that way.
        before = ids.bos.into_iter().collect();
    }
    let between = between(metadata, &ids, &after, false)?;
    let encoder = Encoder::Subwords(Box::new(encoder));
    let control_texts = ControlTexts::of(encoder.added());
    Ok(Tokenizer { encoder, control_texts, vocab, ids, before, after, between, space_prefix: false })
}

fn build_word_piece(metadata: &Metadata) -> Result<Tokenizer> {
    let tokens = VocabTokens::read(metadata)?;
    let kinds = kinds(metadata, &tokens.texts)?;
    let defaults = SpecialIds {
        bos: Some(101),
        unknown: Some(100),
        padding: Some(0),
        separator: Some(102),
        ..SpecialIds::default()
    };
    let ids = special_ids(metadata, tokens.texts.len(), defaults)?;
    let unknown = ids.unknown.ok_or_else(|| metadata.missing("tokenizer.ggml.unknown_token_id", "a token's id"))?;
    let unknown = tokens.texts[unknown as usize].clone();
    let spelled = |(id, text): (usize, &String)| {
        let whole = kinds[id] != TokenKind::Normal || *text == unknown;
        (if whole { text.clone() } else { word_piece::from_gguf(text) }, id as u32)
    };
    let vocab = tokens.by_id().map(spelled).collect();
    let continues = word_piece::CONTINUES.to_owned();
    let model = WordPieces { vocab, unknown, continues, longest_word: word_piece::LONGEST_WORD }.model();
    let lowercase = metadata.bool(LOWERCASE)?.unwrap_or(true);
    let letters = LetterRules { lowercase, strip_accents: metadata.bool(STRIP_ACCENTS)?.unwrap_or(lowercase) };
    let encoder = Subwords {
        added: added(metadata, &tokens, &kinds)?,
        added_normalised: AddedTokens::default(),
        normaliser: Some(letters.normaliser()),
        pre_tokeniser: Some(word_piece::words()),
        model: model.map_err(|error| malformed(metadata, TOKENS, "a WordPiece vocabulary", error))?,
    };
    let before: Vec<u32> = ids.bos.into_iter().collect();
    let after: Vec<u32> = ids.separator.or(ids.eos).into_iter().collect();
    let (vocab, between) = (tokens.vocab(&kinds, Spelling::SentencePiece), after.clone());
    let encoder = Encoder::Subwords(Box::new(encoder));
    let control_texts = ControlTexts::of(encoder.added());
    Ok(Tokenizer { encoder, control_texts, vocab, ids, before, after, between, space_prefix: true })
}

fn build_unigram(metadata: &Metadata) -> Result<Tokenizer> {
    let tokens = VocabTokens::read(metadata)?;
    let kinds = kinds(metadata, &tokens.texts)?;
    let defaults = SpecialIds { eos: Some(1), unknown: Some(2), padding: Some(0), ..SpecialIds::default() };
    let ids = special_ids(metadata, tokens.texts.len(), defaults)?;
    let scores = scores(metadata, tokens.texts.len())?;
    // Tokens that are no text are split off beforehand, or never found.
    let is_text = |id: usize| matches!(kinds[id], TokenKind::Normal | TokenKind::Byte);
    let text = |id: usize| if is_text(id) && !tokens.bytes.contains_key(&id) { &*tokens.texts[id] } else { "" };
    let pieces = scores.iter().enumerate().map(|(id, score)| (text(id).to_owned(), f64::from(*score)));
    let byte_fallback = kinds.contains(&TokenKind::Byte);
    let unknown = ids.unknown.map(|id| id as usize);
    let model = Pieces { pieces: pieces.collect(), unknown, byte_fallback }.model();
    let spaces = SpaceRules {
        prefix: metadata.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
        remove_extra: metadata.bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false),
    };
    let normaliser = spaces.normaliser_with(&character_map(metadata)?);
    let encoder = Subwords {
        added: added(metadata, &tokens, &kinds)?,
        added_normalised: AddedTokens::default(),
        normaliser: normaliser.map_err(|error| malformed(metadata, CHARACTER_MAP, "a map of characters", error))?,
        pre_tokeniser: Some(spaces.words()),
        model: model.map_err(|error| malformed(metadata, SCORES, "a Unigram vocabulary", error))?,
    };
    let (before, after) = framing(metadata, &ids, false, true)?;
    let between = between(metadata, &ids, &after, !before.is_empty())?;
    let vocab = tokens.vocab(&kinds, Spelling::SentencePiece);
    let encoder = Encoder::Subwords(Box::new(encoder));
    let control_texts = ControlTexts::of(encoder.added());
    Ok(Tokenizer { encoder, control_texts, vocab, ids, before, after, between, space_prefix: spaces.prefix })
}

/// The bytes of SentencePiece's character map; empty without one.
fn character_map(metadata: &Metadata) -> Result<Vec<u8>> {
    match metadata.array(CHARACTER_MAP)? {
        Some(Array::U8(bytes)) => Ok(bytes.clone()),
        // llama.cpp's converter once wrote signed bytes.
        Some(Array::I8(bytes)) => Ok(bytes.iter().map(|byte| byte.cast_unsigned()).collect()),
        Some(_) => Err(malformed(metadata, CHARACTER_MAP, "an array of bytes", "an array of another type")),
        None => Ok(Vec::new()),
    }
}

/// The ids between the two texts of a pair: those after a text, and a separator if the file says
/// so, or if not, if `default`.
fn between(metadata: &Metadata, ids: &SpecialIds, after: &[u32], default: bool) -> Result<Vec<u32>> {
    let separates = metadata.bool("tokenizer.ggml.add_sep_token")?.unwrap_or(default);
    let separator = ids.separator.or(ids.eos).filter(|_| separates);
    Ok(after.iter().copied().chain(separator).collect())
}

/// The tokens of a file. Tokens that are not UTF-8 stand for their bytes. A model may generate
/// them, but no text contains them.
struct VocabTokens<'a> {
    /// Token texts, with U+FFFD for invalid UTF-8.
    texts: Cow<'a, [String]>,
    /// Bytes of the tokens that are not UTF-8, by id.
    bytes: BTreeMap<usize, &'a [u8]>,
}

impl<'a> VocabTokens<'a> {
    fn read(metadata: &'a Metadata) -> Result<Self> {
        let expected = "an array of at least one string";
        let tokens = match metadata.array(TOKENS)? {
            Some(Array::String(tokens)) => VocabTokens { texts: Cow::Borrowed(tokens), bytes: BTreeMap::new() },
            Some(Array::Bytes(tokens)) => VocabTokens {
                texts: tokens.iter().map(|token| String::from_utf8_lossy(token).into_owned()).collect(),
                bytes: (0..)
                    .zip(tokens)
                    .filter(|(_, it)| std::str::from_utf8(it).is_err())
                    .map(|(id, it)| (id, &**it))
                    .collect(),
            },
            Some(_) => return Err(malformed(metadata, TOKENS, expected, "an array of another type")),
            None => return Err(metadata.missing(TOKENS, expected)),
        };
        if tokens.texts.is_empty() || u32::try_from(tokens.texts.len()).is_err() {
            return Err(malformed(metadata, TOKENS, expected, format!("{} strings", tokens.texts.len())));
        }
        Ok(tokens)
    }

    /// Bytes and kind of each token.
    fn vocab(&self, kinds: &[TokenKind], spelling: Spelling) -> Vocab {
        let mut vocab = Vocab::default();
        for (id, (text, &kind)) in self.texts.iter().zip(kinds).enumerate() {
            match self.bytes.get(&id) {
                Some(bytes) => vocab.push_bytes(bytes, kind),
                None => vocab.push(text, kind, spelling),
            }
        }
        vocab
    }

    /// The tokens that are text, by id.
    fn by_id(&self) -> impl Iterator<Item = (usize, &String)> {
        self.texts.iter().enumerate().filter(|(id, _)| !self.bytes.contains_key(id))
    }

    /// Ids of the tokens that are text.
    fn ids(&self) -> AHashMap<String, u32> {
        self.by_id().map(|(id, text)| (text.clone(), id as u32)).collect()
    }
}

/// The error for the key `key` of `metadata`.
fn malformed(metadata: &Metadata, key: &str, expected: &str, got: impl std::fmt::Display) -> Error {
    Error::malformed(metadata.path(), Location::Key(key.to_owned()), expected, got)
}

/// Checks that `key` has one element per token.
fn one_each(metadata: &Metadata, key: &str, len: usize, tokens: usize) -> Result<()> {
    if len == tokens {
        return Ok(());
    }
    Err(malformed(metadata, key, &format!("{tokens} elements, one per token"), len))
}

fn kinds(metadata: &Metadata, tokens: &[String]) -> Result<Vec<TokenKind>> {
    use TokenKind::{Byte, Control, Normal, Unknown, Unused, UserDefined};
    let numbered = [Unknown, Control, UserDefined, Unused, Byte];
    let kind_of = |code: i64| numbered.into_iter().find(|kind| *kind as i64 == code).unwrap_or(Normal);
    let kinds: Vec<TokenKind> = match metadata.array(TOKEN_TYPE)? {
        Some(Array::I32(codes)) => codes.iter().map(|&code| kind_of(code.into())).collect(),
        Some(Array::U32(codes)) => codes.iter().map(|&code| kind_of(code.into())).collect(),
        Some(_) => return Err(malformed(metadata, TOKEN_TYPE, "an array of i32", "an array of another type")),
        None => tokens.iter().map(|text| if byte_token(text).is_some() { Byte } else { Normal }).collect(),
    };
    one_each(metadata, TOKEN_TYPE, kinds.len(), tokens.len())?;
    Ok(kinds)
}

fn scores(metadata: &Metadata, tokens: usize) -> Result<Vec<f32>> {
    let scores = match metadata.array(SCORES)? {
        Some(Array::F32(scores)) => scores.clone(),
        Some(_) => return Err(malformed(metadata, SCORES, "an array of f32", "an array of another type")),
        None => return Err(metadata.missing(SCORES, "the score of each token")),
    };
    one_each(metadata, SCORES, scores.len(), tokens)?;
    if let Some(at) = scores.iter().position(|score| score.is_nan()) {
        return Err(malformed(metadata, SCORES, "numbers", format!("NaN for token {at}")));
    }
    // Positive and negative zero are equal scores.
    Ok(scores.into_iter().map(|score| score + 0.0).collect())
}

fn merges(metadata: &Metadata) -> Result<Vec<(String, String)>> {
    let malformed =
        |got: String| malformed(metadata, MERGES, "an array of strings of two tokens with a space between them", got);
    let lines = match metadata.array(MERGES)? {
        Some(Array::String(lines)) => Cow::Borrowed(&lines[..]),
        // A merge of bytes that are not text cannot join parts of a text.
        Some(Array::Bytes(lines)) => {
            Cow::Owned(lines.iter().filter_map(|line| Some(std::str::from_utf8(line).ok()?.to_owned())).collect())
        }
        Some(_) => return Err(malformed("an array of another type".to_owned())),
        None => return Err(malformed("nothing: the key is missing".to_owned())),
    };
    lines
        .iter()
        .enumerate()
        .map(|(at, line)| {
            let first = line.chars().next().map_or(0, char::len_utf8);
            match line[first..].find(' ') {
                Some(space) if line.len() > first + space + 1 => {
                    Ok((line[..first + space].to_owned(), line[first + space + 1..].to_owned()))
                }
                _ => Err(malformed(format!("{:?} as merge {at}", line.chars().take(40).collect::<String>()))),
            }
        })
        .collect()
}

fn scheme(metadata: &Metadata) -> Result<&'static Scheme> {
    let key = "tokenizer.ggml.pre";
    let name = metadata.str(key)?.unwrap_or_else(|| {
        tracing::warn!(path = %metadata.path().display(), "{key} is missing: llama.cpp's default splits text");
        "default"
    });
    named(name)
}

fn named(name: &str) -> Result<&'static Scheme> {
    Scheme::named(name).ok_or_else(|| Error::unsupported("pre-tokeniser", name, Scheme::names()))
}

fn added(metadata: &Metadata, tokens: &VocabTokens<'_>, kinds: &[TokenKind]) -> Result<AddedTokens> {
    // Phi-3's tokens absorb the following white space, for which GGUF has no key.
    let name = metadata.str("general.name")?.unwrap_or_default().to_lowercase();
    let phi3 = name.contains("phi-3") || name.contains("phi3");
    let mut added = Vec::new();
    for (id, text) in tokens.by_id() {
        let special = match kinds[id] {
            TokenKind::Control | TokenKind::Unknown => true,
            TokenKind::UserDefined => false,
            _ => continue,
        };
        let right_strip = phi3 && !["<unk>", "<s>", "<|endoftext|>"].contains(&text.as_str());
        added.push(AddedToken { id: id as u32, text: text.clone(), special, right_strip, ..AddedToken::default() });
    }
    AddedTokens::new(added).map_err(|error| malformed(metadata, TOKENS, "tokens", error))
}

/// Ids under `tokenizer.ggml.*_token_id`. An id that is out of range is ignored with a warning,
/// because files contain such ids for unused roles.
pub fn special_ids(metadata: &Metadata, tokens: usize, defaults: SpecialIds) -> Result<SpecialIds> {
    let find = |role: &str, default: Option<u32>| -> Result<Option<u32>> {
        let key = format!("tokenizer.ggml.{role}_token_id");
        let id = match metadata.get(&key) {
            // Absent roles are also written as -1, signed or unsigned.
            Some(value) => value.as_u64().and_then(|id| u32::try_from(id).ok()).or(Some(u32::MAX)),
            None => default,
        };
        let in_range = id.filter(|&id| (id as usize) < tokens);
        if id.is_some_and(|id| id != u32::MAX) && in_range.is_none() && metadata.get(&key).is_some() {
            tracing::warn!(path = %metadata.path().display(), id, tokens, "{key} is out of range and ignored");
        }
        Ok(in_range)
    };
    let mut ids = SpecialIds {
        bos: find("bos", find("cls", defaults.bos)?)?,
        eos: find("eos", defaults.eos)?,
        unknown: find("unknown", defaults.unknown)?,
        padding: find("padding", defaults.padding)?,
        // The misspelled name is the one in files.
        separator: find("seperator", defaults.separator)?,
        ends: BTreeSet::new(),
    };
    for role in ["eot", "eom"] {
        ids.ends.extend(find(role, None)?);
    }
    if let Some(Array::U32(ends)) = metadata.array(END_IDS)? {
        ids.ends.extend(ends.iter().filter(|&&id| (id as usize) < tokens));
    }
    Ok(ids)
}

/// Special tokens that encoding puts before and after a text.
fn framing(metadata: &Metadata, ids: &SpecialIds, add_bos: bool, add_eos: bool) -> Result<(Vec<u32>, Vec<u32>)> {
    let add_bos = metadata.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(add_bos);
    let add_eos = metadata.bool("tokenizer.ggml.add_eos_token")?.unwrap_or(add_eos);
    let take = |wanted: bool, id: Option<u32>| if wanted { id.into_iter().collect() } else { Vec::new() };
    Ok((take(add_bos, ids.bos), take(add_eos, ids.eos)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        EncodeOptions,
        test_vocabulary::{vocabulary, with_bytes},
    };
    use thermocline_formats::format::Value;

    /// A vocabulary like Gemma 4's: spaces are U+2581, merges work on characters, and the rest are
    /// byte tokens.
    fn gemma4() -> Tokenizer {
        let pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn|>", "▁", "a", "b", "\n", "ab", "▁ab", "\n\n", "▁▁"];
        let mut metadata = vocabulary("gemma4", with_bytes(&pieces), |id| match id {
            0..=4 => 3,
            5..=12 => 1,
            _ => 6,
        });
        let merges = ["a b", "▁ ab", "\n \n", "▁ ▁"].map(str::to_owned).to_vec();
        metadata.set("tokenizer.ggml.merges", Value::Array(Array::String(merges)));
        metadata.set("tokenizer.ggml.add_bos_token", Value::Bool(false));
        for (role, id) in [("bos", 2), ("eos", 1), ("unknown", 3)] {
            metadata.set(format!("tokenizer.ggml.{role}_token_id"), Value::U32(id));
        }
        Tokenizer::from_metadata(&metadata).expect("valid")
    }

    #[test]
    fn gemma4_merges_characters_and_falls_back_to_bytes() {
        let tokenizer = gemma4();
        let byte = |byte: u32| 13 + byte;
        for (text, ids) in [
            ("ab ab", vec![9, 10]),
            ("  ab\n\n\nb", vec![5, 10, 11, 8, 7]),
            ("aé", vec![6, byte(0xc3), byte(0xa9)]),
            ("", vec![]),
        ] {
            assert_eq!(tokenizer.encode(text, EncodeOptions::PLAIN).unwrap(), ids, "{text:?}");
            assert_eq!(tokenizer.decode(&ids, true), text);
        }
        assert_eq!(tokenizer.encode("a<turn|>", EncodeOptions::CHAT).unwrap(), [2, 6, 4], "it always begins with BOS");
        assert!(tokenizer.ends().eq([1, 4]));
    }

    #[test]
    fn texts_that_are_continued_have_no_end() {
        let tokens = ["<s>", "</s>", "a"].map(str::to_owned).to_vec();
        let mut metadata = vocabulary("llama", tokens, |id| [3, 3, 1][id]);
        metadata.set("tokenizer.ggml.bos_token_id", Value::U32(0));
        metadata.set("tokenizer.ggml.eos_token_id", Value::U32(1));
        metadata.set("tokenizer.ggml.add_space_prefix", Value::Bool(false));
        metadata.set("tokenizer.ggml.add_eos_token", Value::Bool(true));
        let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
        for (options, want) in [
            (EncodeOptions::PLAIN, &[2][..]),
            (EncodeOptions::TEXT, &[0, 2][..]),
            (EncodeOptions::CHAT, &[0, 2][..]),
            (EncodeOptions::WHOLE, &[0, 2, 1][..]),
        ] {
            assert_eq!(tokenizer.encode("a", options).unwrap(), want, "{options:?}");
        }
        let prompt = crate::PromptText::guarded("<s>a".to_owned());
        assert_eq!(tokenizer.encode_prompt(&prompt).unwrap(), [0, 2]);
    }

    #[test]
    fn tokens_that_are_not_utf8_stand_for_their_bytes() {
        let mut metadata = Metadata::new("m.gguf");
        let tokens: Vec<Vec<u8>> =
            [&b"a"[..], b"b", b"ab", b"\xf0\x9f", b"\xff", "\u{fffd}".as_bytes()].map(<[u8]>::to_vec).to_vec();
        metadata.set("tokenizer.ggml.tokens", Value::Array(Array::Bytes(tokens.clone())));
        metadata.set("tokenizer.ggml.merges", Value::Array(Array::Bytes(vec![b"a b".to_vec(), b"\xf0 \x9f".to_vec()])));
        metadata.set("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; 6])));
        for model in ["gpt2", "llama"] {
            metadata.set("tokenizer.ggml.model", Value::String(model.to_owned()));
            metadata.set("tokenizer.ggml.add_space_prefix", Value::Bool(false));
            let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
            for id in [3, 4] {
                assert_eq!(tokenizer.token_bytes(id), tokens[id as usize], "{model} {id}");
            }
            assert_eq!(tokenizer.encode("ab", EncodeOptions::PLAIN).unwrap(), [2], "{model}");
            assert!(!tokenizer.encode("\u{fffd}", EncodeOptions::PLAIN).unwrap().contains(&3), "{model}");
            assert_eq!(tokenizer.decode(&[0, 3, 1], false), "a\u{fffd}b", "{model}");
        }
    }

    #[test]
    fn unknown_pre_tokenisers_are_named_with_the_known_ones() {
        let mut metadata = Metadata::new("m.gguf");
        metadata.set("tokenizer.ggml.model", Value::String("gpt2".into()));
        metadata.set("tokenizer.ggml.pre", Value::String("newest".into()));
        metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(vec!["a".to_owned()])));
        let error = Tokenizer::from_metadata(&metadata).unwrap_err().to_string();
        assert!(error.contains("newest"), "{error}");
        assert!(error.contains("qwen35") && error.contains("kimi-k2"), "{error}");
    }
}
