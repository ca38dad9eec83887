//! Finds the model that a request's body names, before the body is parsed for that model.

use std::{sync::Arc, time::Duration};

use axum::body::Body;
use serde::Deserialize;
use serde_json::Value;

use super::{
    context::{ModelLease, ServerContext},
    error::ApiError,
    fields::invalid,
    read_body::read_body,
};

/// Longest time that an Ollama client can keep a model loaded, in seconds.
const LONGEST_KEEP: f64 = 1e9;

/// The fields of a body about the model.
#[derive(Debug, Default, Deserialize)]
pub struct NamedModel {
    #[serde(default)]
    model: Value,
    #[serde(default)]
    keep_alive: Value,
}

impl NamedModel {
    /// Reads the model fields of a body.
    fn of_body(body: &[u8]) -> Result<Self, ApiError> {
        serde_json::from_slice(body).map_err(|error| ApiError::bad_request(format!("the body is not JSON: {error}")))
    }

    /// Reads a request's body, and its model fields on another thread, because long bodies take
    /// time. A server with one model does not need the fields.
    ///
    /// # Errors
    /// As [`read_body`], and 400 for a body that is not JSON.
    pub async fn of_request(body: Body, context: &ServerContext) -> Result<(Self, Vec<u8>), ApiError> {
        let body = read_body(body, context.options.timeout).await?;
        if context.library().is_none() {
            return Ok((Self::default(), body));
        }
        let read = tokio::task::spawn_blocking(move || Self::of_body(&body).map(|named| (named, body))).await;
        read.unwrap_or_else(|_| Err(ApiError::unavailable("the request could not be read")))
    }

    /// Waits for the right to use the model, and keeps it loaded as long as the request asks.
    pub async fn lease(&self, context: &Arc<ServerContext>) -> Result<ModelLease, ApiError> {
        let Some(library) = context.library() else { return context.lease(None).await };
        let keep = self.keep_alive()?;
        let lease = context.lease(self.name()?).await?;
        if let Some(keep) = keep {
            library.keep_loaded_for(keep);
        }
        Ok(lease)
    }

    /// True if the model has a vision tower, or may have one because it is not loaded. The request
    /// does not get a right to use it.
    pub async fn may_see(&self, context: &ServerContext) -> Result<bool, ApiError> {
        context.may_see(self.name()?.map(str::to_owned)).await
    }

    /// The name of the model, if there is one.
    fn name(&self) -> Result<Option<&str>, ApiError> {
        match &self.model {
            Value::Null => Ok(None),
            Value::String(name) => Ok(Some(name)),
            other => Err(invalid("model", "a string", other)),
        }
    }

    /// Reads how long to keep the model without requests; `Some(None)`: for ever.
    fn keep_alive(&self) -> Result<Option<Option<Duration>>, ApiError> {
        let seconds = match &self.keep_alive {
            Value::Null => return Ok(None),
            Value::Number(number) => number.as_f64(),
            Value::String(text) => seconds(text),
            _ => None,
        };
        let seconds = seconds.filter(|seconds| seconds.is_finite());
        let expected = "seconds, or a time like \"5m\" or \"1h30m\"";
        let seconds = seconds.ok_or_else(|| invalid("keep_alive", expected, &self.keep_alive))?;
        Ok(Some((seconds >= 0.0).then(|| Duration::from_secs_f64(seconds.min(LONGEST_KEEP)))))
    }
}

/// Parses a Go duration like `1h30m`, or a number, into seconds.
fn seconds(text: &str) -> Option<f64> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    let mut sum = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let (unit, factor) = [("ms", 0.001), ("h", 3600.0), ("m", 60.0), ("s", 1.0)]
            .into_iter()
            .find(|(unit, _)| rest[digits..].starts_with(unit))?;
        sum += number * factor;
        rest = &rest[digits + unit.len()..];
    }
    (!text.is_empty()).then_some(sign * sum)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keep_alive_is_a_number_or_a_time() {
        let keep = |value: Value| {
            let body = json!({ "keep_alive": value, "other": [1, { "model": 2 }] }).to_string();
            NamedModel::of_body(body.as_bytes()).unwrap().keep_alive().map_err(|error| error.message)
        };
        let seconds = |seconds: f64| Ok(Some(Some(Duration::from_secs_f64(seconds))));
        assert_eq!(
            (keep(json!(null)), keep(json!(-1)), keep(json!("-1m"))),
            (Ok(None), Ok(Some(None)), Ok(Some(None)))
        );
        assert_eq!(
            (keep(json!(0)), keep(json!("0")), keep(json!("1h30m"))),
            (seconds(0.0), seconds(0.0), seconds(5400.0))
        );
        assert_eq!((keep(json!("250ms")), keep(json!("1.5s"))), (seconds(0.25), seconds(1.5)));
        for bad in [json!(""), json!("m"), json!("5x"), json!("nan"), json!(true)] {
            assert!(keep(bad.clone()).is_err(), "{bad}");
        }
        assert!(NamedModel::of_body(b"{").is_err());
    }
}
