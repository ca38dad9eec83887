//! Models by name over real connections. The server offers a folder and loads one model at a time.

#![allow(clippy::unwrap_used)]

mod timing;

use std::{
    fs,
    io::Write,
    net::Ipv4Addr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use thermocline_engine::{
    cpu::CpuOptions,
    session::{ContextPolicy, Engine, EngineOptions, Prompt, Request},
};
use thermocline_host::testing::scripted_by_request;
use thermocline_server::{ModelLibrary, OpenModel, PictureAddresses, ServedModel, ServedModels, Server, ServerOptions};
use thermocline_tests::{
    http::Client,
    served::{CHAT, chat},
};

/// A server of a folder of models.
struct Library {
    client: Client,
    _server: Server,
    opened: Arc<AtomicUsize>,
    /// Maximum number of engines that were open at the same time; must be one.
    most_open: Arc<AtomicUsize>,
    folder: TempDir,
}

impl Library {
    /// Serves copies of two models, which close after `idle`.
    fn new(idle: Option<Duration>) -> Self {
        Library::with(idle, |_| ())
    }

    /// The same with changed options.
    fn with(idle: Option<Duration>, change: impl FnOnce(&mut ServerOptions)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gguf");
        for (name, file) in [("alpha", "llama-silu-gqa-256-Q4_0.gguf"), ("beta", "llama-silu-gqa-256-Q8_0.gguf")] {
            let from = fixtures.join(file);
            let from = if from.exists() { from } else { fixtures.join("llama-silu-gqa-256-Q4_0.gguf") };
            fs::copy(from, folder.path().join(format!("{name}.gguf"))).unwrap();
        }
        let (opened, most_open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let open: OpenModel = {
            let (opened, most_open) = (Arc::clone(&opened), Arc::clone(&most_open));
            let last = std::sync::Mutex::new(std::sync::Weak::new());
            Box::new(move |path, name| {
                let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
                let before = last.lock().unwrap().upgrade().is_some();
                most_open.fetch_max(1 + usize::from(before), SeqCst);
                let options = EngineOptions { cpu, context: Some(256), ..EngineOptions::default() };
                let engine = Engine::open(path, options).map_err(|error| error.to_string())?;
                *last.lock().unwrap() = Arc::downgrade(engine.model());
                opened.fetch_add(1, SeqCst);
                let defaults =
                    Request { on_full: ContextPolicy::Shift { keep: 1 }, ..Request::new(Prompt::Tokens(Vec::new())) };
                Ok(ServedModel { name: name.to_owned(), since: 1, engine, defaults })
            })
        };
        let mut options = ServerOptions::at((Ipv4Addr::LOCALHOST, 0).into());
        change(&mut options);
        let library = ModelLibrary::new(folder.path().to_owned(), open, idle, options.max_waiting);
        let server =
            Server::start(options, ServedModels::Library(library), |_| ()).unwrap_or_else(|error| panic!("{error}"));
        Library { client: Client::new(server.address()), _server: server, opened, most_open, folder }
    }

    fn ask(&self, model: &str) -> Value {
        self.client.post(CHAT, &chat("Hi", json!({ "model": model, "max_tokens": 3 }))).json(200)
    }

    fn loaded(&self) -> Vec<String> {
        let ps = self.client.get("/api/ps").json(200);
        ps["models"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect()
    }
}

#[test]
fn models_are_listed_and_loaded_by_name_one_at_a_time() {
    let library = Library::new(None);
    let list = library.client.get("/v1/models").json(200);
    let ids = |list: &Value, field: &str| -> Vec<String> {
        let list = list.as_array().unwrap().iter();
        list.map(|it| it[field].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&list["data"], "id"), ["alpha", "beta"]);
    assert_eq!(ids(&library.client.get("/api/tags").json(200)["models"], "name"), ["alpha", "beta"]);
    assert_eq!((library.loaded(), library.opened.load(SeqCst)), (Vec::new(), 0), "nothing is loaded to list");
    assert_eq!(library.client.get("/health").json(200), json!({ "status": "ok", "model": null }));
    library.client.get("/v1/thermocline").error(503);

    for name in ["alpha", "beta", "beta", "BETA:latest", "beta.gguf", "alpha"] {
        let wanted = if name.starts_with('a') { "alpha" } else { "beta" };
        assert_eq!(library.ask(name)["model"], wanted);
        assert_eq!(library.loaded(), [wanted]);
    }
    assert_eq!((library.opened.load(SeqCst), library.most_open.load(SeqCst)), (3, 1));
    let unnamed = library.client.post(CHAT, &chat("Hi", json!({ "max_tokens": 3 }))).json(200);
    assert_eq!((&unnamed["model"], library.opened.load(SeqCst)), (&json!("alpha"), 3), "the loaded one");

    let error = library.client.post(CHAT, &chat("Hi", json!({ "model": "gpt-4o" }))).error(404);
    assert_eq!(error["code"], "model_not_found");
    assert!(error["message"].as_str().unwrap().contains("the folder has alpha, beta"), "{error}");
    assert!(!error["message"].as_str().unwrap().contains(library.folder.path().to_str().unwrap()), "no path is told");
    library.client.get("/v1/models/gamma").error(404);
    assert_eq!(library.client.get("/v1/models/alpha").json(200)["loaded"], true);
    assert_eq!(library.client.post("/api/show", &json!({ "model": "beta" })).json(200)["details"]["family"], "llama");
    library.client.post("/api/show", &json!({ "model": "gamma" })).json(404);
    for path in [CHAT, "/v1/embeddings", "/tokenize", "/v1/messages", "/api/chat"] {
        assert_eq!(library.client.send("POST", path, "{").status, 400, "{path}");
    }
    let tokens = library.client.post("/tokenize", &json!({ "model": "beta", "prompt": "a" })).json(200);
    assert_eq!((tokens["count"].as_u64().is_some(), library.loaded()), (true, vec!["beta".to_owned()]));
    let vector = library.client.post("/v1/embeddings", &json!({ "model": "alpha", "input": "a" })).json(200);
    assert_eq!(vector["model"], "alpha");
}

/// A web server that does not answer keeps neither a model nor the requests for other models.
#[test]
fn pictures_are_fetched_before_a_request_takes_its_model() {
    let library = Library::with(None, |options| options.image_urls = PictureAddresses::Local);
    let (answer, answers) = mpsc::channel();
    let (address, requests) = scripted_by_request(move |_, stream| {
        answers.recv().unwrap();
        let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    });
    let url = format!("http://{}/a.png", address.host());
    let parts = json!([{ "type": "image_url", "image_url": { "url": url } }]);
    let body = json!({ "model": "alpha", "max_tokens": 3, "messages": [{ "role": "user", "content": parts }] });
    thread::scope(|scope| {
        let asked = scope.spawn(|| library.client.post(CHAT, &body).error(400).to_string());
        requests.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(library.ask("beta")["model"], "beta");
        assert_eq!((library.loaded(), library.opened.load(SeqCst)), (vec!["beta".to_owned()], 1));
        answer.send(()).unwrap();
        let error = asked.join().unwrap();
        assert!(error.contains("HTTP status 404"), "{error}");
    });
    assert_eq!(library.opened.load(SeqCst), 1, "no model is opened for a picture that is missing");
    // An unknown model is refused before anything is fetched, and so is an open one without a
    // tower.
    let named = |model: &str| json!({ "model": model, "max_tokens": 3, "messages": body["messages"] });
    library.client.post(CHAT, &named("gamma")).error(404);
    let error = library.client.post(CHAT, &named("beta")).error(400).to_string();
    assert!(error.contains("has no vision tower"), "{error}");
    assert_eq!(requests.try_iter().count(), 0);
}

#[test]
fn requests_for_another_model_wait_their_turn_and_none_starves() {
    let library = Library::new(None);
    library.ask("alpha");
    let body = chat(
        "Hi",
        json!({ "model": "alpha", "stream": true, "logit_bias": { "2": -1e6, "0": -1e6 }, "max_tokens": 400 }),
    );
    let mut running = library.client.begin(CHAT, &body);
    running.line_with("content").unwrap();
    let answered = AtomicBool::new(false);
    thread::scope(|scope| {
        // Two clients request alpha without a pause.
        for _ in 0..2 {
            scope.spawn(|| {
                while !answered.load(SeqCst) {
                    assert_eq!(library.ask("alpha")["model"], "alpha");
                }
            });
        }
        let reply = library.client.post(CHAT, &chat("Hi", json!({ "model": "beta", "max_tokens": 3 })));
        answered.store(true, SeqCst);
        assert_eq!(reply.json(200)["model"], "beta");
        assert!(running.rest().contains("[DONE]"), "the running answer is complete");
    });
    library.ask("alpha");
    assert_eq!((library.opened.load(SeqCst), library.most_open.load(SeqCst)), (3, 1));
}

#[test]
fn model_that_cannot_be_opened_is_a_sentence_and_others_go_on() {
    let library = Library::new(None);
    // This file has a valid head, but its weights are missing.
    let whole = fs::read(library.folder.path().join("alpha.gguf")).unwrap();
    fs::write(library.folder.path().join("half.gguf"), &whole[..whole.len() / 2]).unwrap();
    let reply = library.client.post(CHAT, &chat("Hi", json!({ "model": "half" })));
    assert!([404, 503].contains(&reply.status), "{reply:?}");
    assert!(!reply.body.contains(library.folder.path().to_str().unwrap()), "no path is told: {reply:?}");
    assert_eq!(library.ask("alpha")["model"], "alpha");
}
