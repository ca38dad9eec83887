//! Readers of calls, one for each notation.

use super::{
    definition::Definitions,
    event::ToolEvent,
    json_calls::{JsonCalls, ValueText},
    tag_call::TagCall,
    value_call::ValueCall,
};

/// The surroundings of a call.
#[derive(Debug, Clone, Copy)]
pub struct CallPlace<'p> {
    /// The tools that may be called.
    pub tools: &'p Definitions,
    /// Text that ends the calls; may be empty, and models may omit it.
    pub close: &'p str,
    /// Texts around each of several calls.
    pub each: &'p [String],
    /// True in a list in square brackets, whose calls are separated by commas.
    pub in_list: bool,
    /// True if no more text follows.
    pub ended: bool,
}

/// The parameters that may follow a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextKeys {
    /// Parameters of the function that were not given yet.
    Own,
    /// Any parameter. Used after the end of the text if no value ends before one of the function's
    /// own parameters.
    Any,
}

/// The state after a reading step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    /// More text is needed.
    More,
    /// All calls of the reader are complete.
    Done,
    /// A call has started and breaks off.
    Broken,
    /// The text is not a call, and none has started.
    NoCall,
}

/// The result of a step of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallProgress {
    /// Number of bytes read.
    pub used: usize,
    /// The state after the step.
    pub outcome: CallOutcome,
}

/// Reads one call, or several calls in a JSON list.
#[derive(Debug, Clone)]
pub enum ToolReader {
    /// JSON objects that contain the name.
    Json(JsonCalls),
    /// A JSON object after a name, which is already read.
    Named(NamedCall),
    /// Names and values between tags.
    Tags(TagCall),
    /// Gemma's and Python's notations.
    Values(ValueCall),
}

impl ToolReader {
    /// Reads from the start of `text`, which is the whole unread text.
    pub fn read(&mut self, text: &str, place: CallPlace<'_>, out: &mut Vec<ToolEvent>) -> CallProgress {
        match self {
            ToolReader::Json(calls) => calls.read(text, place, out),
            ToolReader::Named(call) => call.read(text, place, out),
            ToolReader::Tags(call) => call.read(text, place, out),
            ToolReader::Values(call) => call.read(text, place, out),
        }
    }
}

/// The arguments of a call whose name precedes them.
#[derive(Debug, Clone)]
pub struct NamedCall {
    /// Name of the tool, until the call starts.
    name: Option<String>,
    arguments: ValueText,
}

impl NamedCall {
    /// The reader of the JSON object that follows.
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
