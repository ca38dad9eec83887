//! Converts `tokenizer.json` to GGUF's `tokenizer.ggml.*` keys, so that a converted file carries
//! its tokenizer.
//!
//! Byte-level vocabularies become model `gpt2` with their merges and the name of their
//! pre-tokeniser. SentencePiece-like vocabularies (byte fallback) become model `llama`, in which
//! the tokens' scores order the merges. A token's score is minus the rank of the first merge that
//! produces it. WordPiece becomes model `bert`, and Unigram model `t5`.

use std::collections::HashMap;

use serde_json::Value;

use super::{
    TokenKind, Tokenizer,
    chat::configured_template,
    json::{self, Decoding, TokenizerJson},
    pre_tokenizer::{DIGIT, DIGITS, GPT2, PUNCTUATION, Scheme},
    vocab::{Spelling, byte_token},
    word_piece::{self, CONTINUES},
};
use thermocline_base::error::{Error, Result};
use thermocline_formats::format::{Array, Metadata, TokenizerSource, Value as Meta};

/// Writes the tokenizer of `source` into `metadata`, with one token for each of the embedding's
/// `n_vocab` rows. Rows without a token get an unused one, and added tokens beyond the last row are
/// dropped.
///
/// A source that is already metadata is left alone. Errors name the part of `tokenizer.json` that
/// GGUF cannot represent.
pub fn export_metadata(source: &TokenizerSource, n_vocab: usize, metadata: &mut Metadata) -> Result<()> {
    let TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config } = source else { return Ok(()) };
    let tokenizer = Tokenizer::from_json(tokenizer_json, tokenizer_config, metadata)?;
    let (keys, spelling) = {
        let file = json::parse(tokenizer_json, metadata)?;
        let spelling = Decoding::of(&file)?.spelling;
        (vocabulary(file, spelling, n_vocab, metadata)?, spelling)
    };
    for (key, value) in keys {
        metadata.set(format!("tokenizer.ggml.{key}"), value);
    }
    if spelling != Spelling::ByteLevel {
        metadata.set("tokenizer.ggml.add_space_prefix", Meta::Bool(tokenizer.space_prefix));
    }
    let ids = &tokenizer.ids;
    for (role, id) in [
        ("bos", ids.bos),
        ("eos", ids.eos),
        ("unknown", ids.unknown),
        ("padding", ids.padding),
        ("seperator", ids.separator),
    ] {
        if let Some(id) = id.filter(|&id| (id as usize) < n_vocab) {
            metadata.set(format!("tokenizer.ggml.{role}_token_id"), Meta::U32(id));
        }
    }
    metadata.set("tokenizer.ggml.add_bos_token", Meta::Bool(!tokenizer.before.is_empty()));
    metadata.set("tokenizer.ggml.add_eos_token", Meta::Bool(!tokenizer.after.is_empty()));
    metadata.set("tokenizer.ggml.add_sep_token", Meta::Bool(tokenizer.between.len() > tokenizer.after.len()));
    if let Some(template) = configured_template(tokenizer_config, "default") {
        metadata.set("tokenizer.chat_template", Meta::String(template.to_owned()));
    }
    Ok(())
}

