//! Anthropic's protocol: `POST /v1/messages` and `/v1/messages/count_tokens`. [`chat_body`] makes a body of OpenAI's of a request's, so that
//! there is one parser and one way to generate; [`MessageFormat`] writes answers as messages of content blocks; [`error_body`] is the shape
//! of refusals.

mod answer_fields;
mod format;
mod request;

pub use format::{MessageFormat, error_body};
pub use request::{MessageBody, chat_body};

/// The paths of this protocol begin like this.
pub const PATH: &str = "/v1/messages";
