//! Separates thoughts, answer and tool calls in a model's output while its tokens arrive.
//!
//! A [`ReasoningFormat`] describes how a model marks its thoughts, detected from its vocabulary and
//! chat template. An [`AnswerParser`] reads an answer in that format. A [`transcript`] is the form
//! in which answers are stored and shown, the same for all models.

mod format;
mod parser;
pub mod transcript;

pub use format::ReasoningFormat;
pub use parser::{AnswerParser, AnswerPart};
pub(crate) use parser::{AnswerPieces, overlap};
