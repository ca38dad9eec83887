//! Answers sent while they are generated, as server-sent events.

use std::{convert::Infallible, pin::Pin, time::Duration};

use axum::response::{
    IntoResponse, Response,
    sse::{Event, Sse},
};
use futures_util::{StreamExt, stream};
use serde_json::Value;

use super::{
    choices::{ChoiceReader, ChoiceReaders},
    connections::ActiveAnswer,
    error::ApiError,
    generation::{Generation, GenerationUpdate},
    response::CompletionFormat,
};

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
    format: CompletionFormat,
    readers: ChoiceReaders,
    reader: ChoiceReader,
    include_usage: bool,
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

/// Builds the response to a request that `start` begins to answer; with `include_usage` the stream ends with token counts. Where the
/// model is busy the response begins before the answer.
pub async fn event_stream(
    start: impl Future<Output = Result<StartedGeneration, ApiError>> + Send + 'static,
    format: CompletionFormat,
    mut readers: ChoiceReaders,
    include_usage: bool,
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
    let answer = AnswerStream { state, format, readers, reader, include_usage };
    let events = stream::unfold(Some(answer), async |answer| Some(answer?.next_events().await));
    let events = events.flat_map(|events| stream::iter(events.into_iter().map(Ok::<_, Infallible>)));
    Ok(Sse::new(events).into_response())
}

impl AnswerStream {
    /// The next events, and the stream if more follow.
    async fn next_events(mut self) -> (Vec<Event>, Option<Self>) {
        let mut data: Vec<String> = Vec::new();
        let update = match self.state {
            StreamState::Waiting(mut start) => match tokio::time::timeout(COMMENT_INTERVAL, &mut start).await {
                Err(_) => {
                    self.state = StreamState::Waiting(start);
                    return (vec![Event::default().comment("waiting for the model")], Some(self));
                }
                Ok(Err(error)) => return (vec![Event::default().data(error.json().to_string())], None),
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
                    data.extend(
                        self.format.first_chunk(self.reader.index).map(|chunk| event_text(self.include_usage, chunk)),
                    );
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
        let mut chunks: Vec<Value> = pieces.iter().map(|piece| self.format.piece_chunk(index, piece)).collect();
        if self.readers.returns_logprobs() && !update.scored.is_empty() {
            if chunks.is_empty() {
                chunks.push(self.format.empty_chunk(index));
            }
            chunks[0]["choices"][0]["logprobs"] = self.reader.logprobs.json(&update.scored);
        }
        let mut ends = false;
        match update.end {
            None => {}
            Some(Ok((reason, stats))) => {
                self.readers.count(&stats);
                chunks.push(self.format.final_chunk(index, &reason, self.reader.called()));
                ends = !self.start_next();
                chunks.extend(if ends { None } else { self.format.first_chunk(self.reader.index) });
            }
            Some(Err(error)) => {
                data.extend(chunks.into_iter().map(|chunk| event_text(self.include_usage, chunk)));
                data.push(error.json().to_string());
                return (as_events(data), None);
            }
        }
        data.extend(chunks.into_iter().map(|chunk| event_text(self.include_usage, chunk)));
        if ends {
            data.extend(self.include_usage.then(|| self.format.usage_chunk(self.readers.total()).to_string()));
            data.push("[DONE]".to_owned());
        }
        (as_events(data), (!ends).then_some(self))
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

fn as_events(data: Vec<String>) -> Vec<Event> {
    data.into_iter().map(|data| Event::default().data(data)).collect()
}

/// The text of a chunk, which says that counts follow where they do.
fn event_text(include_usage: bool, mut chunk: Value) -> String {
    if include_usage {
        chunk["usage"] = Value::Null;
    }
    chunk.to_string()
}
