//! Ollama's protocol, which many tools speak alone: `/api/chat` and `/api/generate` with answers as
//! lines of JSON, `/api/embed` and `/api/embeddings`, and facts about models: `/api/tags`,
//! `/api/ps`, `/api/show`, `/api/version`. [`read_chat`] and [`read_generate`] read requests;
//! [`LinesFormat`] writes answers; [`error_body`] is the shape of refusals.

mod format;
mod models;
mod request;

pub use format::{LinesFormat, error_body, loaded};
pub use models::{entry, library_entry, running, show, show_entry, version};
pub use request::{read_chat, read_embed, read_embeddings, read_generate};

/// The paths of this protocol begin like this.
pub const PATH: &str = "/api/";
