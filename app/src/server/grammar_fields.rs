//! Parsing of the fields that give an answer a grammar: OpenAI's `response_format`, llama.cpp's `grammar` and `json_schema`, vLLM's
//! `structured_outputs` and `guided_json`, `guided_regex`, `guided_choice`, `guided_grammar`.

use serde_json::Value;
use thermocline_engine::session::{Grammar, sampling::JsonSchema};

use super::{
    error::ApiError,
    json_fields::{JsonFields, invalid},
};

/// Most texts of a choice.
const MAX_CHOICES: usize = 1024;

/// A grammar, and the field of the request that asks for it, which errors name.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestedGrammar {
    /// Name of the field.
    pub field: String,
    /// The grammar.
    pub grammar: Grammar,
}

/// Parses the grammar that a request gives, at most one; the fields that are not OpenAI's only if not `strict`.
pub fn parse_grammar(fields: &mut JsonFields, strict: bool) -> Result<Option<RequestedGrammar>, ApiError> {
    let mut found: Vec<RequestedGrammar> = Vec::new();
    let format = parse_response_format(fields.remove("response_format"))?;
    found.extend(format.map(|grammar| RequestedGrammar { field: "response_format".to_owned(), grammar }));
    if !strict {
        let own = [("grammar", "grammar"), ("json_schema", "json")];
        let guided = [
            ("guided_json", "json"),
            ("guided_regex", "regex"),
            ("guided_choice", "choice"),
            ("guided_grammar", "grammar"),
        ];
        for (field, kind) in own.into_iter().chain(guided) {
            if let Some(value) = fields.remove(field).filter(|value| *value != "") {
                found.push(RequestedGrammar { field: field.to_owned(), grammar: read_grammar(value, kind, field)? });
            }
        }
        if let Some(value) = fields.remove("structured_outputs") {
            let mut outputs = JsonFields::from_value(value, "structured_outputs")?;
            for kind in ["json", "regex", "choice", "grammar"] {
                if let Some(value) = outputs.remove(kind) {
                    let field = outputs.path(kind);
                    let grammar = read_grammar(value, kind, &field)?;
                    found.push(RequestedGrammar { field, grammar });
                }
            }
            if outputs.boolean("json_object")?.unwrap_or(false) {
                let grammar = Grammar::JsonSchema(JsonSchema::any_object());
                found.push(RequestedGrammar { field: outputs.path("json_object"), grammar });
            }
            outputs.finish()?;
        }
    }
    if let [RequestedGrammar { field: first, .. }, RequestedGrammar { field: second, .. }, ..] = &found[..] {
        let message = format!("{second}: expected one grammar, got another one by {first}");
        return Err(ApiError::invalid_field(second, message));
    }
    Ok(found.pop())
}

/// The grammar of a schema; errors name `field`.
fn schema_grammar(schema: &Value, strict: bool, field: &str) -> Result<Grammar, ApiError> {
    let schema = JsonSchema::new(schema, strict);
    schema.map(Grammar::JsonSchema).map_err(|error| ApiError::of_grammar(&error, field))
}

/// The grammar that `value` says, which is of this kind.
fn read_grammar(value: Value, kind: &str, path: &str) -> Result<Grammar, ApiError> {
    match (kind, value) {
        ("json", Value::String(text)) => {
            let schema: Option<Value> = serde_json::from_str(&text).ok().filter(Value::is_object);
            schema_grammar(&schema.ok_or_else(|| invalid(path, "a JSON schema", &text.into()))?, false, path)
        }
        ("json", schema @ Value::Object(_)) => schema_grammar(&schema, false, path),
        ("json", other) => Err(invalid(path, "a JSON schema", &other)),
        ("regex", Value::String(pattern)) => Ok(Grammar::Regex(pattern)),
        ("regex", other) => Err(invalid(path, "a regular expression", &other)),
        ("choice", list) => {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            let texts: Option<Vec<String>> = list
                .as_array()
                .filter(|list| list.len() <= MAX_CHOICES)
                .and_then(|list| list.iter().map(text).collect());
            let expected = format!("a list of up to {MAX_CHOICES} texts");
            texts.map(|texts| Grammar::one_of(&texts)).ok_or_else(|| invalid(path, &expected, &list))
        }
        (_, Value::String(text)) => Ok(Grammar::of_text(text)),
        (_, other) => Err(invalid(path, "a grammar in Lark's notation or in GBNF", &other)),
    }
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
        "json_object" => Some(match fields.remove("schema") {
            Some(schema) => schema_grammar(&schema, false, "response_format")?,
            None => Grammar::JsonSchema(JsonSchema::any_object()),
        }),
        "json_schema" => {
            let outer = fields.remove("json_schema").ok_or_else(|| missing("json_schema"))?;
            let schema = outer.get("schema").ok_or_else(|| missing("json_schema.schema"))?;
            Some(schema_grammar(schema, outer["strict"] == true, "response_format")?)
        }
        "regex" => Some(Grammar::Regex(fields.string("pattern")?.ok_or_else(|| missing("pattern"))?)),
        "grammar" | "lark" | "gbnf" => {
            Some(Grammar::of_text(fields.string("grammar")?.ok_or_else(|| missing("grammar"))?))
        }
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
    use serde_json::json;

    use super::*;

    fn parse(body: Value, strict: bool) -> Result<Option<Grammar>, ApiError> {
        let mut fields = JsonFields::parse(body.to_string().as_bytes()).unwrap();
        let grammar = parse_grammar(&mut fields, strict)?;
        fields.finish().map(|()| grammar.map(|it| it.grammar))
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
