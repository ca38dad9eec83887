//! Reads a JSON schema: checks keywords, resolves references, and drops or refuses what is not
//! supported.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::pattern;
use thermocline_base::error::{Error, Result};

/// Number of characters of a value that an error quotes.
const QUOTED: usize = 80;

/// Largest number of nodes of a schema with one copy of each definition. Larger schemas take
/// seconds to compile.
const MAX_NODES: usize = 200_000;

/// Keywords with schemas by name.
const MAPS: [&str; 2] = ["properties", "patternProperties"];

/// Keywords with a list of schemas.
const LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];

/// Keywords with one schema; `items` may also hold a list.
const SCHEMAS: [&str; 3] = ["items", "additionalItems", "additionalProperties"];

/// Keywords with an integer.
const COUNTS: [&str; 6] = ["minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength"];

/// Keywords with a number. The two that exclude a bound may be booleans, as in older drafts.
const NUMBERS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// Keywords whose values are copied unchanged.
const VALUES: [&str; 4] = ["const", "enum", "type", "required"];

/// Unsupported keywords that constrain an answer, and a client's own options for the library.
const NOT_FOLLOWED: [&str; 18] = [
    "not",
    "if",
    "then",
    "else",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$recursiveRef",
    "$dynamicRef",
    "contentSchema",
    "x-guidance",
];

/// Supported string formats.
const FORMATS: [&str; 11] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"];

/// Formats of numbers, which constrain no string.
const NUMBER_FORMATS: [&str; 8] = ["int8", "int16", "int32", "int64", "uint32", "uint64", "float", "double"];

/// True if the schema of an object allows no properties: it names none and does not allow others.
pub(super) fn is_closed(schema: &Value) -> bool {
    let Some(schema) = schema.as_object() else { return false };
    let speaks = |(key, value): (&String, &Value)| match &**key {
        "type" | "x-guidance" => false,
        "properties" => value.as_object().is_some_and(|map| !map.is_empty()),
        "required" => value.as_array().is_some_and(|list| !list.is_empty()),
        "additionalProperties" => !value.is_null() && *value != false,
        key => !value.is_null() && (key == "$ref" || is_followed(key) || NOT_FOLLOWED.contains(&key)),
    };
    !schema.iter().any(speaks)
}

fn is_followed(key: &str) -> bool {
    let lists: [&[&str]; 6] = [&MAPS, &LISTS, &SCHEMAS, &COUNTS, &NUMBERS, &VALUES];
    lists.iter().any(|keys| keys.contains(&key)) || key == "pattern" || key == "format"
}

/// The reader of one schema. It turns each reference into a reference to a definition, which is a
/// copy of the target.
pub(super) struct SchemaReader<'a> {
    root: &'a Value,
    /// Prefix of the names of definitions.
    prefix: &'a str,
    strict: bool,
    /// Number of each definition, by its reference.
    numbers: HashMap<String, usize>,
    /// Definitions that are still to be read.
    waiting: Vec<String>,
    definitions: Map<String, Value>,
    nodes: usize,
}

impl<'a> SchemaReader<'a> {
    pub fn new(root: &'a Value, prefix: &'a str, strict: bool) -> Self {
        let (numbers, definitions) = (HashMap::new(), Map::new());
        SchemaReader { root, prefix, strict, numbers, waiting: Vec::new(), definitions, nodes: 0 }
    }

    /// The supported form of the schema; also collects its definitions. [`Error::Invalid`] names
    /// the position as a pointer.
    pub fn read_root(&mut self) -> Result<Value> {
        let root = self.schema(self.root, "#")?;
        while let Some(reference) = self.waiting.pop() {
            let Some(target) = self.resolve(&reference) else { continue };
            let schema = self.schema(target, &reference)?;
            let name = self.name_of(&reference);
            self.definitions.insert(name, schema);
        }
        Ok(root)
    }

    /// The definitions by name.
    pub fn into_definitions(self) -> Map<String, Value> {
        self.definitions
    }

    fn name_of(&self, reference: &str) -> String {
        format!("{}{}", self.prefix, self.numbers.get(reference).copied().unwrap_or_default())
    }

    fn schema(&mut self, value: &Value, place: &str) -> Result<Value> {
        self.count(1)?;
        let map = match value {
            Value::Bool(_) => return Ok(value.clone()),
            Value::Object(map) => map,
            other => return Err(expected("a schema: an object, true or false", place, other)),
        };
        let mut out = Map::new();
        for (key, value) in map {
            if value.is_null() && key != "const" {
                continue;
            }
            let place = format!("{place}/{}", key.replace('~', "~0").replace('/', "~1"));
            if let Some(value) = self.keyword(key, value, &place)? {
                out.insert(key.clone(), value);
            }
        }
        Ok(out.into())
    }

    /// The supported form of a keyword's value; `None` if the keyword is dropped.
    fn keyword(&mut self, key: &str, value: &Value, place: &str) -> Result<Option<Value>> {
        Ok(Some(match key {
            "$ref" => self.reference(value, place)?,
            "pattern" => match value {
                Value::String(text) => {
                    pattern::check(text, &format!(" at {place}"))?;
                    value.clone()
                }
                other => return Err(expected("a regular expression", place, other)),
            },
            "format" => return self.format(value, place),
            "items" if value.is_array() => self.list(value, place)?,
            _ if SCHEMAS.contains(&key) => self.schema(value, place)?,
            _ if LISTS.contains(&key) => self.list(value, place)?,
            _ if MAPS.contains(&key) => self.map(key, value, place)?,
            _ if COUNTS.contains(&key) => count(value, place)?,
            _ if NUMBERS.contains(&key) => number(key, value, place)?,
            _ if VALUES.contains(&key) => {
                self.count(nodes(value))?;
                value.clone()
            }
            _ if NOT_FOLLOWED.contains(&key) && self.strict && *value != (key != "uniqueItems") => {
                return Err(expected("no unsupported keyword", place, value));
            }
            _ => return Ok(None),
        }))
    }

