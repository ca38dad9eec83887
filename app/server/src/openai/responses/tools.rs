//! The tools of a request for a response.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    answer_form::{CHOICES, RequestedTool, ToolChoice},
    error::ApiError,
    fields::{Hint, Ignored, each, invalid, read_fields},
};

/// A function, with the hints of agents.
#[derive(Debug, PartialEq, Deserialize)]
struct FunctionTool {
    #[serde(rename = "type")]
    kind: Ignored,
    name: Option<String>,
    description: Option<String>,
    parameters: Option<Value>,
    strict: Option<bool>,
    defer_loading: Hint,
    output_schema: Hint,
    allowed_callers: Hint,
    cache_control: Hint,
    input_examples: Hint,
    annotations: Hint,
}

/// A function within a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespacedName {
    /// Name of the namespace.
    pub namespace: String,
    /// Name of the function in the namespace.
    pub name: String,
}

/// Returns the name that the model sees for a function, which may be in a namespace.
pub fn full_name(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        None => name.to_owned(),
        Some(namespace) if namespace.ends_with('_') => format!("{namespace}{name}"),
        Some(namespace) => format!("{namespace}__{name}"),
    }
}

/// The functions in namespaces, by the names that the model sees.
pub type Namespaces = BTreeMap<String, NamespacedName>;

/// The tools of a request.
#[derive(Debug, Default)]
pub struct ResponseTools {
    /// The tools that the model may call.
    pub callable: Vec<RequestedTool>,
    /// Kinds and names of the dropped tools. Only another server could run them.
    pub dropped: Vec<String>,
    /// The callable tools that are functions in namespaces.
    pub namespaces: Namespaces,
}

impl ResponseTools {
    /// Reads `tools`. A namespace's name becomes a prefix of its functions' names. `strict` refuses
    /// tools that are not functions.
    pub fn read(tools: &Value, strict: bool) -> Result<Self, ApiError> {
        let Value::Array(tools) = tools else { return Err(invalid("tools", "a list of tools", tools)) };
        let mut read = ResponseTools::default();
        each(tools, "tools", |at, tool| {
            let path = format!("tools[{at}]");
            match tool["type"].as_str() {
                Some("function") => read.callable.push(read_function(tool, path, None, strict)?),
                Some("namespace") if !strict => read.add_namespace(tool, &path)?,
                Some(kind) if !strict => read.drop_tool(kind, tool),
                _ => return Err(invalid("type", "function (the server has no tools of its own)", &tool["type"])),
            }
            Ok(())
        })?;
        Ok(read)
    }

    fn drop_tool(&mut self, kind: &str, tool: &Value) {
        let name = tool["name"].as_str();
        self.dropped.push(name.map_or(kind.to_owned(), |name| format!("{kind} {name}")));
    }

    fn add_namespace(&mut self, tool: &Value, path: &str) -> Result<(), ApiError> {
        let Some(namespace) = tool["name"].as_str() else { return Err(invalid("name", "a name", &tool["name"])) };
        let none = Vec::new();
        let tools = match &tool["tools"] {
            Value::Null => &none,
            Value::Array(tools) => tools,
            other => return Err(invalid("tools", "a list of tools", other)),
        };
        each(tools, "tools", |at, tool| match tool["type"].as_str() {
            Some("function") => {
                let function = read_function(tool, format!("{path}.tools[{at}]"), Some(namespace), false)?;
                let name = tool["name"].as_str().unwrap_or_default().to_owned();
                let namespaced = NamespacedName { namespace: namespace.to_owned(), name };
                self.namespaces.insert(function.name().to_owned(), namespaced);
                self.callable.push(function);
                Ok(())
            }
            Some(kind) => {
                self.drop_tool(kind, tool);
                Ok(())
            }
            None => Err(invalid("type", "function", &tool["type"])),
        })?;
        Ok(())
    }

