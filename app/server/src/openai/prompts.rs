//! The prompts of a request, the number of answers to each, and the log probabilities of tokens.

use serde_json::Value;
use thermocline_engine::session::{LogprobsRequest, Prompt};

use crate::{
    error::ApiError,
    fields::{invalid, missing, whole_number},
    request::ChoiceFields,
};

/// Most prompts of a request, most answers to a prompt, and most top tokens per position.
const MAX_PROMPTS: usize = 64;
const MAX_ANSWERS: usize = 8;
const MAX_TOP: usize = 20;

/// Reads how a chat is answered: `n` answers, with `top_logprobs` top tokens per position if
/// `logprobs`.
pub fn chat_choices(
    answers: Option<usize>,
    logprobs: Option<bool>,
    top: Option<usize>,
) -> Result<ChoiceFields, ApiError> {
    let answers = within("n", answers, 1, MAX_ANSWERS)?.unwrap_or(1);
    let top = within("top_logprobs", top, 0, MAX_TOP)?.unwrap_or(0);
    let wanted = logprobs.unwrap_or(false);
    if top > 0 && !wanted {
        let message = "top_logprobs is for requests with \"logprobs\": true";
        return Err(ApiError::invalid_field("top_logprobs", message));
    }
    let logprobs = wanted.then_some(LogprobsRequest { top, prompt: false });
    Ok(ChoiceFields { answers, best_of: answers, echo: false, logprobs })
}

/// Reads how a text is continued: `n` answers of `best_of`, after the prompt if `echo`, with `top`
/// top tokens per position.
pub fn text_choices(
    answers: Option<usize>,
    best_of: Option<usize>,
    echo: Option<bool>,
    top: Option<usize>,
) -> Result<ChoiceFields, ApiError> {
    let answers = within("n", answers, 1, MAX_ANSWERS)?.unwrap_or(1);
    let best_of = within("best_of", best_of, answers, MAX_ANSWERS)?.unwrap_or(answers);
    let echo = echo.unwrap_or(false);
    let logprobs = within("logprobs", top, 0, MAX_TOP)?.map(|top| LogprobsRequest { top, prompt: echo });
    Ok(ChoiceFields { answers, best_of, echo, logprobs })
}

/// Checks that a count is between `low` and `high`.
fn within(field: &str, count: Option<usize>, low: usize, high: usize) -> Result<Option<usize>, ApiError> {
    match count {
        Some(number) if !(low..=high).contains(&number) => {
            Err(invalid(field, &format!("a whole number from {low} to {high}"), &number.into()))
        }
        count => Ok(count),
    }
}

/// Parses `prompt`: a string, a list of strings, a list of token ids, or a list of such lists.
pub fn parse_prompts(value: Option<Value>) -> Result<Vec<Prompt>, ApiError> {
    let expected = format!("a string, a list of token ids, or a list of up to {MAX_PROMPTS} of them");
    let value = value.ok_or_else(|| missing("prompt", &expected))?;
    prompts_of(&value, MAX_PROMPTS, true).ok_or_else(|| invalid("prompt", &expected, &value))
}

/// Reads one text or list of token ids, or a list of at most `most` of them. If `empty` is false,
/// empty texts are refused.
pub fn prompts_of(value: &Value, most: usize, empty: bool) -> Option<Vec<Prompt>> {
    let one = |value: &Value| match value {
        Value::String(text) if !text.is_empty() || empty => Some(Prompt::Text(text.clone())),
        Value::Array(list) if !list.is_empty() => {
            let ids = list.iter().map(|it| whole_number(it).and_then(|id| u32::try_from(id).ok()));
            ids.collect::<Option<Vec<u32>>>().map(Prompt::Tokens)
        }
        _ => None,
    };
    match value {
        Value::Array(list) if list.len() <= most && !list.iter().all(Value::is_u64) => list.iter().map(one).collect(),
        value => one(value).map(|prompt| vec![prompt]),
    }
}
