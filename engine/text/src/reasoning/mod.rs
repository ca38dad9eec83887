//! Answers of models that think: thoughts, answer and tool calls, told apart while the tokens arrive.
//!
//! A [`ReasoningFormat`] is how one model marks them, found in its vocabulary and chat template; an [`AnswerParser`] reads an
//! answer in that format. A [`transcript`] is the form in which an answer is kept and shown, the same for all models.

mod format;
mod parser;
pub mod transcript;

pub use format::ReasoningFormat;
pub use parser::{AnswerParser, AnswerPart};
pub(crate) use parser::{AnswerPieces, overlap};