/// The part of the vocabulary that depends on how tokens are spelled, with keys that lack the
/// common prefix.
fn vocabulary(
    file: TokenizerJson,
    spelling: Spelling,
    n_vocab: usize,
    metadata: &Metadata,
) -> Result<Vec<(&'static str, Meta)>> {
    let kind = ExportedModel::of(&file, spelling)?;
    let (mut tokens, kinds) = tokens_and_kinds(&file, &kind, n_vocab, metadata)?;
    let mut keys = vec![
        ("model", Meta::String(kind.name().to_owned())),
        ("token_type", Meta::Array(Array::I32(kinds.iter().map(|&kind| kind as i32).collect()))),
    ];
    match kind {
        ExportedModel::Bpe { pre } => {
            // Byte-level tokens normally contain no spaces. If one does, the space is written as
            // `Ġ`.
            let line =
                |(left, right): (String, String)| format!("{} {}", left.replace(' ', "Ġ"), right.replace(' ', "Ġ"));
            let merges = json::pairs(file.model.merges, metadata)?.into_iter().map(line).collect();
            keys.push(("pre", Meta::String(pre.to_owned())));
            keys.push(("merges", Meta::Array(Array::String(merges))));
        }
        ExportedModel::SentencePiece => {
            let merges = json::pairs(file.model.merges, metadata)?;
            keys.push(("pre", Meta::String("default".to_owned())));
            keys.push(("scores", Meta::Array(Array::F32(scores(&tokens, &merges)))));
        }
        ExportedModel::WordPiece => {
            let continues = file.model.continuing_subword_prefix.as_deref().unwrap_or(CONTINUES);
            let normal = tokens.iter_mut().zip(&kinds).filter(|(_, kind)| **kind == TokenKind::Normal);
            normal.for_each(|(token, _)| *token = word_piece::to_gguf(token, continues));
            keys.extend(letter_rules(&file.normalizer)?);
        }
        ExportedModel::Unigram => {
            let mut scores: Vec<f32> = file.model.vocab.pieces.iter().map(|(_, score)| *score as f32).collect();
            scores.resize(n_vocab, 0.0);
            keys.push(("scores", Meta::Array(Array::F32(scores))));
            let map = json::character_map_of(&file.normalizer, metadata)?;
            if !map.is_empty() {
                keys.push(("precompiled_charsmap", Meta::Array(Array::U8(map))));
            }
            keys.push(("remove_extra_whitespaces", Meta::Bool(removes_spaces(&file))));
        }
    }
    keys.push(("tokens", Meta::Array(Array::String(tokens))));
    Ok(keys)
}

/// GGUF's model of a vocabulary.
enum ExportedModel {
    Bpe { pre: &'static str },
    SentencePiece,
    WordPiece,
    Unigram,
}

impl ExportedModel {
    fn of(file: &TokenizerJson, spelling: Spelling) -> Result<Self> {
        Ok(match (file.model.kind.as_deref(), spelling) {
            (Some("WordPiece"), _) => ExportedModel::WordPiece,
            (Some("Unigram"), _) => ExportedModel::Unigram,
            (_, Spelling::SentencePiece) => ExportedModel::SentencePiece,
            _ => ExportedModel::Bpe { pre: pre_tokenizer(file)? },
        })
    }

    /// GGUF's name.
    fn name(&self) -> &'static str {
        match self {
            ExportedModel::Bpe { .. } => "gpt2",
            ExportedModel::SentencePiece => "llama",
            ExportedModel::WordPiece => "bert",
            ExportedModel::Unigram => "t5",
        }
    }
}

/// The text and the kind of the token of each of `n_vocab` rows.
fn tokens_and_kinds(
    file: &TokenizerJson,
    kind: &ExportedModel,
    n_vocab: usize,
    metadata: &Metadata,
) -> Result<(Vec<String>, Vec<TokenKind>)> {
    let has_bytes = match kind {
        ExportedModel::SentencePiece => true,
        ExportedModel::Unigram => file.model.byte_fallback,
        ExportedModel::Bpe { .. } | ExportedModel::WordPiece => false,
    };
    let unknown = file.model.unk_id.and_then(|id| file.model.vocab.pieces.get(id)).map(|(text, _)| text);
    let unknown = unknown.or(file.model.unk_token.as_ref());
    let mut tokens: Vec<String> = (0..n_vocab).map(|id| format!("[PAD{id}]")).collect();
    let mut kinds = vec![TokenKind::Unused; n_vocab];
    for (text, &id) in &file.model.vocab.ids {
        let at = id as usize;
        if at >= n_vocab {
            let expected = format!("ids below {n_vocab}, the number of rows of the embedding");
            return Err(json::malformed(metadata, "model.vocab", &expected, id));
        }
        kinds[at] = if has_bytes && byte_token(text).is_some() {
            TokenKind::Byte
        } else if unknown == Some(text) {
            TokenKind::Unknown
        } else {
            TokenKind::Normal
        };
        tokens[at].clone_from(text);
    }
    for added in &file.added_tokens {
        let at = added.id as usize;
        if at >= n_vocab {
            tracing::warn!(
                token = added.content,
                id = added.id,
                n_vocab,
                "the token is left out because the embedding has no row for it"
            );
            continue;
        }
        if kinds[at] != TokenKind::Unknown {
            kinds[at] = if added.special { TokenKind::Control } else { TokenKind::UserDefined };
        }
        tokens[at].clone_from(&added.content);
    }
    Ok((tokens, kinds))
}

