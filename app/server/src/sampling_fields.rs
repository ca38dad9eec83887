//! The fields of sampling and of stopping, as in OpenAI's bodies and Ollama's options.

use serde::Deserialize;
use serde_json::Value;
use thermocline_engine::session::Request;

use super::{
    error::ApiError,
    fields::{FieldLimit, FieldSeed, invalid},
};

/// Most stop strings of a request, and of a request to a strict server.
const MAX_STOPS: usize = 64;
const STRICT_STOPS: usize = 4;

/// Fields of a request that configure sampling.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct SamplingFields {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<FieldLimit>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    repeat_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    repeat_last_n: Option<FieldLimit>,
    seed: Option<FieldSeed>,
    stop: Option<Value>,
}

impl SamplingFields {
    /// Applies the fields to `settings`.
    pub fn apply(self, settings: &mut Request, strict: bool) -> Result<(), ApiError> {
        let sampling = &mut settings.sampling;
        set(&mut sampling.temperature, self.temperature);
        set(&mut sampling.top_p, self.top_p);
        // 0 keeps all tokens.
        set(&mut sampling.top_k, self.top_k.map(|it| it.0.count_or(0)));
        set(&mut sampling.min_p, self.min_p);
        set(&mut sampling.typical_p, self.typical_p);
        set(&mut sampling.repeat_penalty, self.repeat_penalty);
        set(&mut sampling.presence_penalty, self.presence_penalty);
        set(&mut sampling.frequency_penalty, self.frequency_penalty);
        set(&mut sampling.penalty_last_n, self.repeat_last_n.map(|it| it.0.count_or(usize::MAX)));
        set(&mut sampling.seed, self.seed.map(|it| it.0.fixed()));
        set(&mut settings.stop, read_stop(self.stop.as_ref(), "stop", strict)?);
        Ok(())
    }
}

/// Sets `place` to `value`, if the request has one.
pub fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

/// Reads the stop strings of `field`. An empty string stops nothing; a `strict` server refuses it.
pub fn read_stop(value: Option<&Value>, field: &str, strict: bool) -> Result<Option<Vec<String>>, ApiError> {
    let Some(value) = value else { return Ok(None) };
    let most = if strict { STRICT_STOPS } else { MAX_STOPS };
    let text = |value: &Value| value.as_str().filter(|text| !strict || !text.is_empty()).map(str::to_owned);
    let stops: Option<Vec<String>> = match value {
        Value::Array(list) if list.len() <= most => list.iter().map(text).collect(),
        other => text(other).map(|stop| vec![stop]),
    };
    let Some(mut stops) = stops else {
        let what = if strict { "a string that is not empty" } else { "a string" };
        return Err(invalid(field, &format!("{what}, or up to {most} of them"), value));
    };
    stops.retain(|stop| !stop.is_empty());
    Ok(Some(stops))
}
