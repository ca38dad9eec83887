//! Parses the answer of a model that may call tools.

use serde_json::Value;

use super::{
    body::{self, BodyPlace, BracketElement},
    brackets::Brackets,
    cursor::{TextCursor, Unread},
    definition::Definitions,
    event::{ToolEvent, plain},
    format::ToolFormat,
    reader::{CallOutcome, CallPlace, CallProgress, ToolReader},
};
use crate::reasoning::{AnswerPart, AnswerPieces, overlap};

/// The parser of one answer. The events do not depend on how the answer is split into pieces,
/// except for the splitting of texts. Only defined tools can be called; everything else is text,
/// returned as written.
#[derive(Debug, Clone)]
pub struct ToolParser {
    format: ToolFormat,
    definitions: Definitions,
    state: ToolState,
    /// Unread text.
    held: String,
    /// True after a call: white space between calls is dropped.
    after_call: bool,
}

#[derive(Debug, Clone)]
enum ToolState {
    /// Only white space so far.
    Beginning,
    Text,
    /// Within brackets.
    Body(Body),
    /// Within a call.
    Call(Body, Box<ToolReader>),
}

/// The state within brackets.
#[derive(Debug, Clone, Default)]
struct Body {
    brackets: Brackets,
    /// The text since the opening bracket or the last call, until a call starts.
    pending: String,
    /// True while a call has started and is not complete.
    has_begun: bool,
    /// True once a call is complete.
    has_call: bool,
    in_fence: bool,
    in_list: bool,
}

/// The events and texts that were read.
#[derive(Debug, Default)]
pub struct ReadAnswer {
    /// Text and calls.
    pub events: Vec<ToolEvent>,
    /// The answer as written: text, and calls with their control tokens marked.
    pub raw: AnswerPieces,
}

impl ToolParser {
    /// A parser for a model that was given `definitions`, in OpenAI's form.
    pub fn new(format: ToolFormat, definitions: &[Value]) -> Self {
        let definitions = Definitions::new(definitions);
        ToolParser { format, definitions, state: ToolState::Beginning, held: String::new(), after_call: false }
    }

    /// Reads a piece of the answer.
    pub fn push(&mut self, piece: &str) -> Vec<ToolEvent> {
        self.read(piece, false).events
    }

    /// Returns the events held back, because no more text follows.
    pub fn finish(&mut self) -> Vec<ToolEvent> {
        self.read("", true).events
    }

    /// Reads a piece. It is the last piece if the answer has `ended`.
    pub(super) fn read(&mut self, piece: &str, ended: bool) -> ReadAnswer {
        let mut out = ReadAnswer::default();
        self.held.push_str(piece);
        while self.step(ended, &mut out) {}
        if ended {
            (self.state, self.after_call) = (ToolState::Text, false);
        }
        out
    }

    /// True if text is held back.
    pub fn is_holding(&self) -> bool {
        let pending = match &self.state {
            ToolState::Body(body) | ToolState::Call(body, _) => !body.pending.is_empty(),
            ToolState::Beginning | ToolState::Text => false,
        };
        pending || !self.held.is_empty()
    }

    /// Advances in the held text; false if more text is needed.
    fn step(&mut self, ended: bool, out: &mut ReadAnswer) -> bool {
        match std::mem::replace(&mut self.state, ToolState::Text) {
            ToolState::Beginning => self.step_beginning(ended),
            ToolState::Text => self.step_text(ended, out),
            ToolState::Body(body) => self.step_body(body, ended, out),
            ToolState::Call(body, reader) => self.step_call(body, reader, ended, out),
        }
    }

    fn step_beginning(&mut self, ended: bool) -> bool {
        if self.held.trim_start().is_empty() && !ended {
            self.state = ToolState::Beginning;
            return false;
        }
        if self.format.bare {
            self.state = ToolState::Body(Body::default());
        }
        true
    }

    /// Reads text up to an opening bracket.
    fn step_text(&mut self, ended: bool, out: &mut ReadAnswer) -> bool {
        let all = &self.format.brackets;
        let found = all.iter().filter_map(|it| Some((self.held.find(&it.open)?, it)));
        if let Some((at, brackets)) = found.min_by_key(|(at, _)| *at) {
            let brackets = brackets.clone();
            self.take_words(at, out);
            let mut body = Body { brackets, ..Body::default() };
            let opened = if body.brackets.ends_with_name() { 0 } else { body.brackets.open.len() };
            body.pending.extend(self.held.drain(..opened));
            self.state = ToolState::Body(body);
            return true;
        }
        let possible = all.iter().map(|it| overlap(&self.held, &it.open)).max().unwrap_or(0);
        let certain = self.held.len() - if ended { 0 } else { possible };
        if self.after_call && self.held[..certain].trim().is_empty() {
            // White space belongs to the calls if a call follows or the answer ends.
            if ended {
                out.push_raw(AnswerPart::ToolCall, std::mem::take(&mut self.held));
            }
            return false;
        }
        self.take_words(certain, out);
        false
    }

