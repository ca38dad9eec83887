//! Ollama's protocol. Many tools speak no other. `/api/chat` and `/api/generate` answer in lines of
//! JSON. `/api/embed` and `/api/embeddings` return embeddings. `/api/tags`, `/api/ps`, `/api/show`
//! and `/api/version` describe models. [`read_chat`] and [`read_generate`] read requests,
//! [`LinesFormat`] writes answers, and [`error_body`] formats refusals.

mod format;
mod models;
mod request;

pub use format::{LinesFormat, error_body, loaded};
pub use models::{entry, library_entry, running, show, show_entry, version};
pub use request::{read_chat, read_embed, read_embeddings, read_generate};

/// Beginning of this protocol's paths.
pub const PATH: &str = "/api/";
