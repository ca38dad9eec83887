//! The routes of the server, their handlers, and the layers that every request passes.

use std::sync::Arc;

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, Request, State},
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
    answers::{Protocol, complete, count_message_tokens, read_counted_message},
    anthropic,
    context::{ServerContext, SharedContext},
    embeddings::{EmbeddingProtocol, embed},
    engine_status::engine_status,
    error::ApiError,
    fetch_first::fetch_first,
    guard, key,
    metrics::{MEDIA_TYPE, metrics},
    model_routes,
    named_model::NamedModel,
    ollama,
    openai::Endpoint,
    read_body::{LARGEST_BODY, LARGEST_DRAINED_BODY},
    rerank::rerank,
    served_model::ServedModel,
    tokens,
};

/// Text at the root path, where Ollama clients look for a server.
const RUNNING: &str = "Thermocline is running\n";

/// Builds the service that answers every request. It ignores slashes at the end of a path.
pub fn routes(context: Arc<ServerContext>) -> NormalizePath<Router> {
    let key_required = Router::new()
        .route("/v1/models", get_only(model_routes::models))
        .route("/v1/models/{*name}", get_only(model_routes::model))
        .route("/v1/thermocline", described(engine_status))
        .route("/v1/chat/completions", answered(Protocol::Completions(Endpoint::Chat)))
        .route("/v1/completions", answered(Protocol::Completions(Endpoint::Completion)))
        .route("/v1/responses", answered(Protocol::Responses))
        .route("/v1/responses/{id}", stored_response())
        .route("/v1/embeddings", embedded(EmbeddingProtocol::OpenAi))
        .route("/v1/rerank", post_only(rerank))
        .route("/rerank", post_only(rerank))
        .route("/v1/messages", answered(Protocol::Messages))
        .route("/v1/messages/count_tokens", post_only(count_tokens))
        .route("/api/chat", answered(Protocol::OllamaChat))
        .route("/api/generate", answered(Protocol::OllamaGenerate))
        .route("/api/embed", embedded(EmbeddingProtocol::OllamaEmbed))
        .route("/api/embeddings", embedded(EmbeddingProtocol::OllamaOne))
        .route("/api/show", post_only(model_routes::show))
        .route("/api/tags", get_only(model_routes::tags))
        .route("/api/ps", get_only(model_routes::running))
        .route("/api/version", get_only(async || Json(ollama::version())))
        .route("/tokenize", post_only(tokenize))
        .route("/detokenize", post_only(detokenize))
        .route("/tokenizer_info", described(|_, model| tokens::tokenizer_info(model)))
        .route("/props", described(|context, model| tokens::props(model, context.options.parallel)))
        .route("/metrics", get_only(metrics_text))
        .fallback(async |uri: Uri| ApiError::not_found(uri.path()))
        .layer(from_fn_with_state(Arc::clone(&context), check_key));
    let router = key_required
        .route("/", get_only(async || RUNNING))
        .route("/health", get_only(model_routes::health))
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

/// Adds a fixed header to every response.
fn fixed_header(name: HeaderName, value: &'static str) -> SetResponseHeaderLayer<HeaderValue> {
    SetResponseHeaderLayer::overriding(name, HeaderValue::from_static(value))
}

/// Routes `GET` and `HEAD` to `handler`; 405 for other methods.
fn get_only<T: 'static>(handler: impl Handler<T, Arc<ServerContext>>) -> MethodRouter<Arc<ServerContext>> {
    get(handler).fallback(async |method: Method, uri: Uri| ApiError::method(&method, uri.path(), "GET, HEAD"))
}

/// Routes `POST` to `handler`; 405 for other methods.
fn post_only<T: 'static>(handler: impl Handler<T, Arc<ServerContext>>) -> MethodRouter<Arc<ServerContext>> {
    post(handler).fallback(async |method: Method, uri: Uri| ApiError::method(&method, uri.path(), "POST"))
}

/// Routes requests for answers in `protocol`.
fn answered(protocol: Protocol) -> MethodRouter<Arc<ServerContext>> {
    post_only(move |context, connection, body| complete(protocol, context, connection, body))
}

