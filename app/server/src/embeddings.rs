//! `/v1/embeddings` and Ollama's `/api/embed` and `/api/embeddings`: turn texts into vectors of
//! length 1, pooled from hidden states.

use std::{sync::Arc, time::Instant};

use axum::{Extension, Json, body::Body, extract::State};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};
use thermocline_engine::{
    model::Model,
    session::{EmbeddingPrompts, Pooling, Prompt, Request, StateReading},
    tokenizer::EncodeOptions,
};

use super::{
    connections::Connection,
    context::ServerContext,
    error::ApiError,
    fields::{Ignored, invalid, missing, parse_fields},
    generation::GenerationQueue,
    named_model::NamedModel,
    ollama, openai,
    served_model::ServedModel,
};

/// Most texts in a request.
const MAX_INPUTS: usize = 2048;

/// The protocol of an embedding request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingProtocol {
    /// OpenAI's.
    OpenAi,
    /// Ollama's `/api/embed`.
    OllamaEmbed,
    /// Ollama's older `/api/embeddings`, for one text.
    OllamaOne,
}

/// The fields that embedding requests of OpenAI's and Ollama's protocols share.
#[derive(Debug, PartialEq, Deserialize)]
pub struct EmbeddingFields {
    /// Name of the model.
    pub model: Option<String>,
    /// The texts.
    pub input: Option<Value>,
    /// Length of each vector, in numbers.
    pub dimensions: Option<usize>,
    /// Whether to shorten texts that are longer than the context.
    pub truncate: Option<bool>,
    /// Encoding of the vectors.
    pub encoding_format: Option<String>,
    /// How hidden states are pooled into a vector.
    pub pooling: Option<String>,
    /// Kind of the texts, which chooses the model's prompt in front of them: `query` or `document`.
    pub input_type: Option<String>,
    /// Has no effect.
    pub user: Ignored,
    /// Has no effect.
    pub keep_alive: Ignored,
}

/// An embedding request.
#[derive(Debug, PartialEq)]
struct EmbeddingRequest {
    /// One request for each text.
    requests: Vec<Request>,
    /// Length of each vector, if shorter than the model's.
    dimensions: Option<usize>,
    /// Send vectors as base64 of little-endian 32-bit floats.
    base64: bool,
}

/// Answers a request.
pub async fn embed(
    protocol: EmbeddingProtocol,
    State(context): State<Arc<ServerContext>>,
    Extension(connection): Extension<Arc<Connection>>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let began = Instant::now();
    let (named, body) = NamedModel::of_request(body, &context).await?;
    let _active = connection.answer();
    let lease = named.lease(&context).await?;
    let (model, strict, pooling) = (lease.model(&context)?, context.options.strict, context.options.pooling);
    let name = lease.name.clone();
    // Shortening a text encodes it first, which takes long for a long text.
    let parse = move || EmbeddingRequest::parse(protocol, &body, &model, pooling, strict);
    let parsed = tokio::task::spawn_blocking(parse).await;
    let parsed = parsed.unwrap_or_else(|_| Err(ApiError::unavailable("the request could not be read")))?;
    let EmbeddingRequest { requests, dimensions, base64 } = parsed;
    let (mut vectors, mut tokens) = (Vec::with_capacity(requests.len()), 0);
    if !requests.is_empty() {
        let mut generation = GenerationQueue::start(&context, lease, requests, None).await?;
        loop {
            let update = generation.next_update().await;
            vectors.extend(update.embedding);
            if let Some(end) = update.end {
                let (_, stats) = end?;
                tokens += stats.prompt_tokens;
                if !generation.start_next() {
                    break;
                }
            }
        }
    }
    for vector in &mut vectors {
        if let Some(most) = dimensions {
            shorten(vector, most);
        }
    }
    Ok(Json(match protocol {
        EmbeddingProtocol::OpenAi => {
            let entry = |(index, vector): (usize, &Vec<f32>)| {
                let embedding = if base64 { as_base64(vector).into() } else { json!(vector) };
                json!({ "object": "embedding", "index": index, "embedding": embedding })
            };
            let data: Vec<Value> = vectors.iter().enumerate().map(entry).collect();
            let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
            json!({ "object": "list", "data": data, "model": name, "usage": usage })
        }
        EmbeddingProtocol::OllamaEmbed => json!({
            "model": name,
            "embeddings": vectors,
            "total_duration": u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),
            "load_duration": 0,
            "prompt_eval_count": tokens,
        }),
        EmbeddingProtocol::OllamaOne => json!({ "embedding": vectors.pop().unwrap_or_default() }),
    }))
}

