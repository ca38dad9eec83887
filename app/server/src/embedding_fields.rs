//! The fields of a request for embeddings, which OpenAI's protocol and Ollama's share.

use serde::Deserialize;
use serde_json::Value;

use super::fields::Ignored;

/// The fields of a request for embeddings.
#[derive(Debug, PartialEq, Deserialize)]
pub struct EmbeddingFields {
    /// Name of the model.
    pub model: Option<String>,
    /// The texts.
    pub input: Option<Value>,
    /// Numbers of each vector.
    pub dimensions: Option<usize>,
    /// Shorten texts that are longer than the context.
    pub truncate: Option<bool>,
    /// Form of the vectors.
    pub encoding_format: Option<String>,
    /// Pooling of hidden states into a vector.
    pub pooling: Option<String>,
    /// Changes nothing.
    pub user: Ignored,
    /// Changes nothing.
    pub keep_alive: Ignored,
}
