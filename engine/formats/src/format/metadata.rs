//! Typed key-value metadata under GGUF's key names.

use std::{collections::HashMap, path::PathBuf};

use thermocline_base::error::{Error, Location, Result};

/// A metadata array. All elements have one type.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(Vec<String>),
    /// Strings, at least one of which is not UTF-8.
    Bytes(Vec<Vec<u8>>),
    Array(Vec<Array>),
}

/// A metadata value.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

impl Value {
    /// The value as an unsigned integer, if it is a non-negative integer of any width.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// The value as a float, if it is a float of either width.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            _ => None,
        }
    }

    /// The value as text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(v) => Some(v),
            _ => None,
        }
    }

    /// The value as a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// The value's type for messages, with the value if it is a number.
    fn describe(&self) -> String {
        let ty = self.type_name();
        match (self.as_u64(), self.as_f64()) {
            (Some(number), _) => format!("{ty} {number}"),
            (_, Some(number)) => format!("{ty} {number}"),
            _ => ty.to_owned(),
        }
    }

    /// The name of the value's type, for messages.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::U8(_) => "u8",
            Value::I8(_) => "i8",
            Value::U16(_) => "u16",
            Value::I16(_) => "i16",
            Value::U32(_) => "u32",
            Value::I32(_) => "i32",
            Value::U64(_) => "u64",
            Value::I64(_) => "i64",
            Value::F32(_) => "f32",
            Value::F64(_) => "f64",
            Value::Bool(_) => "bool",
            Value::String(_) => "string",
            Value::Array(_) => "array",
        }
    }
}

/// Ordered key-value pairs of one checkpoint. Errors of the getters name the file and the key.
#[derive(Debug, Clone, Default)]
pub struct Metadata {
    path: PathBuf,
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// Empty metadata. Its errors name `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Metadata { path: path.into(), ..Self::default() }
    }

    /// The file the metadata came from.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Sets `key` and returns its previous value.
    pub fn set(&mut self, key: impl Into<String>, value: Value) -> Option<Value> {
        let key = key.into();
        if let Some(&at) = self.index.get(&key) {
            return Some(std::mem::replace(&mut self.entries[at].1, value));
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        None
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&at| &self.entries[at].1)
    }

    /// Pairs in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        self.get(key)
            .map(|value| {
                convert(value).ok_or_else(|| {
                    Error::malformed(&self.path, Location::Key(key.to_owned()), expected, value.describe())
                })
            })
            .transpose()
    }

    /// Unsigned integer under `key`. An error if the value has another type or does not fit.
    pub fn usize(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "an unsigned integer", |value| value.as_u64().and_then(|v| v.try_into().ok()))
    }

    /// Finite float under `key`. An error if the value has another type, or is NaN or infinite.
    pub fn f32(&self, key: &str) -> Result<Option<f32>> {
        self.typed(key, "a finite float", |value| value.as_f64().map(|v| v as f32).filter(|v| v.is_finite()))
    }

    /// Text under `key`. An error if the value has another type.
    pub fn str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", Value::as_str)
    }

    /// Boolean under `key`. An error if the value has another type.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a bool", Value::as_bool)
    }

    /// Array under `key`. An error if the value has another type.
    pub fn array(&self, key: &str) -> Result<Option<&Array>> {
        self.typed(key, "an array", |value| match value {
            Value::Array(array) => Some(array),
            _ => None,
        })
    }

    /// The error for a missing required key.
    pub fn missing(&self, key: &str, expected: &str) -> Error {
        Error::malformed(&self.path, Location::Key(key.to_owned()), expected, "nothing: the key is missing")
    }
}
