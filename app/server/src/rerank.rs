//! `/v1/rerank` (of Jina, Cohere and llama-server): the relevance of documents to a query, by a
//! reranker.

use std::sync::Arc;

use axum::{Extension, Json, body::Body, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use thermocline_engine::session::{Prompt, Request, StateReading};

use super::{
    connections::Connection,
    context::ServerContext,
    error::ApiError,
    fields::{Ignored, invalid, missing, parse_fields},
    generation::GenerationQueue,
    named_model::NamedModel,
};

/// Most documents in a request.
const MAX_DOCUMENTS: usize = 2048;

/// The fields of a request.
#[derive(Debug, PartialEq, Deserialize)]
struct RerankFields {
    model: Option<String>,
    query: Option<String>,
    documents: Option<Value>,
    top_n: Option<usize>,
    return_documents: Option<bool>,
    user: Ignored,
}

/// A query and its documents.
#[derive(Debug, PartialEq)]
struct RerankRequest {
    query: String,
    documents: Vec<String>,
    /// Number of results, the most relevant first.
    top_n: usize,
    /// Answer with the texts of documents too.
    with_documents: bool,
}

/// Answers a request.
pub async fn rerank(
    State(context): State<Arc<ServerContext>>,
    Extension(connection): Extension<Arc<Connection>>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let (named, body) = NamedModel::of_request(body, &context).await?;
    let _active = connection.answer();
    let lease = named.lease(&context).await?;
    let (model, name) = (lease.model(&context)?, lease.name.clone());
    let fields: RerankFields = parse_fields(&body, context.options.strict)?;
    if let Some(other) = fields.model.as_ref().filter(|other| context.options.strict && **other != model.name) {
        return Err(ApiError::model_not_found(other, &model.name));
    }
    let RerankRequest { query, documents, top_n, with_documents } = RerankRequest::of(fields)?;
    let pair = |document: &String| {
        let prompt = Prompt::Pair { query: query.clone(), document: document.clone() };
        Request { reading: Some(StateReading::Relevance), max_tokens: Some(0), ..Request::new(prompt) }
    };
    let (mut scores, mut tokens) = (Vec::with_capacity(documents.len()), 0);
    let requests: Vec<Request> = documents.iter().map(pair).collect();
    let mut generation = GenerationQueue::start(&context, lease, requests, None).await?;
    loop {
        let update = generation.next_update().await;
        scores.extend(update.embedding.iter().flatten().copied());
        if let Some(end) = update.end {
            let (_, stats) = end?;
            tokens += stats.prompt_tokens;
            if !generation.start_next() {
                break;
            }
        }
    }
    let mut order: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
    order.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let result = |(index, score): &(usize, f32)| {
        let mut result = json!({ "index": index, "relevance_score": score });
        if with_documents {
            result["document"] = json!({ "text": documents[*index] });
        }
        result
    };
    let results: Vec<Value> = order.iter().take(top_n).map(result).collect();
    let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
    Ok(Json(json!({ "object": "list", "model": name, "results": results, "usage": usage })))
}

impl RerankRequest {
    fn of(fields: RerankFields) -> Result<Self, ApiError> {
        let query = fields.query.ok_or_else(|| missing("query", "a text"))?;
        let expected = format!("a list of 1 to {MAX_DOCUMENTS} texts, or of objects with `text`");
        let list = fields.documents.ok_or_else(|| missing("documents", &expected))?;
        let text = |document: &Value| match document {
            Value::String(text) => Some(text.clone()),
            document => document.get("text")?.as_str().map(str::to_owned),
        };
        let documents = list.as_array().filter(|list| (1..=MAX_DOCUMENTS).contains(&list.len()));
        let documents: Option<Vec<String>> = documents.and_then(|list| list.iter().map(text).collect());
        let documents = documents.ok_or_else(|| invalid("documents", &expected, &list))?;
        if fields.top_n == Some(0) {
            return Err(invalid("top_n", "a whole number of at least 1", &0.into()));
        }
        let top_n = fields.top_n.unwrap_or(documents.len());
        Ok(RerankRequest { query, documents, top_n, with_documents: fields.return_documents.unwrap_or(false) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_texts_or_objects_with_a_text() {
        let parse = |body: Value| {
            let fields =
                parse_fields::<RerankFields>(body.to_string().as_bytes(), false).map_err(|error| error.message);
            RerankRequest::of(fields?).map_err(|error| error.message)
        };
        let read = parse(json!({ "query": "q", "documents": ["a", { "text": "b" }], "top_n": 1 })).unwrap();
        assert_eq!((read.documents, read.top_n), (vec!["a".to_owned(), "b".to_owned()], 1));
        assert_eq!(parse(json!({ "query": "q", "documents": ["a", "b"] })).unwrap().top_n, 2);
        for (bad, field) in [
            (json!({ "documents": ["a"] }), "query"),
            (json!({ "query": "q" }), "documents"),
            (json!({ "query": "q", "documents": [] }), "documents"),
            (json!({ "query": "q", "documents": [1] }), "documents"),
            (json!({ "query": "q", "documents": ["a"], "top_n": 0 }), "top_n"),
        ] {
            assert!(parse(bad.clone()).unwrap_err().starts_with(field), "{bad}");
        }
    }
}
