//! One answer that is being written.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use thermocline_engine::session::{Session, StopReason};

use super::Figures;
use crate::{
    host::{Answer, End, reason},
    store::{MessageId, MessageState, Store, StoreError, Streaming},
};

/// What could not be kept is tried again after this.
const AGAIN: Duration = Duration::from_secs(2);

/// How far an answer has come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress<'a> {
    /// Its message.
    pub id: MessageId,
    /// The words so far.
    pub content: &'a str,
    /// Tokens of the prompt that were read, and of how many, until the first word.
    pub prompt: Option<(usize, usize)>,
    /// Whether it waits for a model that is being opened.
    pub waits: bool,
    /// Figures so far.
    pub figures: Option<&'a Figures>,
    /// Why the latest words are not on disk, while that is so; it is tried again.
    pub unkept: Option<&'a str>,
    /// Whether the model has ended it, and only the disk is waited for.
    pub ended: bool,
}

/// An answer and the engine's end of it.
#[derive(Debug)]
pub(super) struct UnderWay {
    streaming: Streaming,
    answer: Option<(Answer, Arc<Session>)>,
    prompt: Option<(usize, usize)>,
    figures: Option<Figures>,
    pending: String,
    stopped: bool,
    end: Option<MessageState>,
    /// What the store said last, while it refuses.
    unkept: Option<String>,
    /// When the end was refused.
    refused: Option<Instant>,
}

impl UnderWay {
    pub fn new(streaming: Streaming) -> Self {
        UnderWay {
            streaming,
            answer: None,
            prompt: None,
            figures: None,
            pending: String::new(),
            stopped: false,
            end: None,
            unkept: None,
            refused: None,
        }
    }

    pub fn id(&self) -> MessageId {
        self.streaming.id()
    }

    pub fn progress(&self) -> Progress<'_> {
        Progress {
            id: self.streaming.id(),
            content: self.streaming.content(),
            prompt: self.prompt,
            waits: self.answer.is_none() && self.end.is_none(),
            figures: self.figures.as_ref(),
            unkept: self.unkept.as_deref(),
            ended: self.end.is_some(),
        }
    }

    pub fn is_begun(&self) -> bool {
        self.answer.is_some()
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Waits until the model has ended it, but no longer than `longest`.
    pub fn wait(&self, longest: Duration) {
        if let Some((answer, _)) = &self.answer {
            answer.ending().wait(longest);
        }
    }

    pub fn begun(&mut self, answer: Answer, session: Arc<Session>) {
        self.answer = Some((answer, session));
    }

    /// The end has come. What remains is to be finished; the session is free.
    pub fn end(&mut self, state: MessageState, figures: Option<Figures>) -> Option<Arc<Session>> {
        self.end = Some(state);
        self.figures = figures.or(self.figures.take());
        self.answer.take().map(|(_, session)| session)
    }

    pub fn is_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Whether the end may be tried again.
    pub fn is_due(&self) -> bool {
        self.refused.is_none_or(|at| at.elapsed() >= AGAIN)
    }

    pub fn stop(&mut self) {
        self.stopped = true;
        if let Some((answer, _)) = &self.answer {
            answer.stop();
        }
    }

    /// Takes what is new; the end, if that is among it.
    pub fn listen(&mut self) -> Option<(MessageState, Option<Figures>)> {
        let update = self.answer.as_ref()?.0.take();
        self.pending.push_str(&update.text);
        self.prompt = if self.pending.is_empty() { update.prompt.or(self.prompt) } else { None };
        if let Some(stats) = &update.stats {
            self.figures = Some(Figures::new(stats, None));
        }
        Some(match update.end? {
            End::Done(reason, stats) => {
                let state = match reason {
                    StopReason::EndOfText | StopReason::StopString(_) => MessageState::Complete,
                    StopReason::MaxTokens | StopReason::ContextFull => MessageState::Cut,
                    StopReason::Cancelled => MessageState::Stopped,
                };
                (state, Some(Figures::new(&stats, Some(&reason))))
            }
            End::Failed(error) => {
                let figures = self.figures.take().unwrap_or_default();
                (
                    MessageState::Failed,
                    Some(Figures { reason: "error".to_owned(), error: Some(reason(&error)), ..figures }),
                )
            }
        })
    }

    /// Whether the store has refused what is not on disk yet.
    pub fn is_unkept(&self) -> bool {
        self.unkept.is_some()
    }

    /// Hands what is new to the store.
    pub fn write(&mut self, store: &mut Store) -> Result<(), StoreError> {
        let text = std::mem::take(&mut self.pending);
        let kept = self.streaming.push(store, &text);
        if self.streaming.is_kept() {
            self.unkept = None;
        }
        self.note(kept)
    }

    /// Hands the end to the store, which may be tried again if it fails.
    pub fn finish(&mut self, store: &mut Store) -> Result<(), StoreError> {
        self.streaming.append(&std::mem::take(&mut self.pending));
        let figures = self.figures.as_ref().and_then(|figures| serde_json::to_string(figures).ok());
        let state = self.end.unwrap_or(MessageState::Stopped);
        let kept = self.streaming.finish(store, state, figures.as_deref());
        if kept.is_err() {
            self.refused = Some(Instant::now());
        }
        self.note(kept)
    }

    fn note(&mut self, kept: Result<(), StoreError>) -> Result<(), StoreError> {
        kept.inspect_err(|error| self.unkept = Some(error.to_string()))
    }
}
