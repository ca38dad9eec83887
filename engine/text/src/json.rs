//! Builds tokenizers from a Hugging Face `tokenizer.json`. It reads only what a byte-pair encoder
//! needs and refuses everything else by name.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;
use tokenizers::utils::SysRegex;

use super::{
    TokenKind, Tokenizer,
    added::{AddedToken, AddedTokens},
    bpe::{Bpe, Merges},
    control_texts::ControlTexts,
    gguf,
    special_ids::SpecialIds,
    tokenizer::Encoder,
    vocab::{Spelling, Vocab, byte_token},
};
use thermocline_base::error::{Error, Location, Result};
use thermocline_formats::format::Metadata;

/// The parts of `tokenizer.json` that are used.
#[derive(Debug, Deserialize)]
pub struct TokenizerJson {
    #[serde(default)]
    pub added_tokens: Vec<AddedJson>,
    #[serde(default)]
    pub normalizer: Value,
    #[serde(default)]
    pub pre_tokenizer: Value,
    #[serde(default)]
    pub post_processor: Value,
    #[serde(default)]
    pub decoder: Value,
    pub model: ModelJson,
}

/// An entry of `added_tokens`.
#[derive(Debug, Deserialize)]
pub struct AddedJson {
    pub id: u32,
    pub content: String,
    #[serde(default)]
    pub special: bool,
    #[serde(default)]
    pub lstrip: bool,
    #[serde(default)]
    pub rstrip: bool,
    #[serde(default)]
    pub single_word: bool,
    #[serde(default)]
    pub normalized: bool,
}

/// The `model` object.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ModelJson {
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub vocab: VocabJson,
    pub merges: Vec<MergeJson>,
    pub unk_token: Option<String>,
    pub continuing_subword_prefix: Option<String>,
    pub end_of_word_suffix: Option<String>,
    pub fuse_unk: bool,
    pub byte_fallback: bool,
    pub ignore_merges: bool,
}

/// Token text to id. Empty for models that store a list.
#[derive(Debug, Default)]
pub struct VocabJson(pub ahash::AHashMap<String, u32>);

impl<'de> Deserialize<'de> for VocabJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MapOrList;
        impl<'de> Visitor<'de> for MapOrList {
            type Value = VocabJson;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from tokens to ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VocabJson, A::Error> {
                let mut vocab = ahash::AHashMap::new();
                while let Some((token, id)) = map.next_entry()? {
                    vocab.insert(token, id);
                }
                Ok(VocabJson(vocab))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<VocabJson, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(VocabJson::default())
            }
        }
        deserializer.deserialize_any(MapOrList)
    }
}

/// A merge, written as `"a b"` in older files and `["a", "b"]` in newer ones.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum MergeJson {
    Pair(String, String),
    Line(String),
}

/// The error for the part `at` of the `tokenizer.json` next to the file of `metadata`.
pub fn malformed(metadata: &Metadata, at: &str, expected: &str, got: impl fmt::Display) -> Error {
    let path = metadata.path().join("tokenizer.json");
    Error::malformed(path, Location::Key(at.to_owned()), expected, got)
}

/// The two tokens of each merge.
pub fn pairs(merges: Vec<MergeJson>, metadata: &Metadata) -> Result<Vec<(String, String)>> {
    let pair = |(at, merge): (usize, MergeJson)| match merge {
        MergeJson::Pair(left, right) => Ok((left, right)),
        MergeJson::Line(line) => match line.split_once(' ') {
            Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
            None => {
                Err(malformed(metadata, "model.merges", "two tokens per merge", format!("one token in merge {at}")))
            }
        },
    };
    merges.into_iter().enumerate().map(pair).collect()
}

