//! The fields that shape an answer: thoughts, effort and format.

use serde::Deserialize;
use serde_json::Value;

use crate::{
    answer_form::RequestedGrammar,
    error::ApiError,
    fields::{Hint, Ignored, LenientField, invalid},
    thoughts::{Effort, RequestedThoughts},
};
use thermocline_host::units::Limit;

/// Fields of an Anthropic request that shape the answer.
#[derive(Debug, PartialEq, Deserialize)]
pub struct AnswerFields {
    thinking: Option<Thinking>,
    output_config: LenientField<OutputConfig>,
    output_format: LenientField<OutputFormat>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Thinking {
    #[serde(rename = "type")]
    kind: Option<String>,
    budget_tokens: Option<usize>,
    display: Hint,
}

#[derive(Debug, PartialEq, Deserialize)]
struct OutputConfig {
    format: Option<OutputFormat>,
    effort: Option<String>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", rename = "type: json_schema")]
enum OutputFormat {
    JsonSchema { schema: Option<Value>, name: Ignored },
}

impl AnswerFields {
    /// Reads the thoughts settings. If thoughts are on, the effort limits them. The template gets
    /// the effort in any case. An effort never turns thoughts on.
    pub fn thoughts(&self) -> Result<RequestedThoughts, ApiError> {
        let (mut thoughts, mut thinks) = (RequestedThoughts::default(), false);
        if let Some(thinking) = &self.thinking {
            thinks = match thinking.kind.as_deref() {
                Some("enabled" | "adaptive") => true,
                Some("disabled") => false,
                other => return Err(invalid("thinking.type", "enabled, adaptive or disabled", &other.into())),
            };
            // If thoughts are off, their budget is 0 tokens, whatever the template says.
            thoughts.budget = if thinks { thinking.budget_tokens.map(Limit::Of) } else { Some(Limit::Of(0)) };
            thoughts.enable(thinks);
        }
        if let Some(name) = self.output_config.as_ref().and_then(|config| config.0.effort.as_deref()) {
            let effort = match name {
                "low" => Effort::Low,
                "medium" => Effort::Medium,
                "high" => Effort::High,
                "xhigh" => Effort::Xhigh,
                "max" => Effort::Max,
                _ => return Err(invalid("output_config.effort", "low, medium, high, xhigh, max", &name.into())),
            };
            if thinks { thoughts.think(effort) } else { thoughts.tell(effort) }
        }
        Ok(thoughts)
    }

    /// Reads the grammar of the answer's format, from the newer field or the older one.
    pub fn grammar(self) -> Result<Option<RequestedGrammar>, ApiError> {
        let new = self.output_config.and_then(|config| config.0.format).map(|it| ("output_config.format", it));
        let old = self.output_format.map(|format| ("output_format", format.0));
        let Some((path, OutputFormat::JsonSchema { schema, .. })) = new.or(old) else { return Ok(None) };
        let place = format!("{path}.schema");
        let schema = schema.ok_or_else(|| invalid(&place, "a JSON schema", &Value::Null))?;
        RequestedGrammar::of_schema(&schema, false, path).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fields::read_fields;

    #[test]
    fn efforts_limit_thoughts_that_are_on_and_turn_none_on() {
        let read = |body: &Value| -> Result<RequestedThoughts, ApiError> {
            read_fields::<AnswerFields>(body, "", false)?.thoughts()
        };
        let with = |thinking: Value, effort: &str| {
            read(&json!({ "thinking": thinking, "output_config": { "effort": effort } }))
        };
        let on = with(json!({ "type": "adaptive" }), "max").unwrap();
        let variables = json!({ "enable_thinking": true, "reasoning_effort": "high" });
        assert_eq!((on.budget, Value::Object(on.variables)), (None, variables));
        let low = with(json!({ "type": "enabled" }), "low").unwrap();
        assert_eq!(low.budget, Some(Limit::Of(1024)));
        let off = with(json!({ "type": "disabled" }), "max").unwrap();
        let variables = json!({ "enable_thinking": false, "reasoning_effort": "high" });
        assert_eq!((off.budget, Value::Object(off.variables)), (Some(Limit::Of(0)), variables));
        let unsaid = read(&json!({ "output_config": { "effort": "low" } })).unwrap();
        assert_eq!((unsaid.budget, Value::Object(unsaid.variables)), (None, json!({ "reasoning_effort": "low" })));
        let says = "output_config.effort: expected low, medium, high, xhigh, max, got \"huge\"";
        assert_eq!(with(json!({ "type": "adaptive" }), "huge").unwrap_err().message, says);
    }
}
