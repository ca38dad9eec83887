//! Bodies of requests and responses.

use std::{convert::Infallible, time::Duration};

use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{
    Response, StatusCode,
    body::{Body as _, Bytes, Incoming},
    header::{self, HeaderValue},
};
use serde_json::Value;

use super::error::ApiError;

/// What is sent back.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Most bytes of a request's body.
pub const LARGEST: usize = 8 << 20;

/// Of a body that is too large this much more is read, so that a client that sends all before it listens hears why.
const DRAINED: usize = 64 << 20;

/// The whole of a request's body, which has to arrive within `patience`.
pub async fn read(mut body: Incoming, patience: Duration) -> Result<Vec<u8>, ApiError> {
    if body.size_hint().lower() > DRAINED as u64 {
        return Err(ApiError::large(LARGEST));
    }
    let collect = async {
        let (mut bytes, mut total) = (Vec::new(), 0);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| ApiError::bad(format!("the request's body broke off: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            total += data.len();
            if total <= LARGEST {
                bytes.extend_from_slice(&data);
            } else if total > DRAINED {
                break;
            }
        }
        if total > LARGEST { Err(ApiError::large(LARGEST)) } else { Ok(bytes) }
    };
    let read = tokio::time::timeout(patience, collect).await;
    read.unwrap_or_else(|_| Err(ApiError::slow(patience)))
}

/// A response of JSON.
pub fn json(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(value.to_string())).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A response without a body.
pub fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Full::default().boxed_unsync());
    *response.status_mut() = status;
    response
}

impl From<&ApiError> for Response<Body> {
    fn from(error: &ApiError) -> Self {
        let mut response = json(error.status, &error.json());
        let headers = response.headers_mut();
        match error.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
            }
            _ => {}
        }
        response
    }
}
