//! The routes of the server, their handlers, and the layers that every request passes.

use std::sync::Arc;

use axum::{
    Extension, Json, Router,
    body::Body,
    extract::{Path, Request, State, rejection::PathRejection},
    handler::Handler,
    http::{
        HeaderName, HeaderValue, Method, StatusCode, Uri,
        header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
    },
    middleware::{Next, from_fn_with_state, map_response},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use serde_json::{Value, json};
use tower_http::{limit::RequestBodyLimitLayer, normalize_path::NormalizePath, set_header::SetResponseHeaderLayer};

use super::{
    answer_format::AnswerFormat,
    anthropic::{self, MessageFormat},
    choices::{Choice, ChoiceReaders},
    connections::Connection,
    context::ServerContext,
    engine_status::engine_status,
    error::ApiError,
    event_stream::event_stream,
    generation::Generation,
    guard,
    json_fields::JsonFields,
    key,
    metrics::{MEDIA_TYPE, metrics},
    ollama::{self, LinesFormat, OllamaBody},
    read_body::{LARGEST_BODY, LARGEST_DRAINED_BODY, read_body},
    request::{CompletionRequest, Endpoint},
    response::CompletionFormat,
    served_model::ServedModel,
    tokens,
};

/// Bytes of a body above which it is parsed on another thread.
const LONG_BODY: usize = 64 << 10;

type Context = State<Arc<ServerContext>>;

/// The protocol of a request for an answer.
#[derive(Debug, Clone, Copy)]
enum Protocol {
    /// OpenAI's.
    Completions(Endpoint),
    /// Anthropic's.
    Messages,
    /// Ollama's, for a chat.
    OllamaChat,
    /// Ollama's, for a text.
    OllamaGenerate,
}

/// A request for an answer as it was parsed: the name of the model it was parsed for, and how many tokens the prompt has, where the answer
/// begins with that.
struct ParsedRequest {
    /// `None`: only that the model be loaded.
    completion: Option<CompletionRequest>,
    name: String,
    endpoint: Endpoint,
    prompt_tokens: usize,
}

/// Builds the service that answers every request. Slashes at the end of a path are ignored.
pub fn routes(context: Arc<ServerContext>) -> NormalizePath<Router> {
    let key_required = Router::new()
        .route("/v1/models", get_only(models))
        .route("/v1/models/{*name}", get_only(model))
        .route("/v1/thermocline", get_only(status))
        .route(
            "/v1/chat/completions",
            post_only(|it, by, body| complete(Protocol::Completions(Endpoint::Chat), it, by, body)),
        )
        .route(
            "/v1/completions",
            post_only(|it, by, body| complete(Protocol::Completions(Endpoint::Completion), it, by, body)),
        )
        .route("/v1/messages", post_only(|it, by, body| complete(Protocol::Messages, it, by, body)))
        .route("/v1/messages/count_tokens", post_only(count_tokens))
        .route("/api/chat", post_only(|it, by, body| complete(Protocol::OllamaChat, it, by, body)))
        .route("/api/generate", post_only(|it, by, body| complete(Protocol::OllamaGenerate, it, by, body)))
        .route("/api/show", post_only(show))
        .route(
            "/api/tags",
            get_only(async |State(context): Context| Json(ollama::model_list(context.model().ok().as_ref()))),
        )
        .route(
            "/api/ps",
            get_only(async |State(context): Context| Json(ollama::running(context.model().ok().as_ref()))),
        )
        .route("/api/version", get_only(async || Json(ollama::version())))
        .route("/tokenize", post_only(|it, body| about_tokens(tokens::tokenize, it, body)))
        .route("/detokenize", post_only(|it, body| about_tokens(tokens::detokenize, it, body)))
        .route("/tokenizer_info", get_only(tokenizer_info))
        .route("/props", get_only(props))
        .route("/metrics", get_only(metrics_text))
        .fallback(async |uri: Uri| ApiError::not_found(uri.path()))
        .layer(from_fn_with_state(Arc::clone(&context), check_key));
    let router = key_required
        .route("/health", get_only(health))
        .layer(RequestBodyLimitLayer::new(LARGEST_DRAINED_BODY))
        .layer(map_response(as_json))
        .layer(guard::cors(&context.options))
        .layer(from_fn_with_state(Arc::clone(&context), check_origin))
        .layer(from_fn_with_state(Arc::clone(&context), record))
        .layer(fixed_header(X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .layer(fixed_header(CACHE_CONTROL, "no-store"))
        .with_state(context);
    NormalizePath::trim_trailing_slash(router)
}

/// The layer that gives every response a header.
fn fixed_header(name: HeaderName, value: &'static str) -> SetResponseHeaderLayer<HeaderValue> {
    SetResponseHeaderLayer::overriding(name, HeaderValue::from_static(value))
}

/// `GET` and `HEAD` by `handler`; 405 for other methods.
fn get_only<T: 'static>(handler: impl Handler<T, Arc<ServerContext>>) -> MethodRouter<Arc<ServerContext>> {
    get(handler).fallback(async |method: Method, uri: Uri| ApiError::method(&method, uri.path(), "GET, HEAD"))
}

/// `POST` by `handler`; 405 for other methods.
fn post_only<T: 'static>(handler: impl Handler<T, Arc<ServerContext>>) -> MethodRouter<Arc<ServerContext>> {
    post(handler).fallback(async |method: Method, uri: Uri| ApiError::method(&method, uri.path(), "POST"))
}

/// Counts the request and records its refusal, which has the shape of the path's protocol.
async fn record(State(context): Context, request: Request, next: Next) -> Response {
    context.record_request();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = next.run(request).await;
    let Some(error) = response.extensions().get::<ApiError>() else { return response };
    context.record_refusal(format!("{method} {path}: {} ({})", error.message, error.status.as_u16()));
    let body = match &*path {
        path if path.starts_with(anthropic::PATH) => anthropic::error_body(error).to_string(),
        path if path.starts_with(ollama::PATH) => ollama::error_body(error).to_string(),
        _ => return response,
    };
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(body))
}

