//! Parsing of the fields that say what an answer may be: `tools`, `tool_choice`, `response_format`.

use serde_json::{Value, json};
use thermocline_engine::{session::Grammar, tokenizer::tools::ToolFormat};

use super::{
    answer_reader::RequestedTools,
    error::ApiError,
    json_fields::{JsonFields, invalid},
};

/// Most tools of a request.
const MAX_TOOLS: usize = 256;

/// Form of the answers to a request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AnswerForm {
    /// Tools that may be called.
    pub tools: Option<RequestedTools>,
    /// Grammar of the answer.
    pub grammar: Option<Grammar>,
}

/// Parses the form of an answer; `format` is how the model calls tools.
pub fn parse_answer_form(fields: &mut JsonFields, format: &ToolFormat) -> Result<AnswerForm, ApiError> {
    let definitions = parse_tools(fields.remove("tools"))?;
    let choice = fields.remove("tool_choice");
    fields.boolean("parallel_tool_calls")?;
    let grammar = parse_response_format(fields.remove("response_format"))?;
    let tools = |format: ToolFormat| Some(RequestedTools { format, definitions: definitions.clone() });
    let auto = |grammar| {
        let wanted = !definitions.is_empty();
        AnswerForm { tools: if wanted { tools(format.clone()) } else { None }, grammar }
    };
    let expected = "none, auto, required, or the name of a function in `tools`";
    let forced = match &choice {
        None => return Ok(auto(grammar)),
        Some(Value::String(word)) => match &**word {
            "auto" => return Ok(auto(grammar)),
            "none" => return Ok(AnswerForm { tools: None, grammar }),
            "required" | "any" if !definitions.is_empty() => definitions.iter().collect(),
            _ => return Err(invalid("tool_choice", expected, &choice.into())),
        },
        Some(named) => {
            let name = named["function"]["name"].as_str().or(named["name"].as_str());
            let named = definitions.iter().filter(|it| it["function"]["name"].as_str() == name);
            let found: Vec<&Value> = if name.is_some() { named.collect() } else { Vec::new() };
            if found.is_empty() {
                return Err(invalid("tool_choice", expected, &choice.into()));
            }
            found
        }
    };
    if grammar.is_some() {
        let message = "response_format cannot be combined with a tool_choice that forces a call";
        return Err(ApiError::invalid_field("response_format", message));
    }
    Ok(AnswerForm { tools: tools(ToolFormat::forced()), grammar: Some(Grammar::JsonSchema(call_schema(&forced))) })
}

/// The grammar without a choice of white space in JSON, of which small models write line after line.
pub fn with_fixed_spaces(grammar: Grammar) -> Grammar {
    match grammar {
        Grammar::JsonSchema(Value::Object(mut schema)) => {
            let spaces = json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " });
            schema.entry("x-guidance").or_insert(spaces);
            Grammar::JsonSchema(Value::Object(schema))
        }
        other => other,
    }
}

/// The schema of a call of one of `tools`.
fn call_schema(tools: &[&Value]) -> Value {
    let call = |tool: &&Value| {
        let function = &tool["function"];
        let parameters = match &function["parameters"] {
            Value::Null => json!({ "type": "object" }),
            schema => schema.clone(),
        };
        json!({
            "type": "object",
            "properties": { "name": { "const": function["name"] }, "arguments": parameters },
            "required": ["name", "arguments"],
            "additionalProperties": false,
        })
    };
    match tools {
        [tool] => call(tool),
        tools => json!({ "anyOf": tools.iter().map(call).collect::<Vec<_>>() }),
    }
}

fn parse_tools(value: Option<Value>) -> Result<Vec<Value>, ApiError> {
    let list = match value {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) if list.len() <= MAX_TOOLS => list,
        Some(other) => return Err(invalid("tools", &format!("a list of up to {MAX_TOOLS} tools"), &other)),
    };
    for (at, tool) in list.iter().enumerate() {
        let (path, function) = (format!("tools[{at}]"), &tool["function"]);
        if tool["type"] != "function" {
            return Err(invalid(&format!("{path}.type"), "function (no other tools can be called)", &tool["type"]));
        }
        if function["name"].as_str().is_none_or(str::is_empty) {
            return Err(invalid(&format!("{path}.function.name"), "a name", &function["name"]));
        }
        let parameters = &function["parameters"];
        if !parameters.is_null() && !parameters.is_object() {
            return Err(invalid(&format!("{path}.function.parameters"), "a JSON schema", parameters));
        }
    }
    Ok(list)
}

