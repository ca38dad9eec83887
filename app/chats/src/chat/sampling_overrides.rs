//! The user's sampling settings, as stored with a chat or a preset.

use serde::{Deserialize, Serialize};
use thermocline_engine::session::Sampling;

use thermocline_host::{builtin, library::ModelId};

/// Settings that differ from the model's default sampling.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingOverrides {
    /// Temperature; 0 always takes the most likely token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Number of candidate tokens; 0: all tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<usize>,
    /// Cumulative probability of the candidate tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// Least probability of a candidate, as a fraction of the most likely token's probability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// Factor by which recent tokens become less likely; 1: no penalty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeat_penalty: Option<f32>,
    /// Strength of the penalty on repeated phrases; 0: no penalty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dry_multiplier: Option<f32>,
    /// Seed of the sampler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Maximum length of an answer in tokens; `None`: the length of the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<usize>,
    /// End an answer when the context is full, instead of dropping the oldest turns.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stop_when_full: bool,
}

impl SamplingOverrides {
    /// Parses stored JSON; invalid JSON gives no overrides.
    pub fn from_json(json: Option<&str>) -> Self {
        json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default()
    }

    /// JSON to store; `None` without overrides.
    pub fn to_json(&self) -> Option<String> {
        if *self == SamplingOverrides::default() { None } else { serde_json::to_string(self).ok() }
    }

    /// The model's default sampling.
    pub fn model_defaults(model: &ModelId) -> Sampling {
        match model {
            // The length of stories varies widely. With a random seed, tests would pass or fail by
            // chance.
            ModelId::Builtin => {
                Sampling { seed: cfg!(any(test, feature = "test-hooks")).then_some(2), ..builtin::sampling() }
            }
            ModelId::Path(_) | ModelId::Remote(_) => Sampling::default(),
        }
    }

    /// `base` with the overrides applied.
    pub fn apply_to(&self, base: Sampling) -> Sampling {
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