/// Builds the tokenizer that `tokenizer_json` describes.
pub fn build(tokenizer_json: &str, config: &Value, metadata: &Metadata) -> Result<Tokenizer> {
    let file = parse(tokenizer_json, metadata)?;
    let decoding = Decoding::of(&file)?;
    let vocab = vocabulary(&file, &decoding, metadata)?;

    let (normalised, plain): (Vec<_>, Vec<_>) = file.added_tokens.iter().partition(|token| token.normalized);
    let (before, after) = frame(&file.post_processor, vocab.len());
    let TokenizerJson { normalizer, pre_tokenizer, model, .. } = &file;
    check_types(normalizer, "normalizer", "normalizers", NORMALISERS)?;
    check_types(pre_tokenizer, "pre-tokeniser", "pretokenizers", PRE_TOKENISERS)?;
    let normaliser: Option<tokenizers::NormalizerWrapper> = serde_json::from_value(normalizer.clone())
        .map_err(|error| malformed(metadata, "normalizer", "a normaliser", error))?;
    let pre_tokeniser = serde_json::from_value(pre_tokenizer.clone())
        .map_err(|error| malformed(metadata, "pre_tokenizer", "a pre-tokeniser", error))?;
    let added = |tokens: Vec<&AddedJson>, normaliser: Option<&tokenizers::NormalizerWrapper>| {
        let tokens = tokens.into_iter().map(|token| added_token(token, normaliser));
        AddedTokens::new(tokens.collect()).map_err(|error| malformed(metadata, "added_tokens", "tokens", error))
    };
    let (added_normalised, added) = (added(normalised, normaliser.as_ref())?, added(plain, None)?);
    let (unknown, fuse_unknown) = (model.unk_token.clone(), model.fuse_unk);
    let (byte_fallback, ignore_merges) = (model.byte_fallback, model.ignore_merges);
    let merges = pairs(file.model.merges, metadata)?;
    let vocab_ids = file.model.vocab.0;
    let parts = Merges { vocab: vocab_ids, merges, ignore_merges, byte_fallback, fuse_unknown, unknown };
    let encoder = Bpe::new(parts, added, added_normalised, normaliser, pre_tokeniser)
        .map_err(|error| malformed(metadata, "model", "merges that fit the tokens", error))?;

    let find = |name: &str| config_token(config, name).and_then(|text| encoder.token_id(text));
    let mut ids = gguf::special_ids(metadata, vocab.len(), SpecialIds::default())?;
    // The end tokens of config.json and tokenizer_config.json may differ, and both end a text.
    ids.ends.extend(ids.eos);
    ids.bos = find("bos_token").or(ids.bos).or(before.first().copied());
    ids.eos = find("eos_token").or(ids.eos);
    ids.padding = find("pad_token").or(ids.padding);
    ids.unknown = find("unk_token").or(ids.unknown);
    ids.add_known_ends(|text| encoder.token_id(text));
    let choose = |flag: &str, id: Option<u32>, default: Vec<u32>| match config.get(flag).and_then(Value::as_bool) {
        Some(true) => id.map_or(default, |id| vec![id]),
        Some(false) => Vec::new(),
        None => default,
    };
    let encoder = Encoder::Bpe(Box::new(encoder));
    Ok(Tokenizer {
        before: choose("add_bos_token", ids.bos, before),
        after: choose("add_eos_token", ids.eos, after),
        control_texts: ControlTexts::of(encoder.added()),
        encoder,
        vocab,
        ids,
        space_prefix: decoding.strip_space,
    })
}

/// Reads the file and checks that its model type is supported.
pub fn parse(tokenizer_json: &str, metadata: &Metadata) -> Result<TokenizerJson> {
    let file: TokenizerJson = serde_json::from_str(tokenizer_json)
        .map_err(|error| malformed(metadata, "the whole file", "a tokenizer description", error))?;
    let model = &file.model;
    let unsupported = |what, got: &str, supported: &str| Err(Error::unsupported(what, got, supported));
    match model.kind.as_deref() {
        Some("BPE") => {}
        None if !model.merges.is_empty() => {}
        other => return unsupported("tokenizer model", other.unwrap_or("unnamed"), "BPE"),
    }
    for affix in [&model.continuing_subword_prefix, &model.end_of_word_suffix] {
        if let Some(affix) = affix.as_deref().filter(|affix| !affix.is_empty()) {
            return unsupported("subword affix", affix, "none");
        }
    }
    Ok(file)
}

/// All tokens by id: their content, and whether they are added and special.
fn vocabulary(file: &TokenizerJson, decoding: &Decoding, metadata: &Metadata) -> Result<Vocab> {
    let listed = file.model.vocab.0.len() + file.added_tokens.len();
    let ids = file.model.vocab.0.values().copied().chain(file.added_tokens.iter().map(|token| token.id));
    let Some(highest) = ids.max() else {
        return Err(malformed(metadata, "model.vocab", "at least one token", "none"));
    };
    // Ids may have gaps, but a short file must not produce a long table.
    let most = 2 * listed + 65_536;
    if highest as usize >= most {
        return Err(malformed(metadata, "model.vocab", &format!("ids below {most}"), highest));
    }
    let mut tokens = vec![("", TokenKind::Unused); highest as usize + 1];
    for (text, &id) in &file.model.vocab.0 {
        let byte = file.model.byte_fallback && byte_token(text).is_some();
        tokens[id as usize] = (text, if byte { TokenKind::Byte } else { TokenKind::Normal });
    }
    for token in &file.added_tokens {
        let kind = if token.special { TokenKind::Control } else { TokenKind::UserDefined };
        tokens[token.id as usize] = (&token.content, kind);
    }
    let mut vocab = Vocab::default();
    for (text, kind) in tokens {
        vocab.push(text, kind, decoding.spelling);
    }
    Ok(vocab)
}

fn added_token(token: &AddedJson, normaliser: Option<&tokenizers::NormalizerWrapper>) -> AddedToken {
    use tokenizers::Normalizer;
    let mut text = tokenizers::NormalizedString::from(token.content.as_str());
    if let Some(normaliser) = normaliser
        && normaliser.normalize(&mut text).is_err()
    {
        text = token.content.as_str().into();
    }
    AddedToken {
        id: token.id,
        text: text.get().to_owned(),
        special: token.special,
        left_strip: token.lstrip,
        right_strip: token.rstrip,
        single_word: token.single_word,
    }
}