    fn format(&self, value: &Value, place: &str) -> Result<Option<Value>> {
        match value.as_str() {
            None => Err(expected("the name of a format", place, value)),
            Some(name) if FORMATS.contains(&name) => Ok(Some(value.clone())),
            Some(name) if self.strict && !NUMBER_FORMATS.contains(&name) => {
                Err(expected(&format!("one of the formats {}", FORMATS.join(", ")), place, value))
            }
            Some(_) => Ok(None),
        }
    }

    fn list(&mut self, value: &Value, place: &str) -> Result<Value> {
        let Value::Array(list) = value else { return Err(expected("a list of schemas", place, value)) };
        list.iter().enumerate().map(|(at, it)| self.schema(it, &format!("{place}/{at}"))).collect()
    }

    fn map(&mut self, key: &str, value: &Value, place: &str) -> Result<Value> {
        let Value::Object(map) = value else { return Err(expected("an object of schemas", place, value)) };
        let mut out = Map::new();
        for (name, schema) in map {
            if key == "patternProperties" {
                pattern::check(name, &format!(" at {place}"))?;
            }
            let place = format!("{place}/{}", name.replace('~', "~0").replace('/', "~1"));
            out.insert(name.clone(), self.schema(schema, &place)?);
        }
        Ok(out.into())
    }

    fn reference(&mut self, value: &Value, place: &str) -> Result<Value> {
        let wrong = || expected("a reference to a part of the same schema", place, value);
        let reference = value.as_str().ok_or_else(wrong)?;
        self.resolve(reference).ok_or_else(wrong)?;
        let next = self.numbers.len();
        if *self.numbers.entry(reference.to_owned()).or_insert(next) == next {
            self.waiting.push(reference.to_owned());
        }
        Ok(format!("#/$defs/{}", self.name_of(reference)).into())
    }

    /// The part of the schema to which a reference points.
    ///
    /// Its segments may be escaped as in a JSON pointer, as in a URL, or not at all, because schema
    /// generators differ.
    fn resolve(&self, reference: &str) -> Option<&'a Value> {
        let identifier = self.root["$id"].as_str().unwrap_or_default().trim_end_matches('#');
        let pointer = reference.strip_prefix(identifier).unwrap_or(reference).strip_prefix('#')?;
        if pointer.is_empty() || pointer == "/" {
            return Some(self.root);
        }
        let in_segments = |pointer: &str| pointer.strip_prefix('/')?.split('/').try_fold(self.root, step);
        in_segments(pointer).or_else(|| in_segments(&decode(pointer)))
    }

    fn count(&mut self, nodes: usize) -> Result<()> {
        self.nodes += nodes;
        if self.nodes > MAX_NODES {
            let got = format!("a schema of more than {MAX_NODES} parts, counting a copy of each definition");
            return Err(Error::invalid("grammar", "a smaller schema", got));
        }
        Ok(())
    }
}

/// The part of a value that a pointer segment selects.
fn step<'a>(value: &'a Value, segment: &str) -> Option<&'a Value> {
    let unescaped = |text: &str| text.replace("~1", "/").replace("~0", "~");
    match value {
        Value::Array(list) => list.get(segment.parse::<usize>().ok()?),
        _ => value
            .get(unescaped(&decode(segment)))
            .or_else(|| value.get(unescaped(segment)))
            .or_else(|| value.get(segment)),
    }
}

/// The error for a keyword's value.
fn expected(what: &str, place: &str, got: &Value) -> Error {
    let text = got.to_string();
    let got = match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    };
    Error::invalid("grammar", format!("{what} at {place}"), got)
}

fn count(value: &Value, place: &str) -> Result<Value> {
    let whole = value.as_f64().filter(|it| it.fract() == 0.0 && *it >= 0.0);
    // No text or list is longer than the largest number that the library accepts.
    whole
        .map(|it| it.min(f64::from(u32::MAX)) as u64)
        .map(Value::from)
        .ok_or_else(|| expected("a whole number of at least 0", place, value))
}

fn number(key: &str, value: &Value, place: &str) -> Result<Value> {
    let fits = match value {
        Value::Bool(_) => key.starts_with("exclusive"),
        Value::Number(it) => key != "multipleOf" || it.as_f64().is_some_and(|it| it > 0.0),
        _ => false,
    };
    let what = if key == "multipleOf" { "a number above 0" } else { "a number" };
    if fits { Ok(value.clone()) } else { Err(expected(what, place, value)) }
}

/// Number of nodes in a value; long texts count as several.
fn nodes(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(nodes).sum::<usize>(),
        Value::Object(map) => 1 + map.iter().map(|(key, value)| 1 + key.len() / 64 + nodes(value)).sum::<usize>(),
        Value::String(text) => 1 + text.len() / 64,
        _ => 1,
    }
}

/// Decodes URL escapes. Malformed escapes, and those that do not decode to text, stay.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 3).filter(|it| byte == b'%' && it.iter().all(u8::is_ascii_hexdigit));
        let escaped = digits.and_then(|it| u8::from_str_radix(std::str::from_utf8(it).ok()?, 16).ok());
        out.push(escaped.unwrap_or(byte));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}
