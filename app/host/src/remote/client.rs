//! Requests to a server.

use std::{
    io::{BufReader, Read},
    time::Duration,
};

use serde_json::Value;
use ureq::{Body, RequestBuilder, http::Response};

use super::{
    Cancel, RemoteAnswer, RemoteError, RemoteEvent, RemoteRequest, SecretKey, ServerAddress,
    answer::RemoteAnswerReader,
    error::{of_io, of_transport, quoted},
    events::{StreamRead, next_event},
};

/// Most bytes of a list of models, or of an answer that is not streamed.
const MOST_JSON: u64 = 8 << 20;

/// Most bytes of an error.
const MOST_ERROR: u64 = 64 << 10;

/// Most models that are listed for a server.
const MOST_MODELS: usize = 5000;

/// Timeouts after which a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteTimeouts {
    /// Time to connect.
    pub connect: Duration,
    /// Time between two signs of life. Long prompts take long, and not every server sends signs of
    /// life meanwhile.
    pub silence: Duration,
}

impl Default for RemoteTimeouts {
    fn default() -> Self {
        RemoteTimeouts { connect: Duration::from_secs(10), silence: Duration::from_secs(300) }
    }
}

/// A server and the key for it.
#[derive(Debug, Clone)]
pub struct RemoteClient {
    server: ServerAddress,
    key: Option<SecretKey>,
    timeouts: RemoteTimeouts,
}

impl RemoteClient {
    /// Creates a client of `server`.
    pub fn new(server: ServerAddress, key: Option<SecretKey>, timeouts: RemoteTimeouts) -> Self {
        RemoteClient { server, key, timeouts }
    }

    /// The server.
    pub fn server(&self) -> &ServerAddress {
        &self.server
    }

    /// Names of the server's models, in the server's order.
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub fn models(&self) -> Result<Vec<String>, RemoteError> {
        // Listing models computes no prompt, so it is quick.
        let silence = self.timeouts.silence.min(Duration::from_secs(30));
        let request = self.authorized(self.agent(silence).get(self.server.endpoint("/models")));
        let response = request.call().map_err(|error| of_transport(&self.server, &error, silence.as_secs()))?;
        let mut response = self.successful(response)?;
        let text = self.text(&mut response, MOST_JSON)?;
        let reader = RemoteAnswerReader::new(&self.server, self.key.as_ref());
        let list: Value = serde_json::from_str(&text).unwrap_or_default();
        let data = list.get("data").and_then(Value::as_array);
        let data = data.ok_or_else(|| reader.malformed("list of models", "a JSON object with `data`", &text))?;
        let name = |model: &Value| {
            let id = model.get("id").and_then(Value::as_str).filter(|id| !id.is_empty() && id.len() <= 512);
            id.map(str::to_owned).ok_or_else(|| reader.malformed("list of models", "an `id`", &model.to_string()))
        };
        data.iter().take(MOST_MODELS).map(name).collect()
    }

