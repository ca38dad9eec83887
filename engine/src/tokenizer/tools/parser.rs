//! Reads an answer of a model that may call tools.

use serde_json::Value;

use super::{
    brace_call::{self, BraceCall},
    definition::Definitions,
    format::{Brackets, ToolFormat},
    json_calls::JsonCalls,
    xml_calls::{Tags, XmlCall},
};

/// Part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolEvent {
    /// Words for the user.
    Text(String),
    /// A call begins.
    Begin {
        /// Name of the function.
        name: String,
    },
    /// More of the call's arguments, which are one JSON object.
    Arguments(String),
    /// The call is complete. One that breaks off has no end: its arguments are those so far.
    End,
}

impl ToolEvent {
    /// Appends arguments.
    pub(super) fn push_arguments(out: &mut Vec<ToolEvent>, text: &str) {
        match out.last_mut() {
            _ if text.is_empty() => {}
            Some(ToolEvent::Arguments(last)) => last.push_str(text),
            _ => out.push(ToolEvent::Arguments(text.to_owned())),
        }
    }

    /// Appends text.
    pub(super) fn push_text(out: &mut Vec<ToolEvent>, text: &str) {
        match out.last_mut() {
            _ if text.is_empty() => {}
            Some(ToolEvent::Text(last)) => last.push_str(text),
            _ => out.push(ToolEvent::Text(text.to_owned())),
        }
    }
}

/// The parser of one answer. The events do not depend on how the answer is divided into pieces, but for the division of texts.
#[derive(Debug, Clone)]
pub struct ToolParser {
    format: ToolFormat,
    definitions: Definitions,
    state: State,
    /// Text that is not read yet.
    pub(super) held: String,
    /// A call was read: white space between calls is dropped.
    after_call: bool,
}

#[derive(Debug, Clone)]
enum State {
    /// Nothing but white space so far.
    Beginning,
    Text,
    /// Behind an opening bracket.
    Opened(Brackets),
    Json(JsonCalls, Brackets),
    /// Mistral's `NAME[ARGS]`, then its arguments.
    Named(String),
    Xml(XmlCall, Brackets),
    /// Gemma's notation, up to the closing bracket.
    Brace(Brackets),
    /// Before the closing bracket.
    Closing(Brackets),
}

/// Between a name and its arguments.
const ARGUMENTS: &str = "[ARGS]";
/// Between a name and the identifier of the call.
const CALL_ID: &str = "[CALL_ID]";
const FUNCTION: &str = "<function=";
const ATTRIBUTES: &str = "<function name=";
const BRACE: &str = "call:";

impl ToolParser {
    /// A parser of answers of a model that was given `definitions`, in OpenAI's form.
    pub fn new(format: ToolFormat, definitions: &[Value]) -> Self {
        let definitions = Definitions::new(definitions);
        ToolParser { format, definitions, state: State::Beginning, held: String::new(), after_call: false }
    }

    /// Reads a piece of the answer.
    pub fn push(&mut self, piece: &str) -> Vec<ToolEvent> {
        let mut out = Vec::new();
        self.held.push_str(piece);
        while self.step(&mut out) {}
        out
    }