/// The keys of BERT's normaliser.
fn letter_rules(normaliser: &Value) -> Result<[(&'static str, Meta); 2]> {
    if normaliser.get("type").and_then(Value::as_str) != Some("BertNormalizer") {
        let got = normaliser.get("type").unwrap_or(normaliser).to_string();
        return Err(Error::unsupported("normaliser of a WordPiece vocabulary to write to GGUF", got, "BertNormalizer"));
    }
    let flag = |name: &str| normaliser.get(name).and_then(Value::as_bool);
    let lowercase = flag("lowercase").unwrap_or(true);
    Ok([
        ("normalizer.lowercase", Meta::Bool(lowercase)),
        ("normalizer.strip_accents", Meta::Bool(flag("strip_accents").unwrap_or(lowercase))),
    ])
}

/// True if a Unigram vocabulary removes extra spaces.
fn removes_spaces(file: &TokenizerJson) -> bool {
    let has = |step: &Value, list: &str, wanted: &dyn Fn(&Value) -> bool| {
        let steps = step.get(list).and_then(Value::as_array);
        wanted(step) || steps.is_some_and(|steps| steps.iter().any(wanted))
    };
    let is = |name: &'static str| move |step: &Value| step.get("type") == Some(&name.into());
    let collapses = |step: &Value| step.pointer("/pattern/Regex") == Some(&" {2,}".into());
    has(&file.pre_tokenizer, "pretokenizers", &is("WhitespaceSplit"))
        || has(&file.normalizer, "normalizers", &collapses)
}

/// Minus the rank of the first merge that produces each token. Tokens without a merge get the
/// lowest score, so that they merge last.
fn scores(tokens: &[String], merges: &[(String, String)]) -> Vec<f32> {
    let unmade = |token: &str| if token.chars().nth(1).is_none() { 0.0 } else { -1e6 };
    let mut ranks = HashMap::with_capacity(merges.len());
    for (rank, (left, right)) in merges.iter().enumerate() {
        ranks.entry(format!("{left}{right}")).or_insert(rank + 1);
    }
    tokens.iter().map(|token| ranks.get(token).map_or_else(|| unmade(token), |&rank| -(rank as f32))).collect()
}

/// GGUF's name for the file's pre-tokeniser.
fn pre_tokenizer(file: &TokenizerJson) -> Result<&'static str> {
    let mut patterns = Vec::new();
    collect(&file.pre_tokenizer, &mut patterns);
    // These are Falcon's steps. GGUF's `falcon` omits one of them, which changes nothing.
    if let Some("default") = Scheme::name_of(&patterns, false) {
        return Ok("falcon");
    }
    Scheme::name_of(&patterns, file.model.ignore_merges)
        .ok_or_else(|| Error::unsupported("pre-tokeniser to write to GGUF", patterns.join(" then "), Scheme::names()))
}

