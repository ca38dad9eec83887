//! The protocol in which an answer is written: whole, or as server-sent events.

use serde_json::Value;
use thermocline_engine::session::{GenerationStats, StopReason};

use super::{
    answer_reader::AnswerPiece,
    anthropic::{self, MessageFormat},
    choices::Choice,
    error::ApiError,
    ollama::{self, LinesFormat},
    response::{CompletionFormat, StreamEvent},
    responses::ResponseFormat,
};

/// Formatter of one answer.
#[derive(Debug)]
pub enum AnswerFormat {
    /// OpenAI's chat or text completion.
    Completion {
        /// Formatter of its chunks.
        format: CompletionFormat,
        /// A stream ends with token counts.
        include_usage: bool,
    },
    /// OpenAI's response of items.
    Response(Box<ResponseFormat>),
    /// Anthropic's message.
    Message(MessageFormat),
    /// Ollama's lines.
    Lines(LinesFormat),
}

impl AnswerFormat {
    /// The complete answer.
    pub fn whole(&self, choices: Vec<Choice>, with_logprobs: bool, total: &GenerationStats) -> Value {
        match self {
            AnswerFormat::Completion { format, .. } => format.whole(choices, with_logprobs, total),
            AnswerFormat::Response(format) => {
                choices.first().map(|choice| format.whole(choice, total)).unwrap_or_default()
            }
            AnswerFormat::Message(format) => {
                choices.first().map(|choice| format.whole(choice, total)).unwrap_or_default()
            }
            AnswerFormat::Lines(format) => {
                choices.first().map(|choice| format.whole(choice, total)).unwrap_or_default()
            }
        }
    }

    /// True if events are lines rather than server-sent events.
    pub fn is_lines(&self) -> bool {
        matches!(self, AnswerFormat::Lines(_))
    }

    /// The events before the first text of choice `index`.
    pub fn first_events(&mut self, index: usize) -> Vec<StreamEvent> {
        match self {
            AnswerFormat::Completion { format, .. } => {
                let chunk = format.first_chunk(index);
                self.chunks(chunk)
            }
            AnswerFormat::Response(format) => format.first_events(),
            AnswerFormat::Message(format) => format.first_events(),
            AnswerFormat::Lines(_) => Vec::new(),
        }
    }

    /// The events of new pieces of choice `index`, with the log probabilities of their tokens.
    pub fn piece_events(&mut self, index: usize, pieces: &[AnswerPiece], logprobs: Option<Value>) -> Vec<StreamEvent> {
        match self {
            AnswerFormat::Completion { format, .. } => {
                let mut chunks: Vec<Value> = pieces.iter().map(|piece| format.piece_chunk(index, piece)).collect();
                if let Some(logprobs) = logprobs {
                    if chunks.is_empty() {
                        chunks.push(format.empty_chunk(index));
                    }
                    chunks[0]["choices"][0]["logprobs"] = logprobs;
                }
                self.chunks(chunks)
            }
            AnswerFormat::Response(format) => format.piece_events(pieces),
            AnswerFormat::Message(format) => format.piece_events(pieces),
            AnswerFormat::Lines(format) => format.piece_events(pieces),
        }
    }

    /// The events behind choice `index`, which has ended for `reason`; `called`: with calls of tools; `total`: the counts of all choices, if
    /// it is the last.
    pub fn last_events(
        &mut self,
        index: usize,
        reason: &StopReason,
        called: bool,
        total: Option<&GenerationStats>,
    ) -> Vec<StreamEvent> {
        match self {
            AnswerFormat::Completion { format, include_usage } => {
                let last = format.final_chunk(index, reason, called);
                let usage = total.filter(|_| *include_usage).map(|total| format.usage_chunk(total).to_string());
                let mut events = self.chunks([last]);
                let end = usage.into_iter().chain(total.map(|_| "[DONE]".to_owned()));
                events.extend(end.map(|data| StreamEvent { name: None, data }));
                events
            }
            AnswerFormat::Response(format) => match total {
                Some(total) => format.last_events(reason, called, total),
                None => Vec::new(),
            },
            AnswerFormat::Message(format) => match total {
                Some(total) => format.last_events(reason, called, total),
                None => Vec::new(),
            },
            AnswerFormat::Lines(format) => match total {
                Some(total) => format.last_events(reason, total),
                None => Vec::new(),
            },
        }
    }

    /// The event of a failure, which is the last one.
    pub fn error_event(&self, error: &ApiError) -> StreamEvent {
        match self {
            AnswerFormat::Completion { .. } => StreamEvent { name: None, data: error.json().to_string() },
            AnswerFormat::Response(format) => format.error_event(error),
            AnswerFormat::Message(_) => {
                StreamEvent { name: Some("error"), data: anthropic::error_body(error).to_string() }
            }
            AnswerFormat::Lines(_) => StreamEvent { name: None, data: ollama::error_body(error).to_string() },
        }
    }

    /// The events of chunks, which say that counts follow where they do.
    fn chunks(&self, chunks: impl IntoIterator<Item = Value>) -> Vec<StreamEvent> {
        let counted = matches!(self, AnswerFormat::Completion { include_usage: true, .. });
        let event = |mut chunk: Value| {
            if counted {
                chunk["usage"] = Value::Null;
            }
            StreamEvent { name: None, data: chunk.to_string() }
        };
        chunks.into_iter().map(event).collect()
    }
}
