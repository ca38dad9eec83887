//! Draft models: which are accepted, and what an error says about the others.

use std::{fs, path::Path};

use super::*;

/// Opens `llama-relu-256` with the draft model in `draft`.
fn with_draft(draft: &Path) -> Result<Engine, Error> {
    Engine::open(&model("llama-relu-256"), EngineOptions { draft: Some(draft.to_owned()), ..options() })
}

/// The error of a draft model that is refused.
fn refusal(draft: &Path) -> String {
    with_draft(draft).map(drop).unwrap_err().to_string()
}

/// A copy of `llama-relu` whose tokenizer was changed by `change`.
fn with_tokenizer(change: impl Fn(&mut serde_json::Value)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(model("llama-relu")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let path = folder.path().join("tokenizer.json");
    let mut tokenizer = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut tokenizer);
    fs::write(path, tokenizer.to_string()).unwrap();
    folder
}

/// Adds a token after the last of the model's 384.
fn add_token(tokenizer: &mut serde_json::Value) {
    let added = serde_json::json!({
        "id": 384, "content": "<more>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    });
    tokenizer["added_tokens"].as_array_mut().unwrap().push(added);
}

#[test]
fn draft_model_with_the_same_tokens_is_opened_and_its_weights_are_counted() {
    let small = model("llama-relu");
    let engine = with_draft(&small).unwrap();
    let draft = engine.draft_model().unwrap();
    assert_eq!(draft.checkpoint.path, small);
    let bytes = |model: &thermocline_engine::model::Model| model.checkpoint.tensor_bytes();
    assert_eq!(engine.memory().weights, bytes(engine.model()) + bytes(draft));
    let alone = Engine::open(&model("llama-relu-256"), options()).unwrap();
    assert!(alone.draft_model().is_none() && alone.memory().weights == bytes(alone.model()));
    let ids = |engine: &Engine| generate(&session(engine), greedy(&[5, 6, 7], 24)).ids;
    assert_eq!(ids(&engine), ids(&alone));
}

#[test]
fn draft_model_with_other_tokens_is_refused_with_the_first_one_that_differs() {
    let swapped = with_tokenizer(|tokenizer| {
        let vocab = &mut tokenizer["model"]["vocab"];
        (vocab["e"], vocab["c"]) = (68.into(), 70.into());
    });
    let error = refusal(swapped.path());
    let (target, file) = (model("llama-relu-256").display().to_string(), swapped.path().display().to_string());
    let expected = format!("expected the tokens of {target}, in which token 68 is \"c\", got \"e\" in {file}");
    assert_eq!(error, format!("draft model: {expected}"));

    let longer = with_tokenizer(add_token);
    let error = refusal(longer.path());
    assert!(error.contains("token 384 is missing, got \"<more>\" in "), "{error}");
}

#[test]
fn draft_model_without_embeddings_of_all_tokens_is_refused() {
    // Both tokenizers have one more token than the draft model has rows.
    let (target, draft) = (with_tokenizer(add_token), with_tokenizer(add_token));
    let options = EngineOptions { draft: Some(draft.path().to_owned()), ..options() };
    let error = Engine::open(target.path(), options).map(drop).unwrap_err().to_string();
    assert!(error.contains("expected embeddings of the 385 tokens, got 384 in "), "{error}");
}

#[test]
fn file_that_cannot_draft_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("broken.gguf"), "GGUF, but not quite").unwrap();
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    for (draft, says) in [
        (path("gone.gguf"), "gone.gguf"),
        (path("broken.gguf"), "broken.gguf"),
        (fixtures.join("malformed/missing-required-key.gguf"), "missing-required-key.gguf"),
    ] {
        let error = refusal(&draft);
        assert!(error.contains(says), "{draft:?}: {error}");
    }
    assert!(matches!(with_draft(&path("gone.gguf")), Err(Error::Io { .. })));
    assert!(matches!(with_draft(&path("broken.gguf")), Err(Error::Malformed { .. })));
}
