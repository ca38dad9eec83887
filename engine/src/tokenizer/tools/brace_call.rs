//! Gemma's notation of a call: `call:NAME{key:value,...}`, with strings between quotes of its own.

use serde_json::{Map, Value};

/// Texts around strings: FunctionGemma's, Gemma 4's, JSON's.
const QUOTES: [&str; 3] = ["<escape>", "<|\"|>", "\""];

/// Nesting beyond which values are text.
const DEPTH: usize = 32;

/// A call.
#[derive(Debug, Clone, PartialEq)]
pub struct BraceCall {
    /// Name of the function.
    pub name: String,
    /// Its arguments; `None` if they are not complete.
    pub arguments: Option<Value>,
}

/// Parses a call.
pub fn parse(text: &str) -> Option<BraceCall> {
    let rest = text.trim().strip_prefix("call:")?;
    let (name, _) = rest.split_once('{')?;
    let mut reader = Reader { rest: &rest[name.len()..], is_open: false };
    let arguments = Some(reader.value(0)).filter(|_| !reader.is_open);
    Some(BraceCall { name: name.trim().to_owned(), arguments })
}

struct Reader<'a> {
    rest: &'a str,
    /// The text ended before a bracket or a quote was closed.
    is_open: bool,
}

impl Reader<'_> {
    fn value(&mut self, depth: usize) -> Value {
        self.rest = self.rest.trim_start();
        if let Some(text) = self.quoted() {
            return Value::String(text);
        }
        match self.rest.chars().next() {
            Some('{') if depth < DEPTH => {
                let mut map = Map::new();
                self.items('}', |reader| {
                    let key = reader.quoted().unwrap_or_else(|| reader.word(&[':', '}']).to_owned());
                    reader.rest = reader.rest.trim_start();
                    reader.rest = reader.rest.strip_prefix(':').unwrap_or(reader.rest);
                    let value = reader.value(depth + 1);
                    map.insert(key, value);
                });
                Value::Object(map)
            }
            Some('[') if depth < DEPTH => {
                let mut list = Vec::new();
                self.items(']', |reader| list.push(reader.value(depth + 1)));
                Value::Array(list)
            }
            _ => {
                let word = self.word(&[',', '}', ']']);
                serde_json::from_str(word).unwrap_or_else(|_| Value::String(word.to_owned()))
            }
        }
    }

    /// Reads the items behind an opening bracket, up to `close`.
    fn items(&mut self, close: char, mut item: impl FnMut(&mut Self)) {
        self.rest = &self.rest[1..];
        loop {
            self.rest = self.rest.trim_start().trim_start_matches(',').trim_start();
            if let Some(rest) = self.rest.strip_prefix(close) {
                self.rest = rest;
                return;
            }
            let before = self.rest.len();
            item(self);
            if self.rest.len() == before {
                // The end of the text, or something that no item begins with.
                self.is_open |= self.rest.is_empty();
                return;
            }
        }
    }

    fn quoted(&mut self) -> Option<String> {
        let quote = QUOTES.into_iter().find(|quote| self.rest.starts_with(quote))?;
        let rest = &self.rest[quote.len()..];
        let closed = rest.split_once(quote);
        self.is_open |= closed.is_none();
        let (text, rest) = closed.unwrap_or((rest, ""));
        self.rest = rest;
        Some(text.to_owned())
    }

    fn word(&mut self, ends: &[char]) -> &str {
        let end = self.rest.find(ends).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word.trim()
    }
}
