//! An HTTP server that speaks OpenAI's protocol, Anthropic's and Ollama's. A [`Server`] listens as its [`ServerOptions`] say and answers with
//! the model that a [`ModelSource`] names at the moment, so that the terminal and the window share it, or with those of a [`ModelLibrary`];
//! a [`ServerSwitch`] is the window's.
//!
//! The `listener` accepts `connections`. A request passes the `guard` (origins and headers), with it `host`, the `key` and the `routes`;
//! `read_body` reads its body within limits, and `named_model` has the model loaded that it names. `answers` and `embeddings` are what is
//! made of it: `request` (with `json_fields`, `messages`, `prompts` and other files of fields) parses it, naming every field that the engine
//! cannot honour. Then it waits in the `queue` for the one session; a `generation` is the engine's work for it, with an
//! `undecided_answer` where it may call tools or has a form. `choices` are what it
//! answers; `answer_reader` tells their reasoning, content and calls of tools apart, `answer_format` writes them in the client's protocol
//! (`response`, with `logprobs`, is OpenAI's; [`responses`], [`anthropic`] and [`ollama`] are folders, which make OpenAI's bodies of theirs),
//! `event_stream` sends it while it is generated, `error` is every refusal, and `engine_status`, `model_routes` and `metrics` report what is
//! there and what it does; `tokens` encodes and decodes. The `context` is shared by all of them. All of it runs on one thread of its own,
//! and nothing in it blocks; large bodies are parsed on others.

mod answer_format;
mod answer_reader;
mod answers;
mod anthropic;
mod choices;
mod connections;
mod context;
mod embeddings;
mod engine_status;
mod error;
mod event_stream;
mod generation;
mod grammar_fields;
mod guard;
mod host;
mod json_fields;
mod key;
mod listener;
mod logprobs;
mod messages;
mod metrics;
mod model_library;
mod model_routes;
mod named_model;
mod ollama;
mod options;
mod prompts;
mod queue;
mod read_body;
mod reasoning_fields;
mod request;
mod response;
mod responses;
mod routes;
mod served_model;
mod switch;
mod tokens;
mod tool_fields;
mod undecided_answer;

pub use context::{ServerEvent, ServerStatus};
pub use listener::Server;
pub use model_library::{LibraryEntry, ModelLibrary, OpenModel};
pub use options::ServerOptions;
pub use served_model::{ModelSource, ServedModel};
pub use switch::{ServerState, ServerSwitch};
