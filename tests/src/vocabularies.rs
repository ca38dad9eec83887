//! Vocabularies of random structure, as GGUF keys and as `tokenizer.json`. Most are well-formed,
//! and every kind of defect of real files occurs. The fuzz targets also use them.

use arbitrary::{Result, Unstructured};
use serde_json::{Value as Json, json};
use thermocline_engine::format::{Array, Metadata, Value};

/// Tokens that are special or look like special tokens.
const TOKENS: &[&str] = &[
    "a",
    "b",
    "c",
    "ab",
    "bc",
    "abc",
    "aa",
    "aaaa",
    "e",
    "é",
    "▁",
    "▁a",
    "▁▁",
    "Ġ",
    "Ġa",
    "Ċ",
    "Ã",
    "©",
    "好",
    "🙂",
    " ",
    "  ",
    "",
    "\0",
    "\n",
    "<0x41>",
    "<0xC3>",
    "<0xA9>",
    "<0x-1>",
    "<0xGG>",
    "<0x+1>",
    "<0x100>",
    "<unk>",
    "<s>",
    "</s>",
    "<pad>",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|",
    "|>",
    "[PAD1]",
];

const PRE_TOKENISERS: &[&str] =
    &["default", "llama-bpe", "gpt-2", "qwen2", "falcon", "starcoder", "deepseek-llm", "tekken", "bloom", "none", ""];

/// Returns a token of `TOKENS`, or any string.
pub fn token(u: &mut Unstructured) -> Result<String> {
    Ok(match u.int_in_range(0..=19)? {
        0 => u.arbitrary()?,
        1 => "x".repeat(u.int_in_range(0..=3000)?),
        2 => format!("<0x{:02X}>", u.arbitrary::<u8>()?),
        _ => (*u.choose(TOKENS)?).to_owned(),
    })
}

fn list<T>(
    u: &mut Unstructured,
    most: usize,
    mut element: impl FnMut(&mut Unstructured) -> Result<T>,
) -> Result<Vec<T>> {
    let len = u.int_in_range(0..=most)?;
    (0..len).map(|_| element(u)).collect()
}

/// Makes `len` elements in most cases, else a random number of elements.
fn one_each<T>(
    u: &mut Unstructured,
    len: usize,
    mut element: impl FnMut(&mut Unstructured) -> Result<T>,
) -> Result<Vec<T>> {
    let len = if u.ratio(1, 20)? { u.int_in_range(0..=len + 2)? } else { len };
    (0..len).map(|_| element(u)).collect()
}

fn merge(u: &mut Unstructured, tokens: &[String]) -> Result<String> {
    Ok(match u.int_in_range(0..=19)? {
        0 => token(u)?,
        1 => format!("{} {} {}", token(u)?, token(u)?, token(u)?),
        _ if tokens.is_empty() => " ".to_owned(),
        _ => format!("{} {}", u.choose(tokens)?, u.choose(tokens)?),
    })
}

/// Makes `tokenizer.ggml.*` keys.
pub fn metadata(u: &mut Unstructured) -> Result<Metadata> {
    let mut metadata = Metadata::new("random.gguf");
    let mut set = |key: &str, value: Value| metadata.set(format!("tokenizer.{key}"), value);
    let model = if u.ratio(1, 30)? { token(u)? } else { (*u.choose(&["llama", "gpt2"])?).to_owned() };
    set("ggml.model", Value::String(model));
    let tokens = list(u, 60, token)?;
    if !u.ratio(1, 10)? {
        let types = one_each(u, tokens.len(), |u| if u.ratio(1, 2)? { Ok(1) } else { u.int_in_range(-1..=7) })?;
        set("ggml.token_type", Value::Array(Array::I32(types)));
    }
    let scores = one_each(u, tokens.len(), |u| {
        Ok(match u.int_in_range(0..=60)? {
            0 => f32::NAN,
            1 => f32::INFINITY,
            2 => f32::NEG_INFINITY,
            score => -(f32::from(score as u8 / 4)),
        })
    })?;
    set("ggml.scores", Value::Array(Array::F32(scores)));
    let merges = list(u, 40, |u| merge(u, &tokens))?;
    set("ggml.merges", Value::Array(Array::String(merges)));
    set("ggml.tokens", if u.ratio(1, 40)? { Value::Bool(true) } else { Value::Array(Array::String(tokens)) });
    if !u.ratio(1, 10)? {
        set("ggml.pre", Value::String((*u.choose(PRE_TOKENISERS)?).to_owned()));
    }
    for role in ["bos", "eos", "eot", "unknown", "padding"] {
        if u.arbitrary()? {
            let id = if u.ratio(1, 5)? { u.arbitrary()? } else { u.int_in_range(0..=60)? };
            set(&format!("ggml.{role}_token_id"), Value::U32(id));
        }
    }
    for flag in ["add_bos_token", "add_eos_token", "add_space_prefix"] {
        if u.arbitrary()? {
            set(&format!("ggml.{flag}"), if u.ratio(1, 30)? { Value::U8(1) } else { Value::Bool(u.arbitrary()?) });
        }
    }
    Ok(metadata)
}

