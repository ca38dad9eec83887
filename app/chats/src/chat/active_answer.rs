//! An answer that is being generated and saved.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use thermocline_engine::{
    session::{Session, StopReason},
    tokenizer::reasoning::{AnswerPart, transcript::TranscriptWriter},
};

use crate::{
    chat::call_reader::CallReader,
    store::{MessageId, MessageState, Store, StoreError, StreamingMessage, ToolCall},
};
use thermocline_host::{
    answer_stats::AnswerStats,
    engine_handle::{Answer, AnswerEnd, error_message},
    library::ModelId,
};

/// Pause before the end of an answer is saved again after a failure.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// Time between two saves of an answer's neurons while it is being generated.
const MAP_PERIOD: Duration = Duration::from_secs(3);

/// Why an answer ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    /// The user stopped the answer, or sent another message.
    User,
    /// The model was closed, or another model was opened.
    ModelClosed,
    /// The window was closed.
    WindowClosed,
}

impl StopCause {
    /// The name of this cause in [`AnswerStats::reason`].
    fn reason(self) -> &'static str {
        match self {
            StopCause::User => "cancelled",
            StopCause::ModelClosed => "model_closed",
            StopCause::WindowClosed => "window_closed",
        }
    }
}

/// Progress of an answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AnswerProgress<'a> {
    /// The message that the answer is written to.
    pub id: MessageId,
    /// The text so far.
    pub content: &'a str,
    /// Prompt tokens computed, and their total. `None` after the first token of the answer.
    pub prompt: Option<(usize, usize)>,
    /// `true` while it waits for a model that is opening.
    pub waits: bool,
    /// Statistics so far.
    pub figures: Option<&'a AnswerStats>,
    /// Why the latest text could not be saved. Saving is tried again.
    pub unsaved: Option<&'a str>,
    /// `true` if the generation has ended and only saving remains.
    pub ended: bool,
}

/// An answer: its message in the store and its generation.
#[derive(Debug)]
pub(super) struct ActiveAnswer {
    streaming: StreamingMessage,
    answer: Option<(Answer, Option<Arc<Session>>)>,
    prompt: Option<(usize, usize)>,
    figures: Option<AnswerStats>,
    pending: String,
    writer: TranscriptWriter,
    /// Reader of tool calls, if the model was given tools.
    reader: Option<CallReader>,
    pub stopped: bool,
    end: Option<MessageState>,
    /// Latest error of the store, until saving succeeds.
    unsaved: Option<String>,
    /// Time at which saving the end failed last.
    save_failed_at: Option<Instant>,
    /// Key of the model that writes it.
    model: Option<String>,
    /// Time of the next save of its neurons.
    map_due: Instant,
}

impl ActiveAnswer {
    pub fn new(streaming: StreamingMessage) -> Self {
        ActiveAnswer {
            writer: TranscriptWriter::after(streaming.content()),
            streaming,
            answer: None,
            prompt: None,
            figures: None,
            pending: String::new(),
            reader: None,
            stopped: false,
            end: None,
            unsaved: None,
            save_failed_at: None,
            model: None,
            map_due: Instant::now(),
        }
    }

    pub fn id(&self) -> MessageId {
        self.streaming.id()
    }