const NORMALISERS: &[&str] =
    &["Sequence", "Prepend", "Replace", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents"];
const PRE_TOKENISERS: &[&str] =
    &["Sequence", "Split", "ByteLevel", "Digits", "Punctuation", "Metaspace", "Whitespace", "WhitespaceSplit"];

/// Refuses steps outside `known`, which belong to unsupported models.
fn check_types(step: &Value, what: &'static str, list: &str, known: &[&str]) -> Result<()> {
    if step.is_null() {
        return Ok(());
    }
    let kind = step.get("type").and_then(Value::as_str).unwrap_or("unnamed");
    if !known.contains(&kind) {
        return Err(Error::unsupported(what, kind, known.join(", ")));
    }
    // The library indexes out of bounds for steps that insert or search for an empty text.
    let empty = |pointer: &str| step.pointer(pointer).and_then(Value::as_str) == Some("");
    let matches_nothing = step
        .pointer("/pattern/Regex")
        .and_then(Value::as_str)
        .is_some_and(|pattern| SysRegex::new(pattern).is_ok_and(|regex| regex.find_iter("").next().is_some()));
    if empty("/prepend") || empty("/pattern/String") || matches_nothing {
        let supported = "a step that inserts or searches for a text that is not empty".to_owned();
        return Err(Error::unsupported(what, step, supported));
    }
    for step in step.get(list).and_then(Value::as_array).into_iter().flatten() {
        check_types(step, what, list, known)?;
    }
    Ok(())
}

/// How ids become text.
pub struct Decoding {
    /// How token texts represent text.
    pub spelling: Spelling,
    strip_space: bool,
}

impl Decoding {
    /// The rules of the file's decoder, or of its pre-tokeniser.
    pub fn of(file: &TokenizerJson) -> Result<Self> {
        let steps = |value: &Value, list: &str| match value.get(list).and_then(Value::as_array) {
            Some(steps) => steps.clone(),
            None if value.is_null() => Vec::new(),
            None => vec![value.clone()],
        };
        let kind = |step: &Value| step.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut decoding = None;
        let mut strip_space = false;
        for step in steps(&file.decoder, "decoders") {
            match kind(&step).as_str() {
                "ByteLevel" => decoding = Some(Spelling::ByteLevel),
                "ByteFallback" | "Replace" => decoding = decoding.or(Some(Spelling::SentencePiece)),
                "Metaspace" => {
                    decoding = decoding.or(Some(Spelling::SentencePiece));
                    let never = step.get("prepend_scheme").and_then(Value::as_str) == Some("never");
                    strip_space |= !never && step.get("add_prefix_space").and_then(Value::as_bool) != Some(false);
                }
                "Strip" => strip_space |= step.get("start").and_then(Value::as_u64).is_some_and(|start| start > 0),
                "Fuse" => {}
                other => {
                    return Err(Error::unsupported(
                        "token decoder",
                        other,
                        "ByteLevel, ByteFallback, Replace, Metaspace, Strip, Fuse",
                    ));
                }
            }
        }
        let byte_level = steps(&file.pre_tokenizer, "pretokenizers").iter().any(|step| kind(step) == "ByteLevel");
        let default = if byte_level { Spelling::ByteLevel } else { Spelling::SentencePiece };
        Ok(Decoding { spelling: decoding.unwrap_or(default), strip_space })
    }
}

/// The ids that the post-processor puts before and after a text, without those out of range.
fn frame(post_processor: &Value, tokens: usize) -> (Vec<u32>, Vec<u32>) {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < tokens);
    let second = |key: &str| post_processor.get(key).and_then(|pair| pair.get(1)).and_then(id);
    match post_processor.get("type").and_then(Value::as_str) {
        Some("Sequence") => {
            let frames = post_processor.get("processors").and_then(Value::as_array).into_iter().flatten();
            frames.map(|step| frame(step, tokens)).fold(Default::default(), |(mut before, mut after), (b, a)| {
                before.splice(0..0, b);
                after.extend(a);
                (before, after)
            })
        }
        Some("BertProcessing" | "RobertaProcessing") => {
            (second("cls").into_iter().collect(), second("sep").into_iter().collect())
        }
        Some("TemplateProcessing") => {
            let (mut before, mut after) = (Vec::new(), Vec::new());
            let mut seen_text = false;
            for piece in post_processor.get("single").and_then(Value::as_array).into_iter().flatten() {
                if piece.get("Sequence").is_some() {
                    seen_text = true;
                } else if let Some(name) = piece.pointer("/SpecialToken/id").and_then(Value::as_str) {
                    let ids =
                        post_processor.get("special_tokens").and_then(|all| all.get(name)).and_then(|t| t.get("ids"));
                    let side = if seen_text { &mut after } else { &mut before };
                    side.extend(ids.and_then(Value::as_array).into_iter().flatten().filter_map(id));
                }
            }
            (before, after)
        }
        _ => (Vec::new(), Vec::new()),
    }
}

/// The text of a token in `tokenizer_config.json`: a string, or an object with `content`.
fn config_token<'a>(config: &'a Value, name: &str) -> Option<&'a str> {
    let token = config.get(name)?;
    token.as_str().or_else(|| token.get("content").and_then(Value::as_str))
}
