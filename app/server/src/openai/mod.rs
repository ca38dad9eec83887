//! OpenAI's protocol: chats, text completions and [`responses`]. [`read_request`] reads requests;
//! each group of fields has its own file. [`CompletionFormat`] writes answers, and
//! [`LogprobsFormat`] their log probabilities.

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
