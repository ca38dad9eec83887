//! Key-value pairs: the thirteen value types and their encoding, read and written.

use std::fmt::Arguments;

use super::cursor::Cursor;
use crate::format::{Array, Metadata, Value};
use thermocline_base::error::Result;

/// Most levels of nested arrays. No known file nests arrays, and each level uses stack.
const MOST_NESTED: usize = 4;
/// Longest key in bytes, set by the format.
const LONGEST_KEY: usize = 65535;

/// A value's type tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [ValueType; 13] = {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64]
    };

    /// Fewest bytes of a value. A string has at least its length, an array its element type and
    /// length.
    fn least_bytes(self) -> u64 {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => 1,
            ValueType::U16 | ValueType::I16 => 2,
            ValueType::U32 | ValueType::I32 | ValueType::F32 => 4,
            ValueType::U64 | ValueType::I64 | ValueType::F64 | ValueType::String => 8,
            ValueType::Array => 12,
        }
    }

    fn read(cursor: &mut Cursor<'_>, field: Arguments<'_>) -> Result<Self> {
        let offset = cursor.position();
        let id = cursor.u32(field)?;
        ValueType::ALL
            .into_iter()
            .find(|kind| *kind as u32 == id)
            .ok_or_else(|| cursor.error_at(offset, field, "a value type from 0 to 12", id))
    }
}

/// Reads `pairs` pairs into `metadata`. A duplicate key is an error.
pub(super) fn read_pairs(cursor: &mut Cursor<'_>, pairs: usize, metadata: &mut Metadata) -> Result<()> {
    for at in 0..pairs {
        let offset = cursor.position();
        let key = &*cursor.text(format_args!("key {at}"))?;
        if key.is_empty() || key.len() > LONGEST_KEY {
            let expected = format!("a key of 1 to {LONGEST_KEY} bytes");
            return Err(cursor.error_at(offset, format_args!("key {at}"), expected, format!("{} bytes", key.len())));
        }
        if metadata.get(key).is_some() {
            return Err(cursor.error_at(offset, format_args!("key `{key}`"), "each key once", "the key twice"));
        }
        let kind = ValueType::read(cursor, format_args!("type of key `{key}`"))?;
        let value = read_value(cursor, kind, key)?;
        metadata.set(key, value);
    }
    Ok(())
}

fn read_value(cursor: &mut Cursor<'_>, kind: ValueType, key: &str) -> Result<Value> {
    Ok(match kind {
        ValueType::String => Value::String(cursor.text(format_args!("string of key `{key}`"))?.into_owned()),
        ValueType::Array => Value::Array(read_array(cursor, key, 0)?),
        // A scalar is read as an array of one element without a count.
        _ => match read_items(cursor, kind, 1, key, 0)? {
            Array::U8(v) => Value::U8(v[0]),
            Array::I8(v) => Value::I8(v[0]),
            Array::U16(v) => Value::U16(v[0]),
            Array::I16(v) => Value::I16(v[0]),
            Array::U32(v) => Value::U32(v[0]),
            Array::I32(v) => Value::I32(v[0]),
            Array::U64(v) => Value::U64(v[0]),
            Array::I64(v) => Value::I64(v[0]),
            Array::F32(v) => Value::F32(v[0]),
            Array::F64(v) => Value::F64(v[0]),
            Array::Bool(v) => Value::Bool(v[0]),
            array @ (Array::String(_) | Array::Bytes(_) | Array::Array(_)) => Value::Array(array),
        },
    })
}

fn read_array(cursor: &mut Cursor<'_>, key: &str, depth: usize) -> Result<Array> {
    let offset = cursor.position();
    let kind = ValueType::read(cursor, format_args!("element type of key `{key}`"))?;
    if kind == ValueType::Array && depth + 1 >= MOST_NESTED {
        let expected = format!("arrays nested at most {MOST_NESTED} deep");
        return Err(cursor.error_at(offset, format_args!("element type of key `{key}`"), expected, "a deeper array"));
    }
    let count = cursor.count(kind.least_bytes(), format_args!("length of array `{key}`"))?;
    read_items(cursor, kind, count, key, depth)
}

