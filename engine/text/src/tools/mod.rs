//! Calls of tools in answers, in the notations that models were trained on, parsed while the text arrives.
//!
//! A [`ToolFormat`] says how one model writes calls, found in its chat template and vocabulary. A [`ToolParser`] reads an answer in that
//! format and tells text and calls apart; a [`CallSplitter`] does so and changes neither. Inside, [`brackets`] has the texts around
//! calls, [`body`] finds the notation of what is within them, and a [`reader`] reads each call: [`json_calls`] JSON objects,
//! [`tag_call`] values between tags, [`value_call`] Gemma's and Python's notations. [`definition`] knows the names of tools and the types
//! of their parameters, which notations without quotes need.

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
