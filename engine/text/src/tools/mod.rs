//! Parses tool calls in arriving answers, in the notations that models were trained on.
//!
//! A [`ToolFormat`] describes how a model writes calls, detected from its chat template and
//! vocabulary. A [`ToolParser`] reads an answer in that format and separates text from calls. A
//! [`CallSplitter`] separates them too, but leaves both as written. [`brackets`] lists the texts
//! around calls, and [`body`] finds the notation within them. A [`reader`] reads each call:
//! [`json_calls`] JSON objects, [`tag_call`] values between tags, [`value_call`] Gemma's and
//! Python's notations. [`definition`] holds the names of tools and the types of their parameters,
//! which notations without quotes need.

mod body;
mod brackets;
mod call_splitter;
mod cursor;
mod definition;
mod event;
mod format;
mod json_calls;
mod parser;
mod reader;
mod tag_call;
mod text_value;
mod value_call;

pub use call_splitter::CallSplitter;
pub use event::ToolEvent;
pub use event::{CONTROL, plain};
pub use format::{CallToken, ToolFormat};
pub use parser::ToolParser;
