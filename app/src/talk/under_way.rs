//! One answer that is being written.

use std::sync::Arc;

use thermocline_engine::session::{Session, StopReason};

use super::Figures;
use crate::{
    host::{Answer, End},
    store::{MessageId, MessageState, Store, StoreError, Streaming},
};

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
    /// Running figures.
    pub figures: Option<&'a Figures>,
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
}

impl UnderWay {
    pub fn new(streaming: Streaming) -> Self {
        UnderWay { streaming, answer: None, prompt: None, figures: None, pending: String::new(), stopped: false }
    }

    pub fn id(&self) -> MessageId {
        self.streaming.id()
    }

    pub fn progress(&self) -> Progress<'_> {
        Progress {
            id: self.streaming.id(),
            content: self.streaming.content(),
            prompt: self.prompt,
            waits: self.answer.is_none(),
            figures: self.figures.as_ref(),
        }
    }

    pub fn is_begun(&self) -> bool {
        self.answer.is_some()
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    pub fn begun(&mut self, answer: Answer, session: Arc<Session>) {
        self.answer = Some((answer, session));
    }

    pub fn session(&self) -> Option<Arc<Session>> {
        self.answer.as_ref().map(|(_, session)| Arc::clone(session))
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
            End::Failed(sentence) => {
                let figures = self.figures.take().unwrap_or_default();
                (MessageState::Failed, Some(Figures { reason: "error".to_owned(), error: Some(sentence), ..figures }))
            }
        })
    }

    /// Hands what is new to the store.
    pub fn write(&mut self, store: &mut Store) -> Result<(), StoreError> {
        let text = std::mem::take(&mut self.pending);
        self.streaming.push(store, &text)
    }

    pub fn finish(
        mut self,
        store: &mut Store,
        state: MessageState,
        figures: Option<&Figures>,
    ) -> Result<(), StoreError> {
        let text = std::mem::take(&mut self.pending);
        // A failure to keep it is a failure to finish, too.
        let _ = self.streaming.push(store, &text);
        let figures = figures.or(self.figures.as_ref()).and_then(|figures| serde_json::to_string(figures).ok());
        self.streaming.finish(store, state, figures.as_deref())
    }
}
