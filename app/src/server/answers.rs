//! Requests for answers, in every protocol: read, parsed for their model, generated and written.

use std::sync::Arc;

use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};

use super::{
    answer_format::AnswerFormat,
    anthropic::{self, MessageBody, MessageFormat},
    choices::{Choice, ChoiceReaders},
    connections::Connection,
    context::ServerContext,
    error::ApiError,
    event_stream::event_stream,
    generation::GenerationQueue,
    json_fields::JsonFields,
    named_model::NamedModel,
    ollama::{self, LinesFormat, OllamaBody},
    read_body::read_body,
    request::{CompletionRequest, Endpoint},
    response::CompletionFormat,
    responses::{ResponseBody, ResponseFormat, response_body},
    served_model::ServedModel,
};

/// Bytes of a body above which it is parsed on another thread.
const LONG_BODY: usize = 64 << 10;

/// OpenAI's field of the format of an answer.
const FORMAT_FIELD: &str = "response_format";

/// The protocol of a request for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// OpenAI's.
    Completions(Endpoint),
    /// OpenAI's, of items.
    Responses,
    /// Anthropic's.
    Messages,
    /// Ollama's, for a chat.
    OllamaChat,
    /// Ollama's, for a text.
    OllamaGenerate,
}

impl Protocol {
    /// Name of the field that says the format of an answer.
    fn format_field(self) -> &'static str {
        match self {
            // Messages name it themselves: it has two names there.
            Protocol::Completions(_) | Protocol::Messages => FORMAT_FIELD,
            Protocol::Responses => "text.format",
            Protocol::OllamaChat | Protocol::OllamaGenerate => "format",
        }
    }
}

/// A request for an answer as it was parsed.
struct ParsedRequest {
    /// `None`: only that the model be loaded.
    completion: Option<CompletionRequest>,
    endpoint: Endpoint,
    /// Tokens of the prompt, where the answer begins with their number.
    prompt_tokens: usize,
    /// The rest of a request for a response.
    response: ResponseBody,
}

/// Answers a request.
pub async fn complete(
    protocol: Protocol,
    State(context): State<Arc<ServerContext>>,
    Extension(connection): Extension<Arc<Connection>>,
    body: Body,
) -> Result<Response, ApiError> {
    let body = read_body(body, context.options.timeout).await?;
    let active = connection.answer();
    let lease = NamedModel::lease(&body, &context).await?;
    let name = lease.name.clone();
    // The model is released before the request waits: one that is held cannot be closed.
    let parsed = parse(protocol, body, lease.model(&context)?, &context).await?;
    let ParsedRequest { completion, endpoint, prompt_tokens, response } = parsed;
    let chat = protocol == Protocol::OllamaChat;
    let Some(completion) = completion else { return Ok(Json(ollama::loaded(&name, chat)).into_response()) };
    if !response.dropped.is_empty() {
        let tools = response.dropped.join(", ");
        context.record_dropped(&format!("POST /v1/responses: left out tools that this server cannot run: {tools}"));
    }
    let format = match protocol {
        Protocol::Completions(endpoint) => {
            let (format, include_usage) = (CompletionFormat::new(endpoint, name), completion.include_usage);
            AnswerFormat::Completion { format, include_usage }
        }
        Protocol::Responses => {
            AnswerFormat::Response(Box::new(ResponseFormat::new(name, response, Arc::clone(&context.responses))))
        }
        Protocol::Messages => AnswerFormat::Message(MessageFormat::new(name, prompt_tokens)),
        Protocol::OllamaChat | Protocol::OllamaGenerate => AnswerFormat::Lines(LinesFormat::new(name, chat)),
    };
    let mut readers = ChoiceReaders::new(endpoint, completion.choices, completion.tools, completion.echoes);
    let (stream, grammar_field, may_be) = (completion.stream, completion.grammar_field, completion.may_be);
    let start = async move {
        let mut generation = GenerationQueue::start(&context, lease, completion.requests, may_be).await?;
        let update = generation.started().await.map_err(|error| match &grammar_field {
            Some(field) => error.renamed("grammar", field),
            None => error,
        })?;
        Ok((generation, update, active))
    };
    if stream {
        return event_stream(start, format, readers).await;
    }
    let (mut generation, mut update, _active) = start.await?;
    let mut choices = Vec::new();
    loop {
        let (mut reader, mut pieces, mut scored) = (readers.next_reader(), Vec::new(), Vec::new());
        let (reason, stats) = loop {
            pieces.extend(reader.push(&update));
            scored.append(&mut update.scored);
            if let Some(end) = update.end {
                break end?;
            }
            update = generation.next_update().await;
        };
        readers.count(&stats);
        let called = reader.called();
        choices.push(Choice { pieces, scored, reason, called, stats, logprobs: reader.logprobs });
        if !generation.start_next() {
            let choices = readers.returned(choices);
            return Ok(Json(format.whole(choices, readers.returns_logprobs(), readers.total())).into_response());
        }
        update = generation.next_update().await;
    }
}