fn read_items(cursor: &mut Cursor<'_>, kind: ValueType, count: usize, key: &str, depth: usize) -> Result<Array> {
    let offset = cursor.position();
    let field = format_args!("value of key `{key}`");
    let mut plain = || cursor.take((count as u64).saturating_mul(kind.least_bytes()), field);
    Ok(match kind {
        ValueType::U8 => Array::U8(plain()?.to_vec()),
        ValueType::I8 => Array::I8(decode(plain()?, i8::from_le_bytes)),
        ValueType::U16 => Array::U16(decode(plain()?, u16::from_le_bytes)),
        ValueType::I16 => Array::I16(decode(plain()?, i16::from_le_bytes)),
        ValueType::U32 => Array::U32(decode(plain()?, u32::from_le_bytes)),
        ValueType::I32 => Array::I32(decode(plain()?, i32::from_le_bytes)),
        ValueType::U64 => Array::U64(decode(plain()?, u64::from_le_bytes)),
        ValueType::I64 => Array::I64(decode(plain()?, i64::from_le_bytes)),
        ValueType::F32 => Array::F32(decode(plain()?, f32::from_le_bytes)),
        ValueType::F64 => Array::F64(decode(plain()?, f64::from_le_bytes)),
        ValueType::Bool => {
            let bytes = plain()?;
            if let Some(at) = bytes.iter().position(|&byte| byte > 1) {
                let offset = offset.saturating_add(at as u64);
                return Err(cursor.error_at(offset, field, "a bool, 0 or 1", bytes[at]));
            }
            Array::Bool(bytes.iter().map(|&byte| byte == 1).collect())
        }
        ValueType::String => {
            let mut items = Vec::with_capacity(count);
            for at in 0..count {
                items.push(cursor.string(format_args!("element {at} of key `{key}`"))?);
            }
            let texts: Option<Vec<String>> =
                items.iter().map(|item| std::str::from_utf8(item).ok().map(str::to_owned)).collect();
            texts.map_or_else(|| Array::Bytes(items.iter().map(|item| item.to_vec()).collect()), Array::String)
        }
        ValueType::Array => {
            let mut items = Vec::with_capacity(count);
            for _ in 0..count {
                items.push(read_array(cursor, key, depth + 1)?);
            }
            Array::Array(items)
        }
    })
}

fn decode<const N: usize, T>(bytes: &[u8], from_le_bytes: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|&item| from_le_bytes(item)).collect()
}

/// Appends one pair.
pub(super) fn write_pair(out: &mut Vec<u8>, key: &str, value: &Value) {
    write_string(out, key);
    match value {
        Value::U8(v) => write_scalar(out, ValueType::U8, &v.to_le_bytes()),
        Value::I8(v) => write_scalar(out, ValueType::I8, &v.to_le_bytes()),
        Value::U16(v) => write_scalar(out, ValueType::U16, &v.to_le_bytes()),
        Value::I16(v) => write_scalar(out, ValueType::I16, &v.to_le_bytes()),
        Value::U32(v) => write_scalar(out, ValueType::U32, &v.to_le_bytes()),
        Value::I32(v) => write_scalar(out, ValueType::I32, &v.to_le_bytes()),
        Value::U64(v) => write_scalar(out, ValueType::U64, &v.to_le_bytes()),
        Value::I64(v) => write_scalar(out, ValueType::I64, &v.to_le_bytes()),
        Value::F32(v) => write_scalar(out, ValueType::F32, &v.to_le_bytes()),
        Value::F64(v) => write_scalar(out, ValueType::F64, &v.to_le_bytes()),
        Value::Bool(v) => write_scalar(out, ValueType::Bool, &[u8::from(*v)]),
        Value::String(v) => {
            out.extend((ValueType::String as u32).to_le_bytes());
            write_string(out, v);
        }
        Value::Array(v) => {
            out.extend((ValueType::Array as u32).to_le_bytes());
            write_array(out, v);
        }
    }
}

pub(super) fn write_string(out: &mut Vec<u8>, text: impl AsRef<[u8]>) {
    let bytes = text.as_ref();
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

fn write_scalar(out: &mut Vec<u8>, kind: ValueType, bytes: &[u8]) {
    out.extend((kind as u32).to_le_bytes());
    out.extend(bytes);
}

fn write_array(out: &mut Vec<u8>, array: &Array) {
    match array {
        Array::U8(v) => write_items(out, ValueType::U8, v, |out, v| out.push(*v)),
        Array::I8(v) => write_items(out, ValueType::I8, v, |out, v| out.extend(v.to_le_bytes())),
        Array::U16(v) => write_items(out, ValueType::U16, v, |out, v| out.extend(v.to_le_bytes())),
        Array::I16(v) => write_items(out, ValueType::I16, v, |out, v| out.extend(v.to_le_bytes())),
        Array::U32(v) => write_items(out, ValueType::U32, v, |out, v| out.extend(v.to_le_bytes())),
        Array::I32(v) => write_items(out, ValueType::I32, v, |out, v| out.extend(v.to_le_bytes())),
        Array::U64(v) => write_items(out, ValueType::U64, v, |out, v| out.extend(v.to_le_bytes())),
        Array::I64(v) => write_items(out, ValueType::I64, v, |out, v| out.extend(v.to_le_bytes())),
        Array::F32(v) => write_items(out, ValueType::F32, v, |out, v| out.extend(v.to_le_bytes())),
        Array::F64(v) => write_items(out, ValueType::F64, v, |out, v| out.extend(v.to_le_bytes())),
        Array::Bool(v) => write_items(out, ValueType::Bool, v, |out, v| out.push(u8::from(*v))),
        Array::String(v) => write_items(out, ValueType::String, v, |out, v| write_string(out, v)),
        Array::Bytes(v) => write_items(out, ValueType::String, v, |out, v| write_string(out, v)),
        Array::Array(v) => write_items(out, ValueType::Array, v, write_array),
    }
}

/// Appends the element type, the length and each item. `write` encodes an item.
fn write_items<T>(out: &mut Vec<u8>, kind: ValueType, items: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
    out.extend((kind as u32).to_le_bytes());
    out.extend((items.len() as u64).to_le_bytes());
    items.iter().for_each(|item| write(out, item));
}