    /// Reads the next element within brackets.
    fn step_body(&mut self, mut body: Body, ended: bool, out: &mut ReadAnswer) -> bool {
        let Body { brackets, has_call, in_fence, in_list, .. } = &body;
        let (has_call, in_fence, in_list) = (*has_call, *in_fence, *in_list);
        let (spelling, tools) = (&self.format.spelling, &self.definitions);
        let place = BodyPlace { brackets, spelling, tools, has_call, in_fence, in_list };
        let mut cursor = TextCursor::new(&self.held);
        let found = body::find(&mut cursor, place);
        let used = cursor.at;
        match found {
            Ok(BracketElement::Close) if !has_call => self.give_up(body, out),
            Ok(found) => {
                body.take(&mut self.held, used, out);
                body.in_fence ^= matches!(found, BracketElement::Fence);
                body.in_fence |= matches!(found, BracketElement::FencedCall(_));
                body.in_list |= matches!(found, BracketElement::List);
                match found {
                    BracketElement::Call(reader) | BracketElement::FencedCall(reader) => {
                        self.state = ToolState::Call(body, reader)
                    }
                    BracketElement::Close => self.close(body, out),
                    BracketElement::Between | BracketElement::Fence | BracketElement::List => {
                        self.state = ToolState::Body(body)
                    }
                }
            }
            Err(Unread::More) if !ended => {
                self.state = ToolState::Body(body);
                return false;
            }
            Err(_) if has_call => {
                let rest = self.held.trim_start();
                let is_end = |text: &String| text.starts_with(rest);
                if ended && (is_end(&body.brackets.close) || body.brackets.each.iter().any(is_end)) {
                    let used = self.held.len();
                    body.take(&mut self.held, used, out);
                }
                self.close(body, out);
            }
            Err(_) => self.give_up(body, out),
        }
        true
    }

    /// Ends brackets that contained calls.
    fn close(&mut self, body: Body, out: &mut ReadAnswer) {
        out.push_raw(AnswerPart::ToolCall, body.pending);
        self.after_call = true;
    }

    /// Treats unused content of brackets as text, together with the opening bracket if it is still
    /// unread.
    fn give_up(&mut self, body: Body, out: &mut ReadAnswer) {
        self.after_call |= body.has_call;
        let opened = if body.pending.is_empty() && self.held.starts_with(&body.brackets.open) {
            body.brackets.open.len()
        } else {
            0
        };
        self.held.insert_str(0, &body.pending);
        self.take_words(body.pending.len() + opened, out);
    }

    fn step_call(&mut self, mut body: Body, mut reader: Box<ToolReader>, ended: bool, out: &mut ReadAnswer) -> bool {
        let Brackets { close, each, .. } = &body.brackets;
        let place = CallPlace { tools: &self.definitions, close, each, in_list: body.in_list, ended };
        let mut events = Vec::new();
        let CallProgress { used, outcome } = reader.read(&self.held, place, &mut events);
        body.has_begun |= events.iter().any(|event| matches!(event, ToolEvent::Begin { .. }));
        events.into_iter().for_each(|event| out.push_event(event));
        body.take(&mut self.held, used, out);
        match outcome {
            CallOutcome::More => {
                self.state = ToolState::Call(body, reader);
                return false;
            }
            CallOutcome::Done => {
                (body.has_call, body.has_begun) = (true, false);
                self.state = ToolState::Body(body);
            }
            CallOutcome::Broken => self.after_call = true,
            // The answer ends within a call whose name is unknown. The user sees its start, but it
            // is not part of the answer's text.
            CallOutcome::NoCall if ended && self.held.is_empty() => {
                out.push_event(ToolEvent::Text(plain(&body.pending)));
                out.push_raw(AnswerPart::ToolCall, body.pending);
            }
            CallOutcome::NoCall => self.give_up(body, out),
        }
        true
    }

    /// Treats `length` bytes of the held text as ordinary text.
    fn take_words(&mut self, length: usize, out: &mut ReadAnswer) {
        let text: String = self.held.drain(..length).collect();
        if text.is_empty() {
            return;
        }
        if self.after_call && text.trim().is_empty() {
            out.push_raw(AnswerPart::ToolCall, text);
            return;
        }
        self.after_call = false;
        let words = plain(&text);
        out.push_event(ToolEvent::Text(words.clone()));
        out.push_raw(AnswerPart::Answer, words);
    }
}

impl Body {
    /// Adds `length` bytes of the held text to the pending text, which joins the calls once a call
    /// has started.
    fn take(&mut self, held: &mut String, length: usize, out: &mut ReadAnswer) {
        self.pending.extend(held.drain(..length));
        if self.has_begun {
            out.push_raw(AnswerPart::ToolCall, std::mem::take(&mut self.pending));
        }
    }
}

impl ReadAnswer {
    fn push_event(&mut self, event: ToolEvent) {
        match event {
            ToolEvent::Text(text) => ToolEvent::push_text(&mut self.events, &text),
            ToolEvent::Arguments(text) => ToolEvent::push_arguments(&mut self.events, &text),
            other => self.events.push(other),
        }
    }

    fn push_raw(&mut self, part: AnswerPart, text: String) {
        match self.raw.last_mut() {
            _ if text.is_empty() => {}
            Some((last, before)) if *last == part => before.push_str(&text),
            _ => self.raw.push((part, text)),
        }
    }
}

#[cfg(test)]
mod tests;
