//! Streams answers while they are generated, as server-sent events or lines of JSON.

use std::{convert::Infallible, pin::Pin, time::Duration};

use axum::{
    body::Body,
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response, sse::Sse},
};
use futures_util::{StreamExt, stream};
use tokio::time::timeout;

use super::{
    answer_events::{AnswerEvent, AnswerEvents},
    answer_format::AnswerFormat,
    error::ApiError,
    stream_event::StreamEvent,
};

/// Longest wait of a request before its response begins. A refusal within this time has its own
/// HTTP status.
const PATIENCE: Duration = Duration::from_secs(1);

/// Silence after which the stream sends a comment, so that clients and proxies do not time out.
const COMMENT_INTERVAL: Duration = Duration::from_secs(5);

type StartingAnswer = Pin<Box<dyn Future<Output = Result<AnswerEvents, ApiError>> + Send>>;

/// An answer that is being sent. If the client disconnects, it is dropped and the generation is
/// cancelled.
struct AnswerStream {
    state: StreamState,
    format: Box<dyn AnswerFormat>,
}

enum StreamState {
    /// The answer waits for the model.
    Waiting(StartingAnswer),
    /// The model generates the answer.
    Running(Box<AnswerEvents>),
}

/// Builds the response to a request that `start` begins to answer. If the model is busy, the
/// response begins before the answer does.
pub async fn event_stream(
    start: impl Future<Output = Result<AnswerEvents, ApiError>> + Send + 'static,
    format: Box<dyn AnswerFormat>,
) -> Result<Response, ApiError> {
    let mut start: StartingAnswer = Box::pin(start);
    let state = match timeout(PATIENCE, &mut start).await {
        Ok(started) => StreamState::Running(Box::new(started?)),
        Err(_) => StreamState::Waiting(start),
    };
    let as_lines = format.is_lines();
    let answer = AnswerStream { state, format };
    let events = stream::unfold(Some(answer), async |answer| Some(answer?.next_events().await));
    let events = events.flat_map(stream::iter);
    if as_lines {
        let lines = events.filter_map(async |event| event.into_line().map(Ok::<_, Infallible>));
        return Ok(([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response());
    }
    Ok(Sse::new(events.map(|event| Ok::<_, Infallible>(event.into_sse()))).into_response())
}

impl AnswerStream {
    /// Returns the next events, and the stream if more follow.
    async fn next_events(mut self) -> (Vec<StreamEvent>, Option<Self>) {
        let event = match &mut self.state {
            StreamState::Waiting(start) => match timeout(COMMENT_INTERVAL, start).await {
                Err(_) => return (vec![StreamEvent::comment("waiting for the model")], Some(self)),
                Ok(Err(error)) => AnswerEvent::Failed(error),
                Ok(Ok(events)) => {
                    self.state = StreamState::Running(Box::new(events));
                    return (Vec::new(), Some(self));
                }
            },
            StreamState::Running(events) => match timeout(COMMENT_INTERVAL, events.next()).await {
                Err(_) => return (vec![StreamEvent::comment("computing")], Some(self)),
                Ok(None) => return (Vec::new(), None),
                Ok(Some(event)) => event,
            },
        };
        let fails = matches!(event, AnswerEvent::Failed(_));
        (self.format.events(event), (!fails).then_some(self))
    }
}
