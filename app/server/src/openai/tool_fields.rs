//! The `tools` of a chat, and the choice among them.

use serde::Deserialize;
use serde_json::Value;

use crate::{
    answer_form::{CHOICES, RequestedTool, ToolChoice},
    error::ApiError,
    fields::{each, invalid},
};

/// Fields of an OpenAI request that declare and choose tools.
#[derive(Debug, PartialEq, Deserialize)]
pub struct ToolFields {
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    /// Has no effect: calls always come one after the other.
    parallel_tool_calls: Option<bool>,
}

impl ToolFields {
    /// Reads the tools.
    pub fn tools(&mut self) -> Result<Vec<RequestedTool>, ApiError> {
        read_tools(self.tools.take())
    }

    /// Reads the choice among the tools.
    pub fn choice(&self) -> Result<ToolChoice, ApiError> {
        let Some(choice) = &self.tool_choice else { return Ok(ToolChoice::Auto) };
        let read = match choice.as_str() {
            Some(word) => ToolChoice::of_word(word),
            None => {
                let name = choice["function"]["name"].as_str().or(choice["name"].as_str());
                name.map(|name| ToolChoice::Named(name.to_owned()))
            }
        };
        read.ok_or_else(|| invalid("tool_choice", CHOICES, choice))
    }
}

/// Reads a list of tools.
pub fn read_tools(list: Option<Vec<Value>>) -> Result<Vec<RequestedTool>, ApiError> {
    each(list.unwrap_or_default(), "tools", |at, mut tool| {
        if tool["type"] != "function" {
            return Err(invalid("type", "function (no other tools can be called)", &tool["type"]));
        }
        let name = &tool["function"]["name"];
        if name.as_str().is_none_or(str::is_empty) {
            return Err(invalid("function.name", "a name", name));
        }
        // `strict` concerns only the schema, so the model does not see it.
        let function = tool["function"].as_object_mut();
        let strict = function.and_then(|function| function.remove("strict")).is_some_and(|it| it == true);
        RequestedTool::new(tool, strict, format!("tools[{at}]"), "function.parameters")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fields::parse_fields;

    #[test]
    fn invalid_tools_and_choices_are_refused_by_path() {
        for (body, param) in [
            (json!({ "tools": 7 }), "tools"),
            (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
            (json!({ "tools": [{ "type": "function", "function": {} }] }), "tools[0].function.name"),
            (
                json!({ "tools": [{ "type": "function", "function": { "name": "f", "parameters": 7 } }] }),
                "tools[0].function.parameters",
            ),
            (json!({ "tool_choice": "some" }), "tool_choice"),
            (json!({ "tool_choice": {} }), "tool_choice"),
        ] {
            let fields = parse_fields::<ToolFields>(body.to_string().as_bytes(), true);
            let error = fields.and_then(|mut fields| fields.tools().and(fields.choice())).unwrap_err();
            assert_eq!(error.json()["error"]["param"], param, "{body}");
        }
    }
}