/// Parses a body for `model`. Large bodies are parsed on another thread: parsing 8 MB takes a second, in which no other answer would go on.
async fn parse(
    protocol: Protocol,
    body: Vec<u8>,
    model: ServedModel,
    context: &Arc<ServerContext>,
) -> Result<ParsedRequest, ApiError> {
    let (strict, long, responses) = (context.options.strict, body.len() > LONG_BODY, Arc::clone(&context.responses));
    let parse = move || {
        let read = |endpoint, fields| read_converted(endpoint, fields, &model, strict, protocol.format_field());
        let (mut prompt_count, mut response) = (0, ResponseBody::default());
        let (completion, endpoint) = match protocol {
            Protocol::Completions(endpoint) => {
                (Some(CompletionRequest::parse(endpoint, &body, &model, strict)?), endpoint)
            }
            Protocol::Responses => {
                response = response_body(&body, &responses, strict)?;
                let read = read(Endpoint::Chat, std::mem::take(&mut response.fields));
                (Some(read.map_err(|error| response.with_paths_of_tools(error))?), Endpoint::Chat)
            }
            Protocol::Messages => {
                let completion = parse_messages(&body, &model, strict, false)?;
                // A stream begins with the count; encoding takes milliseconds.
                prompt_count = if completion.stream { prompt_tokens(&completion, &model)? } else { 0 };
                (Some(completion), Endpoint::Chat)
            }
            Protocol::OllamaChat | Protocol::OllamaGenerate => {
                let read_body =
                    if protocol == Protocol::OllamaChat { ollama::chat_body } else { ollama::generate_body };
                let OllamaBody { fields, endpoint } = read_body(&body)?;
                (fields.map(|fields| read(endpoint, fields)).transpose()?, endpoint)
            }
        };
        Ok(ParsedRequest { completion, endpoint, prompt_tokens: prompt_count, response })
    };
    if !long {
        return parse();
    }
    let parsed = tokio::task::spawn_blocking(parse).await;
    parsed.unwrap_or_else(|_| Err(ApiError::unavailable("the request could not be read: its parser failed")))
}

/// Parses a request of Anthropic's.
fn parse_messages(
    body: &[u8],
    model: &ServedModel,
    strict: bool,
    only_counts: bool,
) -> Result<CompletionRequest, ApiError> {
    let MessageBody { fields, format_field } = anthropic::chat_body(body, only_counts, strict)?;
    read_converted(Endpoint::Chat, fields, model, strict, format_field)
}

/// Reads a body that was made of another protocol's, whose own reader has been strict: its fields need not be OpenAI's.
/// `format_field` is that protocol's name for `response_format`.
fn read_converted(
    endpoint: Endpoint,
    fields: Map<String, Value>,
    model: &ServedModel,
    strict: bool,
    format_field: &str,
) -> Result<CompletionRequest, ApiError> {
    if let Some(name) = fields.get("model").and_then(Value::as_str).filter(|name| strict && *name != model.name) {
        return Err(ApiError::model_not_found(name, &model.name));
    }
    let mut completion = CompletionRequest::read(endpoint, JsonFields::of_body(fields), model, false)
        .map_err(|error| error.renamed(FORMAT_FIELD, format_field))?;
    if let Some(field) = completion.grammar_field.as_mut().filter(|field| field.as_str() == FORMAT_FIELD) {
        format_field.clone_into(field);
    }
    Ok(completion)
}

/// Tokens of a request's prompt.
fn prompt_tokens(completion: &CompletionRequest, model: &ServedModel) -> Result<usize, ApiError> {
    let Some(request) = completion.requests.first() else { return Ok(0) };
    let tokens = model.engine.prompt_tokens(request.prompt.clone(), &request.chat);
    tokens.map(|tokens| tokens.len()).map_err(|error| ApiError::from(&error))
}

/// `POST /v1/messages/count_tokens`: the tokens that a message's prompt would have.
pub fn count_message_tokens(body: &[u8], model: &ServedModel, strict: bool) -> Result<Value, ApiError> {
    let completion = parse_messages(body, model, strict, true)?;
    Ok(json!({ "input_tokens": prompt_tokens(&completion, model)? }))
}