    /// The events held back; no more text follows.
    pub fn finish(&mut self) -> Vec<ToolEvent> {
        let mut out = Vec::new();
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Text) {
            State::Beginning | State::Text => self.emit_text(&held, &mut out),
            State::Opened(brackets) => self.emit_text(&format!("{}{held}", brackets.open), &mut out),
            State::Json(mut calls, _) => calls.finish(&mut out),
            State::Named(name) => self.emit_text(&format!("{name}{held}"), &mut out),
            // A call that breaks off keeps the parameters so far.
            State::Xml(..) => {}
            State::Brace(brackets) => self.emit_brace_call(&held, brackets, &mut out),
            State::Closing(_) => {}
        }
        out
    }

    /// `true` outside calls.
    pub(super) fn is_in_text(&self) -> bool {
        matches!(self.state, State::Beginning | State::Text)
    }

    /// `true` behind the body of a call, or of what is none.
    pub(super) fn is_closing(&self) -> bool {
        matches!(self.state, State::Closing(_))
    }

    /// Bytes of the opening bracket that was read last; 0 elsewhere than right behind one.
    pub(super) fn opening(&self) -> usize {
        match &self.state {
            State::Opened(brackets) if !brackets.ends_with_name() => brackets.open.len(),
            _ => 0,
        }
    }

    /// Moves on within the held text; `false` if more is needed.
    pub(super) fn step(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        match &mut self.state {
            State::Beginning => {
                let body = self.held.trim_start();
                if body.is_empty() {
                    return false;
                }
                self.state = if self.format.bare_json && body.starts_with(['{', '[']) {
                    State::Json(JsonCalls::default(), Brackets { open: "", close: "" })
                } else {
                    State::Text
                };
                true
            }
            State::Text => self.step_text(out),
            State::Opened(brackets) => {
                let brackets = *brackets;
                self.detect_body(brackets, out)
            }
            State::Json(calls, brackets) => {
                let used = calls.push(&self.held, out);
                self.held.drain(..used);
                if !calls.is_done() {
                    return false;
                }
                self.after_call = true;
                self.state = State::Closing(*brackets);
                true
            }
            State::Named(name) => {
                let mut end = None;
                let mut values = serde_json::Deserializer::from_str(&self.held).into_iter::<Value>();
                if let Some(Ok(_)) = values.next() {
                    end = Some(values.byte_offset());
                }
                let Some(end) = end else { return false };
                out.push(ToolEvent::Begin { name: std::mem::take(name) });
                ToolEvent::push_arguments(out, self.held[..end].trim());
                out.push(ToolEvent::End);
                self.held.drain(..end);
                (self.state, self.after_call) = (State::Text, true);
                true
            }
            State::Xml(call, brackets) => {
                if !call.push(&mut self.held, &self.definitions, out) {
                    return false;
                }
                self.after_call = true;
                self.state = State::Closing(*brackets);
                true
            }
            State::Brace(brackets) => {
                let brackets = *brackets;
                let Some(end) = self.held.find(brackets.close) else { return false };
                let call: String = self.held.drain(..end).collect();
                self.emit_brace_call(&call, brackets, out);
                self.state = State::Closing(brackets);
                true
            }
            State::Closing(brackets) => {
                let brackets = *brackets;
                let rest = self.held.trim_start_matches([' ', '\n', '\r', '\t', ',', ';']);
                let behind = rest.strip_prefix(brackets.close).filter(|_| !brackets.close.is_empty());
                if let Some(behind) = behind {
                    self.held = behind.to_owned();
                    self.state = State::Text;
                } else if rest.is_empty() || brackets.close.starts_with(rest) {
                    return false;
                } else if rest.starts_with('{') {
                    self.held = rest.to_owned();
                    self.state = State::Json(JsonCalls::default(), brackets);
                } else {
                    self.state = State::Text;
                }
                true
            }
        }
    }

    /// Text up to an opening bracket.
    fn step_text(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        let found = self.format.brackets.iter().filter_map(|it| Some((self.held.find(it.open)?, *it)));
        if let Some((at, brackets)) = found.min_by_key(|(at, _)| *at) {
            let text: String = self.held.drain(..at).collect();
            self.emit_text(&text, out);
            self.held.drain(..if brackets.ends_with_name() { 0 } else { brackets.open.len() });
            self.state = State::Opened(brackets);
            return true;
        }
        let possible = self.format.brackets.iter().map(|it| overlap(&self.held, it.open)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - possible);
        let text = std::mem::replace(&mut self.held, rest);
        if self.after_call && text.trim().is_empty() {
            // It is dropped if a call follows, or nothing.
            self.held.insert_str(0, &text);
            return false;
        }
        self.emit_text(&text, out);
        false
    }

    /// Finds the notation of a call; `false` if more is needed.
    fn detect_body(&mut self, brackets: Brackets, out: &mut Vec<ToolEvent>) -> bool {
        let body = self.held.trim_start();
        if body.is_empty() || [FUNCTION, ATTRIBUTES, BRACE].iter().any(|known| known.starts_with(body)) {
            return false;
        }
        if body.starts_with(['{', '[']) {
            self.state = State::Json(JsonCalls::default(), brackets);
        } else if body.starts_with(FUNCTION) {
            self.state = State::Xml(XmlCall::new(Tags::Function, brackets.close), brackets);
        } else if body.starts_with(ATTRIBUTES) {
            self.state = State::Xml(XmlCall::new(Tags::Attributes, brackets.close), brackets);
        } else if body.starts_with(BRACE) && !brackets.close.is_empty() {
            self.state = State::Brace(brackets);
        } else if brackets.close.is_empty() {
            let Some((name, _)) = body.split_once(ARGUMENTS) else {
                // Names are short; a bracket before something else is text.
                let is_name = body.len() <= 128 && body.chars().all(|c| c.is_alphanumeric() || "_-.[]{:".contains(c));
                if !is_name || body.contains('{') {
                    self.emit_text(brackets.open, out);
                    self.state = State::Text;
                    return true;
                }
                return false;
            };
            let used = self.held.len() - body.len() + name.len() + ARGUMENTS.len();
            let name = name.split(CALL_ID).next().unwrap_or_default().trim().to_owned();
            self.held.drain(..used);
            self.state = State::Named(name);
        } else {
            self.state = State::Xml(XmlCall::new(Tags::Keys, brackets.close), brackets);
        }
        true
    }

    fn emit_text(&mut self, text: &str, out: &mut Vec<ToolEvent>) {
        if self.after_call && text.trim().is_empty() {
            return;
        }
        ToolEvent::push_text(out, text);
    }

    fn emit_brace_call(&mut self, text: &str, brackets: Brackets, out: &mut Vec<ToolEvent>) {
        match brace_call::parse(text) {
            Some(BraceCall { name, arguments }) => {
                out.push(ToolEvent::Begin { name });
                if let Some(arguments) = arguments {
                    ToolEvent::push_arguments(out, &arguments.to_string());
                    out.push(ToolEvent::End);
                }
                self.after_call = true;
            }
            None => self.emit_text(&format!("{}{text}{}", brackets.open, brackets.close), out),
        }
    }
}

/// Length of the longest proper prefix of `marker` that `text` ends with.
fn overlap(text: &str, marker: &str) -> usize {
    (1..marker.len()).rev().find(|length| text.ends_with(&marker[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests;
