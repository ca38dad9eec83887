//! Vocabularies that no tokenizer training would produce. They are refused with an error, or
//! harmless. Also tests that every text is decoded from its ids unchanged.

use arbitrary::Unstructured;
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use thermocline_engine::{
    format::{Array, Metadata, Opened, ReadMode, Value},
    tokenizer::{EncodeOptions, Tokenizer},
};
use thermocline_tests::vocabularies;

fn random_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// Checks that streamed text equals text that is decoded at once.
fn exercise(tokenizer: &Tokenizer, text: &str) {
    for special in [false, true] {
        let options = EncodeOptions { special, add_bos: special, add_eos: special };
        let ids = tokenizer.encode(text, options).expect("every text has ids");
        for &id in &ids {
            assert!((id as usize) < tokenizer.vocab_len(), "{id}");
        }
        let decoded = tokenizer.decode(&ids, false);
        let mut stream = tokenizer.stream().with_special().at_text_start();
        let mut streamed: String = ids.iter().map(|&id| stream.push(id)).collect();
        streamed.push_str(&stream.finish());
        assert_eq!(streamed, decoded, "{text:?}");
        tokenizer.decode(&ids, true);
    }
    assert_eq!(tokenizer.decode(&[u32::MAX, tokenizer.vocab_len() as u32], false), "");
}

