//! Answers that are sent while they are made, as server-sent events.

use std::{convert::Infallible, fmt::Write};

use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::{
    Response,
    body::{Bytes, Frame},
    header::{self, HeaderValue},
};
use serde_json::Value;

use super::{
    body::Body,
    generation::{Generation, News},
    reply::Reply,
};

/// An answer on its way. When the client is gone it is dropped, and with it the generation.
struct Stream {
    generation: Generation,
    reply: Reply,
    usage: bool,
    /// What was heard before the response began.
    first: Option<News>,
}

/// The response. `first` is what [`Generation::begun`] has heard; with `usage` the stream ends with figures.
pub fn response(generation: Generation, first: News, reply: Reply, usage: bool) -> Response<Body> {
    let stream = Stream { generation, reply, usage, first: Some(first) };
    let pieces = stream::unfold(Some(stream), |stream| async move {
        let (text, stream) = stream?.more().await;
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from(text))), stream))
    });
    let mut response = Response::new(StreamBody::new(pieces).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

impl Stream {
    /// The next events, and the stream if it goes on behind them.
    async fn more(mut self) -> (String, Option<Self>) {
        loop {
            let mut text = String::new();
            let news = match self.first.take() {
                Some(news) => {
                    if let Some(head) = self.reply.head() {
                        self.event(&mut text, head);
                    }
                    news
                }
                None => self.generation.next().await,
            };
            if !news.text.is_empty() {
                self.event(&mut text, self.reply.piece(&news.text));
            }
            match news.end {
                // An empty piece would end the response.
                None if text.is_empty() => {}
                None => return (text, Some(self)),
                Some(Ok((reason, stats))) => {
                    self.event(&mut text, self.reply.last(&reason));
                    if self.usage {
                        push(&mut text, &self.reply.figures(&stats).to_string());
                    }
                    push(&mut text, "[DONE]");
                    return (text, None);
                }
                Some(Err(error)) => {
                    push(&mut text, &error.json().to_string());
                    return (text, None);
                }
            }
        }
    }

    fn event(&self, text: &mut String, mut value: Value) {
        if self.usage {
            value["usage"] = Value::Null;
        }
        push(text, &value.to_string());
    }
}

/// JSON has no line ends of its own, so an event is one line.
fn push(text: &mut String, data: &str) {
    // Writing to a string does not fail.
    let _ = write!(text, "data: {data}\n\n");
}
