//! Answers requests in every protocol: reads and parses the body, generates, and writes the answer.

use std::sync::Arc;

use super::{
    answer_events::AnswerEvents,
    answer_format::AnswerFormat,
    anthropic::{MessageFormat, read_message_request},
    choices::WholeAnswer,
    connections::Connection,
    context::ServerContext,
    error::ApiError,
    event_stream::event_stream,
    fetch_first::fetch_first,
    named_model::NamedModel,
    ollama::{self, LinesFormat},
    openai::{
        CompletionFormat, Endpoint, read_request,
        responses::{ResponseBody, ResponseFormat, ResponseStore, read_response_request},
    },
    request::{CompletionRequest, RequestedAnswer},
    request_message::ReadRules,
    served_model::ServedModel,
};
use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use thermocline_engine::session::{Prompt, Request};

/// The protocol of a request for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// OpenAI's chats and text completions.
    Completions(Endpoint),
    /// OpenAI's responses, which consist of items.
    Responses,
    /// Anthropic's.
    Messages,
    /// Ollama's chats.
    OllamaChat,
    /// Ollama's text completions.
    OllamaGenerate,
}

/// A parsed request for an answer.
struct ParsedRequest {
    /// The answer to generate; `None` if the request only loads the model.
    completion: Option<CompletionRequest>,
    /// Tokens of the prompt, for protocols whose answers begin with this count.
    prompt_tokens: usize,
    /// The remaining fields of a request for a response.
    response: ResponseBody,
}

/// Answers a request.
pub async fn complete(
    protocol: Protocol,
    State(context): State<Arc<ServerContext>>,
    Extension(connection): Extension<Arc<Connection>>,
    body: Body,
) -> Result<Response, ApiError> {
    let (named, body) = NamedModel::of_request(body, &context).await?;
    let active = connection.answer();
    let responses = Arc::clone(&context.responses);
    let read = move |body: &[u8], rules: &ReadRules| protocol.read(body, &without_model(), rules, &responses).map(drop);
    let (body, rules) = fetch_first(body, &named, &context, read).await?;
    let lease = named.lease(&context).await?;
    let name = lease.name.clone();
    let parsed = parse(protocol, body, lease.model(&context)?, rules, &context).await?;
    let ParsedRequest { completion, prompt_tokens, response } = parsed;
    let chat = protocol == Protocol::OllamaChat;
    let Some(completion) = completion else { return Ok(Json(ollama::loaded(&name, chat)).into_response()) };
    if !response.dropped.is_empty() {
        let tools = response.dropped.join(", ");
        context.record_dropped(&format!("POST /v1/responses: left out tools that this server cannot run: {tools}"));
    }
    let (choices, stream) = (completion.choices, completion.stream);
    let format: Box<dyn AnswerFormat> = match protocol {
        Protocol::Completions(endpoint) => {
            let with_logprobs = choices.logprobs.is_some();
            Box::new(CompletionFormat::new(endpoint, name, completion.include_usage, with_logprobs))
        }
        Protocol::Responses => Box::new(ResponseFormat::new(name, response, Arc::clone(&context.responses))),
        Protocol::Messages => Box::new(MessageFormat::new(name, prompt_tokens)),
        Protocol::OllamaChat | Protocol::OllamaGenerate => Box::new(LinesFormat::new(name, chat)),
    };
    let start = AnswerEvents::start(context, lease, completion, active);
    if stream {
        return event_stream(start, format).await;
    }
    let (mut events, mut answer) = (start.await?, WholeAnswer::default());
    while let Some(event) = events.next().await {
        answer.push(event)?;
    }
    Ok(Json(format.whole(&choices.returned(answer.choices), &answer.total)).into_response())
}

/// The defaults of a body that is read before its model is known.
fn without_model() -> Request {
    Request::new(Prompt::Tokens(Vec::new()))
}

impl Protocol {
    /// Reads a body. `None` if the request only loads the model.
    fn read(
        self,
        body: &[u8],
        defaults: &Request,
        rules: &ReadRules,
        responses: &ResponseStore,
    ) -> Result<(Option<RequestedAnswer>, ResponseBody), ApiError> {
        let asked = match self {
            Protocol::Completions(endpoint) => Some(read_request(endpoint, body, defaults, rules)?),
            Protocol::Responses => {
                let request = read_response_request(body, responses, defaults, rules)?;
                return Ok((Some(request.asked), request.body));
            }
            Protocol::Messages => Some(read_message_request(body, defaults, false, rules)?),
            Protocol::OllamaChat => ollama::read_chat(body, defaults, &rules.fetch)?,
            Protocol::OllamaGenerate => ollama::read_generate(body, defaults, &rules.fetch)?,
        };
        Ok((asked, ResponseBody::default()))
    }
}

/// Parses a body for `model` on another thread, because long bodies and pictures take seconds. They
/// would stall all other answers.
async fn parse(
    protocol: Protocol,
    body: Vec<u8>,
    model: ServedModel,
    rules: ReadRules,
    context: &Arc<ServerContext>,
) -> Result<ParsedRequest, ApiError> {
    let responses = Arc::clone(&context.responses);
    let parse = move || {
        let rules = rules.for_model(&model);
        let (asked, response) = protocol.read(&body, &model.defaults, &rules, &responses)?;
        let completion = asked.map(|asked| CompletionRequest::new(asked, &model, rules.strict)).transpose()?;
        let prompt_tokens = match &completion {
            // A stream begins with this count. Encoding takes milliseconds.
            Some(completion) if protocol == Protocol::Messages && completion.stream => {
                prompt_tokens(completion, &model)?
            }
            _ => 0,
        };
        Ok(ParsedRequest { completion, prompt_tokens, response })
    };
    let parsed = tokio::task::spawn_blocking(parse).await;
    parsed.unwrap_or_else(|_| Err(ApiError::unavailable("the request could not be read: its parser failed")))
}

/// Counts the tokens of a request's prompt.
fn prompt_tokens(completion: &CompletionRequest, model: &ServedModel) -> Result<usize, ApiError> {
    let Some(request) = completion.requests.first() else { return Ok(0) };
    let tokens = model.engine.prompt_tokens(request.prompt.clone(), &request.chat);
    tokens.map(|tokens| tokens.len()).map_err(|error| ApiError::from(&error))
}

/// Fetches the pictures of a body of `POST /v1/messages/count_tokens`.
pub fn read_counted_message(body: &[u8], rules: &ReadRules) -> Result<(), ApiError> {
    read_message_request(body, &without_model(), true, rules).map(drop)
}

/// `POST /v1/messages/count_tokens`: counts the tokens of a message's prompt.
pub fn count_message_tokens(body: &[u8], model: &ServedModel, rules: ReadRules) -> Result<Value, ApiError> {
    let rules = rules.for_model(model);
    let asked = read_message_request(body, &model.defaults, true, &rules)?;
    let completion = CompletionRequest::new(asked, model, rules.strict)?;
    Ok(json!({ "input_tokens": prompt_tokens(&completion, model)? }))
}
