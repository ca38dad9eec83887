//! What a client asks for, as the engine is to do it.

use serde_json::{Value, json};
use thermocline_engine::session::{Prompt, Request, Sampling};

use super::{
    error::ApiError,
    fields::{Fields, wrong},
    messages::messages,
    source::Offer,
};

/// Most stop strings of a request.
const STOPS: usize = 4;

/// Fields that change nothing about an answer.
const HARMLESS: [&str; 4] = ["user", "safety_identifier", "prompt_cache_key", "metadata"];

/// Which of the two ways to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A chat, in the model's template.
    Chat,
    /// A text to go on with.
    Completion,
}

/// A request that makes sense.
#[derive(Debug, PartialEq)]
pub struct Ask {
    /// Which way it came.
    pub kind: Kind,
    /// What the engine is asked.
    pub request: Request,
    /// Whether the answer is sent while it is made.
    pub stream: bool,
    /// Whether a stream ends with figures.
    pub usage: bool,
}

impl Ask {
    /// Reads a request's body. What it does not say is as the offer has it; what cannot be done is refused by name.
    pub fn read(kind: Kind, body: &[u8], offer: &Offer) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        if let Some(model) = fields.text("model")?
            && model != offer.name
        {
            return Err(ApiError::model(&model, &offer.name));
        }
        let prompt = match kind {
            Kind::Chat => Prompt::Chat(messages(fields.take("messages"))?),
            Kind::Completion => prompt(fields.take("prompt"))?,
        };
        let defaults = &offer.defaults;
        let sampling = sampling(&mut fields, defaults.sampling.clone())?;
        sampling.validate(offer.engine.config().n_vocab).map_err(|error| ApiError::from(&error))?;
        let stop = stop(fields.take("stop"))?.unwrap_or_else(|| defaults.stop.clone());
        let max_tokens = longest(&mut fields)?.or(defaults.max_tokens);
        let stream = fields.flag("stream")?.unwrap_or(false);
        let usage = usage(&mut fields, stream)?;
        neutral(&mut fields, kind)?;
        fields.finish()?;
        let request = Request { prompt, sampling, stop, max_tokens, ..defaults.clone() };
        Ok(Ask { kind, request, stream, usage })
    }
}

fn prompt(value: Option<Value>) -> Result<Prompt, ApiError> {
    const EXPECTED: &str = "one string or one list of token ids";
    let tokens = |list: &[Value]| -> Option<Vec<u32>> {
        list.iter().map(|it| it.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
    };
    match value {
        None => Err(ApiError::field("prompt", format!("prompt: expected {EXPECTED}, got none"))),
        Some(Value::String(text)) => Ok(Prompt::Text(text)),
        Some(Value::Array(list)) => match &list[..] {
            [Value::String(text)] => Ok(Prompt::Text(text.clone())),
            [Value::Array(only)] if !only.is_empty() => {
                tokens(only).map(Prompt::Tokens).ok_or_else(|| wrong("prompt", EXPECTED, &Value::Array(list.clone())))
            }
            several => tokens(several).map(Prompt::Tokens).ok_or_else(|| wrong("prompt", EXPECTED, &several.into())),
        },
        Some(other) => Err(wrong("prompt", EXPECTED, &other)),
    }
}

fn sampling(fields: &mut Fields, base: Sampling) -> Result<Sampling, ApiError> {
    let repeat = fields.number("repeat_penalty")?.or(fields.number("repetition_penalty")?);
    Ok(Sampling {
        temperature: fields.number("temperature")?.unwrap_or(base.temperature),
        top_p: fields.number("top_p")?.unwrap_or(base.top_p),
        top_k: fields.count("top_k")?.unwrap_or(base.top_k),
        min_p: fields.number("min_p")?.unwrap_or(base.min_p),
        typical_p: fields.number("typical_p")?.unwrap_or(base.typical_p),
        repeat_penalty: repeat.unwrap_or(base.repeat_penalty),
        presence_penalty: fields.number("presence_penalty")?.unwrap_or(base.presence_penalty),
        frequency_penalty: fields.number("frequency_penalty")?.unwrap_or(base.frequency_penalty),
        penalty_last_n: fields.count("repeat_last_n")?.unwrap_or(base.penalty_last_n),
        logit_bias: logit_bias(fields.take("logit_bias"))?.unwrap_or(base.logit_bias),
        seed: fields.seed("seed")?.or(base.seed),
        ..base
    })
}

fn logit_bias(value: Option<Value>) -> Result<Option<Vec<(u32, f32)>>, ApiError> {
    let Some(value) = value else { return Ok(None) };
    let pair = |(id, bias): (&String, &Value)| Some((id.parse().ok()?, bias.as_f64()? as f32));
    let pairs = value.as_object().and_then(|map| map.iter().map(pair).collect::<Option<Vec<_>>>());
    pairs.map(Some).ok_or_else(|| wrong("logit_bias", "an object of token ids and numbers", &value))
}

fn stop(value: Option<Value>) -> Result<Option<Vec<String>>, ApiError> {
    let Some(value) = value else { return Ok(None) };
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let stops = match &value {
        Value::Array(list) if list.len() <= STOPS => list.iter().map(text).collect(),
        other => text(other).map(|stop| vec![stop]),
    };
    let expected = format!("a string that is not empty, or up to {STOPS} of them");
    stops.map(Some).ok_or_else(|| wrong("stop", &expected, &value))
}

fn longest(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let (new, old) = (fields.count("max_completion_tokens")?, fields.count("max_tokens")?);
    match (new, old) {
        (Some(new), Some(old)) if new != old => {
            let message = format!("max_tokens ({old}) and max_completion_tokens ({new}) differ; give one of them");
            Err(ApiError::field("max_tokens", message))
        }
        (new, old) => Ok(new.or(old)),
    }
}

fn usage(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(value) = fields.take("stream_options") else { return Ok(false) };
    if !stream {
        return Err(ApiError::field("stream_options", "stream_options is for requests with \"stream\": true"));
    }
    let mut options = Fields::of(value, "stream_options")?;
    let usage = options.flag("include_usage")?.unwrap_or(false);
    options.only("include_obfuscation", &[json!(false)])?;
    options.finish()?;
    Ok(usage)
}

/// What may be said as long as it asks for what happens anyway.
fn neutral(fields: &mut Fields, kind: Kind) -> Result<(), ApiError> {
    for field in HARMLESS {
        fields.take(field);
    }
    fields.only("n", &[json!(1)])?;
    fields.only("service_tier", &[json!("auto"), json!("default")])?;
    fields.only("store", &[json!(false)])?;
    match kind {
        Kind::Chat => {
            fields.only("logprobs", &[json!(false)])?;
            fields.only("top_logprobs", &[json!(0)])?;
            fields.only("response_format", &[json!({ "type": "text" })])?;
            fields.only("modalities", &[json!(["text"])])?;
            // Without tools there is nothing to choose.
            fields.only("tool_choice", &[json!("none"), json!("auto")])?;
            fields.only("parallel_tool_calls", &[json!(false), json!(true)])
        }
        Kind::Completion => {
            fields.only("best_of", &[json!(1)])?;
            fields.only("echo", &[json!(false)])?;
            fields.only("suffix", &[json!("")])
        }
    }
}

#[cfg(test)]
mod tests;
