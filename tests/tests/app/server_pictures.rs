//! Pictures in the protocols of the server.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use thermocline_engine::{
    cpu::CpuOptions,
    runtime::KvType,
    session::{Engine, EngineOptions, Event, Message, Prompt, Request, Role, Sampling, SessionOptions},
};
use thermocline_tests::{
    pictured::{pictures, with_pictures},
    served::{CHAT, Served, offer},
};

const MOST: usize = 12;

/// A server of a small vision model.
struct SeeingServer {
    served: Served,
    engine: Engine,
    _folder: tempfile::TempDir,
    /// Two pictures, as base64 of their files.
    coded: [String; 2],
    /// Their answers.
    answers: [String; 2],
}

impl SeeingServer {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        with_pictures("qwen3-vl", folder.path());
        let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
        let options = EngineOptions { kv_type: KvType::F32, cpu, ..EngineOptions::default() };
        let engine = Engine::open(folder.path(), options).unwrap();
        let [a, b, _] = pictures(folder.path());
        let answers = [&a, &b].map(|picture| {
            let message = Message { pictures: vec![picture.clone()], ..Message::new(Role::User, "Look.") };
            let prompt = Prompt::Chat(vec![message]);
            let request = Request { sampling: Sampling::greedy(), max_tokens: Some(MOST), ..Request::new(prompt) };
            let mut text = String::new();
            for event in engine.session(SessionOptions::default()).unwrap().generate(request) {
                match event {
                    Event::Token { text: piece, .. } => text += &piece,
                    Event::Error(error) => panic!("{error}"),
                    _ => {}
                }
            }
            text
        });
        assert_ne!(answers[0], answers[1]);
        let coded = [&a, &b].map(|picture| picture.file().unwrap().data_url().split_once(',').unwrap().1.to_owned());
        let served = Served::new();
        served.offers(Ok(offer("eyes", &engine)));
        SeeingServer { served, engine, _folder: folder, coded, answers }
    }

    fn post(&self, path: &str, body: Value) -> Value {
        self.served.client.post(path, &body).json(200)
    }
}

fn url(coded: &str) -> String {
    format!("data:image/png;base64,{coded}")
}

fn openai_body(url: &str) -> Value {
    let parts = json!([
        { "type": "image_url", "image_url": { "url": url, "detail": "auto" } },
        { "type": "text", "text": "Look." },
    ]);
    json!({ "messages": [{ "role": "user", "content": parts }], "temperature": 0, "max_tokens": MOST })
}

#[test]
fn every_protocol_reads_pictures() {
    let server = SeeingServer::start();
    for (coded, answer) in server.coded.iter().zip(&server.answers) {
        let url = url(coded);
        let said = server.post(CHAT, openai_body(&url));
        assert_eq!(said["choices"][0]["message"]["content"], **answer);

        let parts = json!([{ "type": "input_image", "image_url": url }, { "type": "input_text", "text": "Look." }]);
        let input = json!([{ "role": "user", "content": parts }]);
        let said = server.post(
            "/v1/responses",
            json!({ "input": input, "temperature": 0, "max_output_tokens": MOST, "store": false }),
        );
        assert_eq!(said["output"][0]["content"][0]["text"], **answer, "{said}");

        let source = json!({ "type": "base64", "media_type": "image/png", "data": coded });
        let blocks = json!([{ "type": "image", "source": source }, { "type": "text", "text": "Look." }]);
        let messages = json!([{ "role": "user", "content": blocks }]);
        let counted = server.post("/v1/messages/count_tokens", json!({ "model": "eyes", "messages": messages }));
        let said = server.post(
            "/v1/messages",
            json!({ "model": "eyes", "max_tokens": MOST, "temperature": 0, "messages": messages }),
        );
        assert_eq!(said["content"][0]["text"], **answer, "{said}");
        assert_eq!(
            counted["input_tokens"],
            said["usage"]["input_tokens"].as_u64().unwrap()
                + said["usage"]["cache_read_input_tokens"].as_u64().unwrap_or(0)
        );

        let options = json!({ "temperature": 0, "num_predict": MOST });
        let messages = json!([{ "role": "user", "content": "Look.", "images": [coded] }]);
        let said = server.post("/api/chat", json!({ "messages": messages, "options": options, "stream": false }));
        assert_eq!(said["message"]["content"], **answer);
        let said = server.post(
            "/api/generate",
            json!({ "prompt": "Look.", "images": [coded], "options": options, "stream": false }),
        );
        assert_eq!(said["response"], **answer);
    }
    let shown = server.post("/api/show", json!({ "model": "eyes" }));
    assert!(shown["capabilities"].as_array().unwrap().contains(&json!("vision")), "{shown}");
}

#[test]
fn a_second_turn_computes_no_picture_again() {
    let server = SeeingServer::start();
    let mut body = openai_body(&url(&server.coded[0]));
    let first = server.post(CHAT, body.clone());
    let prompt = |usage: &Value| usage["usage"]["prompt_tokens"].as_u64().unwrap();
    let before = server.engine.telemetry();
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(first["choices"][0]["message"].clone());
    messages.push(json!({ "role": "user", "content": "And now?" }));
    let second = server.post(CHAT, body);
    let after = server.engine.telemetry();
    let reused = after.reused_tokens - before.reused_tokens;
    // The first question, with its picture, comes from the cache.
    assert!(reused + 2 >= prompt(&first), "{reused} of {}", prompt(&first));
    assert!(prompt(&second) > prompt(&first));
    assert_eq!(after.pictures, before.pictures);
}

#[test]
fn pictures_that_cannot_be_read_are_refused() {
    let server = SeeingServer::start();
    let refused = |url: &str| server.served.client.post(CHAT, &openai_body(url)).error(400).to_string();
    for (url, said) in [
        ("https://example.com/a.png", "this server fetches no addresses"),
        ("data:image/png;base64,a~b", "base64"),
        ("data:image/png;base64,QUJD", "picture format"),
        ("not a picture!", "base64"),
    ] {
        let error = refused(url);
        assert!(error.contains(said), "{url}: {error}");
    }
    // The beginning of a PNG file.
    let cut = &server.coded[0][..60];
    assert!(refused(&url(cut)).contains("a whole PNG file"));
    let source = json!({ "type": "file", "file_id": "f" });
    let blocks = json!([{ "type": "image", "source": source }]);
    let body = json!({ "model": "eyes", "max_tokens": 4, "messages": [{ "role": "user", "content": blocks }] });
    server.served.client.post("/v1/messages", &body).json(400);

    let blind = Served::new();
    let error = blind.client.post(CHAT, &openai_body(&url(&server.coded[0]))).error(400).to_string();
    assert!(error.contains("has no vision tower"), "{error}");
    let shown = blind.client.post("/api/show", &json!({ "model": "x" })).json(200);
    assert!(!shown["capabilities"].as_array().unwrap().contains(&json!("vision")));
}
