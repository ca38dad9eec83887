//! Tools of a request for a response, as a chat's.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::server::{
    error::ApiError,
    json_fields::{JsonFields, invalid},
};

/// Fields of a function that only a server that is not strict lets pass: hints of agents.
const HINTS: [&str; 6] =
    ["defer_loading", "output_schema", "allowed_callers", "cache_control", "input_examples", "annotations"];

/// A function within a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespacedName {
    /// The namespace.
    pub namespace: String,
    /// The name within it.
    pub name: String,
}

impl NamespacedName {
    /// The name that the model knows.
    pub fn full(&self) -> String {
        let between = if self.namespace.ends_with('_') { "" } else { "__" };
        format!("{}{between}{}", self.namespace, self.name)
    }
}

/// The functions of namespaces by the names that the model knows.
pub type Namespaces = BTreeMap<String, NamespacedName>;

/// The tools of a request.
#[derive(Debug, Default)]
pub struct ResponseTools {
    /// The chat's `tools`.
    pub definitions: Vec<Value>,
    /// Where each of them is in the request.
    pub paths: Vec<String>,
    /// Kinds and names of the tools that are left out, as no server but another one can run them.
    pub dropped: Vec<String>,
    /// Which of them are functions of namespaces.
    pub namespaces: Namespaces,
}

impl ResponseTools {
    /// Reads `tools`. Functions of a namespace get its name in front. `strict` refuses what is not a function.
    pub fn read(tools: &Value, strict: bool) -> Result<Self, ApiError> {
        let Value::Array(tools) = tools else { return Err(invalid("tools", "a list of tools", tools)) };
        let mut read = ResponseTools::default();
        for (at, tool) in tools.iter().enumerate() {
            let path = format!("tools[{at}]");
            match tool["type"].as_str() {
                Some("function") => read.add(read_function(tool, &path, None, strict)?, path),
                Some("namespace") if !strict => read.add_namespace(tool, &path)?,
                Some(kind) if !strict => read.drop_tool(kind, tool),
                _ => {
                    let expected = "function (the server has no tools of its own)";
                    return Err(invalid(&format!("{path}.type"), expected, &tool["type"]));
                }
            }
        }
        Ok(read)
    }

    fn add(&mut self, definition: Value, path: String) {
        self.definitions.push(definition);
        self.paths.push(path);
    }

    fn drop_tool(&mut self, kind: &str, tool: &Value) {
        let name = tool["name"].as_str();
        self.dropped.push(name.map_or(kind.to_owned(), |name| format!("{kind} {name}")));
    }

    fn add_namespace(&mut self, tool: &Value, path: &str) -> Result<(), ApiError> {
        let mut fields = JsonFields::from_value(tool.clone(), path)?;
        let name_path = fields.path("name");
        let Some(namespace) = fields.string("name")? else { return Err(invalid(&name_path, "a name", &Value::Null)) };
        let tools = fields.remove("tools").unwrap_or_else(|| json!([]));
        let Value::Array(tools) = tools else { return Err(invalid(&fields.path("tools"), "a list of tools", &tools)) };
        for (at, tool) in tools.iter().enumerate() {
            let path = format!("{path}.tools[{at}]");
            match tool["type"].as_str() {
                Some("function") => {}
                Some(kind) => {
                    self.drop_tool(kind, tool);
                    continue;
                }
                None => return Err(invalid(&format!("{path}.type"), "function", &tool["type"])),
            }
            let definition = read_function(tool, &path, Some(&namespace), false)?;
            let name = tool["name"].as_str().unwrap_or_default().to_owned();
            let full = definition["function"]["name"].as_str().unwrap_or_default().to_owned();
            self.namespaces.insert(full, NamespacedName { namespace: namespace.clone(), name });
            self.add(definition, path);
        }
        Ok(())
    }

    /// Reads `tool_choice`, which may leave out tools, as a chat's.
    pub fn choose(&mut self, choice: &Value) -> Result<Value, ApiError> {
        match (choice, choice["type"].as_str(), choice["name"].as_str()) {
            (Value::String(_), ..) => Ok(choice.clone()),
            (_, Some("function"), Some(_)) => Ok(json!({ "type": "function", "function": { "name": named(choice) } })),
            (_, Some("allowed_tools"), _) => {
                let Value::Array(allowed) = &choice["tools"] else {
                    return Err(invalid("tool_choice.tools", "a list of tools", &choice["tools"]));
                };
                let names: Vec<String> = allowed.iter().filter_map(named).collect();
                let is_allowed = |tool: &Value| names.iter().any(|name| tool["function"]["name"] == **name);
                let mut kept = self.definitions.iter().map(is_allowed);
                self.paths.retain(|_| kept.next().unwrap_or(false));
                self.definitions.retain(is_allowed);
                match choice["mode"].as_str() {
                    Some(mode @ ("auto" | "required")) => Ok(mode.into()),
                    _ => Err(invalid("tool_choice.mode", "auto or required", &choice["mode"])),
                }
            }
            _ => Err(invalid("tool_choice", "none, auto, required, or a function with its name", choice)),
        }
    }
}

/// The full name in an object with `name` and perhaps `namespace`.
fn named(of: &Value) -> Option<String> {
    let name = of["name"].as_str()?.to_owned();
    Some(match of["namespace"].as_str() {
        Some(namespace) => NamespacedName { namespace: namespace.to_owned(), name }.full(),
        None => name,
    })
}

/// The chat's definition of a function.
fn read_function(tool: &Value, path: &str, namespace: Option<&str>, strict: bool) -> Result<Value, ApiError> {
    let mut fields = JsonFields::from_value(tool.clone(), path)?;
    fields.remove("type");
    let name_path = fields.path("name");
    let Some(name) = fields.string("name")?.filter(|name| !name.is_empty()) else {
        return Err(invalid(&name_path, "a name", &tool["name"]));
    };
    let name = match namespace {
        Some(namespace) => NamespacedName { namespace: namespace.to_owned(), name }.full(),
        None => name,
    };
    let function = json!({
        "name": name,
        "description": fields.string("description")?,
        "parameters": fields.remove("parameters"),
        "strict": fields.boolean("strict")?,
    });
    if !strict {
        fields.ignore(&HINTS);
    }
    fields.finish()?;
    Ok(json!({ "type": "function", "function": function }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str) -> Value {
        json!({ "type": "function", "name": name, "parameters": { "type": "object" }, "strict": false })
    }

    fn names(tools: &ResponseTools) -> Vec<&str> {
        tools.definitions.iter().filter_map(|tool| tool["function"]["name"].as_str()).collect()
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
        assert_eq!(read.paths, ["tools[0]", "tools[1].tools[0]", "tools[2].tools[0]"]);
        let find = NamespacedName { namespace: "crm".to_owned(), name: "find".to_owned() };
        assert_eq!((read.namespaces.len(), &read.namespaces["crm__find"]), (2, &find));
        let chosen = read.choose(&json!({ "type": "function", "name": "find", "namespace": "crm" })).unwrap();
        assert_eq!(chosen["function"]["name"], "crm__find");
        let allowed =
            json!({ "type": "allowed_tools", "mode": "required", "tools": [{ "type": "function", "name": "run" }] });
        assert_eq!((read.choose(&allowed).unwrap(), names(&read)), (json!("required"), vec!["run"]));
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
