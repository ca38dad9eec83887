//! Builds tokenizers from a Hugging Face `tokenizer.json`. It reads what byte-pair encoders,
//! WordPiece and Unigram need, and refuses everything else by name.

use std::{collections::HashSet, fmt};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;
use tokenizers::{ModelWrapper, utils::SysRegex};

use super::{
    TokenKind, Tokenizer,
    added::{AddedToken, AddedTokens},
    bpe::Merges,
    character_map,
    control_texts::ControlTexts,
    gguf,
    special_ids::SpecialIds,
    subwords::Subwords,
    tokenizer::Encoder,
    unigram::Pieces,
    vocab::{Spelling, Vocab, byte_token},
    word_piece::{CONTINUES, LONGEST_WORD, WordPieces},
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
    pub unk_id: Option<usize>,
    pub max_input_chars_per_word: Option<usize>,
    pub fuse_unk: bool,
    pub byte_fallback: bool,
    pub ignore_merges: bool,
}

/// The vocabulary: a map, or the list of a Unigram model.
#[derive(Debug, Default)]
pub struct VocabJson {
    /// Token text to id.
    pub ids: ahash::AHashMap<String, u32>,
    /// Text and score of each id; empty for a map.
    pub pieces: Vec<(String, f64)>,
}

/// An element of a list of tokens.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum PieceJson {
    Piece(String, f64),
    Other(IgnoredAny),
}

