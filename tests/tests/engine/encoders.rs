//! Encoders and rerankers give sentence-transformers' vectors and scores on the same weights: from
//! folders, and from the GGUF files made of them.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use thermocline_engine::{
    Error,
    model::convert,
    quant::TensorType,
    runtime::KvType,
    session::{EmbeddingPrompts, Engine, EngineOptions, Event, Prompt, Request, SessionOptions, StateReading},
};

/// Folders of tests/fixtures/encoders, described in its README.
const EMBEDDERS: [&str; 14] = [
    "bert",
    "bert-cls",
    "xlm-roberta",
    "nomic-bert",
    "nomic-bert-wide",
    "jina-v2",
    "jina-v2-norms",
    "jina-v3",
    "jina-v3-cls",
    "modernbert",
    "gemma-embedding",
    "gemma-embedding-wide",
    "qwen3-embedding",
    "qwen3-embedding-wide",
];
const RERANKERS: [&str; 5] =
    ["bert-reranker", "xlm-roberta-reranker", "modernbert-reranker", "qwen3-reranker", "qwen3-reranker-wide"];
/// Largest difference of a number of a vector of length 1, or of a score.
const NEAR: f32 = 2e-5;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/encoders").join(name)
}

fn expected(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(folder(name).join("expected.json")).unwrap()).unwrap()
}

fn strings(value: &Value) -> Vec<String> {
    serde_json::from_value(value.clone()).unwrap()
}

fn open(path: &Path) -> Engine {
    // Keys and values as exact as the reference's.
    let options = EngineOptions { kv_type: KvType::F32, ..EngineOptions::default() };
    Engine::open(path, options).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The largest difference between the vectors of `engine` and sentence-transformers', for texts of
/// this kind.
fn difference(engine: &Engine, expected: &Value, kind: Option<&str>) -> f32 {
    let prompts = EmbeddingPrompts::of(&engine.model().checkpoint.metadata);
    let prefix = prompts.text(kind).unwrap();
    let rows: Vec<Vec<f32>> = serde_json::from_value(expected[kind.unwrap_or("embeddings")].clone()).unwrap();
    let session = engine.session(SessionOptions::default()).unwrap();
    let mut worst = 0.0f32;
    for (text, want) in strings(&expected["texts"]).iter().zip(rows) {
        let prompt = Prompt::Text(format!("{prefix}{text}"));
        let found = session.read_states(prompt, StateReading::Embedding(None)).unwrap();
        assert_eq!(found.len(), want.len());
        worst = found.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(worst, f32::max);
    }
    worst
}

/// Calls `check` with the engine of a folder, and of the GGUF file made of it.
fn from_folder_and_file(name: &str, check: impl Fn(&Engine, &str)) {
    check(&open(&folder(name)), &format!("{name}, the folder"));
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join(format!("{name}.gguf"));
    convert(&folder(name), &file, TensorType::F32, &mut |_, _| ()).unwrap();
    let engine = open(&file);
    if engine.model().config.architecture == "bert" {
        // llama.cpp refuses files without this number.
        let types = engine.model().checkpoint.metadata.usize("tokenizer.ggml.token_type_count").unwrap();
        assert!(types.is_some_and(|types| types > 0), "{name}: {types:?}");
    }
    check(&engine, &format!("{name}, the file"));
}

#[test]
fn embeddings_equal_those_of_sentence_transformers() {
    for name in EMBEDDERS {
        let expected = expected(name);
        from_folder_and_file(name, |engine, what| {
            let kinds = expected.as_object().unwrap().keys().filter(|key| !["texts", "embeddings"].contains(&&***key));
            for kind in [None].into_iter().chain(kinds.map(|kind| Some(kind.as_str()))) {
                let worst = difference(engine, &expected, kind);
                println!("{what} {kind:?}: {worst:e}");
                assert!(worst < NEAR, "{what} {kind:?}: {worst}");
            }
        });
    }
}

#[test]
fn scores_of_rerankers_equal_the_references() {
    for name in RERANKERS {
        let expected = expected(name);
        let scores: Vec<f32> = serde_json::from_value(expected["scores"].clone()).unwrap();
        let query = expected["query"].as_str().unwrap();
        from_folder_and_file(name, |engine, what| {
            let session = engine.session(SessionOptions::default()).unwrap();
            for (document, want) in strings(&expected["documents"]).into_iter().zip(&scores) {
                let prompt = Prompt::Pair { query: query.to_owned(), document };
                let score = session.read_states(prompt, StateReading::Relevance).unwrap();
                println!("{what}: {:e}", (score[0] - want).abs());
                assert!((score[0] - want).abs() < NEAR, "{what}: {score:?}, expected {want}");
            }
        });
    }
}

#[test]
fn encoders_refuse_to_generate_and_to_rank_and_name_the_command() {
    let refusal = |name: &str, prompt: Prompt, reading: Option<StateReading>| {
        let engine = open(&folder(name));
        let session = engine.session(SessionOptions::default()).unwrap();
        let events = session.generate(Request { reading, ..Request::new(prompt) });
        let error =
            events.into_iter().find_map(|event| if let Event::Error(error) = event { Some(error) } else { None });
        error.unwrap().to_string()
    };
    let text = || Prompt::Text("a dog".to_owned());
    for (name, command) in [
        ("bert", "thermocline embed"),
        ("qwen3-embedding", "thermocline embed"),
        ("bert-reranker", "thermocline rerank"),
    ] {
        let error = refusal(name, text(), None);
        assert!(error.contains(command) && error.contains("text generation"), "{name}: {error}");
    }
    let pair = Prompt::Pair { query: "a".to_owned(), document: "b".to_owned() };
    assert!(refusal("bert", pair, Some(StateReading::Relevance)).contains("no classifier"));
}

#[test]
fn texts_longer_than_the_models_positions_are_refused_with_both_numbers() {
    for (name, positions) in [("bert", 64), ("xlm-roberta", 64)] {
        let engine = open(&folder(name));
        assert_eq!(engine.context(), positions, "{name}");
        let session = engine.session(SessionOptions::default()).unwrap();
        let read = |ids: usize| session.read_states(Prompt::Tokens(vec![7; ids]), StateReading::Embedding(None));
        assert!(read(positions).is_ok());
        let error = read(positions + 1).unwrap_err();
        assert!(matches!(error, Error::ContextFull { wanted: 65, available: 64, .. }), "{error}");
        assert!(engine.session(SessionOptions { context: Some(65), ..SessionOptions::default() }).is_err(), "{name}");
    }
}

#[test]
fn a_text_is_one_pass_whatever_the_chunk() {
    let expected = expected("nomic-bert");
    let options = EngineOptions { chunk: 3, ..EngineOptions::default() };
    let engine = Engine::open(&folder("nomic-bert"), options).unwrap();
    assert!(difference(&engine, &expected, None) < NEAR);
}
