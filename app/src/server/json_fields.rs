//! The fields of a JSON object, removed one by one, so that those nothing has read can be refused.

use serde_json::{Map, Value};

use super::error::ApiError;
use crate::units::{Limit, Seed};

/// Characters of an invalid value that an error quotes.
const QUOTED: usize = 60;

/// Largest whole number up to which every one is also one with a point.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// True for a whole number below zero.
fn is_negative(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number < 0.0 && number.fract() == 0.0)
}

/// The fields of an object that have not been read yet. `null` and empty lists count as absent.
#[derive(Debug)]
pub struct JsonFields {
    map: Map<String, Value>,
    /// Prefix of a field's name in errors, like `messages[1].`
    prefix: String,
}

impl JsonFields {
    /// Parses a request's body.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let value = serde_json::from_slice(body)
            .map_err(|error| ApiError::bad_request(format!("the body is not JSON: {error}")))?;
        match value {
            Value::Object(map) => Ok(JsonFields::of_body(map)),
            other => Err(ApiError::bad_request(format!("the body: expected a JSON object, got {}", quoted(&other)))),
        }
    }

    /// Fields of a request's body.
    pub fn of_body(map: Map<String, Value>) -> Self {
        JsonFields { map, prefix: String::new() }
    }

    /// Fields of `value`, which errors call `path`.
    pub fn from_value(value: Value, path: &str) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(JsonFields { map, prefix: format!("{path}.") }),
            other => Err(invalid(path, "an object", &other)),
        }
    }

    /// Full path of a field, for errors.
    pub fn path(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    /// Removes a field of any type.
    pub fn remove(&mut self, field: &str) -> Option<Value> {
        self.map.remove(field).filter(|value| !is_absent(value))
    }

    /// Removes a field of any type; an empty list counts, too.
    pub fn remove_even_empty(&mut self, field: &str) -> Option<Value> {
        self.map.remove(field)
    }

    /// Removes fields that change nothing.
    pub fn ignore(&mut self, fields: &[&str]) {
        fields.iter().for_each(|field| drop(self.map.remove(*field)));
    }

    fn read<T>(
        &mut self,
        field: &str,
        expected: &str,
        convert: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.remove(field) else { return Ok(None) };
        convert(&value).map(Some).ok_or_else(|| invalid(&self.path(field), expected, &value))
    }

    /// Removes a number.
    pub fn number(&mut self, field: &str) -> Result<Option<f32>, ApiError> {
        self.read(field, "a number", |value| value.as_f64().map(|number| number as f32))
    }

    /// Removes a whole number of at least 0.
    pub fn count(&mut self, field: &str) -> Result<Option<usize>, ApiError> {
        let convert = |value: &Value| whole_number(value).and_then(|number| usize::try_from(number).ok());
        self.read(field, "a whole number of at least 0", convert)
    }

    /// Removes a limit: a whole number. One below zero is no limit, as for other servers; `strict` refuses it.
    pub fn limit(&mut self, field: &str, strict: bool) -> Result<Option<Limit>, ApiError> {
        if strict {
            return Ok(self.count(field)?.map(Limit::Of));
        }
        let count = |value: &Value| whole_number(value).and_then(|number| usize::try_from(number).ok());
        let convert = |value: &Value| if is_negative(value) { Some(Limit::None) } else { count(value).map(Limit::Of) };
        self.read(field, "a whole number", convert)
    }

    /// Removes a seed: a whole number.
    pub fn seed(&mut self, field: &str) -> Result<Option<Seed>, ApiError> {
        let convert =
            |value: &Value| if is_negative(value) { Some(Seed::Any) } else { whole_number(value).map(Seed::Fixed) };
        self.read(field, "a whole number", convert)
    }

    /// Removes a boolean.
    pub fn boolean(&mut self, field: &str) -> Result<Option<bool>, ApiError> {
        self.read(field, "true or false", Value::as_bool)
    }

    /// Removes a string.
    pub fn string(&mut self, field: &str) -> Result<Option<String>, ApiError> {
        self.read(field, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// Removes a field that is accepted only with one of `values`, which change nothing.
    pub fn accept_only(&mut self, field: &str, values: &[Value]) -> Result<(), ApiError> {
        let Some(value) = self.remove(field) else { return Ok(()) };
        if values.contains(&value) {
            return Ok(());
        }
        let values: Vec<String> = values.iter().map(Value::to_string).collect();
        Err(invalid(&self.path(field), &values.join(" or "), &value))
    }

    /// Refuses the fields that are left.
    pub fn finish(self) -> Result<(), ApiError> {
        match self.map.iter().find(|(_, value)| !is_absent(value)) {
            None => Ok(()),
            Some((field, _)) => {
                let name = self.path(field);
                Err(ApiError::invalid_field(&name, format!("`{name}` is not supported; leave it out")))
            }
        }
    }
}

/// A whole number of at least 0, which clients without such a type write with a point: `1.0`.
pub fn whole_number(value: &Value) -> Option<u64> {
    let exact = |number: f64| (number.fract() == 0.0 && (0.0..=EXACT).contains(&number)).then_some(number as u64);
    value.as_u64().or_else(|| value.as_f64().and_then(exact))
}

fn is_absent(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

/// The error for an invalid value of `field`.
pub fn invalid(field: &str, expected: &str, got: &Value) -> ApiError {
    ApiError::invalid_field(field, format!("{field}: expected {expected}, got {}", quoted(got)))
}

fn quoted(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> JsonFields {
        JsonFields::parse(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn fields_are_typed_and_null_empty_or_missing_ones_are_none() {
        let mut it = fields(
            json!({ "a": 0.5, "b": null, "c": [], "d": 7, "e": -1, "i": 2.0, "j": u64::MAX, "k": -3.0, "f": true, "g": "x" }),
        );
        assert_eq!(it.number("a").unwrap(), Some(0.5));
        assert_eq!((it.number("b").unwrap(), it.remove("c"), it.string("h").unwrap()), (None, None, None));
        assert_eq!((it.count("d").unwrap(), it.seed("e").unwrap()), (Some(7), Some(Seed::Any)));
        assert_eq!((it.count("i").unwrap(), it.seed("j").unwrap()), (Some(2), Some(Seed::Fixed(u64::MAX))));
        assert_eq!(it.seed("k").unwrap(), Some(Seed::Any));
        assert_eq!((it.boolean("f").unwrap(), it.string("g").unwrap().as_deref()), (Some(true), Some("x")));
        it.finish().unwrap();
    }

    #[test]
    fn errors_name_the_full_path_of_the_field() {
        let message = |error: ApiError| (error.message.clone(), error.json()["error"]["param"].clone());
        let mut it =
            JsonFields::from_value(json!({ "n": 1.5, "long": "x".repeat(500), "rest": 0 }), "messages[3]").unwrap();
        let (text, param) = message(it.count("n").unwrap_err());
        assert_eq!(text, "messages[3].n: expected a whole number of at least 0, got 1.5");
        assert_eq!(param, "messages[3].n");
        for number in [json!(-1.0), json!(1e300), json!("1"), json!(-7)] {
            assert!(fields(json!({ "n": number })).count("n").is_err(), "{number}");
        }
        assert!(fields(json!({ "n": -0.5 })).seed("n").is_err() && fields(json!({ "n": 1e300 })).seed("n").is_err());
        let (text, _) = message(it.boolean("long").unwrap_err());
        assert!(text.ends_with("x…") && text.len() < 150, "{text}");
        let (text, _) = message(it.finish().unwrap_err());
        assert_eq!(text, "`messages[3].rest` is not supported; leave it out");
        for body in ["", "{", "[]", "\"x\"", "{\"a\": 1e999}", "\u{0}"] {
            assert_eq!(JsonFields::parse(body.as_bytes()).unwrap_err().status, 400, "{body}");
        }
        assert!(JsonFields::parse(&"[".repeat(100_000).into_bytes()).unwrap_err().message.contains("not JSON"));
    }

    #[test]
    fn accept_only_refuses_other_values() {
        let mut it = fields(json!({ "n": 1, "tier": "flex" }));
        it.accept_only("n", &[json!(1)]).unwrap();
        it.accept_only("nowhere", &[json!(1)]).unwrap();
        let error = it.accept_only("tier", &[json!("auto"), json!("default")]).unwrap_err();
        assert_eq!(error.message, "tier: expected \"auto\" or \"default\", got \"flex\"");
    }
}
