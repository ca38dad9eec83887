//! Writes values as Python's `json.dumps` and `repr` do.

use std::fmt::Write;

use minijinja::{Error, ErrorKind, Value, value::ValueKind};

use super::budget::Budget;
use crate::prompt_text::BREAK;

/// Widest indentation.
const INDENT: usize = 16;

/// Options of `tojson`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonStyle {
    /// Indentation of one level; `None` writes everything on one line.
    pub indent: Option<String>,
    /// Separators between elements, and between a key and its value.
    pub separators: (String, String),
    /// True to write characters outside ASCII as `\uXXXX`.
    pub ensure_ascii: bool,
    /// True to sort maps by key.
    pub sort_keys: bool,
}

impl JsonStyle {
    /// The style that the arguments of `tojson` request; missing arguments are none.
    pub fn new(indent: &Value, separators: &Value, ensure_ascii: bool, sort_keys: bool) -> Result<Self, Error> {
        let indent = match indent.as_str() {
            Some(margin) => Some(margin.chars().take(INDENT).collect()),
            None if indent.is_none() || indent.is_undefined() => None,
            None => Some(" ".repeat(indent.as_usize().unwrap_or(0).min(INDENT))),
        };
        let separators = match separators.kind() {
            ValueKind::None | ValueKind::Undefined => {
                (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned())
            }
            _ => {
                let both: Vec<Value> = separators.try_iter()?.take(3).collect();
                match both.iter().map(Value::as_str).collect::<Vec<_>>().as_slice() {
                    [Some(item), Some(key)] if item.len() + key.len() <= 2 * INDENT => {
                        ((*item).to_owned(), (*key).to_owned())
                    }
                    _ => return Err(invalid("the separators must be two short strings")),
                }
            }
        };
        Ok(JsonStyle { indent, separators, ensure_ascii, sort_keys })
    }

    /// The text of `value`, charged as it grows.
    pub fn write(&self, budget: &Budget, value: &Value) -> Result<String, Error> {
        budget.admit(std::slice::from_ref(value))?;
        let mut writer = JsonWriter { style: self, budget, text: String::new(), paid: 0, level: 0 };
        writer.value(value)?;
        writer.pay()?;
        Ok(writer.text)
    }
}

fn invalid(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {}", why.into()))
}

struct JsonWriter<'a> {
    style: &'a JsonStyle,
    budget: &'a Budget,
    text: String,
    /// Number of bytes of the text that were charged.
    paid: usize,
    level: usize,
}

impl JsonWriter<'_> {
    fn pay(&mut self) -> Result<(), Error> {
        self.budget.charge(self.text.len() - self.paid)?;
        self.paid = self.text.len();
        Ok(())
    }

    fn value(&mut self, value: &Value) -> Result<(), Error> {
        self.pay()?;
        if let Some(text) = value.as_str() {
            self.string(text);
            return Ok(());
        }
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.text.push_str(&number(value)),
            ValueKind::Seq | ValueKind::Iterable => self.sequence(value)?,
            ValueKind::Map => self.map(value)?,
            ValueKind::Undefined => {
                return Err(Error::new(ErrorKind::UndefinedError, "`tojson` cannot write an undefined value"));
            }
            other => return Err(invalid(format!("`tojson` cannot write a value of the kind {other}"))),
        }
        Ok(())
    }

    fn sequence(&mut self, value: &Value) -> Result<(), Error> {
        let mut empty = true;
        for item in value.try_iter()? {
            self.begin(&mut empty, '[');
            self.value(&item)?;
        }
        self.end(empty, '[', ']');
        Ok(())
    }

    fn map(&mut self, value: &Value) -> Result<(), Error> {
        let mut keys = Vec::new();
        for key in value.try_iter()? {
            let text = match (key.as_str(), key.kind()) {
                (Some(text), _) => text.to_owned(),
                (None, ValueKind::None) => "null".to_owned(),
                (None, ValueKind::Bool) => if key.is_true() { "true" } else { "false" }.to_owned(),
                (None, ValueKind::Number) => number(&key),
                (None, other) => return Err(invalid(format!("a key cannot be a {other}"))),
            };
            keys.push((text, key));
        }
        if self.style.sort_keys {
            keys.sort_by(|left, right| left.0.cmp(&right.0));
        }
        let mut empty = true;
        for (text, key) in keys {
            self.begin(&mut empty, '{');
            self.string(&text);
            self.text.push_str(&self.style.separators.1);
            self.value(&value.get_item(&key)?)?;
        }
        self.end(empty, '{', '}');
        Ok(())
    }

    /// Writes the bracket or separator before an element.
    fn begin(&mut self, empty: &mut bool, open: char) {
        if std::mem::take(empty) {
            self.text.push(open);
            self.level += 1;
        } else {
            self.text.push_str(&self.style.separators.0);
        }
        self.line();
    }

    /// Writes the bracket after the last element.
    fn end(&mut self, empty: bool, open: char, close: char) {
        if empty {
            self.text.push(open);
        } else {
            self.level -= 1;
            self.line();
        }
        self.text.push(close);
    }

    fn line(&mut self) {
        if let Some(margin) = &self.style.indent {
            self.text.push('\n');
            (0..self.level).for_each(|_| self.text.push_str(margin));
        }
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for character in text.chars() {
            match character {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                ' '..='~' => self.text.push(character),
                character if character >= ' ' && !self.style.ensure_ascii => self.text.push(character),
                BREAK => self.text.push(BREAK),
                character => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        // Writing to a string cannot fail.
                        let _ = write!(self.text, "\\u{unit:04x}");
                    }
                }
            }
        }
        self.text.push('"');
    }
}

/// A number in JSON's form.
fn number(value: &Value) -> String {
    match repr(value) {
        Some(float) => match float.as_str() {
            "nan" => "NaN".to_owned(),
            "inf" => "Infinity".to_owned(),
            "-inf" => "-Infinity".to_owned(),
            _ => float,
        },
        None => value.to_string(),
    }
}

/// A float as Python prints it: the shortest digits that read back the same, with an exponent from
/// 1e16 and below 1e-4. `None` for other values.
pub fn repr(value: &Value) -> Option<String> {
    if value.kind() != ValueKind::Number || value.is_integer() {
        return None;
    }
    let number = f64::try_from(value.clone()).ok()?;
    if !number.is_finite() {
        return Some(number.to_string().to_lowercase());
    }
    let size = number.abs();
    if number == 0.0 || (1e-4..1e16).contains(&size) {
        return Some(format!("{number:?}"));
    }
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e')?;
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    Some(format!("{digits}e{sign}{exponent:0>2}"))
}