fn step(u: &mut Unstructured, kind: &str) -> Result<Json> {
    let normalisers = [
        json!(null),
        json!({"type": "NFC"}),
        json!({"type": "NFKD"}),
        json!({"type": "Lowercase"}),
        json!({"type": "Prepend", "prepend": "▁"}),
        json!({"type": "Prepend", "prepend": ""}),
        json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
        json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"}),
        json!({"type": "Replace", "pattern": {"Regex": "a*"}, "content": ""}),
        json!({"type": "Replace", "pattern": {"Regex": "("}, "content": ""}),
        json!({"type": "Strip", "strip_left": true, "strip_right": true}),
        json!({"type": "StripAccents"}),
        json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    ];
    let pre_tokenisers = [
        json!(null),
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false}),
        json!({"type": "Metaspace", "replacement": "▁", "add_prefix_space": true}),
        json!({"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Removed", "invert": false}),
        json!({"type": "Split", "pattern": {"Regex": "a*"}, "behavior": "Isolated", "invert": true}),
        json!({"type": "Split", "pattern": {"String": ""}, "behavior": "MergedWithPrevious", "invert": false}),
        json!({"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Contiguous", "invert": false}),
        json!({"type": "Digits", "individual_digits": true}),
        json!({"type": "Punctuation", "behavior": "Contiguous"}),
        json!({"type": "WhitespaceSplit"}),
        json!({"type": "FixedLength", "length": 0}),
    ];
    let decoders = [
        json!(null),
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
        json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
    ];
    let (steps, list_name): (&[Json], _) = match kind {
        "normalizer" => (&normalisers, "normalizers"),
        "pre_tokenizer" => (&pre_tokenisers, "pretokenizers"),
        _ => (&decoders, "decoders"),
    };
    if u.ratio(1, 3)? {
        let steps = list(u, 3, |u| loop_free(u, steps))?;
        return Ok(json!({"type": "Sequence", list_name: steps}));
    }
    u.choose(steps).cloned()
}

/// Makes a step that a sequence may contain.
fn loop_free(u: &mut Unstructured, steps: &[Json]) -> Result<Json> {
    u.choose(&steps[1..]).cloned()
}

/// Makes the text of a `tokenizer.json`.
pub fn tokenizer_json(u: &mut Unstructured) -> Result<String> {
    let tokens = list(u, 60, token)?;
    let mut vocab = serde_json::Map::new();
    for (at, token) in tokens.iter().enumerate() {
        let id = if u.ratio(1, 100)? { u.arbitrary::<u32>()? } else { at as u32 };
        vocab.insert(token.clone(), id.into());
    }
    let merges = list(u, 40, |u| {
        if u.arbitrary()? {
            return merge(u, &tokens).map(Json::String);
        }
        Ok(json!([token(u)?, token(u)?]))
    })?;
    let added = list(u, 6, |u| {
        let id = if u.ratio(1, 30)? { u.arbitrary::<u32>()? } else { u.int_in_range(0..=70)? };
        let [special, lstrip, rstrip, single_word, normalized]: [bool; 5] = u.arbitrary()?;
        Ok(json!({
            "id": id, "content": token(u)?, "special": special, "lstrip": lstrip, "rstrip": rstrip,
            "single_word": single_word, "normalized": normalized
        }))
    })?;
    let [fuse_unk, byte_fallback, ignore_merges]: [bool; 3] = u.arbitrary()?;
    let file = json!({
        "added_tokens": added,
        "normalizer": step(u, "normalizer")?,
        "pre_tokenizer": step(u, "pre_tokenizer")?,
        "decoder": step(u, "decoder")?,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [u.int_in_range(0..=90)?], "tokens": ["<s>"]}}
        },
        "model": {
            "type": if u.ratio(1, 30)? { "Unigram" } else { "BPE" },
            "unk_token": if u.arbitrary()? { Json::String(token(u)?) } else { Json::Null },
            "fuse_unk": fuse_unk, "byte_fallback": byte_fallback, "ignore_merges": ignore_merges,
            "vocab": vocab, "merges": merges
        }
    });
    let mut text = file.to_string();
    if u.ratio(1, 20)? {
        let at = u.choose_index(text.len())?;
        text.truncate((at..).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len()));
    }
    Ok(text)
}

/// Makes text that contains tokens, fragments of tokens, white space and anything else.
pub fn text(u: &mut Unstructured) -> Result<String> {
    let pieces = list(u, 12, |u| {
        Ok(match u.int_in_range(0..=5)? {
            0 => u.arbitrary()?,
            1 => " ".repeat(u.int_in_range(1..=4)?),
            2 => u.arbitrary::<char>()?.to_string(),
            _ => token(u)?,
        })
    })?;
    Ok(pieces.concat())
}
