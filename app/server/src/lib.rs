//! An HTTP server that speaks the protocols of OpenAI, Anthropic and Ollama. A [`Server`] listens
//! as its [`ServerOptions`] say. It answers with the model that a [`ModelSource`] returns, or with
//! the models of a [`ModelLibrary`]. The terminal and the window share it. [`command`] is the
//! command line of the program.
//!
//! The `listener` accepts `connections`. A request passes the `guard` (origins, headers and the
//! name of the `host`), the `key` check and the `routes`. `read_body` reads the body within limits,
//! `named_model` loads the model that the body names, and `picture_fetch` fetches pictures from
//! `picture_addresses`.
//!
//! [`openai`], [`anthropic`] and [`ollama`] are the protocols. They read bodies with the serde
//! structs of `fields` into a protocol-independent `request`. Parts of it are `request_message`,
//! `sampling_fields`, `thoughts` and `answer_form`. The protocols also format answers and errors.
//!
//! `answers` and `embeddings` wait in the `queue` for a slot of the engine. A `generation` is the
//! engine's work for a request. An `undecided_answer` may still become tool calls or a text with a
//! grammar. The generation produces `answer_events`, in which `answer_reader` separates reasoning,
//! content and tool calls. An `answer_format` writes them in the client's protocol. `event_stream`
//! sends each `stream_event` at once, and `choices` collects the events into a whole answer.
//!
//! `error` is every refusal. `engine_status`, `model_routes` and `metrics` report models and load.
//! `tokens` encodes and decodes. All of them share the `context`. The server runs on one thread of
//! its own and never blocks it; other threads parse large bodies.

// The print macros panic if the output is closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]
// The compiler proves `Engine: Send` through all types of wgpu.
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
mod fetch_first;
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
mod picture_addresses;
mod picture_fetch;
mod queue;
mod read_body;
mod request;
mod request_message;
mod rerank;
mod routes;
mod sampling_fields;
mod served_model;
mod server_log;
mod slot_memory;
mod stream_event;
mod thoughts;
mod tokens;
mod undecided_answer;
mod waiting_line;

pub use context::{ServedModels, ServerEvent, ServerStatus};
pub use listener::Server;
pub use model_library::{LibraryEntry, ModelLibrary, OpenModel};
pub use options::ServerOptions;
pub use picture_addresses::PictureAddresses;
pub use served_model::{ModelSource, ServedModel};
