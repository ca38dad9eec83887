//! The routes of the server, their handlers, and the layers that every request passes.

use std::sync::Arc;

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, Request, State, rejection::PathRejection},
    handler::Handler,
    http::{Method, StatusCode, Uri},
    middleware::{Next, from_fn_with_state, map_response},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use serde_json::{Value, json};
use thermocline_engine::session::AnswerText;
use tower_http::{limit::RequestBodyLimitLayer, normalize_path::NormalizePath};

use super::{
    context::ServerContext,
    engine_status::engine_status,
    error::ApiError,
    event_stream::event_stream,
    generation::Generation,
    guard, key,
    read_body::{LARGEST_BODY, LARGEST_DRAINED_BODY, read_body},
    request::{CompletionRequest, Endpoint},
    response::CompletionFormat,
    served_model::ServedModel,
};

type Context = State<Arc<ServerContext>>;

/// Builds the service that answers every request. Slashes at the end of a path are ignored.
pub fn routes(context: Arc<ServerContext>) -> NormalizePath<Router> {
    let key_required = Router::new()
        .route("/v1/models", get_only(models))
        .route("/v1/models/{*name}", get_only(model))
        .route("/v1/thermocline", get_only(status))
        .route("/v1/chat/completions", post_only(|context, body| complete(Endpoint::Chat, context, body)))
        .route("/v1/completions", post_only(|context, body| complete(Endpoint::Completion, context, body)))
        .fallback(async |uri: Uri| ApiError::not_found(uri.path()))
        .layer(from_fn_with_state(Arc::clone(&context), check_key));
    let router = key_required
        .route("/health", get_only(health))
        .layer(RequestBodyLimitLayer::new(LARGEST_DRAINED_BODY))
        .layer(map_response(as_json))
        .layer(guard::cors(&context.options))
        .layer(from_fn_with_state(Arc::clone(&context), check_origin))
        .layer(from_fn_with_state(Arc::clone(&context), record))
        .with_state(context);
    NormalizePath::trim_trailing_slash(router)
}

/// `GET` and `HEAD` by `handler`; 405 for other methods.
fn get_only<T: 'static>(handler: impl Handler<T, Arc<ServerContext>>) -> MethodRouter<Arc<ServerContext>> {
    get(handler).fallback(async |method: Method, uri: Uri| ApiError::method(&method, uri.path(), "GET, HEAD"))
}

/// `POST` by `handler`; 405 for other methods.
fn post_only<T: 'static>(handler: impl Handler<T, Arc<ServerContext>>) -> MethodRouter<Arc<ServerContext>> {
    post(handler).fallback(async |method: Method, uri: Uri| ApiError::method(&method, uri.path(), "POST"))
}

/// Counts the request and records its refusal.
async fn record(State(context): Context, request: Request, next: Next) -> Response {
    context.record_request();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = next.run(request).await;
    if let Some(error) = response.extensions().get::<ApiError>() {
        context.record_refusal(format!("{method} {path}: {} ({})", error.message, error.status.as_u16()));
    }
    response
}

/// Refuses foreign host names and web pages whose origin is not allowed.
async fn check_origin(State(context): Context, request: Request, next: Next) -> Result<Response, ApiError> {
    guard::check(&context.options, request.method(), request.uri().path(), request.headers())?;
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

async fn complete(endpoint: Endpoint, State(context): Context, body: Body) -> Result<Response, ApiError> {
    let body = read_body(body, context.options.timeout).await?;
    let (completion, name) = {
        // Released before the request waits: a model that is held cannot be closed.
        let model = context.model()?;
        (CompletionRequest::parse(endpoint, &body, &model)?, model.name)
    };
    drop(body);
    let mut generation = Generation::start(&context, &name, completion.request).await?;
    let mut update = generation.started().await?;
    let format = CompletionFormat::new(endpoint, name);
    if completion.stream {
        return Ok(event_stream(generation, update, format, completion.include_usage).into_response());
    }
    let mut text = AnswerText::default();
    loop {
        text.append(&update.text);
        if let Some(end) = update.end {
            let (reason, stats) = end?;
            return Ok(Json(format.whole(&text, &reason, &stats)).into_response());
        }
        update = generation.next_update().await;
    }
}

/// Entry of the list of models.
fn model_json(model: &ServedModel) -> Value {
    let context = model.engine.context();
    json!({ "id": model.name, "object": "model", "created": model.since, "owned_by": "thermocline", "context_length": context })
}
