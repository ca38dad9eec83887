//! Tool definitions: the names of tools and the types of their parameters.

use serde_json::{Map, Value};

/// Deepest nesting of schemas that is followed.
const DEPTH: usize = 32;

/// The tools that a model may call.
#[derive(Debug, Clone, Default)]
pub struct Definitions(Vec<Value>);

impl Definitions {
    /// The tools from `definitions`, in OpenAI's form.
    pub fn new(definitions: &[Value]) -> Self {
        Definitions(definitions.to_vec())
    }

    /// True if a tool has the name `name`. If no names are defined, every tool is known.
    pub fn knows(&self, name: &str) -> bool {
        if self.has_names() { self.names().any(|known| known == name) } else { !name.is_empty() }
    }

    /// The tool that a model calls `name`. Some models add a prefix `functions.` and a suffix `:0`.
    pub fn resolve<'n>(&self, name: &'n str) -> Option<&'n str> {
        let bare = name.strip_prefix("functions.").unwrap_or(name);
        let unnumbered = bare.rsplit_once(':').filter(|(_, number)| number.bytes().all(|byte| byte.is_ascii_digit()));
        let unnumbered = unnumbered.map_or(bare, |(name, _)| name);
        let candidates = [name, bare, unnumbered];
        // If every name is known, the shortest form is the tool's name.
        let first = if self.has_names() { 0 } else { 2 };
        candidates[first..].iter().copied().find(|candidate| self.knows(candidate))
    }

    /// True if a call of `function` may have this parameter: its schema names it, names none, or
    /// allows others.
    pub fn may_have(&self, function: &str, parameter: &str) -> bool {
        let Some(schema) = self.schema(function) else { return true };
        let others = matches!(&schema["additionalProperties"], Value::Bool(true) | Value::Object(_));
        let names = schema["properties"].as_object().filter(|names| !names.is_empty());
        others || names.is_none_or(|names| names.contains_key(parameter))
    }

    /// The unnamed parameter at position `index`, from the order of the schema's required
    /// parameters.
    pub fn positional(&self, function: &str, index: usize) -> Option<&str> {
        self.schema(function)?["required"].get(index)?.as_str()
    }

    /// The JSON text of an argument written as bare text. It becomes a string if the schema allows
    /// one, and otherwise the value that the text denotes.
    pub fn argument(&self, function: &str, parameter: &str, text: &str) -> String {
        let as_text = || Value::String(text.to_owned()).to_string();
        if self.allows_text(function, parameter, text) == Some(true) {
            return as_text();
        }
        match text.trim() {
            "True" => "true".to_owned(),
            "False" => "false".to_owned(),
            "None" => "null".to_owned(),
            // JSON is copied as written, so that a number keeps all its digits.
            other if serde_json::from_str::<Value>(other).is_ok() => other.to_owned(),
            _ => as_text(),
        }
    }

    /// True if the schema of a parameter allows `text` as a string, false if not, `None` if it does
    /// not specify.
    pub fn allows_text(&self, function: &str, parameter: &str, text: &str) -> Option<bool> {
        let root = self.schema(function)?;
        SchemaRoot(root).allows_text(root["properties"].get(parameter)?, text, 0)
    }

    fn has_names(&self) -> bool {
        self.names().next().is_some()
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.functions().filter_map(|function| function["name"].as_str())
    }

    fn functions(&self) -> impl Iterator<Item = &Value> {
        self.0.iter().map(|tool| tool.get("function").unwrap_or(tool))
    }

    /// The schema of a function's parameters.
    fn schema(&self, function: &str) -> Option<&Value> {
        Some(&self.functions().find(|it| it["name"] == function)?["parameters"])
    }
}

/// The root schema that references point into.
#[derive(Debug, Clone, Copy)]
struct SchemaRoot<'s>(&'s Value);

impl<'s> SchemaRoot<'s> {
    /// True if `schema` allows `text` as a string, false if not, `None` if it does not specify.
    fn allows_text(self, schema: &'s Value, text: &str, depth: usize) -> Option<bool> {
        let schema = schema.as_object().filter(|_| depth < DEPTH)?;
        let within = |schema: &'s Value| self.allows_text(schema, text, depth + 1);
        let members = |key: &str| schema.get(key).and_then(Value::as_array).into_iter().flatten();
        let one_of = |key: &str| {
            let found: Vec<Option<bool>> = members(key).map(within).collect();
            let is_any = found.contains(&Some(true));
            let is_none = !found.is_empty() && found.iter().all(|it| *it == Some(false));
            if is_any { Some(true) } else { is_none.then_some(false) }
        };
        let referred = schema.get("$ref").and_then(Value::as_str).and_then(|path| self.referred(path));
        let all = members("allOf").map(within);
        let others = [by_type(schema), by_values(schema, text), one_of("anyOf"), one_of("oneOf")];
        let said: Vec<bool> = others.into_iter().chain([referred.and_then(within)]).chain(all).flatten().collect();
        if said.contains(&false) { Some(false) } else { said.contains(&true).then_some(true) }
    }

