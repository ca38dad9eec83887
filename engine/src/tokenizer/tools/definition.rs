//! Definitions of tools: the types of their parameters.

use serde_json::Value;

/// The tools that a model may call.
#[derive(Debug, Clone, Default)]
pub struct Definitions(Vec<Value>);

impl Definitions {
    /// The tools of `definitions`, in OpenAI's form.
    pub fn new(definitions: &[Value]) -> Self {
        Definitions(definitions.to_vec())
    }

    /// The JSON value of an argument that was written as bare text.
    pub fn argument(&self, function: &str, parameter: &str, text: &str) -> Value {
        let schema = self.parameter(function, parameter);
        let is_string = match schema.map(|schema| &schema["type"]) {
            Some(Value::String(name)) => name == "string",
            Some(Value::Array(names)) => names.iter().any(|name| name == "string"),
            _ => schema
                .is_some_and(|schema| schema["enum"].as_array().is_some_and(|all| all.iter().all(Value::is_string))),
        };
        let text_value = || Value::String(text.to_owned());
        if is_string {
            return text_value();
        }
        match text.trim() {
            "True" => true.into(),
            "False" => false.into(),
            "None" => Value::Null,
            other => serde_json::from_str(other).unwrap_or_else(|_| text_value()),
        }
    }

    fn parameter(&self, function: &str, parameter: &str) -> Option<&Value> {
        let functions = self.0.iter().map(|tool| tool.get("function").unwrap_or(tool));
        functions.into_iter().find(|it| it["name"] == function)?["parameters"]["properties"].get(parameter)
    }
}
