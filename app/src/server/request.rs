//! Parsing of requests for answers.

use serde_json::{Value, json};
use thermocline_engine::session::{ContextPolicy, Prompt, Request, Role, Sampling};

use super::{
    answer_reader::RequestedTools,
    error::ApiError,
    grammar_fields::parse_grammar,
    json_fields::{JsonFields, invalid},
    messages::parse_messages,
    prompts::{ChoiceFields, infill_prompts, parse_choice_fields, parse_prompts},
    reasoning_fields::parse_reasoning,
    served_model::ServedModel,
    tool_fields::{AnswerForm, parse_answer_form},
    undecided_answer::CallsOrForm,
};
use crate::units::{Limit, Seed};

/// Largest number of stop strings of a request, and of one to a strict server.
const MAX_STOPS: usize = 64;
const STRICT_STOPS: usize = 4;

/// JSON fields that change nothing about an answer.
const IGNORED: [&str; 4] = ["user", "safety_identifier", "prompt_cache_key", "metadata"];

/// Those that only a server that is not strict lets pass: hints of other servers' clients.
const HINTS: [&str; 15] = [
    "include_reasoning",
    "usage",
    "provider",
    "ttl",
    "timeout",
    "truncate_prompt_tokens",
    "store",
    "service_tier",
    "keep_alive",
    "cache_prompt",
    "id_slot",
    "verbosity",
    "prediction",
    "timings_per_token",
    "prompt_cache_retention",
];

/// The route a request came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`: messages, rendered by the model's template.
    Chat,
    /// `/v1/completions`: a text that is continued as it is.
    Completion,
}

/// A valid request.
#[derive(Debug, PartialEq)]
pub struct CompletionRequest {
    /// The engine's requests: those of the first prompt, then those of the next.
    pub requests: Vec<Request>,
    /// How many of them are answers to one prompt, and what is reported of them.
    pub choices: ChoiceFields,
    /// Texts of the prompts, if the answers begin with them.
    pub echoes: Vec<String>,
    /// Send the answer while it is generated.
    pub stream: bool,
    /// End a stream with token counts.
    pub include_usage: bool,
    /// Tools that the model may call.
    pub tools: Option<RequestedTools>,
    /// Field that asks for the grammar of the answer, if one does.
    pub grammar_field: Option<String>,
    /// The two forms of the answers, if they may be calls of tools or have a form.
    pub may_be: Option<CallsOrForm>,
}

impl CompletionRequest {
    /// Parses a request's body: [`CompletionRequest::read`].
    pub fn parse(endpoint: Endpoint, body: &[u8], model: &ServedModel, strict: bool) -> Result<Self, ApiError> {
        Self::read(endpoint, JsonFields::parse(body)?, model, strict)
    }

