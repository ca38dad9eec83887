//! Embedding models and rerankers over real connections.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::{Value, json};
use thermocline_engine::session::{Engine, EngineOptions};
use thermocline_tests::served::{Served, offer};

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/encoders").join(name)
}

/// Serves a model of tests/fixtures/encoders. Also returns what it is expected to answer.
fn served(name: &str) -> (Served, Value) {
    let served = Served::new();
    let engine = Engine::open(&fixture(name), EngineOptions::default()).unwrap();
    served.offers(Ok(offer(name, &engine)));
    let expected = std::fs::read_to_string(fixture(name).join("expected.json")).unwrap();
    (served, serde_json::from_str(&expected).unwrap())
}

fn near(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| near(a, b)),
        (a, b) => (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 2e-5,
    }
}

#[test]
fn embeddings_have_the_models_own_pooling_maps_and_prompts() {
    for name in ["bert", "bert-cls", "gemma-embedding"] {
        let (served, expected) = served(name);
        let rows = |reply: Value| reply["data"].as_array().unwrap().iter().map(|it| it["embedding"].clone()).collect();
        let texts = &expected["texts"];
        let reply = served.client.post("/v1/embeddings", &json!({ "input": texts })).json(200);
        assert!(near(&rows(reply), &expected["embeddings"]), "{name}");
        let reply = served.client.post("/api/embed", &json!({ "input": texts })).json(200);
        assert!(near(&reply["embeddings"], &expected["embeddings"]), "{name}");
        if !expected["query"].is_null() {
            let body = json!({ "input": texts, "input_type": "search_query" });
            let reply = served.client.post("/v1/embeddings", &body).json(200);
            assert!(near(&rows(reply), &expected["query"]), "{name}");
            let body = json!({ "input": texts, "input_type": "song" });
            let error = served.client.post("/v1/embeddings", &body).json(400).to_string();
            assert!(error.contains("input_type") && error.contains("query"), "{error}");
        }
        let pooled = |pooling: &str| {
            let body = json!({ "input": texts[0], "pooling": pooling });
            served.client.post("/v1/embeddings", &body).json(200)["data"][0]["embedding"].clone()
        };
        assert!(!near(&pooled("last"), &pooled("cls")), "{name}");
    }
}

#[test]
fn long_texts_are_refused_by_openais_path_and_shortened_by_ollamas() {
    let (served, _) = served("bert");
    let text = "dog ".repeat(200);
    let error = served.client.post("/v1/embeddings", &json!({ "input": text })).json(400).to_string();
    assert!(error.contains("202") && error.contains("64"), "{error}");
    let reply = served.client.post("/api/embed", &json!({ "input": text })).json(200);
    assert_eq!(reply["prompt_eval_count"], 64);
}

#[test]
fn rerankers_order_documents() {
    let (served, expected) = served("bert-reranker");
    let body = json!({ "query": expected["query"], "documents": expected["documents"], "return_documents": true });
    let reply = served.client.post("/v1/rerank", &body).json(200);
    let results = reply["results"].as_array().unwrap();
    assert_eq!(results.len(), 3);
    for result in results {
        let at = result["index"].as_u64().unwrap() as usize;
        assert!(near(&result["relevance_score"], &expected["scores"][at]), "{result}");
        assert_eq!(result["document"]["text"], expected["documents"][at]);
    }
    let scores: Vec<f64> = results.iter().map(|it| it["relevance_score"].as_f64().unwrap()).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    let body = json!({ "query": expected["query"], "documents": expected["documents"], "top_n": 1 });
    let reply = served.client.post("/v1/rerank", &body).json(200);
    assert_eq!(reply["results"].as_array().unwrap().len(), 1);
    assert!(reply["results"][0]["document"].is_null());
}

#[test]
fn models_refuse_what_they_cannot_do() {
    let (embedder, _) = served("bert");
    let rerank = json!({ "query": "a", "documents": ["b"] });
    let error = embedder.client.post("/v1/rerank", &rerank).json(400).to_string();
    assert!(error.contains("no classifier"), "{error}");
    let chat = json!({ "messages": [{ "role": "user", "content": "a dog" }] });
    let error = embedder.client.post("/v1/chat/completions", &chat).json(400).to_string();
    assert!(error.contains("embeds texts"), "{error}");
    let show = embedder.client.post("/api/show", &json!({ "model": "bert" })).json(200);
    assert_eq!(show["capabilities"], json!(["embedding"]));
}
