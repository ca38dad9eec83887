//! Compares tokenisation with the reference ids of the fixture models and of the built-in model.
//! `vocabularies.rs` tests published vocabularies.

use std::path::Path;

use thermocline_engine::{
    format::{self, Checkpoint, Metadata, Opened, ReadMode},
    tokenizer::{EncodeOptions, Tokenizer},
};

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository")
}

fn gguf(path: &Path) -> Checkpoint {
    match format::open(path, ReadMode::Map) {
        Ok(Opened::Checkpoint(checkpoint)) => checkpoint,
        other => panic!("{}: {other:?}", path.display()),
    }
}

fn json(path: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("valid JSON")
}

#[test]
fn fixture_tokenizer_matches_token_for_token() {
    let folder = repository().join("tests/fixtures/models");
    let text = std::fs::read_to_string(folder.join("tokenizer.json")).expect("the fixture");
    let config = serde_json::json!({"add_bos_token": false, "bos_token": "<s>", "eos_token": "</s>"});
    let tokenizer = Tokenizer::from_json(&text, &config, &Metadata::new(&folder)).expect("the fixture");
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.vocab_len()), (Some(0), Some(1), 384));
    assert!(tokenizer.is_end(1) && !tokenizer.is_end(0));
    let ids = |value: &serde_json::Value| -> Vec<u32> { serde_json::from_value(value.clone()).expect("ids") };
    let cases = json(&folder.join("tokenizer_expected.json"));
    let cases = cases.as_array().expect("a list");
    assert!(cases.len() > 10);
    for case in cases {
        let text = case["text"].as_str().expect("a text");
        let special = EncodeOptions { special: true, add_bos: true, add_eos: true };
        let encoded = tokenizer.encode(text, special).expect("encodes");
        assert_eq!(encoded, ids(&case["ids"]), "{text:?}");
        let special = EncodeOptions { special: true, add_bos: false, add_eos: false };
        assert_eq!(tokenizer.encode(text, special).expect("encodes"), ids(&case["ids_no_special"]), "{text:?}");
        assert_eq!(tokenizer.decode(&encoded, true), case["decoded"].as_str().expect("text"), "{text:?} decoded");
    }
}

/// Tests the storyteller's tokenizer as its Hugging Face folder describes it.
#[test]
fn gguf_and_tokenizer_json_agree_on_the_built_in_model() {
    let checkpoint = gguf(&repository().join("assets/storyteller/storyteller-F16.gguf"));
    let from_gguf = Tokenizer::from_checkpoint(&checkpoint).expect("the built-in model");
    let folder = repository().join("tests/fixtures/storyteller");
    let text = std::fs::read_to_string(folder.join("tokenizer.json")).expect("the fixture");
    let config = json(&folder.join("tokenizer_config.json"));
    let from_json = Tokenizer::from_json(&text, &config, &Metadata::new(&folder)).expect("the fixture");
    assert_eq!(from_gguf.vocab_len(), from_json.vocab_len());
    assert_eq!((from_gguf.bos(), from_gguf.eos()), (from_json.bos(), from_json.eos()));
    assert!(from_gguf.ends().eq(from_json.ends()) && from_gguf.is_end(1));
    let stories = std::fs::read_to_string(folder.join("tokenizer_config.json")).expect("text");
    let samples = [
        "Once upon a time, there was a little girl named Lily. She didn't like 12345 apples!!\n\n  The end.",
        "<|user|>Tell me a story.<|end|><|assistant|>",
        "naïve café — “quotes” 你好 🙂\t\r\n   trailing   ",
        include_str!("tokenizer.rs"),
        &stories,
    ];
    for text in samples {
        for options in [EncodeOptions::PLAIN, EncodeOptions::CHAT] {
            let ids = from_gguf.encode(text, options).expect("encodes");
            let special = options.special;
            let plain = EncodeOptions { special, add_bos: false, add_eos: false };
            let without = from_json.encode(text, plain).expect("encodes");
            let start = usize::from(options.add_bos);
            assert_eq!(ids[start..], without, "{text:?}");
            assert_eq!(from_json.decode(&without, false), text);
            assert_eq!(from_gguf.decode(&ids[start..], false), text);
        }
    }
}
