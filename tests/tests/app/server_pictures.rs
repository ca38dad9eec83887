//! Pictures in the protocols of the server.

#![allow(clippy::unwrap_used)]

use std::{io::Write, sync::mpsc::Receiver, thread, time::Duration};

use serde_json::{Value, json};
use thermocline_engine::{
    cpu::CpuOptions,
    pictures::Picture,
    runtime::KvType,
    session::{Engine, EngineOptions, Event, Message, Prompt, Request, Role, Sampling, SessionOptions},
};
use thermocline_host::testing::scripted_by_request;
use thermocline_server::{PictureAddresses, ServerOptions};
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
        SeeingServer::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut ServerOptions)) -> Self {
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
        let served = Served::with(change);
        served.offers(Ok(offer("eyes", &engine)));
        SeeingServer { served, engine, _folder: folder, coded, answers }
    }

    /// The file of a picture.
    fn picture_file(&self, at: usize) -> Vec<u8> {
        Picture::from_base64(&self.coded[at]).unwrap().file().unwrap().bytes.to_vec()
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

/// A web server on this computer. Its paths say what it answers: `/picture`, `/page`, `/large`,
/// `/slow`, `/missing`, `/here` (a redirection to `/picture`), `/round` (one to itself),
/// `/elsewhere` and `/inside` (redirections by FTP and to a link-local address). Also returns its
/// requests.
fn web_server(picture: Vec<u8>) -> (String, Receiver<String>) {
    let (address, requests) = scripted_by_request(move |request, stream| {
        let path = request.split(' ').nth(1).unwrap_or_default();
        let answer = |status: &str, header: &str, length: usize| {
            format!("HTTP/1.1 {status}\r\n{header}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")
        };
        let redirection = |to: &str| answer("302 Found", &format!("Location: {to}"), 0);
        let (head, body) = match path.split('?').next().unwrap_or_default() {
            "/picture" => (answer("200 OK", "Content-Type: image/png", picture.len()), picture.clone()),
            "/page" => (answer("200 OK", "Content-Type: text/html", 4), b"page".to_vec()),
            "/large" => (answer("200 OK", "Content-Type: image/png", 33 << 20), vec![0; 33 << 20]),
            "/here" => (redirection("/picture"), Vec::new()),
            "/round" => (redirection("/round"), Vec::new()),
            "/elsewhere" => (redirection("ftp://127.0.0.1/a"), Vec::new()),
            "/inside" => (redirection("http://169.254.169.254/latest/meta-data"), Vec::new()),
            "/slow" => {
                thread::sleep(Duration::from_secs(20));
                return;
            }
            _ => (answer("404 Not Found", "Content-Type: text/plain", 0), Vec::new()),
        };
        // The client may have disconnected.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
    });
    (format!("http://{}", address.host()), requests)
}

#[test]
fn addresses_of_pictures_are_fetched_in_every_protocol_if_they_are_allowed() {
    let server = SeeingServer::with(|options| options.image_urls = PictureAddresses::Local);
    let file = server.picture_file(0);
    let (web, requests) = web_server(file);
    for path in ["/picture?key=1", "/here"] {
        let url = format!("{web}{path}");
        let said = server.post(CHAT, openai_body(&url));
        assert_eq!(said["choices"][0]["message"]["content"], *server.answers[0]);
        let source = json!({ "type": "url", "url": url });
        let blocks = json!([{ "type": "image", "source": source }, { "type": "text", "text": "Look." }]);
        let messages = json!([{ "role": "user", "content": blocks }]);
        let body = json!({ "model": "eyes", "max_tokens": MOST, "temperature": 0, "messages": messages });
        assert_eq!(server.post("/v1/messages", body)["content"][0]["text"], *server.answers[0]);
        let options = json!({ "temperature": 0, "num_predict": MOST });
        let messages = json!([{ "role": "user", "content": "Look.", "images": [url] }]);
        let said = server.post("/api/chat", json!({ "messages": messages, "options": options, "stream": false }));
        assert_eq!(said["message"]["content"], *server.answers[0]);
    }
    assert_eq!(requests.try_iter().count(), 9);

    // A response keeps the file, so that its continuation fetches nothing.
    let parts = json!([
        { "type": "input_image", "image_url": format!("{web}/picture") },
        { "type": "input_text", "text": "Look." },
    ]);
    let input = json!([{ "role": "user", "content": parts }]);
    let first = server.post("/v1/responses", json!({ "input": input, "temperature": 0, "max_output_tokens": MOST }));
    assert_eq!(first["output"][0]["content"][0]["text"], *server.answers[0]);
    let before = server.engine.telemetry().pictures;
    let next = json!({ "input": "And?", "previous_response_id": first["id"], "max_output_tokens": 4 });
    server.post("/v1/responses", next);
    assert_eq!((requests.try_iter().count(), server.engine.telemetry().pictures), (1, before));
}

#[test]
fn addresses_are_fetched_within_limits() {
    let server = SeeingServer::with(|options| options.image_urls = PictureAddresses::Local);
    let hasty = SeeingServer::with(|options| {
        options.image_urls = PictureAddresses::Local;
        options.timeout = Duration::from_secs(4);
    });
    let (web, _requests) = web_server(server.picture_file(0));
    for (path, said) in [
        ("/page", "expected a picture, got text/html"),
        ("/missing", "expected a picture, got HTTP status 404"),
        ("/large", "for all pictures with addresses"),
        ("/round", "at most 3 redirections"),
        ("/elsewhere", "http or https"),
        ("/inside", "of the internet or of a private network"),
        ("/slow", "within 4 s"),
    ] {
        let asked = if path == "/slow" { &hasty } else { &server };
        let url = format!("{}{path}?key=secret", web.replace("://", "://anna:secret@"));
        let error = asked.served.client.post(CHAT, &openai_body(&url)).error(400).to_string();
        assert!(error.contains(said) && error.contains(path) && !error.contains("secret"), "{error}");
    }
    for (url, said) in
        [("ftp://127.0.0.1/a", "http:// or https://"), ("http://127.0.0.1:1/a", "refuses the connection")]
    {
        let error = server.served.client.post(CHAT, &openai_body(url)).error(400).to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn nothing_is_fetched_for_a_model_without_a_tower() {
    let blind = Served::with(|options| options.image_urls = PictureAddresses::Local);
    let (web, requests) = web_server(Vec::new());
    let error = blind.client.post(CHAT, &openai_body(&format!("{web}/picture"))).error(400).to_string();
    assert!(error.contains("has no vision tower"), "{error}");
    assert_eq!(requests.try_iter().count(), 0);
}

#[test]
fn addresses_of_this_computer_are_not_fetched_from_the_internet() {
    let server = SeeingServer::with(|options| options.image_urls = PictureAddresses::Public);
    let (web, requests) = web_server(server.picture_file(0));
    let named = web.replace("127.0.0.1", "localhost");
    for url in [format!("{web}/picture"), format!("{named}/picture")] {
        let error = server.served.client.post(CHAT, &openai_body(&url)).error(400).to_string();
        assert!(error.contains("--allow-image-urls=local"), "{error}");
    }
    assert_eq!(requests.try_iter().count(), 0);
}