/// Routes requests for embeddings in `protocol`.
fn embedded(protocol: EmbeddingProtocol) -> MethodRouter<Arc<ServerContext>> {
    post_only(move |context, connection, body| embed(protocol, context, connection, body))
}

/// Routes `GET` to `describe`, which describes the open model.
fn described(describe: fn(&ServerContext, &ServedModel) -> Value) -> MethodRouter<Arc<ServerContext>> {
    get_only(async move |State(context): SharedContext| context.model().map(|model| Json(describe(&context, &model))))
}

/// Routes `GET` and `DELETE` of a stored response.
fn stored_response() -> MethodRouter<Arc<ServerContext>> {
    let read = async |State(context): SharedContext, Path(id): Path<String>| match context.responses.get(&id) {
        Some(kept) => Ok(Json(kept.response)),
        None => Err(ApiError::response_not_found(&id)),
    };
    let remove = async |State(context): SharedContext, Path(id): Path<String>| match context.responses.remove(&id) {
        true => Ok(Json(json!({ "id": id, "object": "response", "deleted": true }))),
        false => Err(ApiError::response_not_found(&id)),
    };
    get(read)
        .delete(remove)
        .fallback(async |method: Method, uri: Uri| ApiError::method(&method, uri.path(), "GET, HEAD, DELETE"))
}

/// Counts the request and records a refusal. Refusals have the form of the path's protocol.
async fn record(State(context): SharedContext, request: Request, next: Next) -> Response {
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
async fn check_origin(State(context): SharedContext, request: Request, next: Next) -> Result<Response, ApiError> {
    guard::check(&context.options, request.method(), request.uri(), request.headers())?;
    Ok(next.run(request).await)
}

/// Refuses requests without the server's key.
async fn check_key(State(context): SharedContext, request: Request, next: Next) -> Result<Response, ApiError> {
    key::check(context.options.key.as_deref(), request.headers())?;
    Ok(next.run(request).await)
}

/// Converts the plain-text refusal of [`RequestBodyLimitLayer`] to JSON.
async fn as_json(response: Response) -> Response {
    match response.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::too_large(LARGEST_BODY).into_response(),
        _ => response,
    }
}

async fn metrics_text(State(context): SharedContext) -> Result<Response, ApiError> {
    let text = metrics(&context, &context.model()?);
    Ok(([(CONTENT_TYPE, MEDIA_TYPE)], text).into_response())
}

async fn tokenize(State(context): SharedContext, body: Body) -> Result<Json<Value>, ApiError> {
    let (named, body) = NamedModel::of_request(body, &context).await?;
    about_tokens(tokens::tokenize, named, body, &context).await
}

async fn detokenize(State(context): SharedContext, body: Body) -> Result<Json<Value>, ApiError> {
    let (named, body) = NamedModel::of_request(body, &context).await?;
    about_tokens(tokens::detokenize, named, body, &context).await
}

/// Answers questions about tokens on another thread, because long texts take seconds.
async fn about_tokens(
    answer: impl FnOnce(&[u8], &ServedModel) -> Result<Value, ApiError> + Send + 'static,
    named: NamedModel,
    body: Vec<u8>,
    context: &Arc<ServerContext>,
) -> Result<Json<Value>, ApiError> {
    let lease = named.lease(context).await?;
    let model = lease.model(context)?;
    let answered = tokio::task::spawn_blocking(move || answer(&body, &model)).await;
    answered.unwrap_or_else(|_| Err(ApiError::unavailable("the tokenizer failed"))).map(Json)
}

/// `POST /v1/messages/count_tokens`
async fn count_tokens(State(context): SharedContext, body: Body) -> Result<Json<Value>, ApiError> {
    let (named, body) = NamedModel::of_request(body, &context).await?;
    let (body, rules) = fetch_first(body, &named, &context, read_counted_message).await?;
    about_tokens(move |body, model| count_message_tokens(body, model, rules), named, body, &context).await
}
