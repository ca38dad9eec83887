//! Metadata values as people and programs read them.

use serde_json::{Value as Json, json};
use thermocline_engine::format::{Array, Value};

use crate::cli::failure::one_line;

/// Longest metadata text shown in full, in characters.
const LONGEST_TEXT: usize = 60;
/// Largest number of elements of a metadata array shown as JSON.
const MOST_ELEMENTS: usize = 16;

/// `text` on one line of limited length.
pub fn clipped(text: &str) -> String {
    let line = one_line(text);
    if line.chars().count() <= LONGEST_TEXT {
        return line;
    }
    line.chars().take(LONGEST_TEXT - 1).chain(['…']).collect()
}

/// A value on one line; an array by its length and type.
pub fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => clipped(text),
        Value::Array(array) => {
            let (length, element) = describe(array);
            format!("[{length} x {element}]")
        }
        other => value_json(other).to_string(),
    }
}

/// Length and name of the element type.
fn describe(array: &Array) -> (usize, &'static str) {
    match array {
        Array::U8(v) => (v.len(), "u8"),
        Array::I8(v) => (v.len(), "i8"),
        Array::U16(v) => (v.len(), "u16"),
        Array::I16(v) => (v.len(), "i16"),
        Array::U32(v) => (v.len(), "u32"),
        Array::I32(v) => (v.len(), "i32"),
        Array::U64(v) => (v.len(), "u64"),
        Array::I64(v) => (v.len(), "i64"),
        Array::F32(v) => (v.len(), "f32"),
        Array::F64(v) => (v.len(), "f64"),
        Array::Bool(v) => (v.len(), "bool"),
        Array::String(v) => (v.len(), "string"),
        Array::Bytes(v) => (v.len(), "string"),
        Array::Array(v) => (v.len(), "array"),
    }
}

/// JSON of a value; long arrays by type, length and first elements.
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
            let (length, element) = describe(array);
            let first = first_elements(array);
            if length <= MOST_ELEMENTS { first } else { json!({ "type": element, "length": length, "first": first }) }
        }
    }
}

/// JSON of the first elements.
fn first_elements(array: &Array) -> Json {
    fn head<T: serde::Serialize>(values: &[T]) -> Json {
        json!(values[..values.len().min(MOST_ELEMENTS)])
    }
    match array {
        Array::U8(v) => head(v),
        Array::I8(v) => head(v),
        Array::U16(v) => head(v),
        Array::I16(v) => head(v),
        Array::U32(v) => head(v),
        Array::I32(v) => head(v),
        Array::U64(v) => head(v),
        Array::I64(v) => head(v),
        Array::F32(v) => head(v),
        Array::F64(v) => head(v),
        Array::Bool(v) => head(v),
        Array::String(v) => head(v),
        Array::Bytes(v) => v.iter().take(MOST_ELEMENTS).map(|text| json!(String::from_utf8_lossy(text))).collect(),
        Array::Array(v) => v.iter().take(MOST_ELEMENTS).map(first_elements).collect(),
    }
}
