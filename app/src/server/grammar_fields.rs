//! Parsing of the fields that give an answer a grammar: OpenAI's `response_format`, llama.cpp's `grammar` and `json_schema`, vLLM's
//! `structured_outputs` and `guided_json`, `guided_regex`, `guided_choice`, `guided_grammar`.

use serde_json::{Value, json};
use thermocline_engine::session::Grammar;

use super::{
    error::ApiError,
    json_fields::{JsonFields, invalid},
};

/// Most texts of a choice.
const MAX_CHOICES: usize = 1024;

/// Parses the grammar that a request gives, at most one; the fields that are not OpenAI's only if not `strict`.
pub fn parse_grammar(fields: &mut JsonFields, strict: bool) -> Result<Option<Grammar>, ApiError> {
    let mut found: Vec<(String, Grammar)> = Vec::new();
    let format = parse_response_format(fields.remove("response_format"))?;
    found.extend(format.map(|grammar| ("response_format".to_owned(), grammar)));
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
                found.push((field.to_owned(), read_grammar(value, kind, field)?));
            }
        }
        if let Some(value) = fields.remove("structured_outputs") {
            let mut outputs = JsonFields::from_value(value, "structured_outputs")?;
            for kind in ["json", "regex", "choice", "grammar"] {
                if let Some(value) = outputs.remove(kind) {
                    let path = outputs.path(kind);
                    let grammar = read_grammar(value, kind, &path)?;
                    found.push((path, grammar));
                }
            }
            if outputs.boolean("json_object")?.unwrap_or(false) {
                found.push((outputs.path("json_object"), Grammar::JsonSchema(json!({ "type": "object" }))));
            }
            outputs.finish()?;
        }
    }
    if let [(first, _), (second, _), ..] = &found[..] {
        let message = format!("{second}: expected one grammar, got another one by {first}");
        return Err(ApiError::invalid_field(second, message));
    }
    Ok(found.pop().map(|(_, grammar)| grammar))
}

/// The grammar that `value` says, which is of this kind.
fn read_grammar(value: Value, kind: &str, path: &str) -> Result<Grammar, ApiError> {
    match (kind, value) {
        ("json", Value::String(text)) => {
            let schema = serde_json::from_str(&text).ok().filter(Value::is_object);
            schema.map(Grammar::JsonSchema).ok_or_else(|| invalid(path, "a JSON schema", &text.into()))
        }
        ("json", schema @ Value::Object(_)) => Ok(Grammar::JsonSchema(schema)),
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
        "json_object" => {
            let schema = fields.remove("schema").unwrap_or_else(|| json!({ "type": "object" }));
            Some(Grammar::JsonSchema(schema))
        }
        "json_schema" => {
            let outer = fields.remove("json_schema").ok_or_else(|| missing("json_schema"))?;
            Some(Grammar::JsonSchema(outer.get("schema").cloned().ok_or_else(|| missing("json_schema.schema"))?))
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
    use super::*;

    fn parse(body: Value, strict: bool) -> Result<Option<Grammar>, ApiError> {
        let mut fields = JsonFields::parse(body.to_string().as_bytes()).unwrap();
        let grammar = parse_grammar(&mut fields, strict)?;
        fields.finish().map(|()| grammar)
    }

    #[test]
    fn response_formats_are_grammars() {
        let grammar = |format: Value| parse(json!({ "response_format": format }), true).unwrap();
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
    fn other_servers_fields_are_grammars_unless_strict() {
        let schema = json!({ "type": "null" });
        let json_schema = Grammar::JsonSchema(schema.clone());
        let regex = Grammar::Regex("a+".to_owned());
        let gbnf = Grammar::Gbnf("root ::= \"a\"".to_owned());
        let lark = Grammar::Lark("start: \"a\"".to_owned());
        for (body, grammar) in [
            (json!({ "grammar": "root ::= \"a\"" }), gbnf),
            (json!({ "grammar": "start: \"a\"" }), lark.clone()),
            (json!({ "guided_grammar": "start: \"a\"" }), lark),
            (json!({ "json_schema": schema }), json_schema.clone()),
            (json!({ "guided_json": schema.to_string() }), json_schema.clone()),
            (json!({ "guided_regex": "a+" }), regex.clone()),
            (json!({ "guided_choice": ["a", "b c"] }), Grammar::one_of(&["a".to_owned(), "b c".to_owned()])),
            (json!({ "structured_outputs": { "regex": "a+" } }), regex),
            (
                json!({ "structured_outputs": { "json_object": true } }),
                Grammar::JsonSchema(json!({ "type": "object" })),
            ),
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
        ] {
            assert_eq!(parse(body.clone(), false).unwrap_err().json()["error"]["param"], param, "{body}");
        }
    }
}
