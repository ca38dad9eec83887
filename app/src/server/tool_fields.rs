//! Parsing of the fields that say what an answer may be: `tools`, `tool_choice`, and its grammar.

use serde_json::{Value, json};
use thermocline_engine::{session::Grammar, tokenizer::tools::ToolFormat};

use super::{
    answer_reader::RequestedTools,
    error::ApiError,
    grammar_fields::parse_grammar,
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
pub fn parse_answer_form(fields: &mut JsonFields, format: &ToolFormat, strict: bool) -> Result<AnswerForm, ApiError> {
    let definitions = parse_tools(fields.remove("tools"))?;
    let choice = fields.remove("tool_choice");
    fields.boolean("parallel_tool_calls")?;
    let grammar = parse_grammar(fields, strict)?;
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
        let message = "a grammar cannot be combined with a tool_choice that forces a call";
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: Value) -> Result<AnswerForm, ApiError> {
        parse_answer_form(&mut JsonFields::from_value(body, "it").unwrap(), &ToolFormat::forced(), true)
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
    fn invalid_forms_are_refused_by_path() {
        for (body, param) in [
            (json!({ "tools": 7 }), "tools"),
            (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
            (json!({ "tools": [{ "type": "function", "function": {} }] }), "tools[0].function.name"),
            (json!({ "tool_choice": "required" }), "tool_choice"),
            (json!({ "tools": [tool("a")], "tool_choice": { "function": { "name": "b" } } }), "tool_choice"),
            (json!({ "response_format": { "type": "xml" } }), "response_format.type"),
        ] {
            assert_eq!(parse(body.clone()).unwrap_err().json()["error"]["param"], param, "{body}");
        }
    }
}