    /// Reads the fields of a body. Missing ones have the values of `model.defaults`; a field that cannot be honoured is refused by name.
    /// If not `strict`, another model's name is accepted, and what clients of other servers send beside OpenAI's fields.
    pub fn read(
        endpoint: Endpoint,
        mut fields: JsonFields,
        model: &ServedModel,
        strict: bool,
    ) -> Result<Self, ApiError> {
        if let Some(name) = fields.string("model")?
            && strict
            && name != model.name
        {
            return Err(ApiError::model_not_found(&name, &model.name));
        }
        let choices = parse_choice_fields(&mut fields, endpoint)?;
        let prompts = match endpoint {
            Endpoint::Chat => vec![parse_chat(&mut fields, strict)?],
            Endpoint::Completion => parse_texts(&mut fields, choices, model)?,
        };
        let defaults = &model.defaults;
        let sampling = parse_sampling(&mut fields, defaults.sampling.clone(), strict)?;
        sampling.validate(model.engine.config().n_vocab).map_err(|error| ApiError::from(&error))?;
        let stop = parse_stop(fields.remove("stop"), strict)?.unwrap_or_else(|| defaults.stop.clone());
        let max_tokens = parse_max_tokens(&mut fields, strict)?.map_or(defaults.max_tokens, Limit::count);
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let include_usage = parse_stream_options(&mut fields, stream)?;
        let mut chat = defaults.chat.clone();
        let mut thought_budget = defaults.thought_budget;
        if endpoint == Endpoint::Chat && !strict {
            let reasoning = parse_reasoning(&mut fields)?;
            chat.variables.extend(reasoning.variables);
            thought_budget = reasoning.budget.or(thought_budget);
        }
        let form = match endpoint {
            Endpoint::Chat => parse_answer_form(&mut fields, model.engine.chat_template().tools(), strict)?,
            Endpoint::Completion => {
                AnswerForm { grammar: parse_grammar(&mut fields, strict)?, ..AnswerForm::default() }
            }
        };
        chat.tools = form.tools.as_ref().map(|tools| tools.definitions.clone()).unwrap_or_default();
        chat.call_format = form.tools.as_ref().map(|tools| tools.format.clone());
        if !strict {
            fields.ignore(&HINTS);
        }
        check_neutral(&mut fields, endpoint)?;
        fields.finish()?;
        let may_be = form.calls_or_form();
        let scores_prompt = choices.logprobs.is_some_and(|it| it.prompt);
        let request = Request {
            sampling,
            stop,
            max_tokens,
            chat,
            grammar: form.grammar.as_ref().filter(|_| may_be.is_none()).map(|it| it.grammar.clone()),
            logprobs: choices.engine_logprobs(),
            thought_budget,
            // Clients that score a prompt count on one token behind it, even if that is the end.
            ignore_eos: scores_prompt && max_tokens == Some(1),
            on_full: if choices.echo { ContextPolicy::Stop } else { defaults.on_full },
            ..defaults.clone()
        };
        choices.check_stream(stream)?;
        let text = |prompt: &Prompt| match prompt {
            Prompt::Text(text) => text.clone(),
            Prompt::Tokens(ids) => model.engine.tokenizer().decode(ids, true),
            Prompt::Chat(_) | Prompt::Continue(_) => String::new(),
        };
        let echoes = if choices.echo { prompts.iter().map(text).collect() } else { Vec::new() };
        let requests = choices.requests(prompts, &request);
        let grammar_field = form.grammar.map(|it| it.field);
        let tools = form.tools;
        Ok(CompletionRequest { requests, choices, echoes, stream, include_usage, tools, grammar_field, may_be })
    }
}

/// The prompt of a chat.
fn parse_chat(fields: &mut JsonFields, strict: bool) -> Result<Prompt, ApiError> {
    let messages = parse_messages(fields.remove("messages"), strict)?;
    let continued = messages.last().is_some_and(|it| it.role == Role::Assistant && it.fields.is_empty());
    Ok(if continued && !strict { Prompt::Continue(messages) } else { Prompt::Chat(messages) })
}

/// The prompts of texts.
fn parse_texts(fields: &mut JsonFields, choices: ChoiceFields, model: &ServedModel) -> Result<Vec<Prompt>, ApiError> {
    let prompts = parse_prompts(fields.remove("prompt"))?;
    match fields.string("suffix")?.filter(|suffix| !suffix.is_empty()) {
        Some(suffix) => infill_prompts(prompts, &suffix, choices, model.engine.tokenizer()),
        None => Ok(prompts),
    }
}

fn parse_sampling(fields: &mut JsonFields, base: Sampling, strict: bool) -> Result<Sampling, ApiError> {
    let repeat = fields.number("repeat_penalty")?.or(fields.number("repetition_penalty")?);
    Ok(Sampling {
        temperature: fields.number("temperature")?.unwrap_or(base.temperature),
        top_p: fields.number("top_p")?.unwrap_or(base.top_p),
        // 0 keeps all tokens.
        top_k: fields.limit("top_k", strict)?.map_or(base.top_k, |it| it.count_or(0)),
        min_p: fields.number("min_p")?.unwrap_or(base.min_p),
        typical_p: fields.number("typical_p")?.unwrap_or(base.typical_p),
        repeat_penalty: repeat.unwrap_or(base.repeat_penalty),
        presence_penalty: fields.number("presence_penalty")?.unwrap_or(base.presence_penalty),
        frequency_penalty: fields.number("frequency_penalty")?.unwrap_or(base.frequency_penalty),
        penalty_last_n: fields
            .limit("repeat_last_n", strict)?
            .map_or(base.penalty_last_n, |it| it.count_or(usize::MAX)),
        logit_bias: parse_logit_bias(fields.remove("logit_bias"))?.unwrap_or(base.logit_bias),
        seed: match fields.seed("seed")? {
            Some(Seed::Any) => None,
            Some(Seed::Fixed(seed)) => Some(seed),
            None => base.seed,
        },
        ..base
    })
}

