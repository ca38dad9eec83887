//! Routes that describe models: OpenAI's and Ollama's lists, descriptions and states.

use std::{
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use axum::{
    Json,
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    http::Uri,
};
use serde_json::{Map, Value, json};

use super::{
    context::SharedContext,
    error::ApiError,
    fields::{invalid, parse_fields},
    model_library::{LibraryEntry, ModelLibrary},
    ollama,
    read_body::read_body,
    served_model::ServedModel,
};

/// Reported remaining time of a model that is never closed.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Reads the entries of a library on another thread.
async fn entries(library: &Arc<ModelLibrary>) -> Result<Vec<LibraryEntry>, ApiError> {
    let library = Arc::clone(library);
    let read = tokio::task::spawn_blocking(move || library.entries()).await;
    read.map_err(|_| ApiError::unavailable("the folder could not be read"))
}

/// `GET /v1/models`
pub async fn models(State(context): SharedContext) -> Result<Json<Value>, ApiError> {
    let models: Vec<Value> = match context.library() {
        None => context.model().iter().map(model_json).collect(),
        Some(library) => {
            let loaded = library.loaded().map(|model| model.name);
            entries(library).await?.iter().map(|entry| entry_json(entry, loaded.as_deref())).collect()
        }
    };
    Ok(Json(json!({ "object": "list", "data": models })))
}

/// `GET /v1/models/{name}`
pub async fn model(
    State(context): SharedContext,
    uri: Uri,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Ok(Path(name)) = name else { return Err(ApiError::not_found(uri.path())) };
    if let Some(library) = context.library() {
        let entries = entries(library).await?;
        let loaded = library.loaded().map(|model| model.name);
        return match entries.iter().find(|entry| entry.name == name) {
            Some(entry) => Ok(Json(entry_json(entry, loaded.as_deref()))),
            None => {
                let names: Vec<String> = entries.into_iter().map(|entry| entry.name).collect();
                Err(ApiError::model_unknown(&name, &names))
            }
        };
    }
    match context.model()? {
        model if model.name == name => Ok(Json(model_json(&model))),
        model => Err(ApiError::model_not_found(&name, &model.name)),
    }
}

/// `GET /health`. With a folder it succeeds even if no model is loaded.
pub async fn health(State(context): SharedContext) -> Result<Json<Value>, ApiError> {
    let name = match context.library() {
        None => Some(context.model()?.name),
        Some(library) => library.loaded().map(|model| model.name),
    };
    Ok(Json(json!({ "status": "ok", "model": name })))
}

/// `GET /api/tags`
pub async fn tags(State(context): SharedContext) -> Result<Json<Value>, ApiError> {
    let models: Vec<Value> = match context.library() {
        None => context.model().iter().map(ollama::entry).collect(),
        Some(library) => entries(library).await?.iter().map(ollama::library_entry).collect(),
    };
    Ok(Json(json!({ "models": models })))
}

/// `GET /api/ps`
pub async fn running(State(context): SharedContext) -> Json<Value> {
    let keep = context.library().and_then(|library| library.closes_in()).unwrap_or(FOR_EVER);
    let models: Vec<Value> = context.model().iter().map(|model| ollama::running(model, keep)).collect();
    Json(json!({ "models": models }))
}

/// `POST /api/show`: the model of a library that the request names. Without a library: the open
/// model, whatever name is given.
pub async fn show(State(context): SharedContext, body: Body) -> Result<Json<Value>, ApiError> {
    let body = read_body(body, context.options.timeout).await?;
    let fields: Map<String, Value> = parse_fields(&body, false)?;
    let text = |field: &str| match fields.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(name)) => Ok(Some(name.clone())),
        Some(other) => Err(invalid(field, "a string", other)),
    };
    let (model, name) = (text("model")?, text("name")?);
    let Some(library) = context.library() else { return Ok(Json(ollama::show(&context.model()?))) };
    if let Some(loaded) = library.loaded().filter(|loaded| model.as_ref().or(name.as_ref()) == Some(&loaded.name)) {
        return Ok(Json(ollama::show(&loaded)));
    }
    let library = Arc::clone(library);
    let found = tokio::task::spawn_blocking(move || library.find(model.or(name).as_deref())).await;
    let entry = found.unwrap_or_else(|_| Err(ApiError::unavailable("the folder could not be read")))?;
    Ok(Json(ollama::show_entry(&entry)))
}

/// Describes a model for the list of models.
fn model_json(model: &ServedModel) -> Value {
    let context = model.engine.context();
    json!({ "id": model.name, "object": "model", "created": model.since, "owned_by": "thermocline", "context_length": context })
}

fn entry_json(entry: &LibraryEntry, loaded: Option<&str>) -> Value {
    let changed = entry.path.metadata().and_then(|data| data.modified()).ok();
    let created = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default().as_secs();
    json!({
        "id": entry.name,
        "object": "model",
        "created": created,
        "owned_by": "thermocline",
        "context_length": entry.card.usual_context,
        "loaded": loaded == Some(&entry.name),
    })
}
