//! Anthropic's protocol: `POST /v1/messages` and `/v1/messages/count_tokens`.
//! [`read_message_request`] reads requests: `blocks` are their messages, `answer_fields` shape the
//! answer. [`MessageFormat`] writes answers as messages of content blocks. [`error_body`] formats
//! refusals.

mod answer_fields;
mod blocks;
mod format;
mod request;

pub use format::{MessageFormat, error_body};
pub use request::read_message_request;

/// Beginning of this protocol's paths.
pub const PATH: &str = "/v1/messages";
