//! The built-in model, served.

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

/// Where answers to chats are.
pub const CHAT: &str = "/v1/chat/completions";

/// Where answers to texts are.
pub const TEXT: &str = "/v1/completions";

/// A server, and what it offers.
#[derive(Debug)]
pub struct Served {
    /// Asks it.
    pub client: Client,
    /// It.
    pub server: Server,
    /// The engine.
    pub engine: Engine,
    offer: Arc<Mutex<Result<ServedModel, String>>>,
}

/// An engine on the built-in model, as `run` opens it.
pub fn storyteller() -> Engine {
    let model = ModelId::Builtin.open(&LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let options = EngineOptions { kv_type: builtin::KV_TYPE, cpu, ..EngineOptions::default() };
    Engine::from_model(model, options).unwrap_or_else(|error| panic!("{error}"))
}

impl Served {
    /// At any free port, as `change` wants it.
    pub fn with(change: impl FnOnce(&mut ServerOptions)) -> Self {
        // One answer at a time, unless a test is about more: what waits, waits.
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

    /// With nothing special.
    pub fn new() -> Self {
        Self::with(|_| ())
    }

    /// Answers that go on when the context is full.
    pub fn endless(self) -> Self {
        let mut offer = offer("Storyteller", &self.engine);
        offer.defaults.on_full = ContextPolicy::Shift { keep: 1 };
        self.offers(Ok(offer));
        self
    }

    /// Another model, or none, from now on.
    pub fn offers(&self, now: Result<ServedModel, String>) {
        *self.offer.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }
}

impl Default for Served {
    fn default() -> Self {
        Self::new()
    }
}

/// The built-in model under a name.
pub fn offer(name: &str, engine: &Engine) -> ServedModel {
    let defaults = Request { sampling: builtin::sampling(), ..Request::new(Prompt::Tokens(Vec::new())) };
    ServedModel { name: name.to_owned(), since: 1, engine: engine.clone(), defaults }
}

/// A chat that is answered until it is ended; the server has to be [`Served::endless`].
pub fn endless(more: Value) -> Value {
    // The token that ends texts is never chosen.
    let body = chat("Tell me a story.", json!({ "logit_bias": { "1": -1e6 } }));
    with(body, more)
}

/// The first 64 tokens, as text, of what the reference implementation answers to its request `n` with the likeliest words. No other
/// token is nearly as likely, so that every processor says the same.
pub fn reference_answer(n: usize) -> String {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/storyteller/expected.safetensors");
    let model = ModelId::Builtin.open(&LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let tokenizer = Tokenizer::from_checkpoint(&model.checkpoint).unwrap_or_else(|error| panic!("{error}"));
    tokenizer.decode(&Expected::read(&fixtures).ids(&format!("{n}.greedy_ids")), true)
}

/// A chat of one message, answered with the likeliest words; `more` is what else the request says.
pub fn chat(text: &str, more: Value) -> Value {
    with(json!({ "messages": [{ "role": "user", "content": text }], "temperature": 0 }), more)
}

/// A text to go on with, likewise.
pub fn text(prompt: &str, more: Value) -> Value {
    with(json!({ "prompt": prompt, "temperature": 0 }), more)
}

fn with(mut body: Value, more: Value) -> Value {
    if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
        body.extend(more);
    }
    body
}
