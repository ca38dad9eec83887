//! The fields about thoughts in the bodies of OpenAI and similar servers.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    error::ApiError,
    fields::{FieldLimit, LenientField, accept_only},
    thoughts::{Effort, RequestedThoughts},
};
use thermocline_host::units::Limit;

/// Reasoning fields that OpenAI's server does not have. A strict server refuses them.
#[derive(Debug, PartialEq, Deserialize)]
pub struct ReasoningFields {
    chat_template_kwargs: LenientField<Map<String, Value>>,
    reasoning_effort: LenientField<Effort>,
    reasoning_budget: LenientField<FieldLimit>,
    reasoning: LenientField<ReasoningObject>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct ReasoningObject {
    effort: Option<Effort>,
    max_tokens: Option<FieldLimit>,
    enabled: Option<bool>,
    exclude: Option<Value>,
}

impl ReasoningFields {
    /// Reads the thoughts settings.
    pub fn thoughts(self) -> Result<RequestedThoughts, ApiError> {
        let variables = self.chat_template_kwargs.map(|it| it.0).unwrap_or_default();
        let mut thoughts = RequestedThoughts { variables, budget: self.reasoning_budget.map(|it| it.0.0) };
        let mut effort = self.reasoning_effort.map(|it| it.0);
        if let Some(reasoning) = self.reasoning.map(|it| it.0) {
            effort = reasoning.effort.or(effort);
            thoughts.budget = reasoning.max_tokens.map(|it| it.0).or(thoughts.budget);
            if let Some(on) = reasoning.enabled {
                thoughts.enable(on);
                thoughts.budget = if on { thoughts.budget } else { Some(Limit::Of(0)) };
            }
            accept_only(reasoning.exclude.as_ref(), "reasoning.exclude", &[json!(false)])?;
        }
        if let Some(effort) = effort {
            thoughts.think(effort);
        }
        Ok(thoughts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::parse_fields;

    fn parse(body: &Value) -> Result<RequestedThoughts, ApiError> {
        parse_fields::<ReasoningFields>(body.to_string().as_bytes(), false)?.thoughts()
    }

    #[test]
    fn efforts_and_budgets_limit_thoughts() {
        let budget = |body: Value| parse(&body).unwrap().budget.and_then(Limit::count);
        assert_eq!((budget(json!({})), budget(json!({ "reasoning_effort": "high" }))), (None, None));
        assert_eq!(budget(json!({ "reasoning_effort": "none" })), Some(0));
        assert_eq!(budget(json!({ "reasoning": { "effort": "low" } })), Some(1024));
        assert_eq!(budget(json!({ "reasoning": { "max_tokens": 7 }, "reasoning_effort": "low" })), Some(7));
        assert_eq!(budget(json!({ "reasoning_budget": 7 })), Some(7));
        for none in [json!({ "reasoning_budget": -2 }), json!({ "reasoning": { "max_tokens": -1, "effort": "low" } })] {
            assert_eq!(budget(none.clone()), None, "{none}");
        }
        let off = parse(&json!({ "reasoning": { "enabled": false } })).unwrap();
        assert_eq!((off.budget, &off.variables["enable_thinking"]), (Some(Limit::Of(0)), &json!(false)));
        let none = parse(&json!({ "reasoning_effort": "none" })).unwrap().variables;
        assert_eq!((&none["enable_thinking"], &none["reasoning_effort"]), (&json!(false), &json!("low")));
    }

    #[test]
    fn errors_name_the_field() {
        for (body, param) in [
            (json!({ "reasoning_effort": "huge" }), "reasoning_effort"),
            (json!({ "reasoning": { "effort": "huge" } }), "reasoning.effort"),
            (json!({ "reasoning": { "max_tokens": -1.5 } }), "reasoning.max_tokens"),
            (json!({ "reasoning": { "exclude": true } }), "reasoning.exclude"),
            (json!({ "reasoning": { "x": 1 } }), "reasoning.x"),
            (json!({ "reasoning": "high" }), "reasoning"),
            (json!({ "reasoning_budget": "-2" }), "reasoning_budget"),
            (json!({ "chat_template_kwargs": 7 }), "chat_template_kwargs"),
        ] {
            assert_eq!(parse(&body).unwrap_err().json()["error"]["param"], param, "{body}");
        }
    }
}