    /// The schema at `path`, such as `#/$defs/Name`.
    fn referred(self, path: &str) -> Option<&'s Value> {
        self.0.pointer(path.strip_prefix('#')?)
    }
}

/// True if the schema's type allows strings; `None` if it does not specify.
fn by_type(schema: &Map<String, Value>) -> Option<bool> {
    match schema.get("type")? {
        Value::String(name) => Some(name == "string"),
        Value::Array(names) => Some(names.iter().any(|name| name == "string")),
        _ => None,
    }
}

/// True if the schema's list of values allows `text`; `None` without a list.
fn by_values(schema: &Map<String, Value>, text: &str) -> Option<bool> {
    let one = schema.get("const").map(std::slice::from_ref);
    let values = schema.get("enum").and_then(Value::as_array).map(Vec::as_slice).or(one)?;
    Some(values.iter().any(|value| value == text) || values.iter().all(Value::is_string))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_stays_text_where_the_schema_allows_one() {
        let text = json!({ "type": "string" });
        let nothing = json!({ "type": "null" });
        let parameters = json!({
            "type": "object",
            "$defs": { "Zip": text, "Maybe": { "anyOf": [{ "$ref": "#/$defs/Zip" }, nothing] }, "Loop": { "$ref": "#/$defs/Loop" } },
            "properties": {
                "plain": text, "list": { "type": ["null", "string"] }, "any": { "anyOf": [text, nothing] },
                "one": { "oneOf": [{ "type": "array" }, text] }, "ref": { "$ref": "#/$defs/Zip" },
                "deep": { "$ref": "#/$defs/Maybe" }, "all": { "allOf": [{ "$ref": "#/$defs/Zip" }, { "minLength": 1 }] },
                "words": { "enum": ["1", "2"] }, "mixed": { "enum": [1, "auto"] }, "constant": { "const": "7" },
                "number": { "anyOf": [{ "type": "integer" }, nothing] }, "both": { "type": "integer", "anyOf": [text, nothing] },
                "loop": { "$ref": "#/$defs/Loop" }, "lost": { "$ref": "#/$defs/Nothing" }, "free": {},
            },
        });
        let tools =
            Definitions::new(&[json!({ "type": "function", "function": { "name": "f", "parameters": parameters } })]);
        for (parameter, written, want) in [
            ("plain", "007", "\"007\""),
            ("list", "true", "\"true\""),
            ("any", "12345", "\"12345\""),
            ("one", "1e5", "\"1e5\""),
            ("ref", " 1 ", "\" 1 \""),
            ("deep", "12345678901234567890123", "\"12345678901234567890123\""),
            ("all", "{}", "\"{}\""),
            ("words", "1", "\"1\""),
            ("mixed", "1", "1"),
            ("mixed", "auto", "\"auto\""),
            ("constant", "7", "\"7\""),
            ("number", "12345678901234567890123", "12345678901234567890123"),
            ("number", "None", "null"),
            ("number", "null", "null"),
            ("both", "3", "3"),
            ("loop", "1", "1"),
            ("lost", "True", "true"),
            ("free", "1.50", "1.50"),
            ("free", "one", "\"one\""),
            ("unknown", "[1, 2]", "[1, 2]"),
        ] {
            assert_eq!(tools.argument("f", parameter, written), want, "{parameter} = {written}");
        }
    }

    #[test]
    fn names_are_those_of_the_tools() {
        let tools = Definitions::new(&[json!({ "type": "function", "function": { "name": "f" } })]);
        let found =
            ["f", "functions.f", "functions.f:0", "f:12", "g", "", "functions.", ":"].map(|name| tools.resolve(name));
        assert_eq!(found, [Some("f"), Some("f"), Some("f"), Some("f"), None, None, None, None]);
        assert_eq!(Definitions::new(&[]).resolve("functions.any:3"), Some("any"));
        assert_eq!(Definitions::new(&[]).resolve(""), None);
    }
}
