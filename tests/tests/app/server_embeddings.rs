//! Embeddings over real connections, by OpenAI's protocol and Ollama's, with the built-in model.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use thermocline_engine::session::Pooling;
use thermocline_tests::served::{CHAT, Served, chat};

const EMBEDDINGS: &str = "/v1/embeddings";

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().unwrap_or_else(|| panic!("{list}")).iter().map(|it| it.as_f64().unwrap()).collect()
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn embed(served: &Served, body: Value) -> Vec<Vec<f64>> {
    let reply = served.client.post(EMBEDDINGS, &body).json(200);
    let data = reply["data"].as_array().unwrap();
    assert!(data.iter().enumerate().all(|(at, it)| it["index"] == at && it["object"] == "embedding"));
    data.iter().map(|it| numbers(&it["embedding"])).collect()
}

/// Decodes little-endian numbers from base64.
fn decoded(text: &str) -> Vec<f64> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut bytes) = (0u32, 0, Vec::new());
    for letter in text.bytes().filter(|letter| *letter != b'=') {
        bits = bits << 6 | LETTERS.iter().position(|it| *it == letter).unwrap() as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes.as_chunks::<4>().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
}

#[test]
fn embeddings_of_texts_and_tokens_have_length_1_and_tell_texts_apart() {
    let served = Served::new();
    let texts = ["The dog ran in the park.", "A puppy was running in the park.", "Mom baked a big cake."];
    let vectors = embed(&served, json!({ "model": "any", "input": texts }));
    for vector in &vectors {
        let length = vector.iter().map(|x| x * x).sum::<f64>();
        assert!((length - 1.0).abs() < 1e-5 && vector.len() == served.engine.config().d_model, "{length}");
    }
    assert!(cosine(&vectors[0], &vectors[1]) > cosine(&vectors[0], &vectors[2]));
    assert_eq!(embed(&served, json!({ "input": texts[0] })), vectors[..1]);
    let ids = served.client.post("/tokenize", &json!({ "prompt": texts[0], "add_special_tokens": true })).json(200);
    assert_eq!(embed(&served, json!({ "input": ids["tokens"] })), vectors[..1]);
    assert_eq!(embed(&served, json!({ "input": [ids["tokens"], ids["tokens"]] })).len(), 2);
    let reply = served.client.post(EMBEDDINGS, &json!({ "input": texts[0] })).json(200);
    assert_eq!((&reply["object"], &reply["model"]), (&json!("list"), &json!("Storyteller")));
    let count = ids["tokens"].as_array().unwrap().len();
    assert_eq!(reply["usage"], json!({ "prompt_tokens": count, "total_tokens": count }));
}

#[test]
fn embeddings_come_as_base64_shortened_and_of_the_last_token() {
    let served = Served::new();
    let whole = embed(&served, json!({ "input": "Once upon a time" })).swap_remove(0);
    let reply = served.client.post(EMBEDDINGS, &json!({ "input": "Once upon a time", "encoding_format": "base64" }));
    let text = reply.json(200)["data"][0]["embedding"].as_str().unwrap().to_owned();
    let worst = decoded(&text).iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst < 1e-7 && decoded(&text).len() == whole.len(), "{worst}");
    let short = embed(&served, json!({ "input": "Once upon a time", "dimensions": 8 })).swap_remove(0);
    assert!(short.len() == 8 && (cosine(&short, &whole[..8]) - 1.0).abs() < 1e-6);
    assert!((short.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-5);
    let last = embed(&served, json!({ "input": "Once upon a time", "pooling": "last" })).swap_remove(0);
    assert!(cosine(&last, &whole) < 0.999);
    let by_default = Served::with(|options| options.pooling = Some(Pooling::Last));
    assert!(cosine(&embed(&by_default, json!({ "input": "Once upon a time" }))[0], &last) > 1.0 - 1e-9);
}

#[test]
fn embeddings_by_ollamas_paths_are_the_same() {
    let served = Served::new();
    let wanted = embed(&served, json!({ "input": ["Once upon a time", "The end."] }));
    let body = json!({ "model": "m", "input": ["Once upon a time", "The end."], "keep_alive": "5m", "options": {} });
    let reply = served.client.post("/api/embed", &body).json(200);
    let vectors: Vec<Vec<f64>> = reply["embeddings"].as_array().unwrap().iter().map(numbers).collect();
    assert_eq!(vectors, wanted);
    assert!(reply["prompt_eval_count"].as_u64().unwrap() > 4 && reply["model"] == "Storyteller");
    let one = served.client.post("/api/embeddings", &json!({ "model": "m", "prompt": "The end." })).json(200);
    assert_eq!(numbers(&one["embedding"]), wanted[1]);
    assert_eq!(served.client.post("/api/embed", &json!({ "model": "m" })).json(200)["embeddings"], json!([]));
    // The text is longer than the context. The server shortens it by default and refuses it
    // otherwise.
    let long = "word ".repeat(3000);
    let reply = served.client.post("/api/embed", &json!({ "input": long })).json(200);
    assert_eq!((reply["prompt_eval_count"].as_u64(), reply["embeddings"].as_array().unwrap().len()), (Some(512), 1));
    let refused = served.client.post("/api/embed", &json!({ "input": long, "truncate": false })).json(400);
    assert!(refused["error"].as_str().unwrap().contains("holds 512"), "{refused}");
}

#[test]
fn embedding_requests_that_cannot_be_honoured_are_refused_by_name() {
    let served = Served::new();
    for (body, param) in [
        (json!({}), "input"),
        (json!({ "input": "" }), "input"),
        (json!({ "input": [[]] }), "input"),
        (json!({ "input": "a", "dimensions": 0 }), "dimensions"),
        (json!({ "input": "a", "dimensions": 100_000 }), "dimensions"),
        (json!({ "input": "a", "encoding_format": "int8" }), "encoding_format"),
        (json!({ "input": "a", "pooling": "max" }), "pooling"),
        (json!({ "input": "a", "warp": 1 }), "warp"),
    ] {
        assert_eq!(served.client.post(EMBEDDINGS, &body).error(400)["param"], param, "{body}");
    }
    assert_eq!(served.client.post(EMBEDDINGS, &json!({ "input": [99_999_999] })).error(400)["param"], "prompt");
    served.client.get(EMBEDDINGS).error(405);
    let answer = served.client.post(CHAT, &chat("Hi", json!({ "max_tokens": 2 }))).json(200);
    assert_eq!(answer["usage"]["completion_tokens"], 2);
}
