//! The form of an answer: the tools that it may call, and its grammar.

use serde_json::Value;
use thermocline_engine::{
    session::{
        Grammar,
        sampling::{CallSchema, JsonSchema},
    },
    tokenizer::tools::ToolFormat,
};

use super::{answer_reader::RequestedTools, error::ApiError, fields::invalid, undecided_answer::CallsOrForm};

/// Most tools of a request.
const MAX_TOOLS: usize = 256;

/// Valid values of a tool choice, as errors list them.
pub const CHOICES: &str = "none, auto, required, or the name of a function in `tools`";

/// A grammar, and the request field that asks for it. Errors name the field.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestedGrammar {
    /// Path of the field.
    pub field: String,
    /// The grammar.
    pub grammar: Grammar,
}

/// A tool that a model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestedTool {
    /// Definition of the tool, in the form that chat templates read.
    pub definition: Value,
    /// Calls follow the schema of the arguments exactly.
    pub strict: bool,
    /// Path of the tool in the request.
    pub path: String,
}

/// The choice among the tools of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model may call tools.
    Auto,
    /// The model calls no tool.
    None,
    /// The model calls one of the tools.
    Required,
    /// The model calls the function of this name.
    Named(String),
}

/// Form of the answers to a request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AnswerForm {
    /// Tools that may be called.
    pub tools: Option<RequestedTools>,
    /// The grammar forces a tool call.
    pub forced: bool,
    /// Grammar of the answer. If the model may call tools but need not, it applies only to answers
    /// without a call.
    pub grammar: Option<RequestedGrammar>,
}

impl ToolChoice {
    /// Parses a tool choice that is a single word.
    pub fn of_word(word: &str) -> Option<Self> {
        match word {
            "auto" => Some(ToolChoice::Auto),
            "none" => Some(ToolChoice::None),
            "required" | "any" => Some(ToolChoice::Required),
            _ => None,
        }
    }
}

impl RequestedGrammar {
    /// Builds the grammar of a schema in the field `field`.
    pub fn of_schema(schema: &Value, strict: bool, field: &str) -> Result<Self, ApiError> {
        let schema = JsonSchema::new(schema, strict).map_err(|error| ApiError::of_grammar(&error, field))?;
        Ok(RequestedGrammar { field: field.to_owned(), grammar: Grammar::JsonSchema(schema) })
    }

    /// Builds the grammar of any JSON object.
    pub fn any_object(field: &str) -> Self {
        RequestedGrammar { field: field.to_owned(), grammar: Grammar::JsonSchema(JsonSchema::any_object()) }
    }
}

impl RequestedTool {
    /// Reads a function that the request defines at `path`. An error names the field `schema` in
    /// it.
    pub fn new(definition: Value, strict: bool, path: String, schema: &str) -> Result<Self, ApiError> {
        let parameters = &definition["function"]["parameters"];
        if !parameters.is_null() && !parameters.is_object() {
            return Err(invalid(schema, "a JSON schema", parameters));
        }
        Ok(RequestedTool { definition, strict, path })
    }

    /// The function's name.
    pub fn name(&self) -> &str {
        self.definition["function"]["name"].as_str().unwrap_or_default()
    }

    /// Builds the schema of the tool's calls. `number` separates it from the schemas of other
    /// tools.
    fn call(&self, number: usize) -> Result<CallSchema, ApiError> {
        let parameters = &self.definition["function"]["parameters"];
        let arguments = JsonSchema::of_arguments(parameters, number, self.strict)
            .map_err(|error| ApiError::of_grammar(&error, &self.path))?;
        Ok(CallSchema { name: self.name().to_owned(), arguments })
    }
}

