//! The readers of calls, one for each notation.

use super::{
    definition::Definitions,
    event::ToolEvent,
    json_calls::{JsonCalls, ValueText},
    tag_call::TagCall,
    value_call::ValueCall,
};

/// Where a call stands.
#[derive(Debug, Clone, Copy)]
pub struct CallPlace<'p> {
    /// The tools that may be called.
    pub tools: &'p Definitions,
    /// Ends the calls; may be empty, and may be left out.
    pub close: &'p str,
    /// Around each of several calls.
    pub each: &'p [String],
    /// In a list with brackets, whose calls are separated by commas.
    pub in_list: bool,
    /// No more text follows.
    pub ended: bool,
}

/// Parameters that may follow a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextKeys {
    /// Those of the function that were not given yet.
    Own,
    /// Any: the text has ended, and no value ends before one of the function's own.
    Any,
}

/// How far reading has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    /// More text is needed.
    More,
    /// All calls of the reader are complete.
    Done,
    /// A call has begun and breaks off.
    Broken,
    /// It is no call; none has begun.
    NoCall,
}

/// The result of a step of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallProgress {
    /// Bytes of the text that were read.
    pub used: usize,
    /// How far reading has come.
    pub outcome: CallOutcome,
}

/// Reads one call, or several in one JSON list.
#[derive(Debug, Clone)]
pub enum ToolReader {
    /// JSON objects with the name in them.
    Json(JsonCalls),
    /// A name, which is read, and a JSON object.
    Named(NamedCall),
    /// Names and values between tags.
    Tags(TagCall),
    /// Gemma's and Python's notations.
    Values(ValueCall),
}

impl ToolReader {
    /// Reads from the beginning of `text`, which is all that was not read before.
    pub fn read(&mut self, text: &str, place: CallPlace<'_>, out: &mut Vec<ToolEvent>) -> CallProgress {
        match self {
            ToolReader::Json(calls) => calls.read(text, place, out),
            ToolReader::Named(call) => call.read(text, place, out),
            ToolReader::Tags(call) => call.read(text, place, out),
            ToolReader::Values(call) => call.read(text, place, out),
        }
    }
}

/// The arguments of a call whose name stands before them.
#[derive(Debug, Clone)]
pub struct NamedCall {
    /// Until the call has begun.
    name: Option<String>,
    arguments: ValueText,
}

impl NamedCall {
    /// The reader of a JSON object, which comes next.
    pub fn new(name: &str) -> Self {
        NamedCall { name: Some(name.to_owned()), arguments: ValueText::default() }
    }

    fn read(&mut self, text: &str, place: CallPlace<'_>, out: &mut Vec<ToolEvent>) -> CallProgress {
        if let Some(name) = self.name.take() {
            ToolEvent::begin(out, &name);
        }
        for (at, c) in text.char_indices() {
            let is_complete = self.arguments.push(c);
            ToolEvent::push_arguments(out, c.encode_utf8(&mut [0; 4]));
            if is_complete {
                out.push(ToolEvent::End);
                return CallProgress { used: at + c.len_utf8(), outcome: CallOutcome::Done };
            }
        }
        let outcome = if place.ended { CallOutcome::Broken } else { CallOutcome::More };
        CallProgress { used: text.len(), outcome }
    }
}
