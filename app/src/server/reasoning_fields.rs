//! Parsing of the fields about a model's thoughts: variables of its template, and how many tokens it may think.

use serde_json::{Map, Value, json};

use super::{
    error::ApiError,
    json_fields::{JsonFields, invalid},
};
use crate::units::Limit;

/// Efforts, and most tokens of thoughts at each; `None`: as many as the model writes.
const EFFORTS: [(&str, Option<usize>); 7] = [
    ("none", Some(0)),
    ("minimal", Some(256)),
    ("low", Some(1024)),
    ("medium", Some(4096)),
    ("high", None),
    ("xhigh", None),
    ("max", None),
];

/// How a model may think.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReasoningFields {
    /// Variables of the chat template.
    pub variables: Map<String, Value>,
    /// Most tokens of thoughts.
    pub budget: Option<usize>,
}

/// Parses `chat_template_kwargs`, `reasoning_effort`, `reasoning` (`effort`, `max_tokens`, `enabled`) and `reasoning_budget`. An effort
/// reaches the template under the names that templates have for it.
pub fn parse_reasoning(fields: &mut JsonFields) -> Result<ReasoningFields, ApiError> {
    let mut variables = match fields.remove("chat_template_kwargs") {
        None => Map::new(),
        Some(Value::Object(map)) => map,
        Some(other) => return Err(invalid("chat_template_kwargs", "an object", &other)),
    };
    let mut effort = fields.string("reasoning_effort")?.map(|effort| ("reasoning_effort", effort));
    // Only servers that are not strict read these fields.
    let mut budget = fields.limit("reasoning_budget", false)?;
    if let Some(reasoning) = fields.remove("reasoning") {
        let mut reasoning = JsonFields::from_value(reasoning, "reasoning")?;
        effort = reasoning.string("effort")?.map(|effort| ("reasoning.effort", effort)).or(effort);
        budget = reasoning.limit("max_tokens", false)?.or(budget);
        if let Some(on) = reasoning.boolean("enabled")? {
            variables.entry("enable_thinking").or_insert(on.into());
            budget = if on { budget } else { Some(Limit::Of(0)) };
        }
        reasoning.accept_only("exclude", &[json!(false)])?;
        reasoning.finish()?;
    }
    if let Some((path, effort)) = effort {
        let Some((_, most)) = EFFORTS.iter().find(|(name, _)| *name == effort) else {
            let names: Vec<&str> = EFFORTS.iter().map(|(name, _)| *name).collect();
            return Err(invalid(path, &names.join(", "), &effort.into()));
        };
        budget = budget.or(most.map(Limit::Of));
        variables.entry("enable_thinking").or_insert((effort != "none").into());
        variables.entry("reasoning_effort").or_insert(match &*effort {
            "none" | "minimal" => "low".into(),
            "xhigh" | "max" => "high".into(),
            _ => effort.into(),
        });
    }
    Ok(ReasoningFields { variables, budget: budget.and_then(Limit::count) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: Value) -> Result<ReasoningFields, ApiError> {
        let mut fields = JsonFields::parse(body.to_string().as_bytes()).unwrap();
        let read = parse_reasoning(&mut fields)?;
        fields.finish().map(|()| read)
    }

    #[test]
    fn efforts_and_budgets_limit_thoughts() {
        let budget = |body: Value| parse(body).unwrap().budget;
        assert_eq!((budget(json!({})), budget(json!({ "reasoning_effort": "high" }))), (None, None));
        assert_eq!(budget(json!({ "reasoning_effort": "none" })), Some(0));
        assert_eq!(budget(json!({ "reasoning": { "effort": "low" } })), Some(1024));
        assert_eq!(budget(json!({ "reasoning": { "max_tokens": 7 }, "reasoning_effort": "low" })), Some(7));
        assert_eq!(budget(json!({ "reasoning_budget": 7 })), Some(7));
        for none in [json!({ "reasoning_budget": -2 }), json!({ "reasoning": { "max_tokens": -1, "effort": "low" } })] {
            assert_eq!(budget(none.clone()), None, "{none}");
        }
        let off = parse(json!({ "reasoning": { "enabled": false } })).unwrap();
        assert_eq!((off.budget, &off.variables["enable_thinking"]), (Some(0), &json!(false)));
        let none = parse(json!({ "reasoning_effort": "none" })).unwrap().variables;
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
            assert_eq!(parse(body.clone()).unwrap_err().json()["error"]["param"], param, "{body}");
        }
    }
}
