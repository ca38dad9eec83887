//! What went wrong, as OpenAI's clients understand it.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};
use thermocline_engine::Error;

use crate::host::reason;

/// An answer that is an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// Status of the response.
    pub status: StatusCode,
    /// What it is, in sentences.
    pub message: String,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        ApiError { status, message: message.into(), kind, code: None, param: None }
    }

    /// 400: the request makes no sense.
    pub fn bad(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400: the field `param` makes no sense.
    pub fn field(param: &str, message: impl Into<String>) -> Self {
        ApiError { param: Some(param.to_owned()), ..ApiError::bad(message) }
    }

    /// 401: the key is missing or wrong.
    pub fn key(message: &str) -> Self {
        let error = ApiError::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message);
        ApiError { code: Some("invalid_api_key"), ..error }
    }

    /// 403: whoever asks may not.
    pub fn forbidden(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// 404: nothing is there.
    pub fn nowhere(path: &str) -> Self {
        let message =
            format!("there is nothing at {path}; the model answers at /v1/chat/completions and /v1/completions");
        ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }

    /// 404: another model is open.
    pub fn model(asked: &str, open: &str) -> Self {
        let message = format!("the model `{asked}` is not open here; `{open}` is");
        let error = ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message);
        ApiError { code: Some("model_not_found"), param: Some("model".to_owned()), ..error }
    }

    /// 405: not with this method.
    pub fn method(method: &hyper::Method, path: &str, allowed: &str) -> Self {
        let message = format!("{path}: expected {allowed}, got {method}");
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// 408: the request did not arrive.
    pub fn slow(patience: Duration) -> Self {
        let message = format!("the request's body did not arrive within {} s", patience.as_secs_f32());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    /// 413: the request is too large.
    pub fn large(most: usize) -> Self {
        let message = format!("the request's body is larger than {}", crate::units::bytes(most as u64));
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// 429: too many wait already.
    pub fn busy(waiting: usize) -> Self {
        let message = format!("{waiting} requests wait for the model already; try again later");
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        ApiError { code: Some("rate_limit_exceeded"), ..error }
    }

    /// 503: there is no model to answer with, for now.
    pub fn unavailable(message: impl Into<String>) -> Self {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        ApiError { code: Some("service_unavailable"), ..error }
    }

    /// Of a generation that was ended from here.
    pub fn ended() -> Self {
        ApiError::unavailable("the answer was ended: the model is being closed")
    }

    /// As it is sent.
    pub fn json(&self) -> Value {
        let ApiError { message, kind, code, param, .. } = self;
        json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
    }
}

impl From<&Error> for ApiError {
    fn from(error: &Error) -> Self {
        let message = reason(error);
        match error {
            Error::ContextFull { wanted, available } => {
                let message = format!(
                    "the prompt has {wanted} tokens, but the context holds {available}: shorten it, or serve the model with a longer context"
                );
                ApiError { code: Some("context_length_exceeded"), ..ApiError::bad(message) }
            }
            Error::Invalid { what, .. } => ApiError::field(what, message),
            Error::Template(_) => ApiError::field("messages", message),
            Error::Memory { .. } | Error::Stopped(_) => ApiError::unavailable(message),
            _ => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message),
        }
    }
}
