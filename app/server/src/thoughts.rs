//! A model's thoughts before its answer: variables of its template, and how many tokens it may
//! think.

use serde::Deserialize;
use serde_json::{Map, Value};

use thermocline_host::units::Limit;

/// An effort, the least first.
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
    /// The same.
    Xhigh,
    /// The same.
    Max,
}

/// The thoughts that a request asks for.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RequestedThoughts {
    /// Variables of the chat template.
    pub variables: Map<String, Value>,
    /// Most tokens of thoughts.
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

    /// The name that templates know.
    fn name(self) -> &'static str {
        match self {
            Effort::None | Effort::Minimal | Effort::Low => "low",
            Effort::Medium => "medium",
            Effort::High | Effort::Xhigh | Effort::Max => "high",
        }
    }
}

impl RequestedThoughts {
    /// Turns thoughts on or off, unless a variable of the template does.
    pub fn enable(&mut self, on: bool) {
        self.variables.entry("enable_thinking").or_insert(on.into());
    }

    /// Thinks with this effort, unless a budget or a variable says another one.
    pub fn think(&mut self, effort: Effort) {
        self.budget = self.budget.or(effort.budget());
        self.enable(effort != Effort::None);
        self.tell(effort);
    }

    /// Tells the template of an effort.
    pub fn tell(&mut self, effort: Effort) {
        self.variables.entry("reasoning_effort").or_insert(effort.name().into());
    }
}
