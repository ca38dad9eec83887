//! The events that the engine sends to the client while it answers a request.

use std::{collections::VecDeque, sync::Arc};

use thermocline_engine::session::{GenerationStats, StopReason};

use super::{
    answer_reader::{AnswerPiece, AnswerReader, RequestedTools},
    choices::add_stats,
    connections::AnsweringConnection,
    context::{ModelLease, ServerContext},
    error::ApiError,
    generation::{GenerationQueue, GenerationUpdate, ScoredToken},
    request::CompletionRequest,
};

/// One event.
#[derive(Debug)]
pub enum AnswerEvent {
    /// A choice begins.
    Begin {
        /// Number of the choice.
        index: usize,
        /// The prompt, if the text begins with it.
        echo: Option<String>,
    },
    /// A choice continues.
    Pieces {
        /// Number of the choice.
        index: usize,
        /// The new pieces.
        pieces: Vec<AnswerPiece>,
        /// New tokens with log probabilities, if the request wants them.
        scored: Vec<ScoredToken>,
    },
    /// A choice ends.
    End(Box<ChoiceEnd>),
    /// The answer fails; no event follows.
    Failed(ApiError),
}

/// The end of a choice.
#[derive(Debug, Clone)]
pub struct ChoiceEnd {
    /// Number of the choice.
    pub index: usize,
    /// Why the choice ended.
    pub reason: StopReason,
    /// True if the choice has called tools, and the last call is complete.
    pub called: bool,
    /// Token counts of the choice.
    pub stats: GenerationStats,
    /// Token counts and times of all choices so far.
    pub total: GenerationStats,
    /// True for the last choice.
    pub last: bool,
}

/// The answers to one request. Dropping them cancels the generation.
pub struct AnswerEvents {
    generation: GenerationQueue,
    ready: VecDeque<AnswerEvent>,
    reader: AnswerReader,
    tools: Option<RequestedTools>,
    /// True if the choice has a grammar and calls no tools.
    formed: bool,
    /// Texts of the prompts, if the answers begin with them.
    echoes: Vec<String>,
    /// Text of the choice's prompt, until the client has received it.
    echo: Option<String>,
    best_of: usize,
    index: usize,
    total: GenerationStats,
    ended: bool,
    _active: AnsweringConnection,
}

impl AnswerEvents {
    /// Waits for a slot, and until the engine has accepted the request.
    pub async fn start(
        context: Arc<ServerContext>,
        lease: ModelLease,
        request: CompletionRequest,
        active: AnsweringConnection,
    ) -> Result<Self, ApiError> {
        let CompletionRequest { requests, choices, echoes, tools, grammar_field, may_be, .. } = request;
        let mut generation = GenerationQueue::start(&context, lease, requests, may_be).await?;
        let first = generation.next_update().await;
        if let Some(Err(error)) = first.end {
            return Err(grammar_field.map_or(error.clone(), |field| error.renamed("grammar", &field)));
        }
        let mut events = AnswerEvents {
            generation,
            ready: VecDeque::new(),
            reader: AnswerReader::new(None),
            tools,
            formed: false,
            echoes,
            echo: None,
            best_of: choices.best_of,
            index: 0,
            total: GenerationStats::default(),
            ended: false,
            _active: active,
        };
        events.begin(0);
        events.push(first);
        Ok(events)
    }

    /// Waits for the next event; `None` at the end. Cancelling the wait loses no event.
    pub async fn next(&mut self) -> Option<AnswerEvent> {
        while self.ready.is_empty() && !self.ended {
            let update = self.generation.next_update().await;
            self.push(update);
        }
        self.ready.pop_front()
    }

    fn begin(&mut self, index: usize) {
        (self.reader, self.formed, self.index) = (AnswerReader::new(self.tools.as_ref()), false, index);
        self.echo = self.echoes.get(index / self.best_of).cloned();
        self.ready.push_back(AnswerEvent::Begin { index, echo: self.echo.clone() });
    }

    fn push(&mut self, update: GenerationUpdate) {
        if update.formed && !self.formed {
            // Nothing was read before. Text with a grammar contains no tool calls.
            (self.reader, self.formed) = (AnswerReader::new(None), true);
        }
        let index = self.index;
        let mut pieces: Vec<_> = self.echo.take().map(AnswerPiece::Content).into_iter().collect();
        pieces.extend(self.reader.push(&update.text));
        if update.end.is_some() {
            pieces.extend(self.reader.finish());
        }
        self.ready.push_back(AnswerEvent::Pieces { index, pieces, scored: update.scored });
        match update.end {
            None => {}
            Some(Ok((reason, stats))) => {
                add_stats(&mut self.total, &stats, index.is_multiple_of(self.best_of));
                self.ended = !self.generation.start_next();
                let (called, last) = (self.reader.called(), self.ended);
                let end = ChoiceEnd { index, reason, called, stats, total: self.total.clone(), last };
                self.ready.push_back(AnswerEvent::End(Box::new(end)));
                if !last {
                    self.begin(index + 1);
                }
            }
            Some(Err(error)) => {
                self.ended = true;
                self.ready.push_back(AnswerEvent::Failed(error));
            }
        }
    }
}
