//! A model's thoughts before its answer: template variables and the token limit.

use serde::Deserialize;
use serde_json::{Map, Value};

use thermocline_host::units::Limit;

/// Reasoning efforts, from least to most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    /// No thoughts.
    None,
    /// 256 tokens.
    Minimal,
    /// 1,024 tokens.
    Low,
    /// 4,096 tokens.
    Medium,
    /// As many tokens as the model writes.
    High,
    /// Same as `High`.
    Xhigh,
    /// Same as `High`.
    Max,
}

/// The thoughts that a request asks for.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RequestedThoughts {
    /// Variables of the chat template.
    pub variables: Map<String, Value>,
    /// Token limit of the thoughts.
    pub budget: Option<Limit>,
}

impl Effort {
    fn budget(self) -> Option<Limit> {
        match self {
            Effort::None => Some(Limit::Of(0)),
            Effort::Minimal => Some(Limit::Of(256)),
            Effort::Low => Some(Limit::Of(1024)),
            Effort::Medium => Some(Limit::Of(4096)),
            Effort::High | Effort::Xhigh | Effort::Max => None,
        }
    }

    /// The effort's name in chat templates.
    fn name(self) -> &'static str {
        match self {
            Effort::None | Effort::Minimal | Effort::Low => "low",
            Effort::Medium => "medium",
            Effort::High | Effort::Xhigh | Effort::Max => "high",
        }
    }
}

impl RequestedThoughts {
    /// Turns thoughts on or off, unless a template variable already does.
    pub fn enable(&mut self, on: bool) {
        self.variables.entry("enable_thinking").or_insert(on.into());
    }

    /// Applies the effort, unless a budget or a template variable is already set.
    pub fn think(&mut self, effort: Effort) {
        self.budget = self.budget.or(effort.budget());
        self.enable(effort != Effort::None);
        self.tell(effort);
    }

    /// Passes an effort to the template.
    pub fn tell(&mut self, effort: Effort) {
        self.variables.entry("reasoning_effort").or_insert(effort.name().into());
    }
}
