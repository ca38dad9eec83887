//! JSON schemas for a whole answer or for the arguments of a call.

use serde_json::{Map, Value, json};

use super::schema_reader::{SchemaReader, is_closed};
use thermocline_base::error::{Error, Result};

/// A schema with resolved references that contains only supported keywords.
///
/// Its definitions have prefixed names, so that definitions of several tools do not collide.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonSchema {
    root: Value,
    /// The schemas that references point to, by name.
    definitions: Map<String, Value>,
    /// True if unsupported keywords were refused.
    strict: bool,
}

/// A callable function and the schema of its arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct CallSchema {
    /// Name of the function.
    pub name: String,
    /// Schema of the arguments, from [`JsonSchema::of_arguments`].
    pub arguments: JsonSchema,
}

impl JsonSchema {
    /// Reads a client's schema, with references into itself in any pointer notation, and `null` for
    /// a missing keyword.
    ///
    /// Unsupported keywords, unknown formats and a client's `x-guidance` constrain nothing; with
    /// `strict` they are refused by name. [`Error::Invalid`] names the position in the schema.
    pub fn new(schema: &Value, strict: bool) -> Result<Self> {
        Self::read(schema, "d", strict)
    }

    /// Any JSON object.
    pub fn any_object() -> Self {
        JsonSchema { root: json!({ "type": "object" }), definitions: Map::new(), strict: false }
    }

    /// The schema of the arguments of function `number` of a request. It is always an object, and
    /// an empty one if `parameters` names no properties.
    pub fn of_arguments(parameters: &Value, number: usize, strict: bool) -> Result<Self> {
        let prefix = format!("t{number}-");
        let none = json!({});
        let parameters = if parameters.is_null() { &none } else { parameters };
        let mut schema = Self::read(parameters, &prefix, strict)?;
        let kind = &parameters["type"];
        let is_object =
            kind.is_null() || kind == "object" || kind.as_array().is_some_and(|it| it.contains(&"object".into()));
        if !is_object || !parameters.is_object() {
            return Err(Error::invalid("grammar", "the type object at #/type", kind));
        }
        schema.root["type"] = "object".into();
        if is_closed(parameters) {
            schema.root["additionalProperties"] = false.into();
        }
        Ok(schema)
    }

    /// The schema of a call to one of these functions: an object with `name` and `arguments`.
    pub fn of_calls(calls: Vec<CallSchema>) -> Self {
        let strict = calls.iter().any(|call| call.arguments.strict);
        let mut definitions = Map::new();
        let mut options: Vec<Value> = Vec::new();
        for CallSchema { name, arguments } in calls {
            definitions.extend(arguments.definitions);
            options.push(json!({
                "type": "object",
                "properties": { "name": { "const": name }, "arguments": arguments.root },
                "required": ["name", "arguments"],
                "additionalProperties": false,
            }));
        }
        let root = if options.len() == 1 { options.remove(0) } else { json!({ "anyOf": options }) };
        JsonSchema { root, definitions, strict }
    }

    /// The schema with the options for the grammar library.
    ///
    /// White space is fixed, because small models otherwise write it line after line. `oneOf` is
    /// treated as `anyOf` if its alternatives are not provably disjoint.
    pub fn for_library(&self) -> Value {
        let mut whole = match &self.root {
            Value::Object(root) => root.clone(),
            other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
        };
        if !self.definitions.is_empty() {
            whole.insert("$defs".to_owned(), self.definitions.clone().into());
        }
        let options = json!({
            "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ",
            "coerce_one_of": true, "lenient": !self.strict,
        });
        whole.insert("x-guidance".to_owned(), options);
        whole.into()
    }