fn parse_logit_bias(value: Option<Value>) -> Result<Option<Vec<(u32, f32)>>, ApiError> {
    let Some(value) = value else { return Ok(None) };
    let pair = |(id, bias): (&String, &Value)| Some((id.parse().ok()?, bias.as_f64()? as f32));
    let pairs = value.as_object().and_then(|map| map.iter().map(pair).collect::<Option<Vec<_>>>());
    pairs.map(Some).ok_or_else(|| invalid("logit_bias", "an object of token ids and numbers", &value))
}

/// Parses `stop`. An empty text stops nothing; `strict` refuses it.
fn parse_stop(value: Option<Value>, strict: bool) -> Result<Option<Vec<String>>, ApiError> {
    let Some(value) = value else { return Ok(None) };
    let most = if strict { STRICT_STOPS } else { MAX_STOPS };
    let text = |value: &Value| value.as_str().filter(|text| !strict || !text.is_empty()).map(str::to_owned);
    let stops: Option<Vec<String>> = match &value {
        Value::Array(list) if list.len() <= most => list.iter().map(text).collect(),
        other => text(other).map(|stop| vec![stop]),
    };
    let Some(mut stops) = stops else {
        let what = if strict { "a string that is not empty" } else { "a string" };
        return Err(invalid("stop", &format!("{what}, or up to {most} of them"), &value));
    };
    stops.retain(|stop| !stop.is_empty());
    Ok(Some(stops))
}

fn parse_max_tokens(fields: &mut JsonFields, strict: bool) -> Result<Option<Limit>, ApiError> {
    let (new, old) = (fields.limit("max_completion_tokens", strict)?, fields.limit("max_tokens", strict)?);
    match (new, old) {
        (Some(Limit::Of(new)), Some(Limit::Of(old))) if new != old => {
            let message = format!("max_tokens ({old}) and max_completion_tokens ({new}) differ; give one of them");
            Err(ApiError::invalid_field("max_tokens", message))
        }
        // Of a limit and none, the limit.
        (Some(Limit::None), Some(old)) => Ok(Some(old)),
        (new, old) => Ok(new.or(old)),
    }
}

fn parse_stream_options(fields: &mut JsonFields, stream: bool) -> Result<bool, ApiError> {
    let Some(value) = fields.remove("stream_options") else { return Ok(false) };
    if !stream {
        return Err(ApiError::invalid_field("stream_options", "stream_options is for requests with \"stream\": true"));
    }
    let mut options = JsonFields::from_value(value, "stream_options")?;
    let usage = options.boolean("include_usage")?.unwrap_or(false);
    options.accept_only("include_obfuscation", &[json!(false)])?;
    options.finish()?;
    Ok(usage)
}

/// Removes the fields that are accepted as long as they ask for what happens anyway.
fn check_neutral(fields: &mut JsonFields, endpoint: Endpoint) -> Result<(), ApiError> {
    for field in IGNORED {
        fields.remove(field);
    }
    fields.accept_only("service_tier", &[json!("auto"), json!("default")])?;
    fields.accept_only("store", &[json!(false)])?;
    match endpoint {
        Endpoint::Chat => fields.accept_only("modalities", &[json!(["text"])]),
        Endpoint::Completion => Ok(()),
    }
}

#[cfg(test)]
mod tests;
