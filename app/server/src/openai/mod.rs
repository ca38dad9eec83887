//! OpenAI's protocol: chats, texts and [`responses`]. [`read_request`] reads requests, whose fields
//! have files by subject; [`CompletionFormat`] writes answers, with [`LogprobsFormat`].

mod format;
mod grammar_fields;
mod logprobs;
mod messages;
mod prompts;
mod reasoning_fields;
mod request;
pub mod responses;
mod tool_fields;

pub use format::CompletionFormat;
pub use logprobs::LogprobsFormat;
pub use messages::{CallObject, TextPart};
pub use prompts::prompts_of;
pub use request::{Endpoint, read_request};
pub use tool_fields::read_tools;
