//! Parsing of the fields that say what an answer may be: `tools`, `tool_choice`, and its grammar.

use serde_json::Value;
use thermocline_engine::{
    session::{
        Grammar,
        sampling::{CallSchema, JsonSchema},
    },
    tokenizer::tools::ToolFormat,
};

use super::{
    answer_reader::RequestedTools,
    error::ApiError,
    grammar_fields::{RequestedGrammar, parse_grammar},
    json_fields::{JsonFields, invalid},
    undecided_answer::CallsOrForm,
};

/// Most tools of a request.
const MAX_TOOLS: usize = 256;

/// Form of the answers to a request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AnswerForm {
    /// Tools that may be called.
    pub tools: Option<RequestedTools>,
    /// A call of a tool is forced by the grammar.
    pub forced: bool,
    /// Grammar of the answer, or of an answer without a call where calls are possible and not forced.
    pub grammar: Option<RequestedGrammar>,
}

impl AnswerForm {
    /// The two forms of an answer that may call tools and otherwise has a grammar.
    pub fn calls_or_form(&self) -> Option<CallsOrForm> {
        let (tools, grammar) = (self.tools.as_ref()?, self.grammar.as_ref()?);
        (!self.forced).then(|| CallsOrForm { tools: tools.clone(), form: grammar.grammar.clone() })
    }
}

/// Parses the form of an answer; `format` is how the model calls tools.
pub fn parse_answer_form(fields: &mut JsonFields, format: &ToolFormat, strict: bool) -> Result<AnswerForm, ApiError> {
    let mut definitions = parse_tools(fields.remove("tools"))?;
    // The model is not told: it is about the schema alone.
    let strict_of = |tool: &mut Value| {
        let function = tool["function"].as_object_mut();
        function.and_then(|function| function.remove("strict")).is_some_and(|strict| strict == true)
    };
    let strict_tools: Vec<bool> = definitions.iter_mut().map(strict_of).collect();
    let choice = fields.remove("tool_choice");
    fields.boolean("parallel_tool_calls")?;
    let grammar = parse_grammar(fields, strict)?;
    let tools = |format: ToolFormat| Some(RequestedTools { format, definitions: definitions.clone() });
    let auto = |grammar| {
        let wanted = !definitions.is_empty();
        AnswerForm { tools: if wanted { tools(format.clone()) } else { None }, forced: false, grammar }
    };
    let expected = "none, auto, required, or the name of a function in `tools`";
    let every = 0..definitions.len();
    let forced: Vec<usize> = match &choice {
        None => return Ok(auto(grammar)),
        Some(Value::String(word)) => match &**word {
            "auto" => return Ok(auto(grammar)),
            "none" => return Ok(AnswerForm { tools: None, forced: false, grammar }),
            "required" | "any" if !definitions.is_empty() => every.collect(),
            _ => return Err(invalid("tool_choice", expected, &choice.into())),
        },
        Some(named) => {
            let name = named["function"]["name"].as_str().or(named["name"].as_str());
            let found: Vec<usize> =
                every.filter(|at| name.is_some() && definitions[*at]["function"]["name"].as_str() == name).collect();
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
    let grammar = Some(call_grammar(&definitions, &strict_tools, &forced)?);
    Ok(AnswerForm { tools: tools(ToolFormat::forced()), forced: true, grammar })
}

/// The grammar of a call of one of the tools with these numbers; `strict` says of each tool that its schema has to be followed to
/// the letter.
fn call_grammar(tools: &[Value], strict: &[bool], numbers: &[usize]) -> Result<RequestedGrammar, ApiError> {
    let call = |&number: &usize| {
        let function = &tools[number]["function"];
        let arguments = JsonSchema::of_arguments(&function["parameters"], number, strict[number])
            .map_err(|error| ApiError::of_grammar(&error, &format!("tools[{number}]")))?;
        Ok(CallSchema { name: function["name"].as_str().unwrap_or_default().to_owned(), arguments })
    };
    let calls = numbers.iter().map(call).collect::<Result<Vec<_>, ApiError>>()?;
    let field = match numbers {
        [number] => format!("tools[{number}]"),
        _ => "tools".to_owned(),
    };
    Ok(RequestedGrammar { field, grammar: Grammar::JsonSchema(JsonSchema::of_calls(calls)) })
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
    use serde_json::json;

    use super::*;

    fn parse(body: Value) -> Result<AnswerForm, ApiError> {
        parse_answer_form(&mut JsonFields::from_value(body, "it").unwrap(), &ToolFormat::forced(), true)
    }

    fn tool(name: &str) -> Value {
        json!({ "type": "function", "function": { "name": name, "parameters": { "type": "object" } } })
    }

    fn with_parameters(parameters: Value) -> Value {
        json!({ "type": "function", "function": { "name": "c", "parameters": parameters } })
    }

    #[test]
    fn tool_choice_decides_between_no_tools_free_and_forced_calls() {
        let with = |choice: Value| parse(json!({ "tools": [tool("a"), tool("b")], "tool_choice": choice })).unwrap();
        assert_eq!(with(json!("none")), AnswerForm::default());
        for free in [json!("auto"), Value::Null] {
            let form = with(free);
            assert_eq!((form.tools.unwrap().definitions.len(), form.grammar), (2, None));
        }
        let schema = |form: AnswerForm| match form.grammar {
            Some(RequestedGrammar { field, grammar: Grammar::JsonSchema(schema) }) => (field, schema.for_library()),
            other => panic!("no schema: {other:?}"),
        };
        let (field, any) = schema(with(json!("required")));
        assert_eq!((&*field, &any["anyOf"][1]["properties"]["name"]), ("tools", &json!({ "const": "b" })));
        let (field, one) = schema(with(json!({ "type": "function", "function": { "name": "b" } })));
        assert_eq!((&*field, &one["properties"]["name"]), ("tools[1]", &json!({ "const": "b" })));
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
            (
                json!({ "tools": [tool("a"), with_parameters(json!({ "pattern": "(" }))], "tool_choice": "required" }),
                "tools[1]",
            ),
            (json!({ "tools": [with_parameters(json!({ "type": "string" }))], "tool_choice": "required" }), "tools[0]"),
        ] {
            assert_eq!(parse(body.clone()).unwrap_err().json()["error"]["param"], param, "{body}");
        }
    }
}