fn parse_response_format(value: Option<Value>) -> Result<Option<Grammar>, ApiError> {
    let Some(value) = value else { return Ok(None) };
    let mut fields = JsonFields::from_value(value, "response_format")?;
    let kind = fields.string("type")?.unwrap_or_default();
    let missing = |field: &str| {
        let path = format!("response_format.{field}");
        ApiError::invalid_field(&path, format!("{path}: expected it with this type, got none"))
    };
    let grammar = match &*kind {
        "text" => None,
        "json_object" => {
            let schema = fields.remove("schema").unwrap_or_else(|| json!({ "type": "object" }));
            Some(Grammar::JsonSchema(schema))
        }
        "json_schema" => {
            let outer = fields.remove("json_schema").ok_or_else(|| missing("json_schema"))?;
            Some(Grammar::JsonSchema(outer.get("schema").cloned().ok_or_else(|| missing("json_schema.schema"))?))
        }
        "regex" => Some(Grammar::Regex(fields.string("pattern")?.ok_or_else(|| missing("pattern"))?)),
        "grammar" | "lark" => Some(Grammar::Lark(fields.string("grammar")?.ok_or_else(|| missing("grammar"))?)),
        other => {
            let expected = "text, json_object, json_schema, regex or grammar";
            return Err(invalid("response_format.type", expected, &other.into()));
        }
    };
    fields.finish()?;
    Ok(grammar)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: Value) -> Result<AnswerForm, ApiError> {
        parse_answer_form(&mut JsonFields::from_value(body, "it").unwrap(), &ToolFormat::forced())
    }

    fn tool(name: &str) -> Value {
        json!({ "type": "function", "function": { "name": name, "parameters": { "type": "object" } } })
    }

    #[test]
    fn tool_choice_decides_between_no_tools_free_and_forced_calls() {
        let with = |choice: Value| parse(json!({ "tools": [tool("a"), tool("b")], "tool_choice": choice })).unwrap();
        assert_eq!(with(json!("none")), AnswerForm::default());
        for free in [json!("auto"), Value::Null] {
            let form = with(free);
            assert_eq!((form.tools.unwrap().definitions.len(), form.grammar), (2, None));
        }
        let Some(Grammar::JsonSchema(any)) = with(json!("required")).grammar else { panic!("no schema") };
        assert_eq!(any["anyOf"][1]["properties"]["name"], json!({ "const": "b" }));
        let named = json!({ "type": "function", "function": { "name": "b" } });
        let Some(Grammar::JsonSchema(one)) = with(named).grammar else { panic!("no schema") };
        assert_eq!(one["properties"]["name"], json!({ "const": "b" }));
    }

    #[test]
    fn response_formats_are_grammars() {
        let grammar = |format: Value| parse(json!({ "response_format": format })).unwrap().grammar;
        assert_eq!(grammar(json!({ "type": "text" })), None);
        assert_eq!(grammar(json!({ "type": "json_object" })), Some(Grammar::JsonSchema(json!({ "type": "object" }))));
        let schema = json!({ "type": "json_schema", "json_schema": { "name": "x", "strict": true, "schema": { "type": "null" } } });
        assert_eq!(grammar(schema), Some(Grammar::JsonSchema(json!({ "type": "null" }))));
        let regex = json!({ "type": "regex", "pattern": "a+" });
        assert_eq!(grammar(regex), Some(Grammar::Regex("a+".to_owned())));
        let lark = json!({ "type": "grammar", "grammar": "start: \"a\"" });
        assert_eq!(grammar(lark), Some(Grammar::Lark("start: \"a\"".to_owned())));
    }

    #[test]
    fn invalid_forms_are_refused_by_path() {
        for (body, param) in [
            (json!({ "tools": 7 }), "tools"),
            (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
            (json!({ "tools": [{ "type": "function", "function": {} }] }), "tools[0].function.name"),
            (json!({ "tool_choice": "required" }), "tool_choice"),
            (json!({ "tools": [tool("a")], "tool_choice": { "function": { "name": "b" } } }), "tool_choice"),
            (json!({ "response_format": { "type": "xml" } }), "response_format.type"),
            (json!({ "response_format": { "type": "json_schema" } }), "response_format.json_schema"),
            (json!({ "response_format": { "type": "text", "x": 1 } }), "response_format.x"),
        ] {
            assert_eq!(parse(body.clone()).unwrap_err().json()["error"]["param"], param, "{body}");
        }
    }
}
