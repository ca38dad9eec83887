//! Formats metadata values for users and programs.

use serde_json::{Value as Json, json};
use thermocline_engine::format::{Array, Value};

use thermocline_terminal::failure::one_line;

/// Longest metadata text shown in full, in characters.
const LONGEST_TEXT: usize = 60;
/// Largest number of elements of a metadata array shown as JSON.
const MOST_ELEMENTS: usize = 16;

/// Shortens `text` to one line of limited length.
pub fn clipped(text: &str) -> String {
    let line = one_line(text);
    if line.chars().count() <= LONGEST_TEXT {
        return line;
    }
    line.chars().take(LONGEST_TEXT - 1).chain(['…']).collect()
}

/// Formats a value on one line, and an array by its length and type.
pub fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => clipped(text),
        Value::Array(array) => {
            let (length, element, _) = parts(array);
            format!("[{length} x {element}]")
        }
        other => value_json(other).to_string(),
    }
}

/// Formats a value as JSON, and a long array by its type, length and first elements.
pub fn value_json(value: &Value) -> Json {
    match value {
        Value::U8(v) => json!(v),
        Value::I8(v) => json!(v),
        Value::U16(v) => json!(v),
        Value::I16(v) => json!(v),
        Value::U32(v) => json!(v),
        Value::I32(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::I64(v) => json!(v),
        Value::F32(v) => json!(v),
        Value::F64(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::String(v) => json!(v),
        Value::Array(array) => {
            let (length, element, first) = parts(array);
            if length <= MOST_ELEMENTS { first } else { json!({ "type": element, "length": length, "first": first }) }
        }
    }
}

/// Returns the length, the element type's name, and the first elements as JSON.
fn parts(array: &Array) -> (usize, &'static str, Json) {
    fn of<T: serde::Serialize>(name: &'static str, values: &[T]) -> (usize, &'static str, Json) {
        (values.len(), name, json!(values[..values.len().min(MOST_ELEMENTS)]))
    }
    match array {
        Array::U8(v) => of("u8", v),
        Array::I8(v) => of("i8", v),
        Array::U16(v) => of("u16", v),
        Array::I16(v) => of("i16", v),
        Array::U32(v) => of("u32", v),
        Array::I32(v) => of("i32", v),
        Array::U64(v) => of("u64", v),
        Array::I64(v) => of("i64", v),
        Array::F32(v) => of("f32", v),
        Array::F64(v) => of("f64", v),
        Array::Bool(v) => of("bool", v),
        Array::String(v) => of("string", v),
        Array::Bytes(v) => {
            let text = |text: &Vec<u8>| json!(String::from_utf8_lossy(text));
            (v.len(), "string", v.iter().take(MOST_ELEMENTS).map(text).collect())
        }
        Array::Array(v) => (v.len(), "array", v.iter().take(MOST_ELEMENTS).map(|array| parts(array).2).collect()),
    }
}