impl<'de> Deserialize<'de> for VocabJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MapOrList;
        impl<'de> Visitor<'de> for MapOrList {
            type Value = VocabJson;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from tokens to ids, or a list of tokens and scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VocabJson, A::Error> {
                let mut vocab = ahash::AHashMap::new();
                while let Some((token, id)) = map.next_entry()? {
                    vocab.insert(token, id);
                }
                Ok(VocabJson { ids: vocab, pieces: Vec::new() })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<VocabJson, A::Error> {
                let mut vocab = VocabJson::default();
                while let Some(element) = list.next_element()? {
                    // Later ids count elements that are no tokens.
                    let PieceJson::Piece(text, score) = element else {
                        vocab.pieces.push((String::new(), 0.0));
                        continue;
                    };
                    vocab.ids.insert(text.clone(), vocab.pieces.len() as u32);
                    vocab.pieces.push((text, score));
                }
                Ok(vocab)
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
    let TextFrame { before, after, between } = TextFrame::of(&file.post_processor, vocab.len());
    let TokenizerJson { normalizer, pre_tokenizer, .. } = &file;
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
    let specials = file.added_tokens.iter().filter(|token| token.special).map(|token| token.id).collect();
    let (unknown_text, unknown_id) = (file.model.unk_token.clone(), file.model.unk_id);
    let model = model_of(file.model, specials, metadata)?;
    let encoder = Subwords { added, added_normalised, normaliser, pre_tokeniser, model };

    let find = |name: &str| config_token(config, name).and_then(|text| encoder.token_id(text));
    let mut ids = gguf::special_ids(metadata, vocab.len(), SpecialIds::default())?;
    // The end tokens of config.json and tokenizer_config.json may differ, and both end a text.
    ids.ends.extend(ids.eos);
    ids.bos = find("bos_token").or(ids.bos).or(before.first().copied());
    ids.eos = find("eos_token").or(ids.eos).or(after.last().copied());
    ids.padding = find("pad_token").or(ids.padding);
    let unknown = unknown_text.and_then(|text| encoder.token_id(&text)).or(unknown_id.map(|id| id as u32));
    ids.unknown = find("unk_token").or(ids.unknown).or(unknown);
    let separator = after.last().copied().filter(|id| between.contains(id));
    ids.separator = find("sep_token").or(ids.separator).or(separator);
    ids.add_known_ends(|text| encoder.token_id(text));
    let choose = |flag: &str, id: Option<u32>, default: Vec<u32>| match config.get(flag).and_then(Value::as_bool) {
        Some(true) => id.map_or(default, |id| vec![id]),
        Some(false) => Vec::new(),
        None => default,
    };
    let encoder = Encoder::Subwords(Box::new(encoder));
    Ok(Tokenizer {
        before: choose("add_bos_token", ids.bos, before),
        after: choose("add_eos_token", ids.eos, after),
        between,
        control_texts: ControlTexts::of(encoder.added()),
        encoder,
        vocab,
        ids,
        space_prefix: decoding.strip_space,
    })
}

/// The library's form of `model`. No text contains the control tokens `specials`.
fn model_of(model: ModelJson, specials: HashSet<u32>, metadata: &Metadata) -> Result<ModelWrapper> {
    let ModelJson { byte_fallback, ignore_merges, fuse_unk: fuse_unknown, unk_token: unknown, .. } = model;
    let built = match model.kind.as_deref() {
        Some("WordPiece") => {
            let unknown = unknown.unwrap_or_else(|| "[UNK]".to_owned());
            let continues = model.continuing_subword_prefix.unwrap_or_else(|| CONTINUES.to_owned());
            let longest_word = model.max_input_chars_per_word.unwrap_or(LONGEST_WORD);
            WordPieces { vocab: model.vocab.ids, unknown, continues, longest_word }.model()
        }
        Some("Unigram") => {
            let mut pieces = model.vocab.pieces;
            for special in specials.into_iter().chain(model.unk_id.map(|id| id as u32)) {
                if let Some((text, _)) = pieces.get_mut(special as usize) {
                    text.clear();
                }
            }
            Pieces { pieces, unknown: model.unk_id, byte_fallback }.model()
        }
        _ => {
            let merges = pairs(model.merges, metadata)?;
            let vocab = model.vocab.ids;
            Merges { vocab, merges, ignore_merges, byte_fallback, fuse_unknown, unknown }.model()
        }
    };
    built.map_err(|error| malformed(metadata, "model", "a model that fits the tokens", error))
}

/// The bytes of SentencePiece's character map in a normaliser; empty without one.
pub fn character_map_of(normaliser: &Value, metadata: &Metadata) -> Result<Vec<u8>> {
    let steps = normaliser.get("normalizers").and_then(Value::as_array).into_iter().flatten();
    let mut maps = steps.chain([normaliser]).filter(|step| step.get("type") == Some(&"Precompiled".into()));
    let map = maps.next().and_then(|step| step.get("precompiled_charsmap")?.as_str()).unwrap_or_default();
    STANDARD.decode(map).map_err(|error| malformed(metadata, "normalizer", "a map in base64", error))
}

/// Reads the file and checks that its model type is supported.
pub fn parse(tokenizer_json: &str, metadata: &Metadata) -> Result<TokenizerJson> {
    let file: TokenizerJson = serde_json::from_str(tokenizer_json)
        .map_err(|error| malformed(metadata, "the whole file", "a tokenizer description", error))?;
    let model = &file.model;
    let unsupported = |what, got: &str, supported: &str| Err(Error::unsupported(what, got, supported));
    match model.kind.as_deref() {
        Some("BPE") => {}
        // Their words are split by marks of their own.
        Some("WordPiece" | "Unigram") => return Ok(file),
        None if !model.merges.is_empty() => {}
        other => return unsupported("tokenizer model", other.unwrap_or("unnamed"), "BPE, WordPiece, Unigram"),
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
    let listed = file.model.vocab.ids.len().max(file.model.vocab.pieces.len()) + file.added_tokens.len();
    let ids = file.model.vocab.ids.values().copied().chain(file.added_tokens.iter().map(|token| token.id));
    let Some(highest) = ids.max() else {
        return Err(malformed(metadata, "model.vocab", "at least one token", "none"));
    };
    // Ids may have gaps, but a short file must not produce a long table.
    let most = 2 * listed + 65_536;
    if highest as usize >= most {
        return Err(malformed(metadata, "model.vocab", &format!("ids below {most}"), highest));
    }
    let mut tokens = vec![("", TokenKind::Unused); highest as usize + 1];
    for (text, &id) in &file.model.vocab.ids {
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

const NORMALISERS: &[&str] = &[
    "Sequence",
    "Prepend",
    "Replace",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Nmt",
    "Lowercase",
    "Strip",
    "StripAccents",
    "BertNormalizer",
    "Precompiled",
];
const PRE_TOKENISERS: &[&str] = &[
    "Sequence",
    "Split",
    "ByteLevel",
    "Digits",
    "Punctuation",
    "Metaspace",
    "Whitespace",
    "WhitespaceSplit",
    "BertPreTokenizer",
];

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
    if kind == "Precompiled" {
        let map = step.get("precompiled_charsmap").and_then(Value::as_str).unwrap_or_default();
        let map = STANDARD.decode(map).map_err(|error| error.to_string());
        map.and_then(|map| character_map::check(&map))
            .map_err(|error| Error::unsupported(what, error, "a whole map of characters"))?;
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
                "WordPiece" => {
                    decoding = Some(Spelling::WordPiece);
                    strip_space = true;
                }
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
                        "ByteLevel, WordPiece, ByteFallback, Replace, Metaspace, Strip, Fuse",
                    ));
                }
            }
        }
        let byte_level = steps(&file.pre_tokenizer, "pretokenizers").iter().any(|step| kind(step) == "ByteLevel");
        let word_piece = file.model.kind.as_deref() == Some("WordPiece");
        strip_space |= word_piece;
        let default = match byte_level {
            true => Spelling::ByteLevel,
            false if word_piece => Spelling::WordPiece,
            false => Spelling::SentencePiece,
        };
        Ok(Decoding { spelling: decoding.unwrap_or(default), strip_space })
    }
}