/// Appends the patterns with which `step` splits text.
fn collect(step: &Value, patterns: &mut Vec<String>) {
    let flag = |name: &str, default: bool| step.get(name).and_then(Value::as_bool).unwrap_or(default);
    match step.get("type").and_then(Value::as_str).unwrap_or_default() {
        "Sequence" => {
            let steps = step.get("pretokenizers").and_then(Value::as_array);
            steps.into_iter().flatten().for_each(|step| collect(step, patterns));
        }
        "Split" => {
            let pattern = step.pointer("/pattern/Regex").or_else(|| step.pointer("/pattern/String"));
            patterns.push(pattern.and_then(Value::as_str).unwrap_or_default().to_owned());
        }
        "ByteLevel" if flag("use_regex", true) => patterns.push(GPT2.to_owned()),
        "ByteLevel" => {}
        "Digits" => patterns.push(if flag("individual_digits", false) { DIGIT } else { DIGITS }.to_owned()),
        "Punctuation" => patterns.push(PUNCTUATION.to_owned()),
        other => patterns.push(other.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EncodeOptions;

    fn export(tokenizer_json: Value, config: Value, n_vocab: usize) -> Result<(Tokenizer, Tokenizer, Metadata)> {
        let mut metadata = Metadata::new("folder");
        let text = tokenizer_json.to_string();
        let before = Tokenizer::from_json(&text, &config, &metadata)?;
        let source = TokenizerSource::HuggingFace { tokenizer_json: text, tokenizer_config: config };
        export_metadata(&source, n_vocab, &mut metadata)?;
        Ok((before, Tokenizer::from_metadata(&metadata)?, metadata))
    }

    fn byte_level() -> Value {
        serde_json::json!({
            "added_tokens": [
                {"id": 0, "content": "<s>", "special": true}, {"id": 7, "content": "<tool>", "special": false},
                {"id": 90, "content": "<image>", "special": true}
            ],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "decoder": {"type": "ByteLevel"},
            "model": {"type": "BPE", "vocab": {"<s>": 0, "a": 1, "b": 2, "Ġ": 3, "ab": 4, "Ġab": 5}, "merges": ["a b", ["Ġ", "ab"]]}
        })
    }

    #[test]
    fn byte_level_vocabularies_round_trip_through_gguf() {
        let config = serde_json::json!({"bos_token": "<s>", "add_bos_token": true, "chat_template": "{{ x }}"});
        let (before, after, metadata) = export(byte_level(), config, 10).unwrap();
        let options = EncodeOptions { special: true, add_bos: true, add_eos: true };
        for text in ["", "ab ab", "a b<tool>ab<s>"] {
            assert_eq!(before.encode(text, options).unwrap(), after.encode(text, options).unwrap(), "{text}");
        }
        assert_eq!(metadata.str("tokenizer.ggml.pre").unwrap(), Some("gpt-2"));
        assert_eq!(metadata.str("tokenizer.chat_template").unwrap(), Some("{{ x }}"));
        let Some(Array::I32(kinds)) = metadata.array("tokenizer.ggml.token_type").unwrap() else { panic!() };
        assert_eq!(kinds, &[3, 1, 1, 1, 1, 1, 5, 4, 5, 5]);
    }

    #[test]
    fn export_refuses_tokenizers_gguf_cannot_represent() {
        let mut json = byte_level();
        json["pre_tokenizer"] = serde_json::json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "x+"}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
        ]});
        let error = export(json, Value::Null, 10).unwrap_err().to_string();
        assert!(error.contains("x+"), "{error}");
        let error = export(byte_level(), Value::Null, 3).unwrap_err().to_string();
        assert!(error.contains("ids below 3"), "{error}");
    }

    #[test]
    fn sentence_piece_scores_follow_the_merges() {
        let json = serde_json::json!({
            "added_tokens": [{"id": 0, "content": "<unk>", "special": true}, {"id": 1, "content": "<s>", "special": true}],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
            ]},
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}
            ]},
            "model": {
                "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
                "vocab": {"<unk>": 0, "<s>": 1, "<0x0A>": 2, "▁": 3, "a": 4, "b": 5, "ab": 6, "▁ab": 7, "▁a": 8, "ba": 9},
                "merges": ["b a", "▁ a", "a b", "▁ ab", "▁a b"]
            }
        });
        let (before, after, metadata) = export(json, Value::Null, 10).unwrap();
        for text in ["ab ab", "aba baab\nb", "  ab"] {
            let ids = after.encode(text, EncodeOptions::PLAIN).unwrap();
            assert_eq!(before.encode(text, EncodeOptions::PLAIN).unwrap(), ids, "{text}");
            assert_eq!(after.decode(&ids, true), text);
        }
        assert_eq!(metadata.str("tokenizer.ggml.model").unwrap(), Some("llama"));
        let Some(Array::F32(scores)) = metadata.array("tokenizer.ggml.scores").unwrap() else { panic!() };
        assert_eq!(scores[6..], [-3.0, -4.0, -2.0, -1.0]);
        let Some(Array::I32(kinds)) = metadata.array("tokenizer.ggml.token_type").unwrap() else { panic!() };
        assert_eq!(kinds[..4], [2, 3, 6, 1]);
    }
}
