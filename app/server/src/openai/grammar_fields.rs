//! The fields that constrain an answer by a grammar: OpenAI's `response_format`, llama.cpp's
//! `grammar` and `json_schema`, and vLLM's `structured_outputs`, `guided_json`, `guided_regex`,
//! `guided_choice` and `guided_grammar`.

use serde::Deserialize;
use serde_json::Value;
use thermocline_engine::session::Grammar;

use crate::{
    answer_form::RequestedGrammar,
    error::ApiError,
    fields::{LenientField, invalid},
};

/// Most texts in a choice of texts.
const MAX_CHOICES: usize = 1024;

/// Fields of an OpenAI request that constrain the answer's grammar. A strict server accepts only
/// OpenAI's own field.
#[derive(Debug, PartialEq, Deserialize)]
pub struct GrammarFields {
    response_format: Option<FormatObject>,
    grammar: LenientField<Value>,
    json_schema: LenientField<Value>,
    guided_json: LenientField<Value>,
    guided_regex: LenientField<Value>,
    guided_choice: LenientField<Value>,
    guided_grammar: LenientField<Value>,
    structured_outputs: LenientField<StructuredOutputs>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct StructuredOutputs {
    json: Option<Value>,
    regex: Option<Value>,
    choice: Option<Value>,
    grammar: Option<Value>,
    json_object: Option<bool>,
}

/// The format of an answer.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", rename = "type: text, json_object, json_schema, regex or grammar")]
pub enum FormatObject {
    Text {},
    JsonObject {
        schema: Option<Value>,
    },
    JsonSchema {
        json_schema: Option<Value>,
    },
    Regex {
        pattern: Option<String>,
    },
    #[serde(alias = "lark", alias = "gbnf")]
    Grammar {
        grammar: Option<String>,
    },
}

/// A notation of grammars.
#[derive(Debug, Clone, Copy)]
enum Notation {
    Schema,
    Regex,
    Choice,
    Grammar,
}

impl GrammarFields {
    /// Reads the grammar. The fields may give at most one.
    pub fn grammar(self) -> Result<Option<RequestedGrammar>, ApiError> {
        let mut found = Vec::new();
        if let Some(format) = self.response_format {
            found.extend(format.grammar("response_format")?);
        }
        let extra = |value: LenientField<Value>| value.map(|it| it.0).filter(|value| *value != "");
        let mut fields = vec![
            ("grammar", Notation::Grammar, extra(self.grammar)),
            ("json_schema", Notation::Schema, extra(self.json_schema)),
            ("guided_json", Notation::Schema, extra(self.guided_json)),
            ("guided_regex", Notation::Regex, extra(self.guided_regex)),
            ("guided_choice", Notation::Choice, extra(self.guided_choice)),
            ("guided_grammar", Notation::Grammar, extra(self.guided_grammar)),
        ];
        let mut any_object = false;
        if let Some(outputs) = self.structured_outputs.map(|it| it.0) {
            fields.extend([
                ("structured_outputs.json", Notation::Schema, outputs.json),
                ("structured_outputs.regex", Notation::Regex, outputs.regex),
                ("structured_outputs.choice", Notation::Choice, outputs.choice),
                ("structured_outputs.grammar", Notation::Grammar, outputs.grammar),
            ]);
            any_object = outputs.json_object == Some(true);
        }
        for (field, notation, value) in fields {
            if let Some(value) = value {
                found.push(notation.read(value, field)?);
            }
        }
        found.extend(any_object.then(|| RequestedGrammar::any_object("structured_outputs.json_object")));
        if let [RequestedGrammar { field: first, .. }, RequestedGrammar { field: second, .. }, ..] = &found[..] {
            let message = format!("{second}: expected one grammar, got another grammar in {first}");
            return Err(ApiError::invalid_field(second, message));
        }
        Ok(found.pop())
    }
}

impl Notation {
    /// Reads the grammar `value` of the request's field `path`.
    fn read(self, value: Value, path: &str) -> Result<RequestedGrammar, ApiError> {
        let grammar = match (self, value) {
            (Notation::Schema, Value::String(text)) => {
                let schema: Option<Value> = serde_json::from_str(&text).ok().filter(Value::is_object);
                let schema = schema.ok_or_else(|| invalid(path, "a JSON schema", &text.into()))?;
                return RequestedGrammar::of_schema(&schema, false, path);
            }
            (Notation::Schema, schema @ Value::Object(_)) => {
                return RequestedGrammar::of_schema(&schema, false, path);
            }
            (Notation::Schema, other) => return Err(invalid(path, "a JSON schema", &other)),
            (Notation::Regex, Value::String(pattern)) => Grammar::Regex(pattern),
            (Notation::Regex, other) => return Err(invalid(path, "a regular expression", &other)),
            (Notation::Choice, list) => {
                let text = |value: &Value| value.as_str().map(str::to_owned);
                let list_of_texts = list.as_array().filter(|list| list.len() <= MAX_CHOICES);
                let texts = list_of_texts.and_then(|list| list.iter().map(text).collect::<Option<Vec<_>>>());
                let expected = format!("a list of up to {MAX_CHOICES} texts");
                Grammar::one_of(&texts.ok_or_else(|| invalid(path, &expected, &list))?)
            }
            (Notation::Grammar, Value::String(text)) => Grammar::of_text(text),
            (Notation::Grammar, other) => {
                return Err(invalid(path, "a grammar in Lark's notation or in GBNF", &other));
            }
        };
        Ok(RequestedGrammar { field: path.to_owned(), grammar })
    }
}

impl FormatObject {
    /// Reads the grammar of the format in the request's field `field`.
    pub fn grammar(self, field: &str) -> Result<Option<RequestedGrammar>, ApiError> {
        let missing = |name: &str| {
            let path = format!("{field}.{name}");
            ApiError::invalid_field(&path, format!("{path}: expected a value with this type, got none"))
        };
        let grammar = match self {
            FormatObject::Text {} => return Ok(None),
            FormatObject::JsonObject { schema: None } => return Ok(Some(RequestedGrammar::any_object(field))),
            FormatObject::JsonObject { schema: Some(schema) } => {
                return RequestedGrammar::of_schema(&schema, false, field).map(Some);
            }
            FormatObject::JsonSchema { json_schema } => {
                let outer = json_schema.ok_or_else(|| missing("json_schema"))?;
                let schema = outer.get("schema").ok_or_else(|| missing("json_schema.schema"))?;
                return RequestedGrammar::of_schema(schema, outer["strict"] == true, field).map(Some);
            }
            FormatObject::Regex { pattern } => Grammar::Regex(pattern.ok_or_else(|| missing("pattern"))?),
            FormatObject::Grammar { grammar } => Grammar::of_text(grammar.ok_or_else(|| missing("grammar"))?),
        };
        Ok(Some(RequestedGrammar { field: field.to_owned(), grammar }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use thermocline_engine::session::sampling::JsonSchema;

    use super::*;
    use crate::fields::parse_fields;

    fn parse(body: Value, strict: bool) -> Result<Option<Grammar>, ApiError> {
        let fields: GrammarFields = parse_fields(body.to_string().as_bytes(), strict)?;
        Ok(fields.grammar()?.map(|it| it.grammar))
    }

    fn schema(schema: Value, strict: bool) -> Grammar {
        Grammar::JsonSchema(JsonSchema::new(&schema, strict).unwrap())
    }

    #[test]
    fn response_formats_are_grammars() {
        let grammar = |format: Value| parse(json!({ "response_format": format }), true).unwrap();
        assert_eq!(grammar(json!({ "type": "text" })), None);
        assert_eq!(grammar(json!({ "type": "json_object" })), Some(schema(json!({ "type": "object" }), false)));
        let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "strict": true, "schema": { "type": "null" } } });
        assert_eq!(grammar(format), Some(schema(json!({ "type": "null" }), true)));
        let regex = json!({ "type": "regex", "pattern": "a+" });
        assert_eq!(grammar(regex), Some(Grammar::Regex("a+".to_owned())));
        let lark = json!({ "type": "grammar", "grammar": "start: \"a\"" });
        assert_eq!(grammar(lark), Some(Grammar::Lark("start: \"a\"".to_owned())));
    }

