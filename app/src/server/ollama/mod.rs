//! Ollama's protocol, which many tools speak alone: `/api/chat` and `/api/generate` with answers as lines of JSON, and what is told of the
//! model: `/api/tags`, `/api/ps`, `/api/show`, `/api/version`. [`chat_body`] and [`generate_body`] make bodies of OpenAI's of requests, so that
//! there is one parser and one way to generate; [`LinesFormat`] writes answers; [`error_body`] is the shape of refusals.

mod format;
mod models;
mod request;

pub use format::{LinesFormat, error_body, loaded};
pub use models::{entry, library_entry, running, show, show_entry, version};
pub use request::{OllamaBody, chat_body, embed_body, embedding_body, generate_body};

/// The paths of this protocol begin like this.
pub const PATH: &str = "/api/";
