//! A server of the built-in model.

use std::{
    net::Ipv4Addr,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::{Value, json};
use thermocline_engine::{
    cpu::CpuOptions,
    model::LoadOptions,
    session::{ContextPolicy, Engine, EngineOptions, Prompt, Request},
    tokenizer::Tokenizer,
};
use thermocline_host::{builtin, library::ModelId};
use thermocline_server::{ModelSource, ServedModel, ServedModels, Server, ServerOptions};

use crate::{golden::Expected, http::Client};

/// Path of chat completions.
pub const CHAT: &str = "/v1/chat/completions";

/// Path of text completions.
pub const TEXT: &str = "/v1/completions";

/// A server, its client and its engine.
#[derive(Debug)]
pub struct Served {
    /// Client of the server.
    pub client: Client,
    /// The server.
    pub server: Server,
    /// Engine of the model that the server offers.
    pub engine: Engine,
    offer: Arc<Mutex<Result<ServedModel, String>>>,
}

/// Opens an engine on the built-in model, with the options of `run`.
pub fn storyteller() -> Engine {
    let model = ModelId::Builtin.open(&LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let options = EngineOptions { kv_type: builtin::KV_TYPE, cpu, ..EngineOptions::default() };
    Engine::from_model(model, options).unwrap_or_else(|error| panic!("{error}"))
}

impl Served {
    /// Starts a server at any free port, with options that `change` sets.
    pub fn with(change: impl FnOnce(&mut ServerOptions)) -> Self {
        // The server answers one request at a time unless a test changes this; other requests wait.
        let mut options = ServerOptions { parallel: 1, ..ServerOptions::at((Ipv4Addr::LOCALHOST, 0).into()) };
        change(&mut options);
        let engine = storyteller();
        let offer = Arc::new(Mutex::new(Ok(offer("Storyteller", &engine))));
        let source: ModelSource = {
            let offer = Arc::clone(&offer);
            Arc::new(move || offer.lock().unwrap_or_else(PoisonError::into_inner).clone())
        };
        let server =
            Server::start(options, ServedModels::Open(source), |_| ()).unwrap_or_else(|error| panic!("{error}"));
        Served { client: Client::new(server.address()), server, engine, offer }
    }

    /// Starts a server with default options.
    pub fn new() -> Self {
        Self::with(|_| ())
    }

    /// Makes the server continue answers when the context is full.
    pub fn endless(self) -> Self {
        let mut offer = offer("Storyteller", &self.engine);
        offer.defaults.on_full = ContextPolicy::Shift { keep: 1 };
        self.offers(Ok(offer));
        self
    }

    /// Offers another model, or none, from now on.
    pub fn offers(&self, now: Result<ServedModel, String>) {
        *self.offer.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }
}

impl Default for Served {
    fn default() -> Self {
        Self::new()
    }
}

/// Offers the built-in model under a name.
pub fn offer(name: &str, engine: &Engine) -> ServedModel {
    let defaults = Request { sampling: builtin::sampling(), ..Request::new(Prompt::Tokens(Vec::new())) };
    ServedModel { name: name.to_owned(), since: 1, engine: engine.clone(), defaults }
}

/// Returns a chat request whose answer never ends by itself. The server must be
/// [`Served::endless`].
pub fn endless(more: Value) -> Value {
    // This bias bans the token that ends texts.
    let body = chat("Tell me a story.", json!({ "logit_bias": { "1": -1e6 } }));
    with(body, more)
}

/// Returns the first 64 tokens, as text, of the reference implementation's greedy answer to its
/// request `n`. No other token is nearly as likely, so every processor gives the same text.
pub fn reference_answer(n: usize) -> String {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/storyteller/expected.safetensors");
    let model = ModelId::Builtin.open(&LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let tokenizer = Tokenizer::from_checkpoint(&model.checkpoint).unwrap_or_else(|error| panic!("{error}"));
    tokenizer.decode(&Expected::read(&fixtures).ids(&format!("{n}.greedy_ids")), true)
}

/// Returns a request for a greedy answer to a chat of one message. `more` has further fields of the
/// request.
pub fn chat(text: &str, more: Value) -> Value {
    with(json!({ "messages": [{ "role": "user", "content": text }], "temperature": 0 }), more)
}

/// Returns a request for a greedy continuation of `prompt`. `more` has further fields of the
/// request.
pub fn text(prompt: &str, more: Value) -> Value {
    with(json!({ "prompt": prompt, "temperature": 0 }), more)
}

fn with(mut body: Value, more: Value) -> Value {
    if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
        body.extend(more);
    }
    body
}