    /// Sends a request for an answer. `show` receives the pieces as they arrive. `cancel` ends the
    /// answer at once, from another thread or from `show`.
    ///
    /// # Errors
    /// See [`RemoteError`]. Pieces shown before the error stay valid.
    pub fn chat(
        &self,
        request: &RemoteRequest,
        cancel: &Cancel,
        show: &mut dyn FnMut(RemoteEvent<'_>),
    ) -> Result<RemoteAnswer, RemoteError> {
        let silence = self.timeouts.silence;
        let agent = self.agent(silence);
        cancel.attach(&agent);
        let answered = self.answer(&agent, request, cancel, show);
        match answered {
            // Closing the connection causes various errors.
            Err(_) if cancel.is_cancelled() => Err(RemoteError::Cancelled),
            answered => answered,
        }
    }

    fn answer(
        &self,
        agent: &ureq::Agent,
        request: &RemoteRequest,
        cancel: &Cancel,
        show: &mut dyn FnMut(RemoteEvent<'_>),
    ) -> Result<RemoteAnswer, RemoteError> {
        let silence = self.timeouts.silence.as_secs();
        let body = request.body().map_err(|error| RemoteError::Picture(error.to_string()))?;
        let post = self.authorized(agent.post(self.server.endpoint("/chat/completions")));
        let post = post.header("Content-Type", "application/json").header("Accept", "text/event-stream");
        let response = post.send(body.to_string()).map_err(|error| of_transport(&self.server, &error, silence))?;
        let mut response = self.successful(response)?;
        let mut reader = RemoteAnswerReader::new(&self.server, self.key.as_ref());
        let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match &*kind {
            "text/event-stream" => {}
            // Some servers do not stream.
            "application/json" => {
                let text = self.text(&mut response, MOST_JSON)?;
                reader.read(&text, show)?;
                return reader.finish();
            }
            other => return Err(reader.malformed("response", "text/event-stream", other)),
        }
        let mut stream = BufReader::new(response.body_mut().as_reader());
        loop {
            let event = next_event(&mut stream);
            if cancel.is_cancelled() {
                return Err(RemoteError::Cancelled);
            }
            match event {
                Ok(StreamRead::Data(data)) if data.trim() == "[DONE]" => return reader.finish(),
                Ok(StreamRead::Data(data)) => reader.read(&data, show)?,
                Ok(StreamRead::Bad(got)) => return Err(reader.malformed("stream", "server-sent events", &got)),
                Ok(StreamRead::End) => return reader.finish(),
                // Some servers close the connection without the last HTTP chunk.
                Err(_) if reader.reason.is_some() => return reader.finish(),
                Err(error) => return Err(of_io(self.server.host().to_owned(), &error, silence)),
            }
        }
    }

    /// Adds the key to `request`, if there is one.
    fn authorized<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.key {
            Some(key) => request.header("Authorization", key.authorization()),
            None => request,
        }
    }

    /// Returns `response`, or an error if its status is not a success.
    fn successful(&self, mut response: Response<Body>) -> Result<Response<Body>, RemoteError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (place, retry) = (header("location"), header("retry-after"));
        let text = self.text(&mut response, MOST_ERROR).unwrap_or_default();
        let json: Option<Value> = serde_json::from_str(&text).ok();
        let said = json.as_ref().and_then(|json| {
            let error = json.get("error").unwrap_or(json);
            error.get("message").or(error.get("detail")).and_then(Value::as_str).or(error.as_str())
        });
        let key = self.key.as_ref();
        let mut message = match place.filter(|_| status.is_redirection()) {
            Some(place) => format!("the server redirects to {}", quoted(&place, key)),
            None => quoted(said.unwrap_or(&text), key),
        };
        if let Some(seconds) = retry.and_then(|seconds| seconds.parse::<u64>().ok()) {
            message += &format!("; try again in {seconds} s");
        }
        if status.as_u16() == 401 && key.is_none() {
            message += "; no API key was sent";
        }
        Err(RemoteError::Status { server: self.server.host().to_owned(), status: status.as_u16(), message })
    }

    /// Reads the body as text of at most `most` bytes.
    fn text(&self, response: &mut Response<Body>, most: u64) -> Result<String, RemoteError> {
        let server = || self.server.host().to_owned();
        let mut bytes = Vec::new();
        let read = response.body_mut().as_reader().take(most + 1).read_to_end(&mut bytes);
        read.map_err(|error| of_io(server(), &error, self.timeouts.silence.as_secs()))?;
        let reader = RemoteAnswerReader::new(&self.server, self.key.as_ref());
        if bytes.len() as u64 > most {
            return Err(reader.malformed("response", "a body of a few megabytes at most", "more"));
        }
        String::from_utf8(bytes).map_err(|_| reader.malformed("response", "UTF-8", "other bytes"))
    }

    /// Creates an agent for one request, which [`Cancel`] can shut down. It follows no
    /// redirections, which would send the key to another server.
    fn agent(&self, silence: Duration) -> ureq::Agent {
        let config = ureq::Agent::config_builder()
            .timeout_connect(Some(self.timeouts.connect))
            .timeout_recv_response(Some(silence))
            .timeout_per_read(Some(silence))
            .timeout_send_request(Some(silence))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("thermocline/", env!("CARGO_PKG_VERSION")));
        // A proxy cannot reach servers on this computer.
        let config = if self.server.is_local() { config.proxy(None) } else { config };
        config.build().into()
    }
}