    /// Reads `tool_choice`, which may exclude tools.
    pub fn choose(&mut self, choice: &Value) -> Result<ToolChoice, ApiError> {
        if let Some(word) = choice.as_str() {
            return ToolChoice::of_word(word).ok_or_else(|| invalid("tool_choice", CHOICES, choice));
        }
        match (choice["type"].as_str(), named(choice)) {
            (Some("function"), Some(name)) => Ok(ToolChoice::Named(name)),
            (Some("allowed_tools"), _) => {
                let Value::Array(allowed) = &choice["tools"] else {
                    return Err(invalid("tool_choice.tools", "a list of tools", &choice["tools"]));
                };
                let names: Vec<String> = allowed.iter().filter_map(named).collect();
                self.callable.retain(|tool| names.iter().any(|name| tool.name() == name));
                match choice["mode"].as_str() {
                    Some("auto") => Ok(ToolChoice::Auto),
                    Some("required") => Ok(ToolChoice::Required),
                    _ => Err(invalid("tool_choice.mode", "auto or required", &choice["mode"])),
                }
            }
            _ => Err(invalid("tool_choice", "none, auto, required, or a function with its name", choice)),
        }
    }
}

/// Reads the full name of a function in an object with `name` and an optional `namespace`.
fn named(of: &Value) -> Option<String> {
    Some(full_name(of["namespace"].as_str(), of["name"].as_str()?))
}

/// Reads a function that the request defines at `path`.
fn read_function(tool: &Value, path: String, namespace: Option<&str>, strict: bool) -> Result<RequestedTool, ApiError> {
    let fields: FunctionTool = read_fields(tool, "", strict)?;
    let name = fields.name.filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| invalid("name", "a name", &tool["name"]))?;
    let name = full_name(namespace, &name);
    let function = json!({ "name": name, "description": fields.description, "parameters": fields.parameters });
    let definition = json!({ "type": "function", "function": function });
    RequestedTool::new(definition, fields.strict == Some(true), path, "parameters")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str) -> Value {
        json!({ "type": "function", "name": name, "parameters": { "type": "object" }, "strict": false })
    }

    fn names(tools: &ResponseTools) -> Vec<&str> {
        tools.callable.iter().map(RequestedTool::name).collect()
    }

    #[test]
    fn functions_of_a_namespace_have_its_name_in_front() {
        let tools = json!([
            function("run"),
            { "type": "namespace", "name": "mcp__notes__", "description": "Notes.", "tools": [function("find"), { "type": "custom", "name": "x" }] },
            { "type": "namespace", "name": "crm", "tools": [function("find")] },
            { "type": "web_search" },
        ]);
        let mut read = ResponseTools::read(&tools, false).unwrap();
        assert_eq!(names(&read), ["run", "mcp__notes__find", "crm__find"]);
        assert_eq!(read.dropped, ["custom x", "web_search"]);
        let paths: Vec<&str> = read.callable.iter().map(|tool| &*tool.path).collect();
        assert_eq!(paths, ["tools[0]", "tools[1].tools[0]", "tools[2].tools[0]"]);
        let find = NamespacedName { namespace: "crm".to_owned(), name: "find".to_owned() };
        assert_eq!((read.namespaces.len(), &read.namespaces["crm__find"]), (2, &find));
        let chosen = read.choose(&json!({ "type": "function", "name": "find", "namespace": "crm" })).unwrap();
        assert_eq!(chosen, ToolChoice::Named("crm__find".to_owned()));
        let allowed =
            json!({ "type": "allowed_tools", "mode": "required", "tools": [{ "type": "function", "name": "run" }] });
        assert_eq!((read.choose(&allowed).unwrap(), names(&read)), (ToolChoice::Required, vec!["run"]));
        assert!(ResponseTools::read(&tools, true).unwrap_err().message.contains("tools[1].type: expected function"));
    }

    #[test]
    fn tools_without_kind_or_name_are_refused() {
        for (tool, says) in [
            (json!({}), "tools[0].type: expected function"),
            (json!({ "type": "function" }), "tools[0].name: expected a name"),
            (json!({ "type": "namespace" }), "tools[0].name: expected a name"),
            (json!({ "type": "namespace", "name": "n", "tools": 7 }), "tools[0].tools: expected a list"),
            (json!({ "type": "namespace", "name": "n", "tools": [{ "type": "function" }] }), "tools[0].tools[0].name"),
        ] {
            let error = ResponseTools::read(&json!([tool]), false).unwrap_err();
            assert!(error.message.contains(says), "{error:?}");
        }
    }
}