#[test]
fn random_gguf_vocabularies_are_refused_or_harmless() {
    let mut built = 0;
    for seed in 0..3000 {
        let bytes = random_bytes(seed, 4096);
        let mut u = Unstructured::new(&bytes);
        let metadata = vocabularies::metadata(&mut u).expect("enough bytes");
        match Tokenizer::from_metadata(&metadata) {
            Ok(tokenizer) => {
                built += 1;
                for _ in 0..4 {
                    exercise(&tokenizer, &vocabularies::text(&mut u).expect("text"));
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    assert!(built > 300, "{built}");
}

#[test]
fn random_tokenizer_json_is_refused_or_harmless() {
    let mut built = 0;
    for seed in 0..3000 {
        let bytes = random_bytes(seed, 4096);
        let mut u = Unstructured::new(&bytes);
        let text = vocabularies::tokenizer_json(&mut u).expect("enough bytes");
        match Tokenizer::from_json(&text, &serde_json::Value::Null, &Metadata::new("random")) {
            Ok(tokenizer) => {
                built += 1;
                for _ in 0..4 {
                    exercise(&tokenizer, &vocabularies::text(&mut u).expect("text"));
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    assert!(built > 300, "{built}");
}

/// Returns a vocabulary of model `model` with these tokens and types.
fn vocabulary(model: &str, tokens: &[&str], types: &[i32]) -> Metadata {
    let mut metadata = Metadata::new("hostile.gguf");
    let strings = |list: &[&str]| Value::Array(Array::String(list.iter().map(|&text| text.to_owned()).collect()));
    metadata.set("tokenizer.ggml.model", Value::String(model.to_owned()));
    metadata.set("tokenizer.ggml.pre", Value::String("gpt-2".to_owned()));
    metadata.set("tokenizer.ggml.tokens", strings(tokens));
    metadata.set("tokenizer.ggml.token_type", Value::Array(Array::I32(types.to_vec())));
    metadata.set("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; tokens.len()])));
    metadata.set("tokenizer.ggml.merges", strings(&["a b", "a missing", "Ġ a"]));
    metadata
}

#[test]
fn malformed_tokens_and_special_ids_are_harmless() {
    let long = "a".repeat(1 << 20);
    let tokens = ["<0x-1>", "<0xGG>", "", "a", "a", "\0", &long, "b", "ab", "<0x61>", "aa", "<s>"];
    let types = [6, 6, 1, 1, 1, 1, 1, 1, 1, 6, 1, 3];
    for model in ["llama", "gpt2"] {
        for (role, id) in [("bos", 99), ("eos", u32::MAX), ("unknown", 12), ("eot", 11)] {
            let mut metadata = vocabulary(model, &tokens, &types);
            metadata.set(format!("tokenizer.ggml.{role}_token_id"), Value::U32(id));
            let tokenizer = Tokenizer::from_metadata(&metadata).expect("harmless");
            for text in ["ab<0x-1><0xGG>", "\0", "aab", &long, "<s>", "é"] {
                exercise(&tokenizer, text);
            }
            assert_eq!(tokenizer.is_end(11), role == "eot");
        }
    }
}

#[test]
fn broken_vocabularies_are_refused_by_key() {
    let good = || vocabulary("gpt2", &["a", "b", "ab"], &[1, 1, 1]);
    assert!(Tokenizer::from_metadata(&good()).is_ok());
    let cases: &[(&str, Option<Value>, &str)] = &[
        ("tokenizer.ggml.model", None, "key is missing"),
        ("tokenizer.ggml.model", Some(Value::U8(1)), "a string, got u8"),
        ("tokenizer.ggml.model", Some(Value::String("rwkv".into())), "`rwkv` is not supported"),
        ("tokenizer.ggml.pre", Some(Value::String("novel".into())), "`novel` is not supported"),
        ("tokenizer.ggml.tokens", None, "key is missing"),
        ("tokenizer.ggml.tokens", Some(Value::Array(Array::String(vec![]))), "got 0 strings"),
        ("tokenizer.ggml.tokens", Some(Value::Array(Array::U8(vec![1, 2, 3]))), "another type"),
        ("tokenizer.ggml.token_type", Some(Value::Array(Array::I32(vec![1]))), "3 elements, one per token, got 1"),
        ("tokenizer.ggml.token_type", Some(Value::Array(Array::F32(vec![1.0; 3]))), "another type"),
        ("tokenizer.ggml.merges", None, "key is missing"),
        ("tokenizer.ggml.merges", Some(Value::Array(Array::String(vec!["ab".into()]))), "got \"ab\" as merge 0"),
        ("tokenizer.ggml.merges", Some(Value::Array(Array::String(vec![String::new()]))), "as merge 0"),
        ("tokenizer.ggml.add_bos_token", Some(Value::U32(1)), "a bool, got u32"),
    ];
    for (key, value, expected) in cases {
        let mut metadata = Metadata::new("hostile.gguf");
        for (name, old) in good().iter() {
            if name != *key {
                metadata.set(name, old.clone());
            }
        }
        if let Some(value) = value {
            metadata.set(*key, value.clone());
        }
        let error = Tokenizer::from_metadata(&metadata).expect_err(key).to_string();
        assert!(error.contains(expected), "{key}: {error}");
    }
    let mut metadata = vocabulary("llama", &["a", "b"], &[1, 1]);
    metadata.set("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0, f32::NAN])));
    let error = Tokenizer::from_metadata(&metadata).expect_err("NaN").to_string();
    assert!(error.contains("tokenizer.ggml.scores") && error.contains("NaN for token 1"), "{error}");
}

#[test]
fn broken_tokenizer_json_is_refused_by_key() {
    let cases = [
        ("", "a tokenizer description"),
        ("[]", "a tokenizer description"),
        ("{}", "missing field `model`"),
        (r#"{"model": {"type": "WordLevel", "vocab": {"a": 0}}}"#, "`WordLevel` is not supported"),
        (r#"{"model": {"type": "WordPiece", "vocab": {"a": 0}}}"#, "no token `[UNK]`"),
        (r#"{"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 7}}"#, "unk_id"),
        (r#"{"model": {"type": "BPE", "vocab": {}}}"#, "at least one token"),
        (r#"{"model": {"type": "BPE", "vocab": {"a": 4294967295}}}"#, "ids below"),
        (r#"{"model": {"type": "BPE", "vocab": {"a": -1}}}"#, "a tokenizer description"),
        (
            r#"{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}}"#,
            "two tokens per merge, got one token in merge 0",
        ),
        (
            r###"{"model": {"type": "BPE", "vocab": {"a": 0}, "continuing_subword_prefix": "##"}}"###,
            "`##` is not supported",
        ),
        (r#"{"model": {"type": "BPE", "vocab": {"a": 0}}, "decoder": {"type": "CTC"}}"#, "`CTC` is not supported"),
        (r#"{"model": {"type": "BPE", "vocab": {"a": 0}}, "normalizer": {"type": "ByteLevel"}}"#, "`ByteLevel`"),
        (
            r#"{"model": {"type": "BPE", "vocab": {"a": 0}}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "FixedLength", "length": 0}]}}"#,
            "`FixedLength`",
        ),
    ];
    for (text, expected) in cases {
        let built = Tokenizer::from_json(text, &serde_json::Value::Null, &Metadata::new("folder"));
        let error = built.expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

/// Returns random characters: a few scripts, white space, controls, look-alikes of tokens,
/// anything.
fn random_text(rng: &mut ChaCha8Rng) -> String {
    let mut text = String::new();
    for _ in 0..rng.next_u32() % 24 {
        let random = rng.next_u32();
        let from = |start: u32, len: u32| char::from_u32(start + random / 16 % len).unwrap_or('\u{fffd}');
        match random % 16 {
            0..=4 => text.push(from(0x20, 0x5f)),
            5 => text.push(from(0, 0x20)),
            6 => text.push(' '),
            7 => text.push_str("   "),
            8 => text.push(from(0xa0, 0x500)),
            9 => text.push(from(0x3040, 0x6000)),
            10 => text.push(from(0x1f300, 0x400)),
            11 => text.push_str(["<0x41>", "<s>", "<|user|>", "\r\n", "'ll", "\u{200d}"][random as usize / 16 % 6]),
            12 => text.push(from(0x300, 0x70)),
            _ => text.extend(char::from_u32(random / 16 % 0x11_0000)),
        }
    }
    text
}

fn assert_round_trips(tokenizer: &Tokenizer, count: usize, seed: u64, expected: impl Fn(&str) -> String) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for _ in 0..count {
        let text = random_text(&mut rng);
        let ids = tokenizer.encode(&text, EncodeOptions::PLAIN).expect("encodes");
        assert_eq!(tokenizer.decode(&ids, true), expected(&text), "{text:?} {ids:?}");
    }
}

#[test]
fn byte_level_round_trips() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/storyteller/storyteller-F16.gguf");
    let Ok(Opened::Checkpoint(file)) = thermocline_engine::format::open(path.as_ref(), ReadMode::Map) else {
        panic!("{path} does not open");
    };
    let tokenizer = Tokenizer::from_checkpoint(&file).expect("the built-in model");
    assert_round_trips(&tokenizer, 60_000, 1, str::to_owned);
}

/// All texts are decoded unchanged, with one exception: SentencePiece writes a space as U+2581, so
/// U+2581 becomes a space.
#[test]
fn sentence_piece_round_trips() {
    let bytes: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
    let words = ["▁", "▁▁", "a", "b", "e", "ab", "▁a", "'", "l", "ll", "é", "好", "\u{300}", "<", "0"];
    let mut tokens: Vec<&str> = vec!["<unk>", "<s>", "</s>"];
    tokens.extend(bytes.iter().map(String::as_str));
    tokens.extend(words);
    let types: Vec<i32> =
        (0..tokens.len()).map(|id| [2, 3, 3].get(id).copied().unwrap_or(if id < 259 { 6 } else { 1 })).collect();
    for prefix in [true, false] {
        let mut metadata = vocabulary("llama", &tokens, &types);
        metadata.set("tokenizer.ggml.add_space_prefix", Value::Bool(prefix));
        let tokenizer = Tokenizer::from_metadata(&metadata).expect("valid");
        assert_round_trips(&tokenizer, 20_000, 2, |text| text.replace('\u{2581}', " "));
    }
}
