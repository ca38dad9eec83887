//! Parsing of what a request is answered with: its prompts, the number of answers to each, and the log probabilities of their tokens.

use serde_json::Value;
use thermocline_engine::{
    session::{LogprobsRequest, Prompt, Request},
    tokenizer::Tokenizer,
};

use super::{
    error::ApiError,
    json_fields::{JsonFields, invalid, whole_number},
    request::Endpoint,
};

/// Most prompts of a request, answers to one prompt, and likeliest tokens at a place.
const MAX_PROMPTS: usize = 64;
const MAX_ANSWERS: usize = 8;
const MAX_TOP: usize = 20;

/// The answers to each prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChoiceFields {
    /// Answers that are returned.
    pub answers: usize,
    /// Answers that are generated; the likeliest of them are returned.
    pub best_of: usize,
    /// The text begins with the prompt.
    pub echo: bool,
    /// Log probabilities to return.
    pub logprobs: Option<LogprobsRequest>,
}

impl ChoiceFields {
    /// The log probabilities that the engine computes.
    pub fn engine_logprobs(&self) -> Option<LogprobsRequest> {
        self.logprobs.or((self.best_of > self.answers).then(LogprobsRequest::default))
    }

    /// Refuses a choice among answers that are sent while they are generated.
    pub fn check_stream(&self, stream: bool) -> Result<(), ApiError> {
        if stream && self.best_of > self.answers {
            let message = "best_of: expected the number n of answers in a stream, got more";
            return Err(ApiError::invalid_field("best_of", message));
        }
        Ok(())
    }

    /// The engine's requests: of each prompt as many as answers, with seeds one after the other.
    pub fn requests(&self, prompts: Vec<Prompt>, base: &Request) -> Vec<Request> {
        let request = |prompt: &Prompt, at: usize| {
            let mut request = Request { prompt: prompt.clone(), ..base.clone() };
            request.sampling.seed = request.sampling.seed.map(|seed| seed.wrapping_add(at as u64));
            request
        };
        prompts.iter().flat_map(|prompt| (0..self.best_of).map(move |at| request(prompt, at))).collect()
    }
}

/// Parses `n`, `best_of`, `echo`, `logprobs` and `top_logprobs`.
pub fn parse_choice_fields(fields: &mut JsonFields, endpoint: Endpoint) -> Result<ChoiceFields, ApiError> {
    let count = |fields: &mut JsonFields, field: &str, low: usize, high: usize| match fields.count(field)? {
        Some(number) if !(low..=high).contains(&number) => {
            Err(invalid(field, &format!("a whole number from {low} to {high}"), &number.into()))
        }
        number => Ok(number),
    };
    let answers = count(fields, "n", 1, MAX_ANSWERS)?.unwrap_or(1);
    if endpoint == Endpoint::Chat {
        let wanted = fields.boolean("logprobs")?.unwrap_or(false);
        let top = count(fields, "top_logprobs", 0, MAX_TOP)?.unwrap_or(0);
        if top > 0 && !wanted {
            let message = "top_logprobs is for requests with \"logprobs\": true";
            return Err(ApiError::invalid_field("top_logprobs", message));
        }
        let logprobs = wanted.then_some(LogprobsRequest { top, prompt: false });
        return Ok(ChoiceFields { answers, best_of: answers, echo: false, logprobs });
    }
    let best_of = count(fields, "best_of", answers, MAX_ANSWERS)?.unwrap_or(answers);
    let echo = fields.boolean("echo")?.unwrap_or(false);
    let logprobs = count(fields, "logprobs", 0, MAX_TOP)?.map(|top| LogprobsRequest { top, prompt: echo });
    Ok(ChoiceFields { answers, best_of, echo, logprobs })
}

/// Parses `prompt`: a string, a list of strings, a list of token ids, or a list of such lists.
pub fn parse_prompts(value: Option<Value>) -> Result<Vec<Prompt>, ApiError> {
    let expected = format!("a string, a list of token ids, or a list of up to {MAX_PROMPTS} of them");
    let Some(value) = value else {
        return Err(ApiError::invalid_field("prompt", format!("prompt: expected {expected}, got none")));
    };
    let prompts = match &value {
        Value::Array(list) if list.iter().all(Value::is_u64) => one_prompt(&value).map(|prompt| vec![prompt]),
        Value::Array(list) if list.len() <= MAX_PROMPTS => list.iter().map(one_prompt).collect(),
        one => one_prompt(one).map(|prompt| vec![prompt]),
    };
    prompts.filter(|prompts| !prompts.is_empty()).ok_or_else(|| invalid("prompt", &expected, &value))
}

/// The prompts for what belongs between each of `prompts`, which are texts, and `suffix`.
pub fn infill_prompts(
    prompts: Vec<Prompt>,
    suffix: &str,
    choices: ChoiceFields,
    tokenizer: &Tokenizer,
) -> Result<Vec<Prompt>, ApiError> {
    let refused = |message: &str| ApiError::invalid_field("suffix", format!("suffix: expected {message}"));
    if choices.echo {
        return Err(refused("none with echo, got one"));
    }
    let infill = |prompt: Prompt| {
        let Prompt::Text(prefix) = prompt else { return Err(refused("none with a prompt of tokens, got one")) };
        match tokenizer.infill_prompt(&prefix, suffix) {
            Ok(Some(ids)) => Ok(Prompt::Tokens(ids)),
            Ok(None) => Err(refused("none: the model's vocabulary has no tokens that mark a middle, got one")),
            Err(error) => Err(ApiError::from(&error)),
        }
    };
    prompts.into_iter().map(infill).collect()
}

fn one_prompt(value: &Value) -> Option<Prompt> {
    match value {
        Value::String(text) => Some(Prompt::Text(text.clone())),
        Value::Array(list) if !list.is_empty() => {
            let ids = list.iter().map(|it| whole_number(it).and_then(|id| u32::try_from(id).ok()));
            ids.collect::<Option<Vec<u32>>>().map(Prompt::Tokens)
        }
        _ => None,
    }
}
