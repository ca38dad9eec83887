//! How the user wants tokens chosen, as a chat or a preset keeps it.

use serde::{Deserialize, Serialize};
use thermocline_engine::session::Sampling;

use crate::{builtin, library::ModelId};

/// What differs from the model's own sampling.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Choices {
    /// Randomness; 0 always takes the likeliest token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Tokens that are considered; 0: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<usize>,
    /// Probability that the tokens considered have together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// Least probability of a token, as a part of the likeliest one's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// How much less likely recent tokens become; 1: not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeat_penalty: Option<f32>,
    /// Strength of the penalty on repeated phrases; 0: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dry_multiplier: Option<f32>,
    /// Same seed, same answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Longest answer in tokens; `None`: as many as the context has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<usize>,
    /// Whether an answer ends when the context is full, rather than that the oldest half is forgotten.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stop_when_full: bool,
}

impl Choices {
    /// What is kept as JSON; nothing, if it cannot be understood.
    pub fn of(json: Option<&str>) -> Self {
        json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default()
    }

    /// As it is kept; `None` if nothing differs.
    pub fn json(&self) -> Option<String> {
        if *self == Choices::default() { None } else { serde_json::to_string(self).ok() }
    }

    /// The model's own.
    pub fn base(model: &ModelId) -> Sampling {
        match model {
            ModelId::Builtin => builtin::sampling(),
            ModelId::Path(_) => Sampling::default(),
        }
    }

    /// `base` with what was chosen.
    pub fn over(&self, base: Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(base.repeat_penalty),
            dry_multiplier: self.dry_multiplier.unwrap_or(base.dry_multiplier),
            seed: self.seed.or(base.seed),
            ..base
        }
    }
}
