//! Errors in the form that OpenAI's clients read.

use std::{fmt, time::Duration};

use axum::{
    Extension, Json,
    http::{Method, StatusCode},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use thermocline_engine::Error;

use super::fields::joined;
use thermocline_host::engine_handle::{error_message, without_folder};

/// A refused or failed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// Status of the response.
    pub status: StatusCode,
    /// Description in sentences.
    pub message: String,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    /// Header that the status requires.
    header: Option<(&'static str, &'static str)>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        ApiError { status, message: message.into(), kind, code: None, param: None, header: None }
    }

    /// 400: the request is invalid.
    pub fn bad_request(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400: the field `param` is invalid.
    pub fn invalid_field(param: &str, message: impl Into<String>) -> Self {
        ApiError { param: Some(param.to_owned()), ..ApiError::bad_request(message) }
    }

    /// 400 for a grammar error of the engine, named after the request's `field`. Other errors stay
    /// as they are.
    pub fn of_grammar(error: &Error, field: &str) -> Self {
        ApiError::from(error).renamed("grammar", field)
    }

    /// Renames the field that the error names from `from` to `to`, for parts of `from` too.
    pub fn renamed(mut self, from: &str, to: &str) -> Self {
        let Some(rest) = self.param.as_deref().and_then(|param| param.strip_prefix(from)) else { return self };
        if rest.is_empty() || rest.starts_with(['.', '[']) {
            self.param = Some(format!("{to}{rest}"));
            self.message = self.message.replacen(from, to, 1);
        }
        self
    }

    /// 400: the field `path` does not exist.
    pub fn unsupported(path: &str) -> Self {
        ApiError::invalid_field(path, format!("`{path}` is not supported; leave it out"))
    }

    /// Puts the field that the error names under `parent`.
    pub fn under(mut self, parent: &str) -> Self {
        if let Some(param) = &self.param {
            let path = joined(parent, param);
            self.message = match self.message.strip_prefix(&format!("`{param}`")) {
                Some(rest) => format!("`{path}`{rest}"),
                None => self.message.replacen(&**param, &path, 1),
            };
            self.param = Some(path);
        }
        self
    }

    /// 401: the key is missing or wrong.
    pub fn unauthorized(message: &str) -> Self {
        let error = ApiError::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message);
        ApiError { code: Some("invalid_api_key"), header: Some(("www-authenticate", "Bearer")), ..error }
    }

    /// 403: the client may not send this request.
    pub fn forbidden(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// 404: no route has this path.
    pub fn not_found(path: &str) -> Self {
        let message = format!(
            "there is nothing at {path}; the model answers at /v1/chat/completions, /v1/completions and /v1/messages"
        );
        ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }

    /// 404: the open model is not `requested`.
    pub fn model_not_found(requested: &str, open: &str) -> Self {
        let message = format!("the model `{requested}` is not open here; the open model is `{open}`");
        let error = ApiError::invalid_field("model", message);
        ApiError { status: StatusCode::NOT_FOUND, code: Some("model_not_found"), ..error }
    }

    /// 404: no model in `names` is called `requested`.
    pub fn model_unknown(requested: &str, names: &[String]) -> Self {
        let names = match names {
            [] => "the folder has no models".to_owned(),
            names => format!("the folder has {}", names.join(", ")),
        };
        let message = format!("there is no model `{requested}` here; {names}");
        let error = ApiError::invalid_field("model", message);
        ApiError { status: StatusCode::NOT_FOUND, code: Some("model_not_found"), ..error }
    }

    /// 405: the path accepts only the methods `allowed`.
    pub fn method(method: &Method, path: &str, allowed: &'static str) -> Self {
        let message = format!("{path}: expected {allowed}, got {method}");
        let error = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message);
        ApiError { header: Some(("allow", allowed)), ..error }
    }

    /// 408: the body did not arrive in time.
    pub fn too_slow(timeout: Duration) -> Self {
        let message = format!("the request's body did not arrive within {} s", timeout.as_secs_f32());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    /// 413: the body has more than `limit` bytes.
    pub fn too_large(limit: usize) -> Self {
        let message = format!("the request's body is larger than {}", thermocline_host::units::bytes(limit as u64));
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// 415: the server does not read this type of body.
    pub fn media_type(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
    }

    /// 431: the headers are longer than `limit` bytes.
    pub fn headers_too_large(limit: usize) -> Self {
        let message = format!("the request's headers are longer than {}", thermocline_host::units::bytes(limit as u64));
        ApiError::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "invalid_request_error", message)
    }

    /// 429: the queue is full.
    pub fn queue_full(waiting: usize) -> Self {
        let message = format!("{waiting} requests are already waiting for the model; try again later");
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        ApiError { code: Some("rate_limit_exceeded"), header: Some(("retry-after", "2")), ..error }
    }

    /// 503: no model can answer at the moment.
    pub fn unavailable(message: impl Into<String>) -> Self {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        ApiError { code: Some("service_unavailable"), header: Some(("retry-after", "2")), ..error }
    }

    /// 400: no stored response has this identifier.
    pub fn no_such_response(id: &str) -> Self {
        let message = format!(
            "previous_response_id: the server does not keep the response `{id}`; it keeps only the latest responses, until it ends"
        );
        let error = ApiError::invalid_field("previous_response_id", message);
        ApiError { code: Some("previous_response_not_found"), ..error }
    }

    /// 404: no stored response has the identifier in the path.
    pub fn response_not_found(id: &str) -> Self {
        ApiError { status: StatusCode::NOT_FOUND, ..ApiError::no_such_response(id) }
    }

    /// Builds the body of the response.
    pub fn json(&self) -> Value {
        let ApiError { message, kind, code, param, .. } = self;
        json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (header, body) = (self.header.map(|header| [header]), Json(self.json()));
        // The extension passes the refusal to the layers around the route.
        (self.status, header, Extension(self), body).into_response()
    }
}

impl From<&Error> for ApiError {
    fn from(error: &Error) -> Self {
        let message = error_message(error);
        match error {
            Error::ContextFull { wanted, at_least, available } => {
                let least = if *at_least { "at least " } else { "" };
                let message = format!(
                    "the prompt has {least}{wanted} tokens, but the context holds {available}: shorten it, or serve the model with a longer context"
                );
                ApiError { code: Some("context_length_exceeded"), ..ApiError::bad_request(message) }
            }
            Error::Invalid { what, .. } => ApiError::invalid_field(what, message),
            Error::Template(_) => ApiError::invalid_field("messages", message),
            Error::FileLost { .. } => ApiError::unavailable(without_folder(error)),
            Error::Memory { .. } | Error::Stopped(_) => ApiError::unavailable(message),
            Error::Unsupported { .. } => ApiError::bad_request(message),
            _ => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message),
        }
    }
}