impl AnswerForm {
    /// Builds the form of an answer with these tools and this grammar. `format` is how the model
    /// calls tools.
    pub fn new(
        tools: &[RequestedTool],
        choice: &ToolChoice,
        grammar: Option<RequestedGrammar>,
        format: &ToolFormat,
    ) -> Result<Self, ApiError> {
        if tools.len() > MAX_TOOLS {
            let message = format!("tools: expected a list of up to {MAX_TOOLS} tools, got {}", tools.len());
            return Err(ApiError::invalid_field("tools", message));
        }
        let definitions = || tools.iter().map(|tool| tool.definition.clone()).collect();
        let callable = |format: ToolFormat| Some(RequestedTools { format, definitions: definitions() });
        let numbered = || tools.iter().enumerate();
        let forced: Vec<(usize, &RequestedTool)> = match choice {
            ToolChoice::None => return Ok(AnswerForm { tools: None, forced: false, grammar }),
            ToolChoice::Auto => {
                let tools = if tools.is_empty() { None } else { callable(format.clone()) };
                return Ok(AnswerForm { tools, forced: false, grammar });
            }
            ToolChoice::Required => numbered().collect(),
            ToolChoice::Named(name) => numbered().filter(|(_, tool)| tool.name() == name).collect(),
        };
        let Some((_, first)) = forced.first() else {
            let got = if let ToolChoice::Named(name) = choice { name.as_str() } else { "required" };
            return Err(invalid("tool_choice", CHOICES, &got.into()));
        };
        if let Some(grammar) = grammar {
            let message = "a grammar cannot be combined with a tool_choice that forces a call";
            return Err(ApiError::invalid_field(&grammar.field, message));
        }
        let field = if forced.len() == 1 { first.path.clone() } else { "tools".to_owned() };
        let calls = forced.iter().map(|(number, tool)| tool.call(*number)).collect::<Result<Vec<_>, ApiError>>()?;
        let grammar = RequestedGrammar { field, grammar: Grammar::JsonSchema(JsonSchema::of_calls(calls)) };
        Ok(AnswerForm { tools: callable(ToolFormat::forced()), forced: true, grammar: Some(grammar) })
    }

    /// Returns the tools and the grammar, if the answer either calls tools or follows a grammar.
    pub fn calls_or_form(&self) -> Option<CallsOrForm> {
        let (tools, grammar) = (self.tools.as_ref()?, self.grammar.as_ref()?);
        (!self.forced).then(|| CallsOrForm { tools: tools.clone(), form: grammar.grammar.clone() })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(number: usize, name: &str, parameters: Value) -> RequestedTool {
        let definition = json!({ "type": "function", "function": { "name": name, "parameters": parameters } });
        RequestedTool { definition, strict: false, path: format!("tools[{number}]") }
    }

    fn form(tools: &[RequestedTool], choice: ToolChoice) -> Result<AnswerForm, ApiError> {
        AnswerForm::new(tools, &choice, None, &ToolFormat::forced())
    }

    #[test]
    fn tool_choice_decides_between_no_tools_free_and_forced_calls() {
        let object = || json!({ "type": "object" });
        let tools = [tool(0, "a", object()), tool(1, "b", object())];
        assert_eq!(form(&tools, ToolChoice::None).unwrap(), AnswerForm::default());
        let free = form(&tools, ToolChoice::Auto).unwrap();
        assert_eq!((free.tools.unwrap().definitions.len(), free.grammar), (2, None));
        let schema = |choice| match form(&tools, choice).unwrap().grammar {
            Some(RequestedGrammar { field, grammar: Grammar::JsonSchema(schema) }) => (field, schema.for_library()),
            other => panic!("no schema: {other:?}"),
        };
        let (field, any) = schema(ToolChoice::Required);
        assert_eq!((&*field, &any["anyOf"][1]["properties"]["name"]), ("tools", &json!({ "const": "b" })));
        let (field, one) = schema(ToolChoice::Named("b".to_owned()));
        assert_eq!((&*field, &one["properties"]["name"]), ("tools[1]", &json!({ "const": "b" })));
    }

    #[test]
    fn invalid_forms_are_refused_by_path() {
        let a = tool(0, "a", json!({ "type": "object" }));
        let pattern = tool(1, "c", json!({ "pattern": "(" }));
        let string = tool(0, "c", json!({ "type": "string" }));
        for (tools, choice, param) in [
            (vec![], ToolChoice::Required, "tool_choice"),
            (vec![a.clone()], ToolChoice::Named("b".to_owned()), "tool_choice"),
            (vec![a.clone(), pattern], ToolChoice::Required, "tools[1]"),
            (vec![string], ToolChoice::Required, "tools[0]"),
            (vec![a; 257], ToolChoice::Auto, "tools"),
        ] {
            assert_eq!(form(&tools, choice).unwrap_err().json()["error"]["param"], param);
        }
    }
}
