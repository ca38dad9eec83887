//! Finds the model that a request's body names, before the body is parsed for that model.

use std::{sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::Value;

use super::{
    context::{ModelLease, ServerContext},
    error::ApiError,
    fields::invalid,
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

    /// Waits for the right to use the model that `body` names, and keeps it loaded as long as the
    /// request asks. If the server has only one model, it does not read the body.
    pub async fn lease(body: &[u8], context: &Arc<ServerContext>) -> Result<ModelLease, ApiError> {
        let Some(library) = context.library() else { return context.lease(None).await };
        let named = Self::of_body(body)?;
        let keep = named.keep_alive()?;
        let lease = match &named.model {
            Value::Null => context.lease(None).await?,
            Value::String(name) => context.lease(Some(name)).await?,
            other => return Err(invalid("model", "a string", other)),
        };
        if let Some(keep) = keep {
            library.keep_loaded_for(keep);
        }
        Ok(lease)
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
