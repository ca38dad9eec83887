//! What every figure has to be printed with.

use serde::Serialize;

use super::{Corpus, Method, Phase};
use crate::model::{KvType, Model, PredictorKind};

/// Under which conditions something was measured. Figures are comparable only where these agree.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Conditions {
    /// File of the model.
    pub model: String,
    /// What was left out.
    pub sparsity: String,
    /// Kind of the predictors that were asked: `low-rank`, `rows`, several, or `None`.
    pub predictor: Option<String>,
    /// How the tokens were fed.
    pub phase: Phase,
    /// Element type of the KV cache.
    pub kv_type: String,
    /// What computed.
    pub device: String,
    /// Name of the text.
    pub text: String,
    /// Tokens of a context.
    pub context: usize,
    /// Contexts.
    pub chunks: usize,
    /// Tokens scored.
    pub tokens: usize,
}

impl Conditions {
    /// `device` is the caller's to know, and `kv_type` what the cache became.
    pub fn new(model: &Model, corpus: &Corpus, method: Method, kv_type: KvType, device: &str) -> Self {
        let mut kinds: Vec<&str> = Vec::new();
        if method.sparsity == crate::model::Sparsity::Predicted && method.phase == Phase::Decode {
            for predictor in model.weights.layers.iter().filter_map(|layer| layer.predictor.as_ref()) {
                let kind = match predictor.kind {
                    PredictorKind::LowRank { .. } => "low-rank",
                    PredictorKind::Rows { .. } => "rows",
                };
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
            }
        }
        Conditions {
            model: model.checkpoint.path.display().to_string(),
            sparsity: method.sparsity.to_string(),
            predictor: (!kinds.is_empty()).then(|| kinds.join(" and ")),
            phase: method.phase,
            kv_type: kv_type.name().to_lowercase(),
            device: device.to_owned(),
            text: corpus.name.clone(),
            context: corpus.context,
            chunks: corpus.passages.len(),
            tokens: corpus.scored(),
        }
    }

    /// Whether a sparse mode was asked for but its figures are the dense model's.
    pub fn is_dense_after_all(&self) -> bool {
        self.phase == Phase::Prefill && self.sparsity != crate::model::Sparsity::Dense.name()
    }
}
