//! Requests for OpenAI's chats and text completions, including other servers' extra fields.

use serde::Deserialize;
use serde_json::{Value, json};
use thermocline_engine::session::Request;

use super::{
    grammar_fields::GrammarFields,
    messages::{ChatBodyMessage, read_messages},
    prompts::{chat_choices, parse_prompts, text_choices},
    reasoning_fields::ReasoningFields,
    tool_fields::ToolFields,
};
use crate::{
    error::ApiError,
    fields::{FieldLimit, Hint, Ignored, accept_only, parse_fields},
    request::{ChoiceFields, RequestedAnswer},
    request_message::{ReadRules, chat_prompt},
    sampling_fields::{SamplingFields, set},
};
use thermocline_host::units::Limit;

/// The route of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`: messages, rendered by the model's template.
    Chat,
    /// `/v1/completions`: a text that is continued without a template.
    Completion,
}

/// The body of a chat.
type ChatBody = (BodyFields, OpenAiChatFields, SamplingFields, ToolFields, GrammarFields, ReasoningFields);

/// The body of a text completion.
type TextBody = (BodyFields, TextFields, SamplingFields, GrammarFields);

/// The fields of chats alone.
#[derive(Debug, PartialEq, Deserialize)]
struct OpenAiChatFields {
    messages: Option<Vec<ChatBodyMessage>>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    modalities: Option<Value>,
}

/// The fields of texts alone.
#[derive(Debug, PartialEq, Deserialize)]
struct TextFields {
    prompt: Option<Value>,
    suffix: Option<String>,
    best_of: Option<usize>,
    echo: Option<bool>,
    logprobs: Option<usize>,
}

/// The fields of both, with the hints of other servers' clients.
#[derive(Debug, PartialEq, Deserialize)]
struct BodyFields {
    model: Option<String>,
    n: Option<usize>,
    max_tokens: Option<FieldLimit>,
    max_completion_tokens: Option<FieldLimit>,
    repetition_penalty: Option<f32>,
    logit_bias: Option<LogitBias>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    service_tier: Option<Value>,
    store: Option<Value>,
    user: Ignored,
    safety_identifier: Ignored,
    prompt_cache_key: Ignored,
    metadata: Ignored,
    include_reasoning: Hint,
    usage: Hint,
    provider: Hint,
    ttl: Hint,
    timeout: Hint,
    truncate_prompt_tokens: Hint,
    keep_alive: Hint,
    cache_prompt: Hint,
    id_slot: Hint,
    verbosity: Hint,
    prediction: Hint,
    timings_per_token: Hint,
    prompt_cache_retention: Hint,
}

#[derive(Debug, PartialEq, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
    include_obfuscation: Option<Value>,
}

/// Values added to the logits of tokens.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
struct LogitBias(Vec<(u32, f32)>);

impl TryFrom<Value> for LogitBias {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Self, &'static str> {
        let pair = |(id, bias): (&String, &Value)| Some((id.parse().ok()?, bias.as_f64()? as f32));
        let pairs = value.as_object().and_then(|map| map.iter().map(pair).collect::<Option<Vec<_>>>());
        pairs.map(LogitBias).ok_or("an object of token ids and numbers")
    }
}

/// Reads the body of a request to `endpoint`. Missing fields have the values of `defaults`. A field
/// that the server cannot honour is refused by name. If strict, other servers' fields are refused
/// too.
pub fn read_request(
    endpoint: Endpoint,
    body: &[u8],
    defaults: &Request,
    rules: &ReadRules,
) -> Result<RequestedAnswer, ApiError> {
    match endpoint {
        Endpoint::Chat => read_chat(body, defaults, rules),
        Endpoint::Completion => read_text(body, defaults, rules.strict),
    }
}

fn read_chat(body: &[u8], defaults: &Request, rules: &ReadRules) -> Result<RequestedAnswer, ApiError> {
    let strict = rules.strict;
    let (body, chat, sampling, mut tools, grammar, reasoning): ChatBody = parse_fields(body, strict)?;
    let choices = chat_choices(body.n, chat.logprobs, chat.top_logprobs)?;
    let mut asked = RequestedAnswer::new(Vec::new(), defaults);
    asked.prompts.push(chat_prompt(read_messages(chat.messages, strict)?, strict, &rules.fetch)?);
    asked.thoughts = reasoning.thoughts()?;
    asked.tools = tools.tools()?;
    asked.tool_choice = tools.choice()?;
    asked.grammar = grammar.grammar()?;
    accept_only(chat.modalities.as_ref(), "modalities", &[json!(["text"])])?;
    body.apply(sampling, choices, asked, strict)
}

fn read_text(body: &[u8], defaults: &Request, strict: bool) -> Result<RequestedAnswer, ApiError> {
    let (body, text, sampling, grammar): TextBody = parse_fields(body, strict)?;
    let choices = text_choices(body.n, text.best_of, text.echo, text.logprobs)?;
    let mut asked = RequestedAnswer::new(parse_prompts(text.prompt)?, defaults);
    asked.suffix = text.suffix.filter(|suffix| !suffix.is_empty());
    if choices.echo && asked.suffix.is_some() {
        return Err(ApiError::invalid_field("suffix", "suffix: expected none with echo, got one"));
    }
    asked.grammar = grammar.grammar()?;
    body.apply(sampling, choices, asked, strict)
}

impl BodyFields {
    /// Applies the fields that both kinds of bodies share to a request.
    fn apply(
        self,
        sampling: SamplingFields,
        choices: ChoiceFields,
        mut asked: RequestedAnswer,
        strict: bool,
    ) -> Result<RequestedAnswer, ApiError> {
        let settings = &mut asked.settings;
        set(&mut settings.sampling.repeat_penalty, self.repetition_penalty);
        sampling.apply(settings, strict)?;
        set(&mut settings.sampling.logit_bias, self.logit_bias.map(|it| it.0));
        let most = max_tokens(self.max_completion_tokens, self.max_tokens)?;
        set(&mut settings.max_tokens, most.map(Limit::count));
        asked.stream = self.stream.unwrap_or(false);
        if let Some(options) = self.stream_options {
            if !asked.stream {
                let message = "stream_options is for requests with \"stream\": true";
                return Err(ApiError::invalid_field("stream_options", message));
            }
            let obfuscation = options.include_obfuscation.as_ref();
            accept_only(obfuscation, "stream_options.include_obfuscation", &[json!(false)])?;
            asked.include_usage = options.include_usage.unwrap_or(false);
        }
        if strict {
            accept_only(self.service_tier.as_ref(), "service_tier", &[json!("auto"), json!("default")])?;
            accept_only(self.store.as_ref(), "store", &[json!(false)])?;
        }
        Ok(RequestedAnswer { model: self.model, choices, ..asked })
    }
}

/// Reads the token limit of an answer from its newer and older field.
fn max_tokens(new: Option<FieldLimit>, old: Option<FieldLimit>) -> Result<Option<Limit>, ApiError> {
    match (new.map(|it| it.0), old.map(|it| it.0)) {
        (Some(Limit::Of(new)), Some(Limit::Of(old))) if new != old => {
            let message = format!("max_tokens ({old}) and max_completion_tokens ({new}) differ; give only one of them");
            Err(ApiError::invalid_field("max_tokens", message))
        }
        // If one field sets a limit and the other sets none, the limit counts.
        (Some(Limit::None), Some(old)) => Ok(Some(old)),
        (new, old) => Ok(new.or(old)),
    }
}

#[cfg(test)]
mod tests;
