//! What is where.

use std::sync::Arc;

use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{self, HeaderValue},
};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::{
    ask::{Ask, Kind},
    body::{self, Body},
    error::ApiError,
    figures::figures,
    generation::Generation,
    guard, key,
    reply::Reply,
    running::Shared,
    source::Offer,
    stream,
};

/// Answers a request, whatever it is.
pub async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Response<Body> {
    shared.requested();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let page = match guard::check(&shared.options, request.headers()) {
        Ok(page) => page,
        Err(error) => return shared.refuse(&method, &path, &error),
    };
    let mut response = match &page {
        Some(page) if guard::is_preflight(&method, request.headers()) => page.preflight(request.headers()),
        _ => match route(&shared, request).await {
            Ok(response) => response,
            Err(error) => shared.refuse(&method, &path, &error),
        },
    };
    if let Some(page) = page {
        page.admit(&mut response);
    }
    response
}

/// A place.
enum Place {
    Health,
    Models,
    Model(String),
    Figures,
    Answers(Kind),
}

impl Place {
    fn of(path: &str) -> Option<Self> {
        Some(match path.strip_suffix('/').unwrap_or(path) {
            "/health" => Place::Health,
            "/v1/models" => Place::Models,
            "/v1/thermocline" => Place::Figures,
            "/v1/chat/completions" => Place::Answers(Kind::Chat),
            "/v1/completions" => Place::Answers(Kind::Completion),
            other => {
                let name = other.strip_prefix("/v1/models/")?;
                Place::Model(percent_decode_str(name).decode_utf8_lossy().into_owned())
            }
        })
    }

    fn allows(&self) -> &'static str {
        match self {
            Place::Answers(_) => "POST",
            _ => "GET, HEAD",
        }
    }
}

async fn route(shared: &Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, ApiError> {
    let (method, path) = (request.method(), request.uri().path());
    let Some(place) = Place::of(path) else {
        key::check(shared.options.key.as_deref(), request.headers())?;
        return Err(ApiError::nowhere(path));
    };
    let is_answer = matches!(place, Place::Answers(_));
    let fits = if is_answer { method == Method::POST } else { method == Method::GET || method == Method::HEAD };
    if !fits {
        let error = ApiError::method(method, path, place.allows());
        let mut response = shared.refuse(method, path, &error);
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(place.allows()));
        return Ok(response);
    }
    // Whether it lives, anybody may ask.
    if !matches!(place, Place::Health) {
        key::check(shared.options.key.as_deref(), request.headers())?;
    }
    let fine = |value: Value| Ok(body::json(StatusCode::OK, &value));
    match place {
        Place::Health => fine(json!({ "status": "ok", "model": shared.offer()?.name })),
        Place::Models => {
            let models: Vec<Value> = shared.offer().iter().map(about).collect();
            fine(json!({ "object": "list", "data": models }))
        }
        Place::Model(name) => match shared.offer()? {
            offer if offer.name == name => fine(about(&offer)),
            offer => Err(ApiError::model(&name, &offer.name)),
        },
        Place::Figures => fine(figures(shared, &shared.offer()?)),
        Place::Answers(kind) => {
            let body = body::read(request.into_body(), shared.options.patience).await?;
            let (ask, name) = {
                // Not kept while waiting: a model that is being asked for could not be closed.
                let offer = shared.offer()?;
                (Ask::read(kind, &body, &offer)?, offer.name)
            };
            drop(body);
            completion(shared, ask, name).await
        }
    }
}

async fn completion(shared: &Arc<Shared>, ask: Ask, name: String) -> Result<Response<Body>, ApiError> {
    let mut generation = Generation::begin(shared, &name, ask.request).await?;
    let mut news = generation.begun().await?;
    let reply = Reply::new(ask.kind, name);
    if ask.stream {
        return Ok(stream::response(generation, news, reply, ask.usage));
    }
    let mut text = String::new();
    loop {
        text.push_str(&news.text);
        if let Some(end) = news.end {
            let (reason, stats) = end?;
            return Ok(body::json(StatusCode::OK, &reply.whole(&text, &reason, &stats)));
        }
        news = generation.next().await;
    }
}

/// A model, as lists have it.
fn about(offer: &Offer) -> Value {
    let context = offer.engine.context();
    json!({ "id": offer.name, "object": "model", "created": offer.since, "owned_by": "thermocline", "context_length": context })
}