    #[test]
    fn other_servers_fields_are_grammars_unless_strict() {
        let nothing = json!({ "type": "null" });
        let json_schema = schema(nothing.clone(), false);
        let regex = Grammar::Regex("a+".to_owned());
        let gbnf = Grammar::Gbnf("root ::= \"a\"".to_owned());
        let lark = Grammar::Lark("start: \"a\"".to_owned());
        for (body, grammar) in [
            (json!({ "grammar": "root ::= \"a\"" }), gbnf),
            (json!({ "grammar": "start: \"a\"" }), lark.clone()),
            (json!({ "guided_grammar": "start: \"a\"" }), lark),
            (json!({ "json_schema": nothing }), json_schema.clone()),
            (json!({ "guided_json": nothing.to_string() }), json_schema.clone()),
            (json!({ "guided_regex": "a+" }), regex.clone()),
            (json!({ "guided_choice": ["a", "b c"] }), Grammar::one_of(&["a".to_owned(), "b c".to_owned()])),
            (json!({ "structured_outputs": { "regex": "a+" } }), regex),
            (json!({ "structured_outputs": { "json_object": true } }), schema(json!({ "type": "object" }), false)),
        ] {
            assert_eq!(parse(body.clone(), false).unwrap(), Some(grammar));
            assert!(parse(body, true).is_err());
        }
        assert_eq!(parse(json!({ "grammar": "" }), false).unwrap(), None);
    }

    #[test]
    fn invalid_grammars_are_refused_by_path() {
        for (body, param) in [
            (json!({ "response_format": { "type": "xml" } }), "response_format.type"),
            (json!({ "response_format": { "type": "json_schema" } }), "response_format.json_schema"),
            (json!({ "response_format": { "type": "text", "x": 1 } }), "response_format.x"),
            (json!({ "grammar": 7 }), "grammar"),
            (json!({ "guided_choice": [1] }), "guided_choice"),
            (json!({ "guided_json": "{" }), "guided_json"),
            (json!({ "structured_outputs": { "regex": 1 } }), "structured_outputs.regex"),
            (json!({ "structured_outputs": { "x": 1 } }), "structured_outputs.x"),
            (json!({ "grammar": "a", "guided_regex": "b" }), "guided_regex"),
            (json!({ "guided_json": { "pattern": "(" } }), "guided_json"),
            (json!({ "response_format": { "type": "json_object", "schema": 7 } }), "response_format"),
            (json!({ "structured_outputs": { "json": { "$ref": "#/x" } } }), "structured_outputs.json"),
        ] {
            assert_eq!(parse(body.clone(), false).unwrap_err().json()["error"]["param"], param, "{body}");
        }
    }
}