    pub fn progress(&self) -> AnswerProgress<'_> {
        AnswerProgress {
            id: self.streaming.id(),
            content: self.streaming.content(),
            prompt: self.prompt,
            waits: self.answer.is_none() && self.end.is_none(),
            figures: self.figures.as_ref(),
            unsaved: self.unsaved.as_deref(),
            ended: self.end.is_some(),
        }
    }

    pub fn is_started(&self) -> bool {
        self.answer.is_some()
    }

    /// Waits until the generation has ended, but at most `longest`.
    pub fn wait(&self, longest: Duration) {
        if let Some((answer, _)) = &self.answer {
            answer.end_signal().wait(longest);
        }
    }

    /// Records the start of the generation. `session` is `None` for a server's model, and `reader`
    /// is `None` if the model was given no tools. `model` is the key of the model.
    pub fn start(
        &mut self,
        answer: Answer,
        session: Option<Arc<Session>>,
        reader: Option<CallReader>,
        model: Option<ModelId>,
    ) {
        self.answer = Some((answer, session));
        self.reader = reader;
        self.model = model.as_ref().map(ModelId::key);
    }

    /// The session that generates it; `None` for a server's model.
    pub fn session(&self) -> Option<&Arc<Session>> {
        self.answer.as_ref()?.1.as_ref()
    }

    /// Key of the model that writes it.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// `true` if its neurons are due to be saved. Regular saves limit what a crash loses.
    pub fn is_map_due(&mut self) -> bool {
        let due = !self.streaming.content().is_empty() && self.map_due <= Instant::now();
        if due {
            self.map_due = Instant::now() + MAP_PERIOD;
        }
        due
    }

    /// The tool calls of an answer that ended by itself.
    pub fn calls(&self) -> &[ToolCall] {
        let ended = self.reader.as_ref().filter(|_| self.end == Some(MessageState::Complete));
        ended.map_or(&[], CallReader::calls)
    }

    /// Records the end and returns the session. The end remains to be saved.
    pub fn end(&mut self, state: MessageState, figures: Option<AnswerStats>) -> Option<Arc<Session>> {
        self.end = Some(state);
        let figures = figures.or(self.figures.take());
        self.figures = figures.map(|figures| AnswerStats { writer: self.model.clone(), ..figures });
        self.answer.take().and_then(|(_, session)| session)
    }

    /// Ends the generation early and returns the session.
    pub fn break_off(&mut self, cause: StopCause) -> Option<Arc<Session>> {
        let figures = self.figures.take().unwrap_or_default();
        let figures = AnswerStats { reason: cause.reason().to_owned(), ..figures };
        self.end(MessageState::Stopped, Some(figures))
    }

    pub fn is_ended(&self) -> bool {
        self.end.is_some()
    }

    /// `true` if it is time to try saving the end again.
    pub fn is_due(&self) -> bool {
        self.save_failed_at.is_none_or(|at| at.elapsed() >= RETRY_PAUSE)
    }

    pub fn stop(&mut self) {
        self.stopped = true;
        if let Some((answer, _)) = &self.answer {
            answer.stop();
        }
    }

    /// Takes new text; returns the end if the generation has ended.
    pub fn take_update(&mut self) -> Option<(MessageState, Option<AnswerStats>)> {
        let update = self.answer.as_ref()?.0.take_update();
        for (part, piece) in update.text.pieces() {
            let text = match &mut self.reader {
                Some(reader) => self.writer.push(part, &reader.push(part, piece)),
                None => self.writer.push(part, piece),
            };
            self.pending.push_str(&text);
        }
        if let Some(reader) = &mut self.reader {
            update.tool_calls.into_iter().for_each(|call| reader.add(call.name, call.arguments));
            if update.end.is_some() {
                let rest = reader.finish();
                self.pending.push_str(&self.writer.push(AnswerPart::Answer, &rest));
            }
        }
        self.prompt = if self.pending.is_empty() { update.prompt.or(self.prompt) } else { None };
        if let Some(stats) = &update.stats {
            self.figures = Some(AnswerStats::new(stats, None));
        }
        Some(match update.end? {
            AnswerEnd::Done(reason, stats) => {
                let state = match reason {
                    StopReason::EndOfText | StopReason::StopString(_) => MessageState::Complete,
                    StopReason::MaxTokens | StopReason::ContextFull => MessageState::Truncated,
                    StopReason::Cancelled => MessageState::Stopped,
                };
                (state, Some(AnswerStats::new(&stats, Some(&reason))))
            }
            AnswerEnd::Failed(error) => self.failed(error_message(&error)),
            AnswerEnd::Refused(sentence) => self.failed(sentence),
        })
    }

    fn failed(&mut self, sentence: String) -> (MessageState, Option<AnswerStats>) {
        let figures = self.figures.take().unwrap_or_default();
        let figures = AnswerStats { reason: "error".to_owned(), error: Some(sentence), ..figures };
        (MessageState::Failed, Some(figures))
    }

    /// `true` if text could not be saved.
    pub fn has_unsaved_text(&self) -> bool {
        self.unsaved.is_some()
    }

    /// Saves new text.
    pub fn save(&mut self, store: &mut Store) -> Result<(), StoreError> {
        let text = std::mem::take(&mut self.pending);
        let saved = self.streaming.push(store, &text);
        if self.streaming.is_saved() {
            self.unsaved = None;
        }
        saved.inspect_err(|error| self.unsaved = Some(error.to_string()))
    }

    /// Saves the end. May be repeated after a failure.
    pub fn finish(&mut self, store: &mut Store) -> Result<(), StoreError> {
        self.streaming.append(&std::mem::take(&mut self.pending));
        let figures = self.figures.as_ref().and_then(|figures| serde_json::to_string(figures).ok());
        let state = self.end.unwrap_or(MessageState::Stopped);
        let mut saved = self.streaming.finish(store, state, figures.as_deref());
        if saved.is_ok() && !self.calls().is_empty() {
            saved = store.set_tool_calls(self.id(), self.calls());
        }
        saved.inspect_err(|error| {
            self.save_failed_at = Some(Instant::now());
            self.unsaved = Some(error.to_string());
        })
    }
}