impl EmbeddingRequest {
    fn parse(
        protocol: EmbeddingProtocol,
        body: &[u8],
        model: &ServedModel,
        pooling: Option<Pooling>,
        strict: bool,
    ) -> Result<Self, ApiError> {
        let fields: EmbeddingFields = match protocol {
            EmbeddingProtocol::OpenAi => parse_fields(body, strict)?,
            EmbeddingProtocol::OllamaEmbed => ollama::read_embed(body)?,
            EmbeddingProtocol::OllamaOne => ollama::read_embeddings(body)?,
        };
        if let Some(name) = fields.model.filter(|name| strict && *name != model.name) {
            return Err(ApiError::model_not_found(&name, &model.name));
        }
        let empty_texts = protocol != EmbeddingProtocol::OpenAi;
        let prompts = parse_inputs(fields.input, empty_texts)?;
        let base64 = match fields.encoding_format.as_deref() {
            None | Some("float") => false,
            Some("base64") => true,
            Some(other) => return Err(invalid("encoding_format", "float or base64", &other.into())),
        };
        let Model { config, weights, .. } = &**model.engine.model();
        let d_model = weights.embedding_head.width(config.d_model);
        let dimensions = fields.dimensions;
        if let Some(count) = dimensions.filter(|count| !(1..=d_model).contains(count)) {
            return Err(invalid("dimensions", &format!("a whole number from 1 to {d_model}"), &count.into()));
        }
        let pooling = match fields.pooling {
            None => pooling,
            Some(name) => {
                Some(Pooling::of_name(&name).ok_or_else(|| invalid("pooling", "mean, cls or last", &name.into()))?)
            }
        };
        let reading = Some(StateReading::Embedding(pooling));
        let kinds = EmbeddingPrompts::of(&model.engine.model().checkpoint.metadata);
        let prefix = kinds.text(fields.input_type.as_deref());
        let prefix = prefix.map_err(|error| ApiError::invalid_field("input_type", error.to_string()))?;
        let truncates = fields.truncate.unwrap_or(false);
        let request = |prompt: Prompt| {
            let prompt = match prompt {
                Prompt::Text(text) => Prompt::Text(format!("{prefix}{text}")),
                other => other,
            };
            let prompt = if truncates { truncated(prompt, model)? } else { prompt };
            Ok(Request { reading, max_tokens: Some(0), ..Request::new(prompt) })
        };
        let requests = prompts.into_iter().map(request).collect::<Result<Vec<_>, ApiError>>()?;
        Ok(EmbeddingRequest { requests, dimensions, base64 })
    }
}

/// Parses `input`: a string, a list of strings, a list of token ids, or a list of such lists. If
/// `empty` is false, empty texts are refused.
fn parse_inputs(value: Option<Value>, empty: bool) -> Result<Vec<Prompt>, ApiError> {
    let expected = format!("a text or a list of token ids, or a list of up to {MAX_INPUTS} of them");
    let value = match value {
        Some(value) => value,
        // Clients of Ollama send no input to load the model.
        None if empty => return Ok(Vec::new()),
        None => return Err(missing("input", &expected)),
    };
    openai::prompts_of(&value, MAX_INPUTS, empty).ok_or_else(|| invalid("input", &expected, &value))
}

/// Cuts a prompt to as many tokens as the context holds. The tokens that end a text stay.
fn truncated(prompt: Prompt, model: &ServedModel) -> Result<Prompt, ApiError> {
    let tokens = match prompt {
        Prompt::Text(text) => model.engine.tokenizer().encode(&text, EncodeOptions::WHOLE),
        other => model.engine.prompt_tokens(other, &model.defaults.chat),
    };
    let mut tokens = tokens.map_err(|error| ApiError::from(&error))?;
    let (room, ends) = (model.engine.context(), model.engine.tokenizer().text_end());
    if tokens.len() > room {
        let end = if tokens.ends_with(ends) { ends } else { &[] };
        tokens.truncate(room.saturating_sub(end.len()));
        tokens.extend_from_slice(end);
    }
    Ok(Prompt::Tokens(tokens))
}

/// Keeps the first `most` numbers of a vector, scaled to length 1.
fn shorten(vector: &mut Vec<f32>, most: usize) {
    vector.truncate(most);
    let length = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
}

fn as_base64(vector: &[f32]) -> String {
    STANDARD.encode(vector.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_texts_or_tokens_one_or_many() {
        let parse = |value: Value| parse_inputs(Some(value), false).map_err(|error| error.message);
        let text = |text: &str| Prompt::Text(text.to_owned());
        assert_eq!(parse(json!("a")), Ok(vec![text("a")]));
        assert_eq!(parse(json!(["a", "b"])), Ok(vec![text("a"), text("b")]));
        assert_eq!(parse(json!([1, 2])), Ok(vec![Prompt::Tokens(vec![1, 2])]));
        assert_eq!(parse(json!([[1], [2, 3]])), Ok(vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])]));
        for bad in [json!(""), json!([""]), json!([]), json!([[]]), json!(7), json!([-1]), json!([1, "a"]), json!({})] {
            assert!(parse(bad.clone()).unwrap_err().starts_with("input: expected"), "{bad}");
        }
        assert_eq!(parse_inputs(Some(json!("")), true), Ok(vec![text("")]));
        assert_eq!(parse_inputs(None, true), Ok(Vec::new()));
    }

    #[test]
    fn shortened_vectors_have_length_1_and_base64_is_little_endian() {
        let mut vector = vec![0.6, 0.0, 0.8];
        shorten(&mut vector, 1);
        assert_eq!((vector.clone(), as_base64(&vector)), (vec![1.0], "AACAPw==".to_owned()));
        let mut zeros = vec![0.0; 3];
        shorten(&mut zeros, 2);
        assert_eq!(zeros, [0.0, 0.0]);
    }
}