    fn read(schema: &Value, prefix: &str, strict: bool) -> Result<Self> {
        let mut reader = SchemaReader::new(schema, prefix, strict);
        let root = reader.read_root()?;
        Ok(JsonSchema { root, definitions: reader.into_definitions(), strict })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(schema: Value) -> Value {
        let mut whole = JsonSchema::new(&schema, false).unwrap().for_library();
        whole.as_object_mut().unwrap().remove("x-guidance");
        whole
    }

    #[test]
    fn references_are_resolved_in_every_notation_of_pointers() {
        for (reference, name) in [
            ("#/$defs/a", "a"),
            ("#/$defs/deep~1root", "deep/root"),
            ("#/$defs/deep%7E1root", "deep/root"),
            ("#/$defs/deep%2Froot", "deep/root"),
            ("#/$defs/a~0b", "a~b"),
            ("#/$defs/a~01", "a~1"),
            ("#/$defs/Leaf%5Bint%5D", "Leaf[int]"),
            ("#/$defs/Leaf[int]", "Leaf[int]"),
            ("#/$defs/a%20b", "a b"),
            ("#/$defs/a b", "a b"),
            ("#/$defs/100%25", "100%"),
            ("#/$defs/100%", "100%"),
            ("#/$defs/a%20c", "a%20c"),
            ("#/$defs/Gr%C3%B6%C3%9Fe", "Größe"),
            ("#/$defs/Größe", "Größe"),
            ("#/$defs/List<a:b>", "List<a:b>"),
        ] {
            let schema = json!({ "properties": { "x": { "$ref": reference } }, "$defs": { name: { "type": "null" } } });
            let read = read(schema);
            assert_eq!(read["properties"]["x"]["$ref"], "#/$defs/d0", "{reference}");
            assert_eq!(read["$defs"], json!({ "d0": { "type": "null" } }), "{reference}");
        }
        let schema = json!({ "anyOf": [{ "type": "null" }, { "items": { "$ref": "#" } }], "x": [{ "const": 1 }], "not": { "$ref": "#/x/0" } });
        let whole = read(schema);
        assert_eq!(whole["anyOf"][1]["items"]["$ref"], "#/$defs/d0");
        assert_eq!(whole["$defs"]["d0"]["anyOf"][1]["items"]["$ref"], "#/$defs/d0");
        let within = json!({ "$id": "http://x/y", "items": { "$ref": "http://x/y#/z/0" }, "z": [{ "const": 1 }] });
        assert_eq!(read(within)["$defs"]["d0"], json!({ "const": 1 }));
    }

    #[test]
    fn instances_and_properties_called_like_keywords_stay_as_they_are() {
        let schema = json!({
            "properties": {
                "$ref": { "type": "string" },
                "enum": { "enum": [{ "$ref": "#/nowhere" }, null] },
                "format": { "const": null },
            },
            "required": ["$ref", "enum"],
        });
        assert_eq!(read(schema.clone()), schema);
    }

    #[test]
    fn null_is_no_keyword_and_whole_numbers_may_have_a_point() {
        let schema = json!({ "type": "object", "properties": null, "required": null, "additionalProperties": null, "maxProperties": 2.0 });
        assert_eq!(read(schema), json!({ "type": "object", "maxProperties": 2 }));
    }

    #[test]
    fn keywords_that_cannot_be_followed_are_left_out_unless_strict() {
        for (keyword, value) in [
            ("uniqueItems", json!(true)),
            ("not", json!({ "type": "string" })),
            ("if", json!({})),
            ("contains", json!({})),
            ("propertyNames", json!({})),
            ("dependentRequired", json!({ "a": ["b"] })),
            ("unevaluatedProperties", json!(false)),
            ("x-guidance", json!({ "whitespace_flexible": true })),
            ("format", json!("file-path")),
        ] {
            let schema = json!({ "properties": { "a": { "type": "array", keyword: value } } });
            assert_eq!(read(schema.clone()), json!({ "properties": { "a": { "type": "array" } } }), "{keyword}");
            let error = JsonSchema::new(&schema, true).unwrap_err().to_string();
            assert!(error.contains(&format!("#/properties/a/{keyword}")), "{error}");
        }
        let harmless =
            json!({ "type": "string", "format": "date", "uniqueItems": false, "title": "x", "deprecated": true });
        let strict = JsonSchema::new(&harmless, true).unwrap();
        assert_eq!(strict.root, json!({ "type": "string", "format": "date" }));
        assert_eq!(strict.for_library()["x-guidance"]["lenient"], false);
    }

    #[test]
    fn errors_name_the_place_in_the_schema() {
        for (schema, says) in [
            (json!({ "items": { "$ref": "#/$defs/x" } }), "#/items/$ref, got \"#/$defs/x\""),
            (json!({ "$ref": "http://example.org/x" }), "#/$ref, got \"http://example.org/x\""),
            (json!({ "$ref": "#anchor", "$anchor": "anchor" }), "got \"#anchor\""),
            (json!({ "$ref": 7 }), "#/$ref, got 7"),
            (json!({ "properties": { "a/b": 7 } }), "#/properties/a~1b, got 7"),
            (json!({ "properties": [] }), "#/properties, got []"),
            (json!({ "allOf": {} }), "#/allOf, got {}"),
            (json!({ "minimum": "ä".repeat(200) }), "#/minimum, got \"ää"),
            (json!({ "multipleOf": 0 }), "#/multipleOf, got 0"),
            (json!({ "pattern": ["a"] }), "#/pattern, got"),
            (
                json!({ "properties": { "latin": { "pattern": "^(?!\\s)[a-z]+$" } } }),
                "#/properties/latin/pattern, got `^(?!\\s)[a-z]+$`, character 2: ",
            ),
            (json!({ "patternProperties": { "a{,": true } }), "#/patternProperties, got `a{,`, character "),
        ] {
            let error = JsonSchema::new(&schema, false).unwrap_err().to_string();
            assert!(error.starts_with("grammar: expected ") && error.contains(says), "{error}");
        }
    }

    #[test]
    fn copies_of_what_references_share_are_limited() {
        let mut schema = json!({ "enum": vec!["x".repeat(100); 4000] });
        for _ in 0..60 {
            schema = json!({ "items": schema });
        }
        let pointers = (0..60).map(|depth| json!({ "$ref": format!("#/x{}", "/items".repeat(depth)) }));
        let schema = json!({ "anyOf": pointers.collect::<Vec<_>>(), "x": schema });
        let error = JsonSchema::new(&schema, false).unwrap_err().to_string();
        assert!(error.contains("a smaller schema"), "{error}");
    }

    #[test]
    fn arguments_are_an_object_and_empty_where_no_parameters_are_named() {
        let root = |parameters: Value| JsonSchema::of_arguments(&parameters, 0, false).map(|schema| schema.root);
        for none in [
            Value::Null,
            json!({}),
            json!({ "properties": {} }),
            json!({ "type": "object", "properties": null, "required": null }),
            json!({ "type": "object", "description": "Nothing.", "additionalProperties": false }),
        ] {
            let root = root(none.clone()).unwrap();
            assert_eq!((&root["type"], &root["additionalProperties"]), (&json!("object"), &json!(false)), "{none}");
        }
        for some in [
            json!({ "properties": { "a": {} } }),
            json!({ "type": ["null", "object"], "additionalProperties": true }),
            json!({ "propertyNames": { "maxLength": 3 } }),
            json!({ "anyOf": [{ "required": ["a"] }] }),
        ] {
            let root = root(some.clone()).unwrap();
            assert_eq!(root["type"], "object", "{some}");
            assert_ne!(root.get("additionalProperties"), Some(&json!(false)), "{some}");
        }
        assert!(root(json!({ "type": "string" })).unwrap_err().to_string().contains("#/type, got \"string\""));
    }

    #[test]
    fn definitions_of_two_functions_do_not_meet() {
        let parameters = |value: &str| json!({ "properties": { "a": { "$ref": "#/$defs/A" } }, "$defs": { "A": { "const": value } } });
        let call = |number: usize, name: &str| CallSchema {
            name: name.to_owned(),
            arguments: JsonSchema::of_arguments(&parameters(name), number, false).unwrap(),
        };
        let whole = JsonSchema::of_calls(vec![call(0, "f"), call(2, "g")]).for_library();
        assert_eq!(whole["$defs"], json!({ "t0-0": { "const": "f" }, "t2-0": { "const": "g" } }));
        let second = &whole["anyOf"][1]["properties"]["arguments"]["properties"]["a"];
        assert_eq!(second["$ref"], "#/$defs/t2-0");
    }
}
