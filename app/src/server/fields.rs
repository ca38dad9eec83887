//! The fields of a JSON object, taken one by one, so that what nobody takes can be refused.

use serde_json::{Map, Value};

use super::error::ApiError;

/// Characters of a wrong value that an error quotes.
const QUOTED: usize = 60;

/// What is left of an object. `null` and empty lists count as absent.
#[derive(Debug)]
pub struct Fields {
    map: Map<String, Value>,
    /// What stands before a field's name in errors, like `messages[1].`
    place: String,
}

impl Fields {
    /// Of a request's body.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let value =
            serde_json::from_slice(body).map_err(|error| ApiError::bad(format!("the body is not JSON: {error}")))?;
        match value {
            Value::Object(map) => Ok(Fields { map, place: String::new() }),
            other => Err(ApiError::bad(format!("the body: expected a JSON object, got {}", quoted(&other)))),
        }
    }

    /// Of the value of a field, or of an element of it, that `place` names.
    pub fn of(value: Value, place: &str) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Fields { map, place: format!("{place}.") }),
            other => Err(wrong(place, "an object", &other)),
        }
    }

    /// The full name of a field.
    pub fn name(&self, field: &str) -> String {
        format!("{}{field}", self.place)
    }

    /// Any value.
    pub fn take(&mut self, field: &str) -> Option<Value> {
        self.map.remove(field).filter(|value| !is_absent(value))
    }

    fn read<T>(
        &mut self,
        field: &str,
        expected: &str,
        convert: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        convert(&value).map(Some).ok_or_else(|| wrong(&self.name(field), expected, &value))
    }

    /// A number.
    pub fn number(&mut self, field: &str) -> Result<Option<f32>, ApiError> {
        self.read(field, "a number", |value| value.as_f64().map(|number| number as f32))
    }

    /// A count.
    pub fn count(&mut self, field: &str) -> Result<Option<usize>, ApiError> {
        let convert = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        self.read(field, "a whole number of at least 0", convert)
    }

    /// A whole number; negative ones stand for the large ones of the same bits.
    pub fn seed(&mut self, field: &str) -> Result<Option<u64>, ApiError> {
        let convert = |value: &Value| value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned));
        self.read(field, "a whole number", convert)
    }

    /// Yes or no.
    pub fn flag(&mut self, field: &str) -> Result<Option<bool>, ApiError> {
        self.read(field, "true or false", Value::as_bool)
    }

    /// Text.
    pub fn text(&mut self, field: &str) -> Result<Option<String>, ApiError> {
        self.read(field, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// A field of which only some values can be had, and change nothing.
    pub fn only(&mut self, field: &str, values: &[Value]) -> Result<(), ApiError> {
        let Some(value) = self.take(field) else { return Ok(()) };
        if values.contains(&value) {
            return Ok(());
        }
        let values: Vec<String> = values.iter().map(Value::to_string).collect();
        Err(wrong(&self.name(field), &values.join(" or "), &value))
    }

    /// Nothing else may be asked for.
    pub fn finish(self) -> Result<(), ApiError> {
        match self.map.iter().find(|(_, value)| !is_absent(value)) {
            None => Ok(()),
            Some((field, _)) => {
                let name = self.name(field);
                Err(ApiError::field(&name, format!("`{name}` is not supported; leave it out")))
            }
        }
    }
}

fn is_absent(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

/// `field` has a value it cannot have.
pub fn wrong(field: &str, expected: &str, got: &Value) -> ApiError {
    ApiError::field(field, format!("{field}: expected {expected}, got {}", quoted(got)))
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

    fn fields(value: Value) -> Fields {
        Fields::parse(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn values_have_types_and_absence_has_three_faces() {
        let mut it = fields(json!({ "a": 0.5, "b": null, "c": [], "d": 7, "e": -1, "f": true, "g": "x" }));
        assert_eq!(it.number("a").unwrap(), Some(0.5));
        assert_eq!((it.number("b").unwrap(), it.take("c"), it.text("h").unwrap()), (None, None, None));
        assert_eq!((it.count("d").unwrap(), it.seed("e").unwrap()), (Some(7), Some(u64::MAX)));
        assert_eq!((it.flag("f").unwrap(), it.text("g").unwrap().as_deref()), (Some(true), Some("x")));
        it.finish().unwrap();
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let message = |error: ApiError| (error.message.clone(), error.json()["error"]["param"].clone());
        let mut it = Fields::of(json!({ "n": 1.5, "long": "x".repeat(500), "rest": 0 }), "messages[3]").unwrap();
        let (text, param) = message(it.count("n").unwrap_err());
        assert_eq!(text, "messages[3].n: expected a whole number of at least 0, got 1.5");
        assert_eq!(param, "messages[3].n");
        let (text, _) = message(it.flag("long").unwrap_err());
        assert!(text.ends_with("x…") && text.len() < 150, "{text}");
        let (text, _) = message(it.finish().unwrap_err());
        assert_eq!(text, "`messages[3].rest` is not supported; leave it out");
        for body in ["", "{", "[]", "\"x\"", "{\"a\": 1e999}", "\u{0}"] {
            assert_eq!(Fields::parse(body.as_bytes()).unwrap_err().status, 400, "{body}");
        }
        assert!(Fields::parse(&"[".repeat(100_000).into_bytes()).unwrap_err().message.contains("not JSON"));
    }

    #[test]
    fn one_of_a_few_values() {
        let mut it = fields(json!({ "n": 1, "tier": "flex" }));
        it.only("n", &[json!(1)]).unwrap();
        it.only("nowhere", &[json!(1)]).unwrap();
        let error = it.only("tier", &[json!("auto"), json!("default")]).unwrap_err();
        assert_eq!(error.message, "tier: expected \"auto\" or \"default\", got \"flex\"");
    }
}
