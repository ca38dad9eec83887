//! The events of an answer: text and calls.

/// Precedes the text of a control token in answers with calls. It is a Unicode noncharacter for
/// internal use. Ordinary text that spells a control token lacks it.
pub const CONTROL: char = '\u{FDD3}';

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolEvent {
    /// Text for the user.
    Text(String),
    /// A call starts.
    Begin {
        /// Name of the function.
        name: String,
    },
    /// More of the call's arguments, which together form one JSON object.
    Arguments(String),
    /// The call is complete. A call that breaks off has no end and keeps the arguments so far.
    End,
}

impl ToolEvent {
    /// Appends arguments.
    pub(super) fn push_arguments(out: &mut Vec<ToolEvent>, text: &str) {
        match out.last_mut() {
            _ if text.is_empty() => {}
            Some(ToolEvent::Arguments(last)) => push_plain(last, text),
            _ => out.push(ToolEvent::Arguments(plain(text))),
        }
    }

    /// Appends text.
    pub(super) fn push_text(out: &mut Vec<ToolEvent>, text: &str) {
        match out.last_mut() {
            _ if text.is_empty() => {}
            Some(ToolEvent::Text(last)) => push_plain(last, text),
            _ => out.push(ToolEvent::Text(plain(text))),
        }
    }

    /// Starts a call.
    pub(super) fn begin(out: &mut Vec<ToolEvent>, name: &str) {
        out.push(ToolEvent::Begin { name: plain(name) });
    }
}

/// `text` without the marks before control tokens.
pub fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    push_plain(&mut out, text);
    out
}

fn push_plain(out: &mut String, text: &str) {
    text.split(CONTROL).for_each(|part| out.push_str(part));
}
