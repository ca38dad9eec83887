//! A server over HTTP (the protocol's "streamable HTTP"), with the same HTTP client as the rest of
//! the program. It does not follow redirects, which would send the key and the model's text to
//! another server.

use std::{
    collections::HashMap,
    io::{self, Read},
    sync::Arc,
    time::Duration,
};

use futures_util::stream::{self, BoxStream, StreamExt};
use rmcp::{
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::streamable_http_client::{
        SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
    },
};
use sse_stream::{Sse, SseStream};
use tokio::sync::mpsc;
use ureq::{
    Body,
    http::{HeaderName, HeaderValue, Response},
};

use super::{
    stdio::{Trouble, too_long},
    tool::clean,
};

/// Longest part of a server's error that is shown, in characters.
const SHOWN: usize = 200;

/// Header with the session id.
const SESSION: &str = "mcp-session-id";

type HttpFailure = StreamableHttpError<io::Error>;

/// The client of one server.
#[derive(Debug, Clone)]
pub(super) struct HttpClient {
    /// Largest response in bytes.
    pub most: usize,
    /// Longest time without a byte.
    pub silence: Duration,
    /// Reason of the latest failure.
    pub trouble: Trouble,
}

impl HttpClient {
    fn agent(&self) -> ureq::Agent {
        ureq::Agent::config_builder()
            .timeout_connect(Some(Duration::from_secs(10)))
            .timeout_send_request(Some(self.silence))
            .timeout_recv_response(Some(self.silence))
            .timeout_per_read(Some(self.silence))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("thermocline/", env!("CARGO_PKG_VERSION")))
            .build()
            .into()
    }

    fn failed(&self, why: String) -> HttpFailure {
        *self.trouble.lock() = Some(why.clone());
        StreamableHttpError::Client(io::Error::other(why))
    }

    fn post(
        &self,
        uri: &str,
        message: &ClientJsonRpcMessage,
        session: Option<&str>,
        key: Option<&str>,
        headers: &HashMap<HeaderName, HeaderValue>,
    ) -> Result<Response<Body>, HttpFailure> {
        let body = serde_json::to_vec(message)?;
        let mut post = self.agent().post(uri);
        for (name, value) in headers {
            post = post.header(name, value);
        }
        post = post.header("Content-Type", "application/json").header("Accept", "application/json, text/event-stream");
        if let Some(session) = session {
            post = post.header(SESSION, session);
        }
        if let Some(key) = key {
            post = post.header("Authorization", format!("Bearer {key}"));
        }
        post.send(&body).map_err(|error| self.failed(format!("the server cannot be reached: {error}")))
    }

    /// Reads a response and its session id.
    fn read(&self, mut response: Response<Body>, had_session: bool) -> Result<StreamableHttpPostResponse, HttpFailure> {
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (session, kind, place) = (header(SESSION), header("content-type").unwrap_or_default(), header("location"));
        let status = response.status();
        if matches!(status.as_u16(), 202 | 204) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status.as_u16() == 404 && had_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if status.is_success() && kind == "text/event-stream" {
            return Ok(StreamableHttpPostResponse::Sse(self.events(response.into_body()), session));
        }
        let text = self.text(&mut response)?;
        if kind == "application/json"
            && let Ok(message) = serde_json::from_str::<ServerJsonRpcMessage>(&text)
            && (status.is_success() || matches!(message, ServerJsonRpcMessage::Error(_)))
        {
            return Ok(StreamableHttpPostResponse::Json(message, session));
        }
        let said: String = clean(&text).chars().take(SHOWN).collect();
        Err(self.failed(match place.filter(|_| status.is_redirection()) {
            Some(place) => format!("HTTP {}: the server redirects to {place}, which is not followed", status.as_u16()),
            None if status.is_success() => {
                format!("expected JSON or an event stream of the protocol, got {kind:?}: {said}")
            }
            None => format!("HTTP {}: {said}", status.as_u16()),
        }))
    }

    fn text(&self, response: &mut Response<Body>) -> Result<String, HttpFailure> {
        let mut bytes = Vec::new();
        let read = response.body_mut().as_reader().take(self.most as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.failed(format!("the server's response ended early: {error}")))?;
        if bytes.len() > self.most {
            return Err(StreamableHttpError::Client(too_long(self.most, &self.trouble)));
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The events of a response. A separate thread reads them until the stream is dropped.
    fn events(&self, body: Body) -> BoxStream<'static, Result<Sse, SseError>> {
        let (sender, mut receiver) = mpsc::channel::<io::Result<Vec<u8>>>(4);
        let (most, trouble) = (self.most, Arc::clone(&self.trouble));
        tokio::task::spawn_blocking(move || {
            let (mut reader, mut total, mut buffer) = (body.into_reader(), 0, vec![0; 16 << 10]);
            loop {
                let piece = match reader.read(&mut buffer) {
                    Ok(0) => return,
                    Ok(count) => {
                        total += count;
                        if total > most { Err(too_long(most, &trouble)) } else { Ok(buffer[..count].to_vec()) }
                    }
                    Err(error) => Err(error),
                };
                let last = piece.is_err();
                if sender.blocking_send(piece).is_err() || last {
                    return;
                }
            }
        });
        let pieces = stream::poll_fn(move |ctx| receiver.poll_recv(ctx)).map(|piece| piece.map(io::Cursor::new));
        SseStream::from_bytes_stream(pieces).boxed()
    }
}

impl StreamableHttpClient for HttpClient {
    type Error = io::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, HttpFailure> {
        let this = self.clone();
        let received = tokio::task::spawn_blocking(move || {
            let response = this.post(&uri, &message, session_id.as_deref(), auth_header.as_deref(), &custom_headers)?;
            this.read(response, session_id.is_some())
        });
        received.await?
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), HttpFailure> {
        let this = self.clone();
        let deleted = tokio::task::spawn_blocking(move || {
            let mut delete = this.agent().delete(&*uri).header(SESSION, &*session_id);
            for (name, value) in &custom_headers {
                delete = delete.header(name, value);
            }
            if let Some(key) = auth_header {
                delete = delete.header("Authorization", format!("Bearer {key}"));
            }
            // If this fails, the session expires by itself.
            let _ = delete.call();
        });
        deleted.await.map_err(HttpFailure::from)
    }

    /// Opens no stream: only the responses to calls are read.
    async fn get_stream(
        &self,
        _: Arc<str>,
        _: Option<Arc<str>>,
        _: Option<String>,
        _: Option<String>,
        _: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, HttpFailure> {
        Err(StreamableHttpError::ServerDoesNotSupportSse)
    }
}
