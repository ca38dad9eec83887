//! Answers sent while they are generated, as server-sent events.

use std::{convert::Infallible, pin::Pin, time::Duration};

use super::{
    answer_format::AnswerFormat,
    choices::{ChoiceReader, ChoiceReaders},
    connections::ActiveAnswer,
    error::ApiError,
    generation::{Generation, GenerationUpdate},
    response::StreamEvent,
};
use axum::response::{
    IntoResponse, Response,
    sse::{Event, Sse},
};
use futures_util::{StreamExt, stream};

/// Time a request may wait before its response begins: until then a refusal has a status of its own.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time without an event after which a comment is sent, so that clients and proxies do not give up.
const COMMENT_INTERVAL: Duration = Duration::from_secs(5);

/// A generation that has begun, its first update, and the mark of its connection.
pub type StartedGeneration = (Generation, GenerationUpdate, ActiveAnswer);

type Start = Pin<Box<dyn Future<Output = Result<StartedGeneration, ApiError>> + Send>>;

/// One answer being sent. When the client disconnects it is dropped, and with it the generation.
struct AnswerStream {
    state: StreamState,
    format: AnswerFormat,
    readers: ChoiceReaders,
    reader: ChoiceReader,
}

/// A generation that has begun.
struct RunningStream {
    generation: Generation,
    first: Option<GenerationUpdate>,
    _active: ActiveAnswer,
}

enum StreamState {
    /// It waits for the model.
    Waiting(Start),
    /// It is being generated; with the update that arrived before the response began.
    Running(Box<RunningStream>),
}

/// Builds the response to a request that `start` begins to answer. Where the model is busy the response begins before the answer.
pub async fn event_stream(
    start: impl Future<Output = Result<StartedGeneration, ApiError>> + Send + 'static,
    format: AnswerFormat,
    mut readers: ChoiceReaders,
) -> Result<Response, ApiError> {
    let mut start: Start = Box::pin(start);
    let state = match tokio::time::timeout(PATIENCE, &mut start).await {
        Ok(started) => {
            let (generation, first, active) = started?;
            StreamState::Running(Box::new(RunningStream { generation, first: Some(first), _active: active }))
        }
        Err(_) => StreamState::Waiting(start),
    };
    let reader = readers.next_reader();
    let answer = AnswerStream { state, format, readers, reader };
    let events = stream::unfold(Some(answer), async |answer| Some(answer?.next_events().await));
    let events = events.flat_map(|events| stream::iter(events.into_iter().map(Ok::<_, Infallible>)));
    Ok(Sse::new(events).into_response())
}

impl AnswerStream {
    /// The next events, and the stream if more follow.
    async fn next_events(mut self) -> (Vec<Event>, Option<Self>) {
        let mut events: Vec<StreamEvent> = Vec::new();
        let update = match self.state {
            StreamState::Waiting(mut start) => match tokio::time::timeout(COMMENT_INTERVAL, &mut start).await {
                Err(_) => {
                    self.state = StreamState::Waiting(start);
                    return (vec![Event::default().comment("waiting for the model")], Some(self));
                }
                Ok(Err(error)) => return (as_events(vec![self.format.error_event(&error)]), None),
                Ok(Ok((generation, first, active))) => {
                    self.state = StreamState::Running(Box::new(RunningStream {
                        generation,
                        first: Some(first),
                        _active: active,
                    }));
                    return (Vec::new(), Some(self));
                }
            },
            StreamState::Running(ref mut running) => match running.first.take() {
                Some(first) => {
                    events = self.format.first_events(self.reader.index);
                    first
                }
                None => match tokio::time::timeout(COMMENT_INTERVAL, running.generation.next_update()).await {
                    Ok(update) => update,
                    Err(_) => return (vec![Event::default().comment("computing")], Some(self)),
                },
            },
        };
        let pieces = self.reader.push(&update);
        let index = self.reader.index;
        let scored = self.readers.returns_logprobs() && !update.scored.is_empty();
        let logprobs = scored.then(|| self.reader.logprobs.json(&update.scored));
        events.extend(self.format.piece_events(index, &pieces, logprobs));
        let ends = match update.end {
            None => false,
            Some(Ok((reason, stats))) => {
                self.readers.count(&stats);
                let called = self.reader.called();
                let ends = !self.start_next();
                let total = Some(self.readers.total()).filter(|_| ends);
                events.extend(self.format.last_events(index, &reason, called, total));
                if !ends {
                    events.extend(self.format.first_events(self.reader.index));
                }
                ends
            }
            Some(Err(error)) => {
                events.push(self.format.error_event(&error));
                true
            }
        };
        (as_events(events), (!ends).then_some(self))
    }

    /// Begins the next choice; `false` if there is none.
    fn start_next(&mut self) -> bool {
        let StreamState::Running(running) = &mut self.state else { return false };
        let started = running.generation.start_next();
        if started {
            self.reader = self.readers.next_reader();
        }
        started
    }
}

fn as_events(events: Vec<StreamEvent>) -> Vec<Event> {
    let event = |StreamEvent { name, data }| {
        let event = match name {
            Some(name) => Event::default().event(name),
            None => Event::default(),
        };
        event.data(data)
    };
    events.into_iter().map(event).collect()
}
