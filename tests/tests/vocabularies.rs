//! Compares tokenisation with the reference ids of published vocabularies. The vocabularies are not
//! part of the repository: `tests/extras.sh` runs these tests with their folder.

use std::{fs, path::PathBuf};

use thermocline_engine::{
    format::{self, Opened, ReadMode},
    tokenizer::{EncodeOptions, Tokenizer},
};

/// Environment variable with the folder of `ggml-vocab-*.gguf`, `.gguf.inp` and `.gguf.out`.
const FOLDER: &str = "THERMOCLINE_VOCABULARIES";

fn assert_vocabulary(name: &str) {
    let folder = std::env::var_os(FOLDER).unwrap_or_else(|| panic!("{FOLDER} is not set: use tests/extras.sh"));
    let file = PathBuf::from(folder).join(format!("ggml-vocab-{name}.gguf"));
    let checkpoint = match format::open(&file, ReadMode::Map) {
        Ok(Opened::Checkpoint(checkpoint)) => checkpoint,
        other => panic!("{}: {other:?}", file.display()),
    };
    let start = std::time::Instant::now();
    let tokenizer = Tokenizer::from_checkpoint(&checkpoint).expect("a published vocabulary");
    println!("{name}: built {} tokens in {:?}", tokenizer.vocab_len(), start.elapsed());
    let read = |extension| {
        let path = file.with_extension(extension);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let (inputs, outputs) = (read("gguf.inp"), read("gguf.out"));
    let mut texts: Vec<&str> = inputs.split("\n__ggml_vocab_test__\n").collect();
    texts.pop();
    assert_eq!((texts.len(), outputs.lines().count()), (46, 46));
    for (text, line) in texts.iter().zip(outputs.lines()) {
        let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().expect("an id")).collect();
        let ids = tokenizer.encode(text, EncodeOptions::PLAIN).expect("encodes");
        assert_eq!(ids, expected, "{name}: {text:?}");
        assert_eq!(tokenizer.decode(&ids, false), *text, "{name}: {text:?} decoded");
        let mut stream = tokenizer.stream().with_special().at_text_start();
        let mut streamed: String = ids.iter().map(|&id| stream.push(id)).collect();
        streamed.push_str(&stream.finish());
        assert_eq!(streamed, *text, "{name}: {text:?} streamed");
    }
}

#[test]
#[ignore = "needs published vocabularies, see tests/extras.sh"]
fn llama_sentence_piece_matches_token_for_token() {
    assert_vocabulary("llama-spm");
}

#[test]
#[ignore = "needs published vocabularies, see tests/extras.sh"]
fn phi3_sentence_piece_matches_token_for_token() {
    assert_vocabulary("phi-3");
}

#[test]
#[ignore = "needs published vocabularies, see tests/extras.sh"]
fn llama_bpe_matches_token_for_token() {
    assert_vocabulary("llama-bpe");
}

#[test]
#[ignore = "needs published vocabularies, see tests/extras.sh"]
fn gpt2_matches_token_for_token() {
    assert_vocabulary("gpt-2");
}

#[test]
#[ignore = "needs published vocabularies, see tests/extras.sh"]
fn falcon_matches_token_for_token() {
    assert_vocabulary("falcon");
}

#[test]
#[ignore = "needs published vocabularies, see tests/extras.sh"]
fn qwen2_matches_token_for_token() {
    assert_vocabulary("qwen2");
}
