//! Anthropic's protocol: `POST /v1/messages` and `/v1/messages/count_tokens`.
//! [`read_message_request`] reads requests, whose messages are `blocks` and whose `answer_fields`
//! say how the answer comes to be; [`MessageFormat`] writes answers as messages of content blocks;
//! [`error_body`] is the shape of refusals.

mod answer_fields;
mod blocks;
mod format;
mod request;

pub use format::{MessageFormat, error_body};
pub use request::read_message_request;

/// The paths of this protocol begin like this.
pub const PATH: &str = "/v1/messages";
