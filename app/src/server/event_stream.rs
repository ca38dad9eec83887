//! Answers sent while they are generated, as server-sent events.

use std::{convert::Infallible, iter};

use axum::response::sse::{Event, Sse};
use futures_util::{
    StreamExt,
    stream::{self, Stream},
};
use serde_json::Value;

use super::{
    generation::{Generation, GenerationUpdate},
    response::{AnswerFields, CompletionFormat},
};

/// One answer being sent. When the client disconnects it is dropped, and with it the generation.
struct AnswerStream {
    generation: Generation,
    format: CompletionFormat,
    fields: AnswerFields,
    include_usage: bool,
    /// Update received before the response started.
    first: Option<GenerationUpdate>,
}

/// Builds the response. `first` comes from [`Generation::started`]; with `include_usage` the stream ends with token counts.
pub fn event_stream(
    generation: Generation,
    first: GenerationUpdate,
    format: CompletionFormat,
    include_usage: bool,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let answer =
        AnswerStream { generation, format, fields: AnswerFields::default(), include_usage, first: Some(first) };
    let events = stream::unfold(Some(answer), async |answer| Some(answer?.next_events().await));
    Sse::new(events.flat_map(|events| stream::iter(events.into_iter().map(|data| Ok(Event::default().data(data))))))
}

impl AnswerStream {
    /// Data of the next events, and the stream if more follow.
    async fn next_events(mut self) -> (Vec<String>, Option<Self>) {
        let first = self.first.take();
        let mut events: Vec<String> = Vec::new();
        if first.is_some() {
            events.extend(self.format.first_chunk().map(|chunk| self.event(chunk)));
        }
        let update = match first {
            Some(update) => update,
            None => self.generation.next_update().await,
        };
        for (part, piece) in update.text.pieces() {
            if let Some((field, piece)) = self.fields.push(part, piece) {
                events.push(self.event(self.format.text_chunk(field, piece)));
            }
        }
        match update.end {
            None => return (events, Some(self)),
            Some(Ok((reason, stats))) => {
                events.push(self.event(self.format.final_chunk(&reason)));
                events.extend(self.include_usage.then(|| self.format.usage_chunk(&stats).to_string()));
                events.extend(iter::once("[DONE]".to_owned()));
            }
            Some(Err(error)) => events.push(error.json().to_string()),
        }
        (events, None)
    }

    fn event(&self, mut chunk: Value) -> String {
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk.to_string()
    }
}