/// Refuses foreign host names and web pages whose origin is not allowed.
async fn check_origin(State(context): Context, request: Request, next: Next) -> Result<Response, ApiError> {
    guard::check(&context.options, request.method(), request.uri(), request.headers())?;
    Ok(next.run(request).await)
}

/// Refuses requests without the server's key.
async fn check_key(State(context): Context, request: Request, next: Next) -> Result<Response, ApiError> {
    key::check(context.options.key.as_deref(), request.headers())?;
    Ok(next.run(request).await)
}

/// Gives the refusal of [`RequestBodyLimitLayer`], which is plain text, the shape of all others.
async fn as_json(response: Response) -> Response {
    match response.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::too_large(LARGEST_BODY).into_response(),
        _ => response,
    }
}

async fn health(State(context): Context) -> Result<Json<Value>, ApiError> {
    Ok(Json(json!({ "status": "ok", "model": context.model()?.name })))
}

async fn models(State(context): Context) -> Json<Value> {
    let models: Vec<Value> = context.model().iter().map(model_json).collect();
    Json(json!({ "object": "list", "data": models }))
}

async fn model(
    State(context): Context,
    uri: Uri,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Ok(Path(name)) = name else { return Err(ApiError::not_found(uri.path())) };
    match context.model()? {
        model if model.name == name => Ok(Json(model_json(&model))),
        model => Err(ApiError::model_not_found(&name, &model.name)),
    }
}

async fn status(State(context): Context) -> Result<Json<Value>, ApiError> {
    Ok(Json(engine_status(&context, &context.model()?)))
}

async fn tokenizer_info(State(context): Context) -> Result<Json<Value>, ApiError> {
    Ok(Json(tokens::tokenizer_info(&context.model()?)))
}

async fn props(State(context): Context) -> Result<Json<Value>, ApiError> {
    Ok(Json(tokens::props(&context.model()?, 1)))
}

async fn metrics_text(State(context): Context) -> Result<Response, ApiError> {
    let text = metrics(&context, &context.model()?);
    Ok(([(CONTENT_TYPE, MEDIA_TYPE)], text).into_response())
}

/// Answers about tokens, on another thread: long texts take seconds.
async fn about_tokens(
    answer: impl FnOnce(&[u8], &ServedModel) -> Result<Value, ApiError> + Send + 'static,
    State(context): Context,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let body = read_body(body, context.options.timeout).await?;
    let model = context.model()?;
    let answered = tokio::task::spawn_blocking(move || answer(&body, &model)).await;
    answered.unwrap_or_else(|_| Err(ApiError::unavailable("the tokenizer failed"))).map(Json)
}

