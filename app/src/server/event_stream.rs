//! Answers sent while they are generated, as server-sent events or lines of JSON.

use std::{convert::Infallible, pin::Pin, time::Duration};

use super::{
    answer_format::AnswerFormat,
    choices::{ChoiceReader, ChoiceReaders},
    connections::AnsweringConnection,
    error::ApiError,
    generation::{GenerationQueue, GenerationUpdate},
    response::StreamEvent,
};
use axum::{
    body::Body,
    http::header::CONTENT_TYPE,
    response::{
        IntoResponse, Response,
        sse::{Event, Sse},
    },
};
use futures_util::{StreamExt, stream};

/// Time a request may wait before its response begins: until then a refusal has a status of its own.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time without an event after which a comment is sent, so that clients and proxies do not give up.
const COMMENT_INTERVAL: Duration = Duration::from_secs(5);

/// A generation that has begun, its first update, and the mark of its connection.
pub type StartedGeneration = (GenerationQueue, GenerationUpdate, AnsweringConnection);

type Start = Pin<Box<dyn Future<Output = Result<StartedGeneration, ApiError>> + Send>>;

/// One answer being sent. When the client disconnects it is dropped, and with it the generation.
struct AnswerStream {
    state: StreamState,
    format: AnswerFormat,
    readers: ChoiceReaders,
    reader: ChoiceReader,
}

/// One part of a stream.
enum Part {
    Event(StreamEvent),
    /// A sign of life, which says nothing.
    Comment(&'static str),
}

impl Part {
    /// As a server-sent event.
    fn event(self) -> Event {
        match self {
            Part::Event(StreamEvent { name: Some(name), data }) => Event::default().event(name).data(data),
            Part::Event(StreamEvent { name: None, data }) => Event::default().data(data),
            Part::Comment(text) => Event::default().comment(text),
        }
    }

    /// As a line; comments are none.
    fn line(self) -> Option<String> {
        match self {
            Part::Event(StreamEvent { data, .. }) => Some(data + "\n"),
            Part::Comment(_) => None,
        }
    }
}

/// A generation that has begun.
struct RunningStream {
    generation: GenerationQueue,
    first: Option<GenerationUpdate>,
    _active: AnsweringConnection,
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
    let (reader, as_lines) = (readers.next_reader(), format.is_lines());
    let answer = AnswerStream { state, format, readers, reader };
    let parts = stream::unfold(Some(answer), async |answer| Some(answer?.next_parts().await));
    let parts = parts.flat_map(stream::iter);
    if as_lines {
        let lines = parts.filter_map(async |part| part.line().map(Ok::<_, Infallible>));
        return Ok(([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response());
    }
    Ok(Sse::new(parts.map(|part| Ok::<_, Infallible>(part.event()))).into_response())
}

impl AnswerStream {
    /// The next parts, and the stream if more follow.
    async fn next_parts(mut self) -> (Vec<Part>, Option<Self>) {
        let mut events: Vec<StreamEvent> = Vec::new();
        let update = match self.state {
            StreamState::Waiting(mut start) => match tokio::time::timeout(COMMENT_INTERVAL, &mut start).await {
                Err(_) => {
                    self.state = StreamState::Waiting(start);
                    return (vec![Part::Comment("waiting for the model")], Some(self));
                }
                Ok(Err(error)) => return (vec![Part::Event(self.format.error_event(&error))], None),
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
                    Err(_) => return (vec![Part::Comment("computing")], Some(self)),
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
        (events.into_iter().map(Part::Event).collect(), (!ends).then_some(self))
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
