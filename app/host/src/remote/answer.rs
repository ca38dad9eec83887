//! An answer that arrives in pieces.

use serde_json::Value;
use thermocline_engine::tokenizer::reasoning::AnswerPart;

use super::{RemoteError, SecretKey, ServerAddress, error::quoted};

/// Most bytes of text in an answer, including thoughts and arguments of tool calls.
const MOST_TEXT: usize = 16 << 20;

/// Most tool calls in an answer.
const MOST_CALLS: usize = 128;

/// A piece of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteEvent<'a> {
    /// Text of the answer, or thoughts, which the server sends as `reasoning_content` or
    /// `reasoning`.
    Text(AnswerPart, &'a str),
    /// Part of a tool call: its index, its name (in the first part), and a piece of its arguments.
    ToolCall(usize, Option<&'a str>, &'a str),
}

/// A tool call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteToolCall {
    /// The server's id of the call. The result must repeat it.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments as JSON.
    pub arguments: String,
}

/// The reason why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended the answer, or a stop string was met.
    Stop,
    /// The answer reached its token limit.
    Length,
    /// The model called tools.
    ToolCalls,
    /// Another reason, as the server calls it.
    Other(String),
}

/// Token counts of the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemoteUsage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that the server did not compute again.
    pub cached_tokens: usize,
    /// Tokens of the answer.
    pub completion_tokens: usize,
}

/// A complete answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteAnswer {
    /// Why the answer ended.
    pub reason: FinishReason,
    /// Tool calls, in order.
    pub tool_calls: Vec<RemoteToolCall>,
    /// Token counts, if the server sends them.
    pub usage: Option<RemoteUsage>,
}

/// Collects the chunks of an answer.
#[derive(Debug)]
pub(super) struct RemoteAnswerReader<'a> {
    server: &'a ServerAddress,
    key: Option<&'a SecretKey>,
    bytes: usize,
    /// Why the answer ended, once the server has sent it.
    pub(super) reason: Option<FinishReason>,
    tool_calls: Vec<RemoteToolCall>,
    usage: Option<RemoteUsage>,
}

impl<'a> RemoteAnswerReader<'a> {
    pub(super) fn new(server: &'a ServerAddress, key: Option<&'a SecretKey>) -> Self {
        RemoteAnswerReader { server, key, bytes: 0, reason: None, tool_calls: Vec::new(), usage: None }
    }

    /// Creates the error of a chunk that does not follow the protocol.
    pub(super) fn malformed(&self, place: &'static str, expected: &'static str, got: &str) -> RemoteError {
        RemoteError::Malformed { server: self.server.host().to_owned(), place, expected, got: quoted(got, self.key) }
    }

    /// Reads a chunk of a stream, or a whole answer. `show` receives its pieces.
    pub(super) fn read(&mut self, data: &str, show: &mut dyn FnMut(RemoteEvent<'_>)) -> Result<(), RemoteError> {
        let chunk: Value = match serde_json::from_str(data) {
            Ok(chunk) => chunk,
            Err(_) => return Err(self.malformed("stream", "a JSON object", data)),
        };
        if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
            let message = error.get("message").and_then(Value::as_str).or(error.as_str());
            let message = quoted(message.unwrap_or(&error.to_string()), self.key);
            return Err(RemoteError::Reported { server: self.server.host().to_owned(), message });
        }
        if let Some(usage) = chunk.get("usage").filter(|usage| usage.is_object()) {
            let count = |value: Option<&Value>| value.and_then(Value::as_u64).unwrap_or(0) as usize;
            self.usage = Some(RemoteUsage {
                prompt_tokens: count(usage.get("prompt_tokens")),
                cached_tokens: count(usage.pointer("/prompt_tokens_details/cached_tokens")),
                completion_tokens: count(usage.get("completion_tokens")),
            });
        }
        let Some(choices) = chunk.get("choices").and_then(Value::as_array) else {
            return Err(self.malformed("stream", "an object with `choices`", data));
        };
        // The request asks for one answer. The last chunk has only the usage and no answer.
        let Some(choice) = choices.first() else { return Ok(()) };
        if let Some(delta) = choice.get("delta").or(choice.get("message")).filter(|delta| !delta.is_null()) {
            self.text(delta, "reasoning_content", AnswerPart::Thinking, show)?;
            self.text(delta, "reasoning", AnswerPart::Thinking, show)?;
            self.text(delta, "content", AnswerPart::Answer, show)?;
            let calls = delta.get("tool_calls").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            for (at, call) in calls.iter().enumerate() {
                self.call(at, call, show)?;
            }
        }
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            self.reason = Some(match reason {
                "stop" => FinishReason::Stop,
                "length" => FinishReason::Length,
                "tool_calls" | "function_call" => FinishReason::ToolCalls,
                other => FinishReason::Other(quoted(other, self.key)),
            });
        }
        Ok(())
    }

    fn text(
        &mut self,
        delta: &Value,
        field: &str,
        part: AnswerPart,
        show: &mut dyn FnMut(RemoteEvent<'_>),
    ) -> Result<(), RemoteError> {
        match delta.get(field) {
            None | Some(Value::Null) => Ok(()),
            Some(Value::String(piece)) => {
                self.count(piece.len())?;
                if !piece.is_empty() {
                    show(RemoteEvent::Text(part, piece));
                }
                Ok(())
            }
            Some(other) => Err(self.malformed("text of the answer", "a string", &other.to_string())),
        }
    }

    fn call(&mut self, at: usize, call: &Value, show: &mut dyn FnMut(RemoteEvent<'_>)) -> Result<(), RemoteError> {
        let index = call.get("index").and_then(Value::as_u64).map_or(at, |index| index as usize);
        // The tool calls of a stream begin in order.
        if index > self.tool_calls.len() || index >= MOST_CALLS {
            return Err(self.malformed(
                "call of a tool",
                "the index of a call that has begun, or the next",
                &call.to_string(),
            ));
        }
        let first = index == self.tool_calls.len();
        if first {
            self.tool_calls.push(RemoteToolCall::default());
        }
        let string = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let (id, name) = (string(call.get("id")), string(call.pointer("/function/name")));
        let arguments = string(call.pointer("/function/arguments"));
        self.count(id.len() + name.len() + arguments.len())?;
        let known = &mut self.tool_calls[index];
        known.id.push_str(&id);
        known.name.push_str(&name);
        known.arguments.push_str(&arguments);
        show(RemoteEvent::ToolCall(index, first.then_some(&*name), &arguments));
        Ok(())
    }

    fn count(&mut self, bytes: usize) -> Result<(), RemoteError> {
        self.bytes += bytes;
        if self.bytes > MOST_TEXT {
            return Err(self.malformed("answer", "at most 16 MiB of text", "more"));
        }
        Ok(())
    }

    /// Returns the answer after the stream has ended. Without a finish reason the stream was
    /// interrupted.
    pub(super) fn finish(self) -> Result<RemoteAnswer, RemoteError> {
        let Some(reason) = self.reason else {
            return Err(RemoteError::Interrupted { server: self.server.host().to_owned() });
        };
        Ok(RemoteAnswer { reason, tool_calls: self.tool_calls, usage: self.usage })
    }
}
