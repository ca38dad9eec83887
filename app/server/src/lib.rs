//! An HTTP server that speaks OpenAI's protocol, Anthropic's and Ollama's. A [`Server`] listens as
//! its [`ServerOptions`] say and answers with the model that a [`ModelSource`] names at the moment,
//! so that the terminal and the window share it, or with those of a [`ModelLibrary`]. [`command`] is
//! the program's command line.
//!
//! The `listener` accepts `connections`. A request passes the `guard` (origins and headers), with
//! it `host`, the `key` and the `routes`; `read_body` reads its body within limits, and
//! `named_model` has the model loaded that it names. The folders are the protocols: [`openai`],
//! [`anthropic`] and [`ollama`] read bodies by the serde structs of their `fields` into a `request`
//! in no protocol's words (with `request_message`, `sampling_fields`, `thoughts` and the
//! `answer_form`), and format answers and errors. `answers` and `embeddings` wait in the `queue`
//! for a slot of the engine; a `generation` is the engine's work for a request, with an
//! `undecided_answer` where it may call tools or has a form. `answer_events` are what comes of it,
//! with `answer_reader` to tell reasoning, content and calls of tools apart. An `answer_format`
//! writes them in the client's protocol: `event_stream` sends each `stream_event` at once, and
//! `choices` are folded from them into a whole answer. `error` is every refusal, and
//! `engine_status`, `model_routes` and `metrics` report models and load; `tokens` encodes and
//! decodes. The `context` is shared by all of them. All of it runs on one thread of its own, and
//! nothing in it blocks; large bodies are parsed on others.

// They panic where nobody reads.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]
// `Engine: Send` is proved through all types of wgpu.
#![recursion_limit = "256"]

mod answer_events;
mod answer_form;
mod answer_format;
mod answer_reader;
mod answers;
mod anthropic;
mod choices;
pub mod command;
mod connections;
mod context;
mod embeddings;
mod engine_status;
mod error;
mod event_stream;
mod fields;
mod generation;
mod guard;
mod host;
mod key;
mod listener;
mod metrics;
mod model_library;
mod model_routes;
mod named_model;
mod ollama;
mod openai;
mod options;
mod queue;
mod read_body;
mod request;
mod request_message;
mod routes;
mod sampling_fields;
mod served_model;
mod server_log;
mod stream_event;
mod thoughts;
mod tokens;
mod undecided_answer;
mod waiting_line;

pub use context::{ServedModels, ServerEvent, ServerStatus};
pub use listener::Server;
pub use model_library::{LibraryEntry, ModelLibrary, OpenModel};
pub use options::ServerOptions;
pub use served_model::{ModelSource, ServedModel};