async fn complete(
    protocol: Protocol,
    State(context): Context,
    Extension(connection): Extension<Arc<Connection>>,
    body: Body,
) -> Result<Response, ApiError> {
    let body = read_body(body, context.options.timeout).await?;
    let active = connection.answer();
    let ParsedRequest { completion, name, endpoint, prompt_tokens } = parse(protocol, body, &context).await?;
    let chat = matches!(protocol, Protocol::OllamaChat);
    let Some(completion) = completion else { return Ok(Json(ollama::loaded(&name, chat)).into_response()) };
    let format = match protocol {
        Protocol::Completions(endpoint) => {
            let (format, include_usage) = (CompletionFormat::new(endpoint, name.clone()), completion.include_usage);
            AnswerFormat::Completion { format, include_usage }
        }
        Protocol::Messages => AnswerFormat::Message(MessageFormat::new(name.clone(), prompt_tokens)),
        Protocol::OllamaChat | Protocol::OllamaGenerate => AnswerFormat::Lines(LinesFormat::new(name.clone(), chat)),
    };
    let mut readers = ChoiceReaders::new(endpoint, completion.choices, completion.tools, completion.echoes);
    let stream = completion.stream;
    let start = {
        let context = Arc::clone(&context);
        async move {
            let mut generation = Generation::start(&context, &name, completion.requests).await?;
            let update = generation.started().await?;
            Ok((generation, update, active))
        }
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
        choices.push(Choice { pieces, scored, reason, stats, logprobs: reader.logprobs });
        if !generation.start_next() {
            let choices = readers.returned(choices);
            return Ok(Json(format.whole(choices, readers.returns_logprobs(), readers.total())).into_response());
        }
        update = generation.next_update().await;
    }
}

/// Parses a body for the model that is open, whose name is returned. Large bodies are parsed on another thread: parsing 8 MB takes
/// a second, in which no other answer would go on.
async fn parse(protocol: Protocol, body: Vec<u8>, context: &Arc<ServerContext>) -> Result<ParsedRequest, ApiError> {
    // Released before the request waits: a model that is held cannot be closed.
    let (model, strict, long) = (context.model()?, context.options.strict, body.len() > LONG_BODY);
    let parse = move || {
        let of_ollama = |OllamaBody { fields, endpoint }| {
            let read = |fields| CompletionRequest::read(endpoint, JsonFields::of_body(fields), &model, strict);
            Ok::<_, ApiError>((fields.map(read).transpose()?, endpoint, 0))
        };
        let (completion, endpoint, prompt_tokens) = match protocol {
            Protocol::Completions(endpoint) => {
                (Some(CompletionRequest::parse(endpoint, &body, &model, strict)?), endpoint, 0)
            }
            Protocol::Messages => {
                let completion = parse_messages(&body, &model, strict, false)?;
                // A stream begins with the count; encoding takes milliseconds.
                let counted = if completion.stream { prompt_tokens(&completion, &model)? } else { 0 };
                (Some(completion), Endpoint::Chat, counted)
            }
            Protocol::OllamaChat => of_ollama(ollama::chat_body(&body)?)?,
            Protocol::OllamaGenerate => of_ollama(ollama::generate_body(&body)?)?,
        };
        Ok(ParsedRequest { completion, name: model.name, endpoint, prompt_tokens })
    };
    if !long {
        return parse();
    }
    let parsed = tokio::task::spawn_blocking(parse).await;
    parsed.unwrap_or_else(|_| Err(ApiError::unavailable("the request could not be read: its parser failed")))
}

/// `POST /api/show`: whatever model it names, the open one.
async fn show(State(context): Context, body: Body) -> Result<Json<Value>, ApiError> {
    let body = read_body(body, context.options.timeout).await?;
    JsonFields::parse(&body)?;
    Ok(Json(ollama::show(&context.model()?)))
}

/// Parses a request of Anthropic's.
fn parse_messages(
    body: &[u8],
    model: &ServedModel,
    strict: bool,
    only_counts: bool,
) -> Result<CompletionRequest, ApiError> {
    let fields = JsonFields::of_body(anthropic::chat_body(body, only_counts)?);
    CompletionRequest::read(Endpoint::Chat, fields, model, strict)
}

/// Tokens of a request's prompt.
fn prompt_tokens(completion: &CompletionRequest, model: &ServedModel) -> Result<usize, ApiError> {
    let Some(request) = completion.requests.first() else { return Ok(0) };
    let tokens = model.engine.prompt_tokens(request.prompt.clone(), &request.chat);
    tokens.map(|tokens| tokens.len()).map_err(|error| ApiError::from(&error))
}

/// `POST /v1/messages/count_tokens`: the tokens that a message's prompt would have.
async fn count_tokens(context: Context, body: Body) -> Result<Json<Value>, ApiError> {
    let strict = context.options.strict;
    let count = move |body: &[u8], model: &ServedModel| {
        let completion = parse_messages(body, model, strict, true)?;
        Ok(json!({ "input_tokens": prompt_tokens(&completion, model)? }))
    };
    about_tokens(count, context, body).await
}

/// Entry of the list of models.
fn model_json(model: &ServedModel) -> Value {
    let context = model.engine.context();
    json!({ "id": model.name, "object": "model", "created": model.since, "owned_by": "thermocline", "context_length": context })
}