/// The ids that the post-processor puts before and after a text, and between the texts of a pair,
/// without those out of range.
#[derive(Debug, Default)]
struct TextFrame {
    before: Vec<u32>,
    after: Vec<u32>,
    between: Vec<u32>,
}

impl TextFrame {
    fn of(post_processor: &Value, tokens: usize) -> Self {
        let id =
            |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < tokens);
        let second = |key: &str| post_processor.get(key).and_then(|pair| pair.get(1)).and_then(id);
        let kind = post_processor.get("type").and_then(Value::as_str).unwrap_or_default();
        match kind {
            "Sequence" => {
                let frames = post_processor.get("processors").and_then(Value::as_array).into_iter().flatten();
                frames.map(|step| TextFrame::of(step, tokens)).fold(TextFrame::default(), |mut all, step| {
                    all.before.splice(0..0, step.before);
                    all.after.extend(step.after);
                    all.between.extend(step.between);
                    all
                })
            }
            "BertProcessing" | "RobertaProcessing" => {
                let after: Vec<u32> = second("sep").into_iter().collect();
                let between = after.repeat(if kind == "BertProcessing" { 1 } else { 2 });
                TextFrame { before: second("cls").into_iter().collect(), after, between }
            }
            "TemplateProcessing" => {
                let ids = |name: &str| {
                    let ids =
                        post_processor.get("special_tokens").and_then(|all| all.get(name)).and_then(|t| t.get("ids"));
                    ids.and_then(Value::as_array).into_iter().flatten().filter_map(id).collect::<Vec<_>>()
                };
                let [before, after, _] = parts(post_processor, "single", ids);
                let [_, between, _] = parts(post_processor, "pair", ids);
                TextFrame { before, after, between }
            }
            _ => TextFrame::default(),
        }
    }
}

/// The ids of a template before its first text, after it, and after its second text.
fn parts(post_processor: &Value, template: &str, ids: impl Fn(&str) -> Vec<u32>) -> [Vec<u32>; 3] {
    let (mut parts, mut texts) = (<[Vec<u32>; 3]>::default(), 0);
    for piece in post_processor.get(template).and_then(Value::as_array).into_iter().flatten() {
        if piece.get("Sequence").is_some() {
            texts = (texts + 1).min(2);
        } else if let Some(name) = piece.pointer("/SpecialToken/id").and_then(Value::as_str) {
            parts[texts].extend(ids(name));
        }
    }
    parts
}

/// The text of a token in `tokenizer_config.json`: a string, or an object with `content`.
fn config_token<'a>(config: &'a Value, name: &str) -> Option<&'a str> {
    let token = config.get(name)?;
    token.as_str().or_else(|| token.get("content").and_then(Value::as_str))
}
