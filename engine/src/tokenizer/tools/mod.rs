//! Calls of tools in answers, in the formats that models were trained on, parsed while the text arrives.
//!
//! A [`ToolFormat`] says how one model writes calls, found in its chat template and vocabulary; a [`ToolParser`] reads an answer in that
//! format and tells text and calls apart; a [`CallSplitter`] does so and changes neither. Inside, [`json_calls`] reads JSON objects,
//! [`xml_calls`] calls between tags, and [`brace_call`] Gemma's notation; [`definition`] knows the types of parameters, which formats without quotes need.

mod brace_call;
mod call_splitter;
mod definition;
mod format;
mod json_calls;
mod parser;
mod xml_calls;

pub(crate) use call_splitter::CallSplitter;
pub use format::ToolFormat;
pub use parser::{ToolEvent, ToolParser};
