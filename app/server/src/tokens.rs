//! Converts texts to token ids and back, for clients that count or score tokens. Field names of
//! both vLLM and llama.cpp are read and written.

use serde::Deserialize;
use serde_json::{Value, json};
use thermocline_engine::tokenizer::EncodeOptions;

use super::{
    error::ApiError,
    fields::{Ignored, invalid, missing, parse_fields, whole_number},
    served_model::ServedModel,
};

#[derive(Debug, PartialEq, Deserialize)]
struct TokenizeBody {
    model: Ignored,
    prompt: Option<String>,
    content: Option<String>,
    add_special_tokens: Option<bool>,
    add_special: Option<bool>,
    parse_special: Option<bool>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct DetokenizeBody {
    model: Ignored,
    tokens: Option<Value>,
}

/// `POST /tokenize`: the token ids of `prompt` or `content`. `add_special_tokens` or `add_special`
/// adds the special tokens of a text's beginning.
pub fn tokenize(body: &[u8], model: &ServedModel) -> Result<Value, ApiError> {
    let body: TokenizeBody = parse_fields(body, false)?;
    let text = body.prompt.or(body.content).ok_or_else(|| missing("prompt", "a text"))?;
    let add_special = body.add_special_tokens.or(body.add_special).unwrap_or(false);
    let parse_special = body.parse_special.unwrap_or(true);
    let options = EncodeOptions { special: parse_special, add_bos: add_special, add_eos: add_special };
    let tokens = model.engine.tokenizer().encode(&text, options).map_err(|error| ApiError::from(&error))?;
    Ok(json!({ "tokens": tokens, "count": tokens.len(), "max_model_len": model.engine.context() }))
}

/// `POST /detokenize`: the text of `tokens`.
pub fn detokenize(body: &[u8], model: &ServedModel) -> Result<Value, ApiError> {
    let body: DetokenizeBody = parse_fields(body, false)?;
    let value = body.tokens.unwrap_or_else(|| json!([]));
    let vocab = model.engine.tokenizer().vocab_len() as u64;
    let id = |value: &Value| whole_number(value).filter(|id| *id < vocab).and_then(|id| u32::try_from(id).ok());
    let ids: Option<Vec<u32>> = value.as_array().and_then(|list| list.iter().map(id).collect());
    let ids = ids.ok_or_else(|| invalid("tokens", &format!("a list of token ids below {vocab}"), &value))?;
    let text = model.engine.tokenizer().decode(&ids, false);
    Ok(json!({ "prompt": text, "content": text }))
}

/// `GET /tokenizer_info`: the special tokens by their texts, and the chat template.
pub fn tokenizer_info(model: &ServedModel) -> Value {
    let tokenizer = model.engine.tokenizer();
    let text = |id: Option<u32>| id.map(|id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned());
    json!({
        "bos_token": text(tokenizer.bos()),
        "eos_token": text(tokenizer.eos()),
        "pad_token": text(tokenizer.padding()),
        "vocab_size": tokenizer.vocab_len(),
        "chat_template": model.engine.chat_template().source(),
    })
}

/// `GET /props`: the model, and default values of request fields.
pub fn props(model: &ServedModel, slots: usize) -> Value {
    let sampling = &model.defaults.sampling;
    json!({
        "model_alias": model.name,
        "model_path": model.name,
        "total_slots": slots,
        "chat_template": model.engine.chat_template().source(),
        "build_info": concat!("thermocline ", env!("CARGO_PKG_VERSION")),
        "default_generation_settings": {
            "n_ctx": model.engine.context(),
            "params": {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "typical_p": sampling.typical_p,
                "repeat_penalty": sampling.repeat_penalty,
                "n_predict": model.defaults.max_tokens,
            },
        },
    })
}
