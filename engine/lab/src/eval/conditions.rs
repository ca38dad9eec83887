//! Conditions to print with every figure.

use serde::Serialize;

use super::{Corpus, Method, Phase};
use thermocline_model::{Model, PredictorKind};
use thermocline_run::runtime::KvType;

/// Conditions of a measurement. Figures are comparable only if their conditions agree.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Conditions {
    /// Path of the model.
    pub model: String,
    /// Sparsity mode.
    pub sparsity: String,
    /// Kind of the predictors used: `low-rank`, `rows`, several, or `None`.
    pub predictor: Option<String>,
    /// Chunks or single tokens.
    pub phase: Phase,
    /// Element type of the KV cache.
    pub kv_type: String,
    /// Device that computed.
    pub device: String,
    /// Name of the text.
    pub text: String,
    /// Tokens per context.
    pub context: usize,
    /// Number of contexts.
    pub chunks: usize,
    /// Number of tokens scored.
    pub tokens: usize,
}

impl Conditions {
    /// Describes a measurement of `model`. `kv_type` is the type of the KV cache, `device` the
    /// caller's description of the device.
    pub fn new(model: &Model, corpus: &Corpus, method: Method, kv_type: KvType, device: &str) -> Self {
        let mut kinds: Vec<&str> = Vec::new();
        if method.sparsity == thermocline_run::runtime::Sparsity::Predicted && method.phase == Phase::Decode {
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

    /// True if a sparse mode was requested but the dense model was measured.
    pub fn is_dense_after_all(&self) -> bool {
        self.phase == Phase::Prefill && self.sparsity != thermocline_run::runtime::Sparsity::Dense.name()
    }
}
